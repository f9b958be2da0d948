"""Where numba compiles to and keeps what it compiled; without numba functions stay as they are.

numba keys a kept function by the file it stands in, not by those it calls. So each set of sources has a folder of its
own, named by their content: an edited formula can never meet code compiled before the edit.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

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
    if not installed():
        return function
    with _kept_in(folder()):
        try:
            return _njit(function, cache=True)
        except RuntimeError:  # nowhere to write: compiled anew by every process
            return _njit(function)


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
