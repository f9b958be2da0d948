"""Request bodies come back whole, from memory and from disk."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path

import pytest

from autotune.load.bodies import BodyStore


@pytest.mark.parametrize("memory_bytes", [1 << 20, 16])
def test_bodies_come_back_by_number(memory_bytes: int) -> None:
    bodies = [bytes([65 + number]) * (number * 3) for number in range(20)]
    with closing(BodyStore(memory_bytes)) as store:
        for body in bodies:
            store.add(body)
        assert len(store) == 20
        assert [store[number] for number in reversed(range(20))] == bodies[::-1]
        store.add(b"one more")
        assert store[20] == b"one more"
        assert store[3] == b"DDDDDDDDD"


def test_what_outgrows_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with closing(BodyStore(16)) as store:
        store.add(b"x" * 1000)
        assert store[0] == b"x" * 1000
        assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.iterdir()) == []
