"""The busiest rank, against counting every case."""

from __future__ import annotations

from itertools import combinations, pairwise

import pytest

from autotune.simulator.dealt_experts import busiest_rank


def counted(count: int, ranks: int, hits: int) -> float:
    local = -(-count // ranks)
    cases = list(combinations(range(count), hits))
    return sum(max(sum(e // local == rank for e in case) for rank in range(ranks)) for case in cases) / len(cases)


@pytest.mark.parametrize(("count", "ranks"), [(8, 4), (8, 2), (12, 3), (10, 4)])
def test_expected_most_is_the_enumerated(count: int, ranks: int) -> None:
    table = busiest_rank(count, ranks)
    assert len(table) == count + 1
    for hits in range(1, count + 1):
        assert table[hits] == pytest.approx(counted(count, ranks, hits))


def test_ends_of_a_large_model() -> None:
    table = busiest_rank(256, 8)
    assert (table[0], table[1], table[256]) == pytest.approx((0.0, 1.0, 32.0))
    assert all(after > before for before, after in pairwise(table) if after < 31.9)
    assert all(most > hits / 8 - 1e-9 for hits, most in enumerate(table))
    assert busiest_rank(512, 16)[512] == pytest.approx(32.0)
