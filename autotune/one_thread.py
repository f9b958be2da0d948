"""Linear algebra in one thread.

NumPy's BLAS takes a thread a core for anything but the smallest matrices, and each of them spins while it waits. The
tuner's matrices are small, and beside it runs a server that is being measured, or another process on the same cores:
with two busy cores a proposal took 18 seconds of CPU in two threads and 7.5 in one.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, wraps
from typing import ParamSpec, TypeVar

from threadpoolctl import ThreadpoolController

_Given = ParamSpec("_Given")
_Found = TypeVar("_Found")


@cache
def _controller() -> ThreadpoolController:
    """Of the libraries that are loaded by now; looking for them takes a millisecond."""
    return ThreadpoolController()


def in_one_thread(function: Callable[_Given, _Found]) -> Callable[_Given, _Found]:
    """The function, with BLAS limited to one thread while it runs."""

    @wraps(function)
    def limited(*args: _Given.args, **kwargs: _Given.kwargs) -> _Found:
        with _controller().limit(limits=1, user_api="blas"):
            return function(*args, **kwargs)

    return limited
