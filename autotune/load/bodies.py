"""Request bodies of a level, made before its clock starts and kept in bounded memory."""

from __future__ import annotations

import tempfile

from autotune.errors import StorageError
from autotune.units import MIB, format_bytes

MEMORY_BYTES = 64 * MIB
"""Bodies beyond this lie in a nameless temporary file: 4,096 prompts of 100,000 tokens are two gigabytes. Reading one
back costs tens of microseconds, from the page cache."""


class BodyStore:
    """Bytes by their number, in the order they were added. The file has no name and is gone when it is closed.

    Raises (any verb):
        StorageError: the disk of temporary files is full.
    """

    def __init__(self, memory_bytes: int = MEMORY_BYTES) -> None:
        # A file object that lives as long as this store; close() ends both.
        self._file = tempfile.SpooledTemporaryFile(max_size=memory_bytes)  # noqa: SIM115  # closed by its owner
        self._ends = [0]

    def __len__(self) -> int:
        return len(self._ends) - 1

    def add(self, body: bytes) -> None:
        """Keep one more."""
        try:
            self._file.seek(self._ends[-1])
            self._file.write(body)
        except OSError as error:
            raise _unusable(self._ends[-1] + len(body), error) from error
        self._ends.append(self._ends[-1] + len(body))

    def __getitem__(self, number: int) -> bytes:
        start, end = self._ends[number], self._ends[number + 1]
        try:
            self._file.seek(start)
            return self._file.read(end - start)
        except OSError as error:
            raise _unusable(end, error) from error

    def close(self) -> None:
        """Give memory and file back."""
        self._file.close()


def _unusable(size_bytes: int, error: OSError) -> StorageError:
    return StorageError(
        f"cannot keep {format_bytes(size_bytes)} of prompts in a temporary file: {error.strerror or error}",
        hint="Free the disk of temporary files, or point TMPDIR at a larger one.",
    )
