"""Block pool: counting, eviction order, and that nothing leaks whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.simulator.kv_cache import BlockPool


def test_released_blocks_stay_findable_until_their_room_is_needed() -> None:
    pool = BlockPool(4, prefix_caching=True)
    assert pool.admit([], 3)
    assert all(pool.publish(key) for key in (1, 2, 3))
    pool.release([1, 2, 3], 0)
    assert (pool.free, pool.usage, pool.lookup([1, 2, 3, 4])) == (4, 0.0, 3)
    # One block was never used; the second one taken costs the tail of the chain, not its head.
    assert pool.admit([], 2)
    assert (pool.free, pool.lookup([1, 2, 3])) == (2, 2)


def test_a_hit_that_must_be_revived_counts_as_taken() -> None:
    pool = BlockPool(3, prefix_caching=True)
    pool.admit([], 2)
    pool.publish(1), pool.publish(2)
    pool.release([1, 2], 0)
    assert not pool.admit([1, 2], 2)
    assert pool.free == 3
    assert pool.admit([1, 2], 1)
    assert pool.free == 0


def test_equal_content_is_published_once() -> None:
    pool = BlockPool(2, prefix_caching=True)
    pool.admit([], 2)
    assert pool.publish(7)
    assert not pool.publish(7)
    pool.release([7], 1)
    assert (pool.free, pool.cached) == (2, 1)


def test_reset_forgets_only_while_nothing_is_held() -> None:
    pool = BlockPool(2, prefix_caching=True)
    pool.admit([], 1)
    pool.publish(7)
    assert not pool.reset_prefix_cache()
    pool.release([7], 0)
    assert pool.reset_prefix_cache()
    assert pool.lookup([7]) == 0


def test_no_caching_finds_nothing() -> None:
    pool = BlockPool(2, prefix_caching=False)
    pool.admit([], 1)
    assert not pool.publish(7)
    assert pool.lookup([7]) == 0


def test_a_pool_has_blocks() -> None:
    with pytest.raises(ValueError, match="at least 1 block"):
        BlockPool(0, prefix_caching=True)


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 3)), max_size=40), st.integers(4, 12))
def test_blocks_never_leak(requests: list[tuple[int, int]], blocks: int) -> None:
    """Requests of 1-5 blocks of chain 0-3 come and go, at most three at once; in the end everything is free."""
    pool = BlockPool(blocks, prefix_caching=True)
    held: list[tuple[list[int], int]] = []
    for size, chain in requests:
        if len(held) == 3:
            pool.release(*held.pop(0))
        keys = [chain * 100 + i for i in range(size)]
        hits = pool.lookup(keys)
        free = pool.free
        if not pool.admit(keys[:hits], size - hits):
            assert pool.free == free
            continue
        published = [key for key in keys[hits:] if pool.publish(key)]
        held.append((keys[:hits] + published, size - hits - len(published)))
        assert 0 <= pool.free <= blocks
        assert pool.cached <= blocks
    for keys, unkeyed in held:
        pool.release(keys, unkeyed)
    assert pool.free == blocks
