"""The mark that every process of a server carries: a random word in its environment."""

from __future__ import annotations

from pathlib import Path

MARKER_NAME = "AUTOTUNE_MARKER"
KEEP_ENVIRON = "SPT_NOENV"
"""Set to 1, it keeps setproctitle (vLLM re-titles its processes) from overwriting /proc/PID/environ and the marker."""

_MARKER = f"{MARKER_NAME}=".encode()


def marker_of(pid: int) -> str | None:
    """The word that a process carries; None for one that carries none, is gone, or is another user's."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    found = next((word for word in environ.split(b"\0") if word.startswith(_MARKER)), None)
    return None if found is None else found.removeprefix(_MARKER).decode("ascii", "replace") or None
