"""Where numba compiles to and keeps what it compiled; without numba functions stay as they are.

numba keys a kept function by the file it stands in, not by those it calls. So each set of sources has a folder of its
own, named by their content: an edited formula can never meet code compiled before the edit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Generic, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_HERE = Path(__file__).parent
_SOURCES = (
    *(_HERE / f"{name}.py" for name in ("blocks", "compiling", "layout", "loop", "plans", "queues", "servers")),
    _HERE.parent / "step_formula.py",
)


def installed() -> bool:
    """Whether there is a numba to compile with, and nobody has switched its compiler off."""
    return find_spec("numba") is not None and os.environ.get("NUMBA_DISABLE_JIT", "0") == "0"


@cache
def folder() -> Path:
    """Where this version of the sources is kept compiled; it need not exist."""
    return cache_root(os.environ) / f"simulator-{_sources_digest()}"


def cache_root(environ: Mapping[str, str]) -> Path:
    """NUMBA_CACHE_DIR, else AUTOTUNE_CACHE_DIR, else `autotune` in the user's cache."""
    for name in ("NUMBA_CACHE_DIR", "AUTOTUNE_CACHE_DIR"):
        if environ.get(name):
            return Path(environ[name])
    return Path(environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "autotune"


def kept() -> bool:
    """Whether an earlier process has left compiled code, which is loaded in no time."""
    return any(folder().rglob("*.nbi"))


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """`function` for other compiled functions to call; the same function without numba."""
    # Only `entry` is called from Python, and kept: what it calls is kept inside it.
    return _njit(function, no_cpython_wrapper=True) if installed() else function


def entry(function: Callable[P, R]) -> Callable[P, R]:
    """`function` as machine code, made at its first call unless it was kept; the same function without numba."""
    return _Entry(function, folder()) if installed() else function


class _Entry(Generic[P, R]):
    """A function that is compiled at its first call: which takes many seconds, so it is said, and no disk may spoil."""

    def __init__(self, function: Callable[P, R], place: Path) -> None:
        self._function, self._place, self._ready = function, place, False
        with _kept_in(place):
            try:
                self._made = _njit(function, cache=True)
            except RuntimeError:  # nowhere to write: compiled anew by every process
                self._made = _njit(function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._made(*args, **kwargs) if self._ready else self._first(*args, **kwargs)

    def _first(self, *args: P.args, **kwargs: P.kwargs) -> R:
        from numba.core import event

        with event.install_listener("numba:compile", _announcement(self._place)):
            try:
                result = self._made(*args, **kwargs)
            except (OSError, EOFError, UnpicklingError) as error:
                # Of the cache, before anything ran: the core itself touches no file. numba saves what it has compiled,
                # so that after a failure to save it is there, and after one to load it is not.
                _tell(f"compiled code cannot be kept in {self._place} ({error}): the next process compiles it again")
                if not getattr(self._made, "signatures", ()):
                    self._made = _njit(self._function)
                result = self._made(*args, **kwargs)
        self._ready = True
        return result


def _announcement(place: Path) -> Any:
    """Says that numba has begun to compile: a kept function is loaded without that event."""
    from numba.core import event

    class Announcement(event.Listener):  # numba takes no other listeners
        def on_start(self, _event: event.Event) -> None:
            _announce(place)

        def on_end(self, _event: event.Event) -> None: ...

    return Announcement()


@cache
def _announce(place: Path) -> None:
    """Once for all that is kept there."""
    _tell(f"compiling the simulation's core, which takes some 20 seconds once (kept in {place})")


def _tell(text: str) -> None:
    """Not a log line, which nobody sees who has not asked for one: without it a first run looks as if it hung."""
    sys.stderr.write(f"autotune: {text}\n")
    sys.stderr.flush()


def _njit(function: Callable[P, R], **options: bool) -> Callable[P, R]:
    """Compile without reference counts: the core makes no arrays, and counting those that it is given took two thirds
    of its time and a third of the compiler's."""
    import numba

    njit: Any = numba.njit  # `_nrt` and the wrappers' options are not in its type hints
    made: Callable[P, R] = njit(_nrt=False, error_model="numpy", no_cfunc_wrapper=True, **options)(function)
    return made


@contextmanager
def _kept_in(place: Path) -> Iterator[None]:
    """numba asks for its cache folder when a function is decorated, so other users of numba see no change."""
    import numba

    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(place)
    try:
        yield
    finally:
        config.CACHE_DIR = before


def _sources_digest() -> str:
    digest = sha256()
    for path in _SOURCES:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]
