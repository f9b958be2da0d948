"""How a command ends: one clear message on stderr, a documented exit code, never a traceback."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from typing import NoReturn

from autotune.errors import AutotuneError, ExitCode

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def run(command: Callable[[], object]) -> NoReturn:
    """Run the whole command line and end the process as documented in docs/exit-codes.md.

    Args:
        command: ends by returning, by `SystemExit` (the argument parser's way), or by an error.
    """
    _ready_streams()
    # As Ctrl-C: what a TERM meets half-way (a server command that is being asked for its flags) is cleared up.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # `nohup autotune ...` survives the terminal
        signal.signal(signal.SIGHUP, signal.default_int_handler)
    try:
        command()
        sys.stdout.flush()  # here, where a reader that went away is no error, and not at the interpreter's exit
        sys.exit(int(ExitCode.OK))
    except SystemExit as end:
        _end_at_once()
        if end.code == ExitCode.INTERRUPTED:
            _say("autotune: stopped by the operator")
        raise
    except AutotuneError as error:
        _end_at_once()
        _say(f"autotune: {error.message}")
        if error.hint:
            _say(f"  {error.hint}")
        sys.exit(int(error.exit_code))
    except BrokenPipeError:
        # The reader of our output went away (`autotune list | head`); Python would complain again at exit.
        silence_output()
        sys.exit(int(ExitCode.OK))
    except KeyboardInterrupt:
        _end_at_once()
        _say("autotune: stopped by the operator")
        sys.exit(int(ExitCode.INTERRUPTED))
    except Exception as error:  # noqa: BLE001 - the outermost shell: an operator never sees a traceback
        if isinstance(error, OSError) and error.filename is None and error.errno in _NO_ROOM:
            _output_refused(error)  # our own files raise errors that name them
        _internal(error)


def _end_at_once() -> None:
    """From here on a signal has nothing to clear up: it ends the process, where Python would show a traceback."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.default_int_handler:
            signal.signal(number, signal.SIG_DFL)


def _ready_streams() -> None:
    """Standard output and error that take every text."""
    if sys.stdout is None:  # closed by the shell: `autotune list >&-`
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    if sys.stderr is None:
        sys.stderr = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w", encoding="utf-8")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # An arrow on an ASCII terminal, a folder's name that is no UTF-8: shown as an escape, and no error.
            stream.reconfigure(errors="backslashreplace")


def _output_refused(error: OSError) -> NoReturn:
    """`autotune list > /on/a/full/disk`."""
    silence_output()
    _say(f"autotune: standard output cannot be written: {error.strerror}")
    sys.exit(int(ExitCode.STORAGE))


def silence_output() -> None:
    """Let standard output lead nowhere, after its reader has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _internal(error: Exception) -> NoReturn:
    """A bug of ours: the story goes to a file, the operator gets one line."""
    from autotune.engine.redaction import redact

    story = redact("".join(traceback.format_exception(error)))
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="autotune-internal-error-", suffix=".txt", delete=False, encoding="utf-8"
        ) as file:
            file.write(story)
        where = f"the details are in {file.name}"
    except OSError:
        where = "the details could not be written to a file"
    message = " ".join(str(error).split())[:300]
    _say(f"autotune: internal error ({type(error).__name__}: {message}); {where}")
    sys.exit(int(ExitCode.INTERNAL))


def _say(text: str) -> None:
    """Names in a message must not move the cursor. `report.wording` does the same, but takes long to import."""
    from autotune.engine.redaction import redact_prose  # here, as most commands end without a word

    text = redact_prose(text)
    plain = (c if c == "\n" or c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)
    print("".join(plain), file=sys.stderr)
