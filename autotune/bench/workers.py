"""Worker processes that replay studies, and that end with the run, however it ends."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_Result = TypeVar("_Result")


class Workers:
    """A pool of processes, used as a context manager: its end waits for what runs, unless it is cut short."""

    def __init__(self, count: int) -> None:
        self._others = frozenset(multiprocessing.active_children())
        # Spawned, not forked: the parent may hold threads and locks of its libraries.
        context = multiprocessing.get_context("spawn")
        self._pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin)

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:  # a second Ctrl-C: nobody waits for a study of minutes
            self.cut_short()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def submit(
        self, function: Callable[_Given, _Result], *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_Result]:
        """As an executor's."""
        with _uninterrupted():  # processes are started here
            return self._pool.submit(function, *args, **kwargs)

    def cut_short(self) -> None:
        """End them in the middle of what they do, of which nothing is kept."""
        for one in frozenset(multiprocessing.active_children()) - self._others:
            one.terminate()


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Ctrl-C waits until the end of the block, and processes that are started in it never hear it: it goes to every
    process of a terminal, and a worker would answer with a traceback."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _begin() -> None:
    """In each worker, before numpy is used for anything large: workers are as many as cores already."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for its next study for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
