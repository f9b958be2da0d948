"""Follows a log file that another process appends to."""

from __future__ import annotations

import asyncio
from pathlib import Path

CHUNK_BYTES = 256 * 1024


class LogTail:
    """Reads what was appended since the last read, at most `chunk_bytes` a time: a 100 MB burst is no memory spike.

    Args:
        offset: where to begin, in bytes.
    """

    def __init__(self, path: Path, *, offset: int = 0, chunk_bytes: int = CHUNK_BYTES) -> None:
        self._path = path
        self._chunk_bytes = chunk_bytes
        self._offset = offset

    def read_now(self) -> bytes:
        """The next piece; empty when there is none, no file yet, or no reading it now.

        A file that shrank is read from its start again. One that cannot be read (a network file system that went
        away, no descriptor left) has said nothing new: whoever follows it also watches the process, and must go on.
        """
        try:
            with self._path.open("rb") as file:
                if self._path.stat().st_size < self._offset:
                    self._offset = 0
                file.seek(self._offset)
                piece = file.read(self._chunk_bytes)
        except OSError:
            return b""
        self._offset += len(piece)
        return piece

    async def read(self) -> bytes:
        """`read_now` off the event loop: a full disk or a slow network file system must not stop the load client."""
        return await asyncio.to_thread(self.read_now)
