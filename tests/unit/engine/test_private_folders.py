"""The folder that a server has to itself: where it is, what points there, who takes it away."""

from __future__ import annotations

import os
import signal
import socket
import sys
import uuid
from collections.abc import Mapping
from pathlib import Path

import pytest

from autotune.engine.keeper_client import Keeper, ServerNotStarted, ServerOrder
from autotune.engine.private_folders import (
    PREFIX,
    PrivateFolder,
    forget_folder,
    left_folders,
    private_folder,
    remove_private_folder,
)
from autotune.engine.reaping import reap

MARKER = "0123456789abcdef0123456789abcdef"
NAME = "autotune-server-0123456789ab"


def below(folder: Path) -> list[str]:
    """Everything that is there."""
    return sorted(str(path) for path in folder.rglob("*"))


def test_sockets_and_temporary_files_go_there_and_what_is_shared_stays_where_it_was(short_tmp: Path) -> None:
    found = private_folder(MARKER, {"TMPDIR": str(short_tmp), "USER": "x"}, {})
    assert found.path == short_tmp / NAME
    assert found.env["VLLM_RPC_BASE_PATH"] == found.env["TMPDIR"] == str(short_tmp / NAME)
    assert found.env["RAY_TMPDIR"] == str(short_tmp)
    assert Path(found.env["TORCHINDUCTOR_CACHE_DIR"]).parent == short_tmp
    assert set(found.env) == {"VLLM_RPC_BASE_PATH", "TMPDIR", "RAY_TMPDIR", "TORCHINDUCTOR_CACHE_DIR"}


def test_without_a_temporary_directory_of_the_operator_it_is_the_systems() -> None:
    assert private_folder(MARKER, {}, {}).path == Path("/tmp") / NAME
    assert private_folder(MARKER, {"TMPDIR": "/nonexistent"}, {}).path == Path("/tmp") / NAME


@pytest.mark.parametrize(
    ("inherited", "added", "left"),
    [
        ({"VLLM_RPC_BASE_PATH": "/mine"}, {}, {"TMPDIR", "RAY_TMPDIR", "TORCHINDUCTOR_CACHE_DIR"}),
        ({}, {"VLLM_RPC_BASE_PATH": "/mine"}, {"TMPDIR", "RAY_TMPDIR", "TORCHINDUCTOR_CACHE_DIR"}),
        ({}, {"TMPDIR": "/mine"}, {"VLLM_RPC_BASE_PATH"}),
        ({}, {"TORCHINDUCTOR_CACHE_DIR": "/slot"}, {"VLLM_RPC_BASE_PATH", "TMPDIR", "RAY_TMPDIR"}),
        ({"VLLM_RPC_BASE_PATH": "/mine"}, {"TMPDIR": "/mine"}, set()),
    ],
)
def test_who_sets_one_of_them_is_obeyed(
    short_tmp: Path, inherited: Mapping[str, str], added: Mapping[str, str], left: set[str]
) -> None:
    found = private_folder(MARKER, {"TMPDIR": str(short_tmp), **inherited}, added)
    assert set(found.env) == left
    assert found.path == (short_tmp / NAME if left else None)


def test_what_others_share_keeps_the_place_that_the_operator_gave_it(short_tmp: Path) -> None:
    set_ = {"TMPDIR": str(short_tmp), "RAY_TMPDIR": "/ray", "TORCHINDUCTOR_CACHE_DIR": "/inductor"}
    env = private_folder(MARKER, set_, {}).env
    assert (env["RAY_TMPDIR"], env["TORCHINDUCTOR_CACHE_DIR"]) == ("/ray", "/inductor")


@pytest.mark.parametrize(("length", "deep"), [(41, False), (42, True)])
def test_a_socket_can_be_bound_there_however_deep_the_temporary_directory_is(
    short_tmp: Path, length: int, deep: bool
) -> None:
    """107 bytes: the directory, `/autotune-server-` and 12 signs, `/` and 36 of a UUID."""
    place = short_tmp / ("d" * (length - len(str(short_tmp)) - 1))
    place.mkdir()
    assert len(str(place)) == length
    found = private_folder(MARKER, {"TMPDIR": str(place)}, {})
    assert found.path == (Path("/tmp") if deep else place) / NAME
    assert ("TMPDIR" in found.env) != deep
    assert len(found.env["VLLM_RPC_BASE_PATH"]) + 37 <= 107
    if not deep:
        found.path.mkdir()
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{found.env['VLLM_RPC_BASE_PATH']}/{uuid.uuid4()}")


