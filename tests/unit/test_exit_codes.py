"""Every way to end is documented, raised by one error, and met by a test."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from autotune import errors
from autotune.cli import reporting
from autotune.errors import AutotuneError, ExitCode, UnknownName

ROOT = Path(__file__).parents[2]
SHELL = {ExitCode.OK, ExitCode.INTERNAL, ExitCode.USAGE}
"""What no error of the tree carries: success, the outermost shell, the argument parser."""


def test_every_code_has_its_heading_and_no_other_is_there() -> None:
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    headings = re.findall(r"^## (\d+) — \S", text, flags=re.MULTILINE)
    assert [int(number) for number in headings] == sorted(ExitCode)


def _leaves(kind: type[AutotuneError]) -> Iterator[type[AutotuneError]]:
    yield kind
    for child in kind.__subclasses__():
        yield from _leaves(child)


def test_every_code_is_carried_by_an_error() -> None:
    carried = {kind.exit_code for kind in _leaves(AutotuneError)}
    carried |= {UnknownName(kind, "x", ()).exit_code for kind in errors._KIND_EXIT}
    assert carried | SHELL == set(ExitCode)


def test_every_code_is_met_by_a_test_of_the_whole_command() -> None:
    """Hardware that cannot be had in a test is met one step inside, in test_planning_hardware."""
    folder = ROOT / "tests" / "e2e"
    text = "".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    met = set(re.findall(r"ExitCode\.([A-Z_]+)", text))
    missing = {code.name for code in ExitCode} - met - {"OK", "INTERNAL"}
    assert missing == {"UNSUPPORTED_HARDWARE"}
    hardware = (ROOT / "tests" / "unit" / "test_planning_hardware.py").read_text(encoding="utf-8")
    assert "ExitCode.UNSUPPORTED_HARDWARE" in hardware


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """`run` takes them over for the whole process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _raising(error: BaseException) -> Callable[[], None]:
    def command() -> None:
        raise error

    return command


@pytest.mark.parametrize(
    ("command", "code", "says"),
    [
        (lambda: None, 0, ""),
        (_raising(errors.StudyBusy("held", hint="Wait.")), 25, "autotune: held\n  Wait.\n"),
        (_raising(SystemExit(2)), 2, ""),
        (_raising(SystemExit(130)), 130, "autotune: stopped by the operator\n"),
        (_raising(KeyboardInterrupt()), 130, "autotune: stopped by the operator\n"),
    ],
)
def test_how_commands_end(
    command: Callable[[], None], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        reporting.run(command)
    assert ended.value.code == code
    assert capsys.readouterr().err == says


def test_a_bug_of_ours_is_one_line_and_its_story_in_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        reporting.run(_raising(ZeroDivisionError("of\nours")))
    assert ended.value.code == ExitCode.INTERNAL
    said = capsys.readouterr().err
    assert said.startswith("autotune: internal error (ZeroDivisionError: of ours); the details are in ")
    assert said.count("\n") == 1
    story = Path(said.strip().rpartition(" ")[2])
    assert "Traceback" in story.read_text(encoding="utf-8")
    story.unlink()


def test_a_name_in_a_message_does_not_move_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        reporting.run(_raising(errors.InvalidFile("a\x1b[2J.yaml", "", 5, "text")))
    assert capsys.readouterr().err.startswith("autotune: a\\x1b[2J.yaml: 5 is not accepted")


def _waiting(at_exit: str = "") -> subprocess.Popen[str]:
    """A command that waits; it has said so."""
    program = (
        "import atexit, signal, time; from autotune.cli import reporting\n"
        "signal.signal(signal.SIGHUP, signal.SIG_DFL)\n"  # whatever `nohup` has these tests inherit
        f"{at_exit}\n"
        "reporting.run(lambda: (print('waits', flush=True), time.sleep(60)))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waits\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_is_the_operators_wish_to_end(number: signal.Signals) -> None:
    process = _waiting()
    process.send_signal(number)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (ExitCode.INTERRUPTED, "autotune: stopped by the operator\n")


def test_a_signal_at_the_very_end_shows_no_traceback() -> None:
    process = _waiting("atexit.register(lambda: (print('ends', flush=True), time.sleep(60)))")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "ends\n"
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (-signal.SIGINT, "autotune: stopped by the operator\n")
