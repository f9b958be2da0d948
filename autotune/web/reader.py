"""The store, asked from the event loop: one thread and one connection, so that no request waits inside it."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import TypeVar

from autotune.store.places import Places
from autotune.store.repository import Store

T = TypeVar("T")

KEPT_BYTES = 64 * 1024 * 1024


class NoDatabase(Exception):
    """No study was ever made here; what that means is the asker's to say."""


class Reader:
    """Runs questions to the store one after another, in a thread of its own.

    Args:
        name: of the thread.
        migrate: whether tables of an earlier version are brought to this one's.
    """

    def __init__(self, places: Places, name: str, *, migrate: bool = True) -> None:
        self.places, self._migrate = places, migrate
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"autotune-{name}")
        self._store: Store | None = None
        self._file: tuple[int, int] | None = None

    async def ask(self, question: Callable[[Store], T]) -> T:
        """The answer of `question`, which is given the open store.

        Raises:
            NoDatabase: there is none yet.
            AutotuneError: what the store says.
        """
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._asked, question)

    def _asked(self, question: Callable[[Store], T]) -> T:
        return question(self._opened())

    def _opened(self) -> Store:
        """The store; opened anew where the file at its place is another one."""
        if self.places.storage is None:
            try:
                found = Path(self.places.database).stat()
            except FileNotFoundError:
                raise NoDatabase from None
            file = (found.st_dev, found.st_ino)
        else:
            file = (0, 0)
        if self._store is not None and file != self._file:
            self._store.close()
            self._store = None
        if self._store is None:
            opened = Store.open(
                self.places.database,
                create=False,
                migrate=self._migrate,
                busy_timeout_s=self.places.busy_timeout_s,
            )
            self._store, self._file = opened, file
        return self._store

    async def close(self) -> None:
        """Give the connection back, after what was asked before."""

        def end() -> None:
            if self._store is not None:
                self._store.close()
                self._store = None

        await asyncio.get_running_loop().run_in_executor(self._executor, end)
        self._executor.shutdown(wait=False)


class Kept:
    """Documents as they were sent last, until something of theirs changes; the least used go first.

    Several threads may use it.
    """

    def __init__(self, most_bytes: int = KEPT_BYTES) -> None:
        self._found: OrderedDict[tuple[str, ...], tuple[str, bytes]] = OrderedDict()
        self._most, self._size = most_bytes, 0
        self._lock = Lock()

    def get(self, key: tuple[str, ...], revision: str) -> bytes | None:
        """The document of that revision; None where it is not here."""
        with self._lock:
            found = self._found.get(key)
            if found is None or found[0] != revision:
                return None
            self._found.move_to_end(key)
            return found[1]

    def put(self, key: tuple[str, ...], revision: str, document: bytes) -> None:
        """Keep a document in place of what was there."""
        with self._lock:
            old = self._found.pop(key, None)
            self._size += len(document) - (len(old[1]) if old else 0)
            self._found[key] = (revision, document)
            while self._size > self._most and self._found:
                _, (_, gone) = self._found.popitem(last=False)
                self._size -= len(gone)