def test_only_a_folder_of_this_user_and_of_that_name_is_taken_away(short_tmp: Path) -> None:
    environ = {"TMPDIR": str(short_tmp)}
    aim = short_tmp / "elsewhere"
    aim.mkdir()
    (aim / "file").touch()
    (short_tmp / NAME).symlink_to(aim)
    remove_private_folder(MARKER, environ)
    assert (aim / "file").exists()
    (short_tmp / NAME).unlink()
    (short_tmp / NAME / "below").mkdir(parents=True)
    remove_private_folder(MARKER[:5], environ)
    remove_private_folder("", environ)
    assert (short_tmp / NAME).exists()
    remove_private_folder(MARKER, environ)
    remove_private_folder(MARKER, environ)  # gone is fine
    assert not (short_tmp / NAME).exists()


def test_a_temporary_directory_that_cannot_even_be_looked_at_is_none() -> None:
    named = {"TMPDIR": f"/tmp/{'y' * 300}"}  # longer than a name may be
    assert private_folder(MARKER, named, {}) == private_folder(MARKER, {}, {})
    remove_private_folder(MARKER, named)
    for stored in (f"/tmp/{'y' * 300}/x", "/tmp/\0/x", "relative/x"):
        remove_private_folder(MARKER, named, stored)


def test_no_folder_without_a_place(no_shared_tmp: None, tmp_path: Path) -> None:
    missing = {"TMPDIR": str(tmp_path / "missing")}
    assert private_folder(MARKER, missing, {}) == PrivateFolder()
    assert private_folder(MARKER, {}, {}) == PrivateFolder()
    assert left_folders(missing) == ()


async def test_a_keepers_folder_is_private_and_in_use_until_its_server_is_gone(
    no_shared_tmp: None, short_tmp: Path, tmp_path: Path
) -> None:
    environ = {**os.environ, "TMPDIR": str(short_tmp)}
    keeper = await Keeper.spawn(environ)
    code = "import os, time; open(os.environ['TMPDIR'] + '/big', 'w').write('x' * 99); time.sleep(600)"
    await keeper.order(ServerOrder(argv=[sys.executable, "-c", code], log=tmp_path / "log", env={}))
    (folder,) = (one.path for one in left_folders(environ))
    assert folder.stat().st_mode & 0o777 == 0o700
    (found,) = left_folders(environ)
    assert found.in_use
    assert not forget_folder(folder)
    await keeper.stop(60.0)
    assert below(short_tmp) == []


async def test_a_folder_goes_though_whoever_reaps_has_another_temporary_directory(
    no_shared_tmp: None, short_tmp: Path, tmp_path: Path
) -> None:
    keeper = await Keeper.spawn({**os.environ, "TMPDIR": str(short_tmp)})
    code = "import time; time.sleep(600)"
    identity = await keeper.order(ServerOrder(argv=[sys.executable, "-c", code], log=tmp_path / "log", env={}))
    assert identity.folder == str(short_tmp / f"{PREFIX}{identity.marker[:12]}")
    os.kill(identity.pid, signal.SIGKILL)  # the keeper, which would take it away
    assert below(short_tmp) == [identity.folder]
    assert os.environ.get("TMPDIR") != str(short_tmp)
    assert reap(identity, grace_s=5.0).remaining == ()
    assert below(short_tmp) == []
    await keeper.stop(5.0)


async def test_a_server_that_cannot_start_leaves_no_folder(short_tmp: Path, tmp_path: Path) -> None:
    keeper = await Keeper.spawn({**os.environ, "TMPDIR": str(short_tmp)})
    with pytest.raises(ServerNotStarted):
        await keeper.order(ServerOrder(argv=["/nonexistent"], log=tmp_path / "log", env={}))
    assert below(short_tmp) == []
