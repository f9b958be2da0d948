import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from promote_cases import CREATED, deployment, gate_record, trial

from autotune.errors import InvalidOption, StorageError
from autotune.promote import Entry, Promotion, Target, render, serve_argv
from autotune.promote.git_folder import commit_promotions, message


def entry(version: int, *, seqs: int, restores: int | None = None, author: str = "Ada L <ada@x>") -> Entry:
    made = deployment(
        trial({"max-num-seqs": seqs}), gate=gate_record(), author=author, reason="p95\n\nAutotune-Promotion: forged@1"
    )
    files = render(made, [Target.SHELL, Target.VLLM_CONFIG])
    found = Promotion.of(made, files, targets=["shell"], argv=serve_argv(made), simulated_allowed=False)
    at = CREATED + timedelta(days=version)
    return Entry(version=version, directory="/d", promotion=replace(found, restores=restores, created_at=at))


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """No settings of the machine's own git, and a hook's environment that must not lead astray."""
    home = tmp_path / "home"
    home.mkdir()
    return {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1", "GIT_DIR": "/nowhere"}


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=True)
    return done.stdout


def labels(folder: Path) -> Sequence[str]:
    return git(
        folder, "log", "--reverse", "--format=%(trailers:key=Autotune-Promotion,valueonly,separator=%x2C)"
    ).split()


def test_each_promotion_is_a_commit_with_its_evidence(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = tmp_path / "new" / "repo"
    one, two, back = entry(1, seqs=8), entry(2, seqs=16), entry(3, seqs=8, restores=1)
    assert commit_promotions([one, two, back], folder, environ=environ) == (one, two, back)
    assert labels(folder) == ["prod-chat@1", "prod-chat@2", "prod-chat@3"]
    said = git(folder, "log", "-1", "--format=%an|%ae|%ad|%B", "--date=iso-strict")
    assert said.startswith("Ada L|ada@x|2026-03-04T12:30:00")
    assert "|prod-chat@3: back to version 1, trial 7 of study llama-chat\n" in said
    for fact in (
        "gate: pass, with 1 doubt: every criterion holds",
        f"config: {back.promotion.config_hash}",
        "vLLM: 0.32.0",
    ):
        assert fact in said
    (file,) = [file for file in back.promotion.rendered() if file.path == "prod-chat.sh"]
    assert git(folder, "show", "HEAD:prod-chat.sh") == file.text
    assert git(folder, "status", "--porcelain") == ""


def test_the_committer_is_whom_git_knows(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = tmp_path / "repo"
    commit_promotions([entry(1, seqs=8)], folder, environ=environ)
    (Path(environ["HOME"]) / ".gitconfig").write_text("[core]\n\tquotePath = false\n")  # names nobody
    commit_promotions([entry(2, seqs=16)], folder, environ=environ)
    git(folder, "config", "user.name", "Bob")
    git(folder, "config", "user.email", "bob@x")
    commit_promotions([entry(3, seqs=32)], folder, environ=environ)
    said = git(folder, "log", "--reverse", "--format=%cn <%ce>").splitlines()
    assert said == ["autotune <autotune@localhost>", "autotune <autotune@localhost>", "Bob <bob@x>"]


def test_an_export_can_be_repeated(tmp_path: Path, environ: dict[str, str]) -> None:
    one, two = entry(1, seqs=8), entry(2, seqs=16)
    commit_promotions([one], tmp_path / "repo", environ=environ)
    assert commit_promotions([one, two], tmp_path / "repo", environ=environ) == (two,)
    assert commit_promotions([one, two], tmp_path / "repo", environ=environ) == ()


@pytest.mark.parametrize("below", ["", "clusters/a b"])
def test_going_back_to_what_is_there_already_is_exported_once(
    tmp_path: Path, environ: dict[str, str], below: str
) -> None:
    folder = tmp_path / "repo" / below
    git(tmp_path, "init", "--quiet", "repo")
    one, two = entry(1, seqs=8), entry(2, seqs=16)
    again = replace(one, version=3, promotion=one.promotion.restored(1, created_at=CREATED, author="a", reason="r"))
    twice, last = replace(again, version=4), entry(5, seqs=32)
    commit_promotions([one, two, again, twice, last], folder, environ=environ)
    assert len(labels(folder)) == 5
    assert commit_promotions([one, two, again, twice, last], folder, environ=environ) == ()
    assert "32" in (folder / "prod-chat.sh").read_text()
    # Another folder of the repository has its own.
    assert commit_promotions([one], tmp_path / "repo" / "other", environ=environ) == (one,)


def test_nothing_else_that_lies_there_is_committed(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = tmp_path / "repo"
    commit_promotions([entry(1, seqs=8)], folder / "prod", environ=environ)
    (folder / "prod" / "secrets.env").write_text("HF_TOKEN=hf_x\n")
    git(folder / "prod", "add", "secrets.env")
    commit_promotions([entry(1, seqs=8), entry(2, seqs=16)], folder / "prod", environ=environ)
    assert "secrets.env" not in git(folder / "prod", "show", "--stat", "HEAD")


def test_an_edited_file_is_not_overwritten(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = tmp_path / "repo"
    commit_promotions([entry(1, seqs=8)], folder, environ=environ)
    with (folder / "prod-chat.sh").open("a") as stream:
        stream.write("# mine\n")
    with pytest.raises(InvalidOption, match="edited"):
        commit_promotions([entry(2, seqs=16)], folder, environ=environ)
    assert commit_promotions([entry(2, seqs=16)], folder, environ=environ, overwrite=True)


def test_what_git_refuses_is_said(tmp_path: Path, environ: dict[str, str]) -> None:
    folder = tmp_path / "repo"
    commit_promotions([entry(1, seqs=8)], folder, environ=environ)
    hook = folder / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho no secrets here >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(StorageError, match="no secrets here"):
        commit_promotions([entry(2, seqs=16)], folder, environ=environ)
    with pytest.raises(StorageError, match="git is not installed"):
        commit_promotions([entry(2, seqs=16)], folder, environ={**environ, "PATH": str(tmp_path)})


def test_a_reason_cannot_forge_a_trailer() -> None:
    lines = message(entry(1, seqs=8)).splitlines()
    assert [line for line in lines if line.startswith("Autotune-Promotion:")] == ["Autotune-Promotion: prod-chat@1"]
