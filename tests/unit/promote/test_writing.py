import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from promote_cases import deployment, trial

from autotune.errors import InvalidOption, StorageError
from autotune.promote import RenderedFile, Target, render, write_files
from autotune.promote.writing import check_files, folder_held


def test_files_are_written_with_their_modes(tmp_path: Path) -> None:
    files = render(deployment(), list(Target))
    paths = write_files(files, tmp_path / "new" / "out", deployment="prod-chat")
    assert [path.read_text(encoding="utf-8") for path in paths] == [file.text for file in files]
    assert [path.stat().st_mode & 0o777 for path in paths] == [file.mode for file in files]
    assert len(list((tmp_path / "new" / "out").iterdir())) == len(files)


def test_an_unedited_file_of_the_same_deployment_is_replaced(tmp_path: Path) -> None:
    write_files(render(deployment(), [Target.SHELL]), tmp_path, deployment="prod-chat")
    newer = render(deployment(trial({"max-num-seqs": 9})), [Target.SHELL])
    (path,) = write_files(newer, tmp_path, deployment="prod-chat")
    assert "--max-num-seqs" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize("present", ["", "mine\n", "# Rendered by autotune 1 for deployment prod-chat\n"])
def test_a_foreign_file_stops_everything(tmp_path: Path, present: str) -> None:
    (tmp_path / "prod-chat.sh").write_text(present, encoding="utf-8")
    files = render(deployment(), [Target.DOCKER, Target.SHELL])
    with pytest.raises(InvalidOption, match="--overwrite"):
        write_files(files, tmp_path, deployment="prod-chat")
    assert [path.name for path in tmp_path.iterdir()] == ["prod-chat.sh"]
    assert (tmp_path / "prod-chat.sh").read_text(encoding="utf-8") == present
    write_files(files, tmp_path, deployment="prod-chat", overwrite=True)
    assert (tmp_path / "prod-chat.sh").read_text(encoding="utf-8") == files[1].text


def test_an_edited_file_is_somebodys_work(tmp_path: Path) -> None:
    files = render(deployment(), [Target.SHELL])
    (path,) = write_files(files, tmp_path, deployment="prod-chat")
    path.write_text(path.read_text(encoding="utf-8") + "# a note\n", encoding="utf-8")
    with pytest.raises(InvalidOption, match="edited"):
        write_files(files, tmp_path, deployment="prod-chat")


def test_two_deployments_of_one_slug_do_not_overwrite_each_other(tmp_path: Path) -> None:
    write_files(render(deployment(name="Prod chat"), [Target.SHELL]), tmp_path, deployment="Prod chat")
    with pytest.raises(InvalidOption):
        write_files(render(deployment(), [Target.SHELL]), tmp_path, deployment="prod-chat")


@pytest.mark.parametrize("path", ["../x", "/etc/x", "a/../../x"])
def test_no_file_leaves_the_folder(tmp_path: Path, path: str) -> None:
    with pytest.raises(InvalidOption):
        write_files([RenderedFile(path=path, text="")], tmp_path / "out", deployment="d")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_made_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(StorageError, match="cannot write"):
        write_files(render(deployment(), [Target.SHELL]), tmp_path / "file", deployment="prod-chat")


def test_what_fails_half_way_leaves_the_old_files(tmp_path: Path) -> None:
    old = render(deployment(), [Target.SHELL])
    (path,) = write_files(old, tmp_path, deployment="prod-chat")
    newer = render(deployment(trial({"max-num-seqs": 9})), [Target.SHELL])
    (tmp_path / "a").write_text("", encoding="utf-8")
    with pytest.raises(StorageError):  # the second has no folder to go to, as on a full disk
        write_files([*newer, RenderedFile(path="a/b", text="x")], tmp_path, deployment="prod-chat")
    assert path.read_text(encoding="utf-8") == old[0].text
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "prod-chat.sh"]


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["pipe", "folder"])
def test_what_is_no_file_is_neither_read_nor_replaced(
    tmp_path: Path, make: Callable[[Path], None], overwrite: bool
) -> None:
    files = render(deployment(), [Target.DOCKER, Target.SHELL])
    make(tmp_path / "prod-chat.sh")
    for act in (check_files, write_files):
        with pytest.raises(InvalidOption, match=r"prod-chat\.sh"):
            act(files, tmp_path, deployment="prod-chat", overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["prod-chat.sh"]


def test_one_writes_and_records_at_a_time(tmp_path: Path) -> None:
    folder, order = tmp_path / "new" / "out", list[str]()

    def second() -> None:
        with folder_held(folder):
            order.append("second")

    with folder_held(folder):
        other = threading.Thread(target=second)
        other.start()
        other.join(0.1)
        order.append("first")
    other.join(120)
    assert order == ["first", "second"]
