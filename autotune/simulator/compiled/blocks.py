"""Paged KV blocks as `kv_cache.BlockPool` has them, over rows."""

from __future__ import annotations

from autotune.simulator.compiled.compiling import compiled, entry
from autotune.simulator.compiled.layout import Array, State


@compiled
def block_of(s: State, position: int, index: int) -> int:
    """Number of the block with the content of the request's `index`-th."""
    request = s.requests[position]
    if index >= request.keys:
        return request.own_blocks + index - request.keys  # type: ignore[no-any-return]  # of a row
    at = request.segment
    while s.segments[at].until <= index:
        at += 1
    return s.segments[at].base + index + s.segments[at].stride * request.seat  # type: ignore[no-any-return]  # of a row


@compiled
def cached_blocks(s: State, position: int, usable: int) -> int:
    """How many of the request's leading `usable` blocks are cached."""
    hits = 0
    while hits < usable and s.blocks[block_of(s, position, hits)].holders >= 0:
        hits += 1
    return hits


@compiled
def take(s: State, seat: int, count: int) -> None:
    """Take blocks without a key that are known to be free."""
    pool = s.seats[seat]
    pool.used += count
    over = pool.used + pool.evictable - s.whole[0].blocks
    for _ in range(over):
        oldest = pool.oldest
        s.blocks[oldest].holders = -1
        unlink(s, seat, oldest)


@compiled
def unlink(s: State, seat: int, block: int) -> None:
    """Take a block out of the list of evictable ones."""
    pool = s.seats[seat]
    before, after = s.blocks[block].before, s.blocks[block].after
    if before < 0:
        pool.oldest = after
    else:
        s.blocks[before].after = after
    if after < 0:
        pool.newest = before
    else:
        s.blocks[after].before = before
    pool.evictable -= 1


@compiled
def link(s: State, seat: int, block: int) -> None:
    """Append a block nobody holds any more to the evictable ones."""
    pool = s.seats[seat]
    s.blocks[block].before = pool.newest
    s.blocks[block].after = -1
    if pool.newest < 0:
        pool.oldest = block
    else:
        s.blocks[pool.newest].after = block
    pool.newest = block
    pool.evictable += 1


@compiled
def admit(s: State, seat: int, position: int, hits: int, new: int) -> bool:
    """Hold the first `hits` blocks, which are cached, and take `new` ones; False where they do not fit."""
    pool = s.seats[seat]
    revived = 0
    for index in range(hits):
        if s.blocks[block_of(s, position, index)].holders == 0:
            revived += 1
    if revived + new > s.whole[0].blocks - pool.used:
        return False
    held_from = s.requests[position].held_from
    for index in range(hits):
        block = block_of(s, position, index)
        if s.blocks[block].holders == 0:
            unlink(s, seat, block)
        s.blocks[block].holders += 1
        s.held[held_from + index] = True
    pool.used += revived
    take(s, seat, new)
    return True


@compiled
def fill(s: State, position: int) -> None:
    """The request's next block is full: publish it under its key, unless its content is cached already."""
    request = s.requests[position]
    index = request.filled
    request.filled += 1
    if not s.whole[0].caching:
        return
    block = block_of(s, position, index)
    if s.blocks[block].holders < 0:
        s.blocks[block].holders = 1
        s.held[request.held_from + index] = True
        request.unkeyed -= 1
    else:
        s.held[request.held_from + index] = False


@compiled
def release(s: State, position: int) -> None:
    """Give back a request's blocks, the tail first."""
    request = s.requests[position]
    freed = request.unkeyed
    if s.whole[0].caching:
        for index in range(request.filled - 1, -1, -1):
            if s.held[request.held_from + index]:
                block = block_of(s, position, index)
                s.blocks[block].holders -= 1
                if s.blocks[block].holders == 0:
                    link(s, request.seat, block)
                    freed += 1
    s.seats[request.seat].used -= freed
    request.unkeyed = 0
    request.filled = 0


@entry
def by_age(s: State, seat: int, into: Array) -> int:
    """Write the evictable blocks' numbers to the array `into`, oldest first; how many."""
    count = 0
    block = s.seats[seat].oldest
    while block >= 0:
        into[count] = block
        count += 1
        block = s.blocks[block].after
    return count
