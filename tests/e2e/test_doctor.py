"""`autotune doctor` as an operator runs it: verdicts, exit codes, and a small server that leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
from autotune_command import LLAMA, SIMULATED_SERVER, TRACE, Running, run, wait_for

from autotune.errors import ExitCode

SERVE = ("doctor", "--model", LLAMA, "--serve", "--start-deadline", "30", "--vllm-command", SIMULATED_SERVER)


def statuses(out: str) -> dict[str, str]:
    return {check["name"]: check["status"] for check in json.loads(out)["checks"]}


def processes_naming(text: str) -> list[str]:
    """Pids whose command line holds `text`."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and text.encode() in (entry / "cmdline").read_bytes():
                found.append(entry.name)
        except OSError:
            continue
    return found


def test_a_missing_command_is_a_failed_check_with_its_remedy(tmp_path: Path) -> None:
    ended = run(tmp_path, "doctor", env={"PATH": "/usr/bin:/bin", "HF_TOKEN": "hf_VerySecretToken123456"})
    assert ended.code == ExitCode.NODE_UNFIT
    assert "1 check failed: vllm" in ended.err
    assert "no executable 'vllm'" in " ".join(ended.out.split())
    assert "--vllm-command" in ended.out
    assert "no NVIDIA GPU" in ended.out or "hides all" in ended.out
    assert "hf_VerySecret" not in ended.out + ended.err
    assert TRACE not in ended.err


def test_serve_starts_asks_stops_and_leaves_nothing(tmp_path: Path) -> None:
    marker = f"doctor-test-{os.getpid()}"
    ended = run(tmp_path, *SERVE, "--json", "--", "--served-model-name", marker, env={"TMPDIR": str(tmp_path)})
    assert ended.code == ExitCode.OK, ended.err
    document = ended.document
    assert (document["schema"], document["fit"], document["node"]) == (1, True, None)
    assert statuses(ended.out)["serve"] == "ok"
    text = next(check["text"] for check in document["checks"] if check["name"] == "serve")
    assert f"/v1/models names {marker}" in text
    assert "a completion of 8 tokens" in text
    assert "no GPU was used" in text
    assert text.startswith("SIMULATED: ")
    assert processes_naming(marker) == []
    assert list(tmp_path.glob("autotune-doctor-*")) == []


def test_a_server_that_dies_is_diagnosed_and_its_log_kept(tmp_path: Path) -> None:
    extra = ("--max-num-seqs", "none")
    ended = run(tmp_path, *SERVE, "--json", "--", *extra, env={"TMPDIR": str(tmp_path)})
    assert ended.code == ExitCode.NODE_UNFIT
    check = next(check for check in ended.document["checks"] if check["name"] == "serve")
    assert check["status"] == "fail"
    assert "the server did not start: invalid_flag" in check["text"]
    (log,) = tmp_path.glob("autotune-doctor-*/server.log")
    assert str(log) in check["remedy"]
    assert b"max-num-seqs" in log.read_bytes()


def test_ctrl_c_stops_the_server(tmp_path: Path) -> None:
    marker = f"doctor-stopped-{os.getpid()}"
    running = Running(
        tmp_path, *SERVE, "--", "--served-model-name", marker, "--sim-start-s", "3600", env={"TMPDIR": str(tmp_path)}
    )
    try:
        wait_for(lambda: {*processes_naming(marker)} - {str(running.process.pid)}, "a server")
        running.signal(signal.SIGINT)
        assert running.end() == ExitCode.INTERRUPTED
    finally:
        running.give_up()
    assert processes_naming(marker) == []
    assert TRACE not in running.err


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("--node", "8xL40S-48GB-PCIe"), ExitCode.OK, "worst path SYS"),
        (("--node", "1xT4", "--model", LLAMA), ExitCode.NODE_UNFIT, "they do not fit"),
        (("--node", "4xH300"), ExitCode.UNKNOWN_NODE, "unknown node"),
        (("--node", "1xT4", "--serve"), ExitCode.INVALID_OPTION, "--serve"),
        (("--node", "1xT4", "--gpus", "0"), ExitCode.INVALID_OPTION, "--gpus"),
        (("--model", "no-such-model"), ExitCode.UNKNOWN_MODEL, "unknown model"),
        (("--gpus", "99"), ExitCode.INVALID_OPTION, "--gpus"),
        (("--", "--max-num-seqs", "4"), ExitCode.INVALID_OPTION, "--serve"),
        (("--serve", "--", "--port", "1"), ExitCode.INVALID_OPTION, "--port"),
        (("--serve", "--", "--api-key", "hf_VerySecretToken123456"), ExitCode.INVALID_OPTION, "--api-key"),
        (("--vllm-command", "'"), ExitCode.NODE_UNFIT, "cannot be split"),
    ],
)
def test_endings(tmp_path: Path, words: tuple[str, ...], code: ExitCode, says: str) -> None:
    ended = run(tmp_path, "doctor", *words)
    assert ended.code == code
    assert says in " ".join((ended.out + ended.err).split())
    assert TRACE not in ended.err
    assert "VerySecret" not in ended.out + ended.err
