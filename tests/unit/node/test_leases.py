"""Leases: one holder at a time on the whole node, gone with the last process that has them, and nobody is believed."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import StorageError
from autotune.node.leases import (
    FOLDER_NAME,
    LeaseRecord,
    NodeLeases,
    ResourceKind,
    core_resource,
    gpu_resource,
    lease_folder,
    port_resource,
    this_process,
)
from autotune.records import Gpu

A, B, C = (
    gpu_resource(Gpu(index=index, name="NVIDIA H200", memory_bytes=1, uuid=f"GPU-{index}")) for index in range(3)
)


def leases(folder: Path, study: str = "s") -> NodeLeases:
    return NodeLeases(folder / "leases", this_process(study))


def child(folder: Path, code: str) -> subprocess.Popen[str]:
    """A process of its own that has `node` and says a line when it is ready."""
    opening = f"""
        import os, sys, time
        from pathlib import Path
        from autotune.node.leases import *
        node = NodeLeases(Path({str(folder / "leases")!r}), this_process("child's"))
        A, B = (Resource(kind=ResourceKind.GPU, name=f"GPU-{{index}}") for index in range(2))
    """
    source = textwrap.dedent(opening) + textwrap.dedent(code)
    return subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def ended(process: subprocess.Popen[str]) -> int:
    process.communicate(timeout=120)
    return process.returncode


def test_one_holder_at_a_time_and_a_release_lets_the_next_one_in(tmp_path: Path) -> None:
    mine, theirs = leases(tmp_path), leases(tmp_path, "other")
    lease = mine.take(A)
    assert lease is not None
    assert theirs.take(A, tries=1) is None
    assert mine.take(A, tries=1) is None
    held = theirs.holder(A)
    assert held is not None
    assert held.record is not None
    assert (held.record.pid, held.record.study, held.record.is_alive) == (os.getpid(), "s", True)
    assert [one.file for one in theirs.held()] == ["gpu-GPU-0.lock"]
    lease.release()
    lease.release()
    assert theirs.holder(A) is None
    assert list((tmp_path / "leases").iterdir()) == []
    again = theirs.take(A)
    assert again is not None
    assert again.left is None
    again.release()


def test_all_or_none(tmp_path: Path) -> None:
    mine, theirs = leases(tmp_path), leases(tmp_path)
    middle = theirs.take(B)
    assert middle is not None
    assert mine.take_all([A, B, C]) is None
    assert [one.file for one in mine.held()] == ["gpu-GPU-1.lock"]
    middle.release()
    taken = mine.take_all([A, B, C])
    assert taken is not None
    assert len(mine.held(ResourceKind.GPU)) == 3
    for lease in taken:
        lease.release()
    assert mine.held() == ()


def test_kinds_and_names_are_told_apart(tmp_path: Path) -> None:
    mine = leases(tmp_path)
    resources = [port_resource(0), core_resource(0), gpu_resource(Gpu(index=0, name="x", memory_bytes=1)), A]
    taken = mine.take_all(resources)
    assert taken is not None
    assert len(mine.held(ResourceKind.PORT)) == len(mine.held(ResourceKind.CPU)) == 1
    for lease in taken:
        lease.release()


def test_a_killed_holder_leaves_the_lease_free_and_says_what_it_ran(tmp_path: Path) -> None:
    code = """
        lease = node.take(A)
        lease.server_started("m" * 32, 4242)
        lease.seen_free(600)
        print("ready", flush=True)
        time.sleep(600)
    """
    holder = child(tmp_path, code)
    assert said(holder) == "ready"
    mine = leases(tmp_path)
    assert mine.take(A, tries=1) is None
    holder.send_signal(signal.SIGKILL)
    assert ended(holder) == -signal.SIGKILL
    lease = mine.take(A)
    assert lease is not None
    left = lease.left
    assert left is not None
    assert (left.study, left.marker, left.pgid, left.baseline_bytes, left.is_alive) == (
        "child's",
        "m" * 32,
        4242,
        600,
        False,
    )
    lease.release()


def test_who_inherits_the_descriptor_holds_the_lease_beyond_the_tuner(tmp_path: Path) -> None:
    code = """
        import subprocess
        lease = node.take(A)
        keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", "input()"],
            stdin=0, stdout=subprocess.DEVNULL, pass_fds=[lease.descriptor],
        )
        print(keeper.pid, flush=True)
        os.kill(os.getpid(), 9)
    """
    tuner = child(tmp_path, code)
    assert int(said(tuner)) > 0
    tuner.wait(120)
    mine = leases(tmp_path)
    held = mine.holder(A)
    assert mine.take(A, tries=1) is None
    assert held is not None
    assert held.record is not None
    assert not held.record.is_alive
    assert "its server is being stopped" in str(held.record)
    assert tuner.stdin is not None
    tuner.stdin.write("\n")
    tuner.stdin.close()
    for _ in range(2000):
        lease = mine.take(A)
        if lease is not None:
            break
    assert lease is not None
    lease.release()
    assert tuner.stdout is not None
    tuner.stdout.close()


def test_files_taken_away_and_made_again_never_have_two_holders(tmp_path: Path) -> None:
    """Three processes take and release one lease; who has it makes a file that nobody else may find."""
    code = f"""
        inside = Path({str(tmp_path / "inside")!r})
        got = 0
        while got < 40:
            lease = node.take(A, tries=1)
            if lease is None:
                continue
            os.close(os.open(inside, os.O_CREAT | os.O_EXCL))
            got += 1
            os.unlink(inside)
            lease.release()
        print(got, flush=True)
    """
    children = [child(tmp_path, code) for _ in range(3)]
    assert [said(one) for one in children] == ["40"] * 3
    assert [ended(one) for one in children] == [0] * 3


def test_what_stands_in_a_file_neither_gives_nor_takes_a_lease(tmp_path: Path) -> None:
    mine = leases(tmp_path)
    first = mine.take(B)
    assert first is not None
    first.release()
    file = tmp_path / "leases" / A.file
    for content in (
        b"",
        b"\xff\x00",
        b"[]",
        b'{"pid": "x"}',
        json.dumps({"pid": 1, "started": 2}).encode(),
        b"{" * 9000,
    ):
        file.write_bytes(content)
        assert mine.holder(A) is None
        lease = mine.take(A)
        assert lease is not None
        assert lease.left is None
        lease.release()


def test_a_record_of_somebody_else_reaches_no_terminal_raw(tmp_path: Path) -> None:
    mine = leases(tmp_path)
    lease = mine.take(A)
    assert lease is not None
    record = LeaseRecord(pid=1, started=0.0, study="\x1b[2J\nx", user="u" * 500)
    os.pwrite(lease.descriptor, json.dumps({name: getattr(record, name) for name in record.__slots__}).encode(), 0)
    held = mine.holder(A)
    assert held is not None
    assert held.record is not None
    assert held.record.study == "[2Jx"
    assert len(held.record.user) == 200
    lease.release()


def test_every_user_can_lock_every_file_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        lease = leases(tmp_path).take(A)
    finally:
        os.umask(before)
    assert lease is not None
    assert stat.S_IMODE((tmp_path / "leases").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "leases" / A.file).stat().st_mode) == 0o666
    lease.release()


def test_a_link_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("mine")
    (tmp_path / "leases").mkdir()
    (tmp_path / "leases" / A.file).symlink_to(target)
    with pytest.raises(StorageError, match="cannot be leased"):
        leases(tmp_path).take(A)
    assert leases(tmp_path).holder(A) is None
    assert target.read_text() == "mine"


def test_a_folder_that_cannot_be_made_is_said_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "leases").write_text("a file")
    with pytest.raises(StorageError, match="AUTOTUNE_LEASE_DIR"):
        leases(tmp_path).take(A)


def test_names_cannot_leave_the_folder(tmp_path: Path) -> None:
    odd = replace(A, name="../../etc/GPU 0\n")
    assert "/" not in odd.file
    lease = leases(tmp_path).take(odd)
    assert lease is not None
    assert [path.parent for path in tmp_path.rglob("*.lock")] == [tmp_path / "leases"]
    lease.release()


def test_the_folder_is_the_same_for_all_users_of_the_node() -> None:
    assert lease_folder({"AUTOTUNE_LEASE_DIR": "/x/y"}) == Path("/x/y")
    found = lease_folder({})
    assert found.name == FOLDER_NAME
    assert found == lease_folder({"HOME": "/home/somebody", "XDG_RUNTIME_DIR": "/run/user/1", "TMPDIR": "/y"})
