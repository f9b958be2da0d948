"""The sampler's benchmark measures what it says, on a small case."""

from __future__ import annotations

import pytest

from benchmarks.sampler import measured


@pytest.mark.no_cover
def test_every_part_is_timed():
    found = measured(trials=8, repeats=1)
    assert found["configs"] == 20_000
    assert found["trials"] == 8
    assert all(found[name] > 0.0 for name in ("list_s", "expect_first_s", "expect_s", "propose_s"))
