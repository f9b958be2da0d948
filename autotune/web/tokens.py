"""The token that reaches the service, and the sessions of pages that showed it.

A token of ours has 256 random bits, so its plain SHA-256 tells nobody anything: there is no dictionary of such tokens
to try, and a slow hash would only let strangers keep the service busy.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import NOT_SHOWN, InvalidFile, InvalidOption, StorageError

TOKEN_VARIABLE = "AUTOTUNE_TOKEN"  # noqa: S105 - its name
LEAST_LENGTH, MOST_LENGTH = 32, 512
COOKIE = "autotune_session"
SESSION_S = 12 * 3600.0
MOST_SESSIONS = 1000

_LINE = re.compile(r"sha256:[0-9a-f]{64}")


def new_token() -> str:
    """A token that nobody has seen."""
    return f"at_{secrets.token_urlsafe(32)}"


def hashed(token: str) -> str:
    """As a token is kept."""
    return f"sha256:{hashlib.sha256(token.encode('utf-8', 'surrogateescape')).hexdigest()}"


def is_known(token: str, hashes: Sequence[str]) -> bool:
    """Whether the token is one of those; takes as long whichever it is, and whether it is one or not."""
    if len(token) > MOST_LENGTH:
        return False
    own = hashed(token)
    found = False
    for one in hashes:
        found |= hmac.compare_digest(own, one)
    return found


def read_token_file(path: Path) -> tuple[str, ...]:
    """The hashes in a token file: one a line, several while one replaces another; `#` begins a remark.

    Raises:
        InvalidFile: there is none, or it holds something else, such as the token itself.
        StorageError: it cannot be read.
    """
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except FileNotFoundError:
        raise InvalidFile(
            str(path), "", "no file", "a file that `autotune serve --new-token` wrote", hint="Run that first."
        ) from None
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from None
    found = [word for line in lines if (word := line.partition("#")[0].strip())]
    if not found or not all(_LINE.fullmatch(word) for word in found):
        raise InvalidFile(
            str(path),
            "",
            NOT_SHOWN,
            "lines of `sha256:` and 64 hexadecimal digits, as `autotune serve --new-token` writes them",
            hint=f"A token itself belongs into the variable {TOKEN_VARIABLE}.",
        )
    return tuple(found)


def write_token_file(path: Path, token: str) -> None:
    """Keep the hash of a token, readable by the owner alone; what was there is replaced.

    Raises:
        StorageError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.{secrets.token_hex(4)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as file:
            file.write(f"{hashed(token)}\n")
        part.replace(path)
    except OSError as error:
        raise StorageError(f"{path}: {error.strerror}") from None


def token_of_environment(value: str) -> str:
    """The hash of a token from the environment.

    Raises:
        InvalidOption: it is too short to keep anybody out.
    """
    if not LEAST_LENGTH <= len(value) <= MOST_LENGTH:
        allowed = f"{LEAST_LENGTH} to {MOST_LENGTH} characters; `autotune serve --new-token` makes one"
        raise InvalidOption(TOKEN_VARIABLE, NOT_SHOWN, allowed)
    return hashed(value)


class Sessions:
    """Pages that showed the token, by the hash of what their cookie holds. They end with the service."""

    def __init__(self) -> None:
        self._ends: dict[str, float] = {}

    def begin(self, now: float) -> str:
        """A new session's cookie."""
        cookie = secrets.token_urlsafe(32)
        self._ends = {key: end for key, end in self._ends.items() if end > now}
        while len(self._ends) >= MOST_SESSIONS:
            del self._ends[next(iter(self._ends))]
        self._ends[hashed(cookie)] = now + SESSION_S
        return cookie

    def is_open(self, cookie: str, now: float) -> bool:
        """Whether this cookie's session still runs."""
        return len(cookie) <= MOST_LENGTH and self._ends.get(hashed(cookie), 0.0) > now

    def end(self, cookie: str) -> None:
        """Log out."""
        self._ends.pop(hashed(cookie), None)
