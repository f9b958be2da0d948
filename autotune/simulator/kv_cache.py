"""Paged KV blocks of one engine replica: reference counts, prefix cache, eviction.

A block is identified only by its key, an integer that stands for vLLM's chained block hash: equal keys mean equal
content *and* equal history. Blocks that are not full, or whose content another block already caches, have no key and
are only counted. Pure: no clock, no randomness.

Follows `vllm/v1/core/block_pool.py` (0.25) with one simplification: blocks without a key are reused before a cached
block is evicted, where vLLM keeps one queue in order of release.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class BlockPool:
    """Blocks shared by the requests of one replica.

    Args:
        blocks: how many there are; at least 1.
        prefix_caching: keep released full blocks findable by key until their room is needed.
    """

    __slots__ = ("_cached", "_evictable", "_used", "blocks", "prefix_caching")

    def __init__(self, blocks: int, *, prefix_caching: bool) -> None:
        if blocks < 1:
            raise ValueError(f"a block pool needs at least 1 block, not {blocks}")
        self.blocks = blocks
        self.prefix_caching = prefix_caching
        self._used = 0
        self._cached: dict[int, int] = {}  # key -> how many requests hold it
        # Keys nobody holds, least recently released first. An OrderedDict, because taking the oldest key of a
        # plain dict walks over every hole that earlier evictions left.
        self._evictable: OrderedDict[int, None] = OrderedDict()

    @property
    def free(self) -> int:
        """Blocks that can be handed out now, evictable cached ones included."""
        return self.blocks - self._used

    @property
    def usage(self) -> float:
        """Share of blocks held by requests, 0..1 (vLLM's `kv_cache_usage_perc`)."""
        return self._used / self.blocks

    @property
    def cached(self) -> int:
        """Blocks findable by key, held or not."""
        return len(self._cached)

    def lookup(self, keys: Sequence[int]) -> int:
        """How many of the leading `keys` are cached."""
        if not self.prefix_caching:
            return 0
        cached = self._cached
        hits = 0
        for key in keys:
            if key not in cached:
                break
            hits += 1
        return hits

    def admit(self, hit_keys: Sequence[int], new_blocks: int) -> bool:
        """Hold the cached `hit_keys` and take `new_blocks` without a key; False (and nothing taken) if they do not fit.

        Every hit key must be cached, as `lookup` just said.
        """
        evictable = self._evictable
        revived = sum(1 for key in hit_keys if key in evictable)
        if revived + new_blocks > self.free:
            return False
        cached = self._cached
        for key in hit_keys:
            cached[key] += 1
            evictable.pop(key, None)
        self._used += revived
        self._take(new_blocks)
        return True

    def grow(self) -> bool:
        """Take one more block without a key; False when every block is held."""
        if self._used >= self.blocks:
            return False
        self._take(1)
        return True

    def publish(self, key: int) -> bool:
        """Give a held, now full block its key. False when the content is cached already: the block stays without."""
        return bool(self.publish_all((key,)))

    def publish_all(self, keys: Sequence[int]) -> Sequence[int]:
        """Give held, now full blocks their keys; those of `keys` that were not cached already."""
        if not self.prefix_caching:
            return ()
        cached = self._cached
        fresh = [key for key in keys if key not in cached]
        cached.update(dict.fromkeys(fresh, 1))
        return fresh

    def release(self, keys: Sequence[int], unkeyed: int) -> None:
        """Give back a request's blocks: `keys` in order of position, and `unkeyed` without a key.

        The tail is released first, so that it is evicted before the head, which more requests can share.
        """
        cached, evictable = self._cached, self._evictable
        freed = unkeyed
        for key in reversed(keys):
            holders = cached[key] - 1
            cached[key] = holders
            if holders == 0:
                evictable[key] = None
                freed += 1
        self._used -= freed

    def reset_prefix_cache(self) -> bool:
        """Forget cached blocks; False (and nothing done) while requests hold blocks, as in vLLM."""
        if self._used:
            return False
        self._cached.clear()
        self._evictable.clear()
        return True

    def _take(self, count: int) -> None:
        self._used += count
        over = self._used + len(self._evictable) - self.blocks
        for _ in range(over):
            oldest, _ = self._evictable.popitem(last=False)
            del self._cached[oldest]
