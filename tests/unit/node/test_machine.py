"""What is read of the machine: checked against what the test itself puts there, or another way to ask."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.node.machine import (
    ask_nvidia_smi,
    complete_topology,
    count_numa_nodes,
    find_hf_token,
    name_processes,
    read_open_files,
    read_room,
)
from autotune.node.topology import assumed_topology
from autotune.records import GpuPath, Link, Topology

DATA = Path(__file__).parents[2] / "data" / "node"
SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"


def test_room_is_that_of_the_nearest_folder_there_is(tmp_path: Path) -> None:
    room = read_room(tmp_path / "not" / "made" / "yet")
    usage = shutil.disk_usage(tmp_path)
    assert room is not None
    assert room.total == usage.total
    assert room.free == pytest.approx(usage.free, rel=0.05)
    assert read_room(Path("a\0b")) is None


@pytest.mark.parametrize(("text", "nodes"), [("0\n", 1), ("0-1\n", 2), ("0,8\n", 2), ("", None), ("\xff", None)])
def test_numa_nodes(tmp_path: Path, text: str, nodes: int | None) -> None:
    file = tmp_path / "online"
    file.write_text(text, encoding="latin-1")
    assert count_numa_nodes(file) == nodes


def test_no_list_of_numa_nodes(tmp_path: Path) -> None:
    assert count_numa_nodes(tmp_path / "online") is None


def test_where_the_token_is_and_never_what_it_is(tmp_path: Path) -> None:
    assert find_hf_token({}, tmp_path) is None
    assert find_hf_token({"HF_TOKEN": "  "}, tmp_path) is None
    assert find_hf_token({"HUGGING_FACE_HUB_TOKEN": SECRET}, tmp_path) == "HUGGING_FACE_HUB_TOKEN"
    stored = tmp_path / ".cache" / "huggingface" / "token"
    stored.parent.mkdir(parents=True)
    stored.write_text("\n")
    assert find_hf_token({}, tmp_path) is None
    stored.write_text(SECRET)
    assert find_hf_token({}, tmp_path) == str(stored)
    assert find_hf_token({"HF_HOME": str(tmp_path / "elsewhere")}, tmp_path) is None
    assert find_hf_token({"HF_TOKEN_PATH": str(stored), "HF_HOME": "/x"}, tmp_path / "other") == str(stored)
    assert find_hf_token({"HF_TOKEN": SECRET}, tmp_path) == "HF_TOKEN"


def test_a_folder_or_an_unreadable_name_is_no_token(tmp_path: Path) -> None:
    assert find_hf_token({"HF_TOKEN_PATH": str(tmp_path)}, tmp_path) is None
    assert find_hf_token({"HF_TOKEN_PATH": "a\0b"}, tmp_path) is None


def test_open_files_as_the_shell_says() -> None:
    said = subprocess.run(["sh", "-c", "ulimit -n"], capture_output=True, text=True, check=True).stdout.strip()
    assert read_open_files().soft == (None if said == "unlimited" else int(said))


def test_names_of_processes() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (found,) = name_processes([os.getpid(), child.pid])
        assert found.pid == child.pid
        assert found.name is not None
        assert "python" in found.name
    finally:
        child.communicate(b"\n")
    (gone,) = name_processes([child.pid])
    assert str(gone) == f"{child.pid} (not visible from here)"


def smi(folder: Path, text: str) -> dict[str, str]:
    """An environment whose nvidia-smi prints a recorded text."""
    folder.mkdir(exist_ok=True)
    (folder / "said.txt").write_text(text, encoding="utf-8")
    script = folder / "nvidia-smi"
    script.write_text(f'#!/bin/sh\n[ "$*" = "topo -m" ] && cat "{folder}/said.txt"\n', encoding="utf-8")
    script.chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_nvidia_smi_fills_what_the_binding_lacks(tmp_path: Path) -> None:
    text = (DATA / "topo-m-4xA100-bridged-two-sockets.txt").read_text(encoding="utf-8")
    environ = smi(tmp_path / "bin", text)
    program = str(tmp_path / "bin" / "nvidia-smi")
    told = ask_nvidia_smi(environ, program)
    assert told is not None
    assert told.topology.nvlinks[2][3] == 12
    unknown = Topology(paths=((None, None), (None, None)), nvlinks=((0, 0), (0, 0)), numa=(None, 0), numa_nodes=2)
    filled = complete_topology(unknown, (3, 0), environ)
    assert filled.paths[0][1] is GpuPath.SOCKETS
    assert (filled.numa, filled.numa_nodes) == ((1, 0), 2)


def test_nvidia_smi_is_not_asked_what_is_known() -> None:
    whole = assumed_topology(2, Link.PCIE)
    assert complete_topology(whole, (0, 1), {}) is whole


@pytest.mark.parametrize("text", ["no-nvidia-smi.txt", "nvidia-smi-without-driver.txt"])
def test_no_answer_of_nvidia_smi(tmp_path: Path, text: str) -> None:
    environ = smi(tmp_path / "bin", (DATA / text).read_text(encoding="utf-8"))
    assert ask_nvidia_smi(environ, str(tmp_path / "bin" / "nvidia-smi")) is None
    assert ask_nvidia_smi(environ, str(tmp_path / "no-such-program")) is None
