"""A slow scheduler to compare with: walks over every request and block in every step, no counters, no shortcuts.

Written from the rules (running first, then waiting; whole prompt reserved; the last admitted is preempted), not from
the fast one: each request holds a list of block objects, each block says what it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(eq=False)
class Block:
    key: int | None = None
    holders: int = 0
    released: int = 0


@dataclass(eq=False)
class SlowRequest:
    serial: int
    prompt: int
    output: int
    keys: list[int]
    out: int = 0
    computed: int = 0
    goal: int = 0
    blocks: list[Block] = field(default_factory=list)
    preemptions: int = 0
    done: bool = False


@dataclass(frozen=True)
class SlowStep:
    decoding: tuple[int, ...]
    context: int
    chunks: tuple[tuple[int, int, int], ...]  # serial, first token, tokens
    finishing: tuple[int, ...]
    preempted: tuple[int, ...]


class SlowScheduler:
    def __init__(self, blocks: int, size: int, seats: int, budget: int, *, chunked: bool, caching: bool) -> None:
        self.pool = [Block() for _ in range(blocks)]
        self.size, self.seats, self.budget = size, seats, budget
        self.chunked, self.caching = chunked, caching
        self.waiting: list[SlowRequest] = []
        self.running: list[SlowRequest] = []
        self.clock = 0

    def free(self) -> list[Block]:
        """Free blocks in the order they are handed out: without content first, then least recently released."""
        idle = [b for b in self.pool if b.holders == 0]
        return [b for b in idle if b.key is None] + sorted(
            (b for b in idle if b.key is not None), key=lambda b: b.released
        )

    def cached(self, key: int) -> Block | None:
        return next((b for b in self.pool if b.key == key), None) if self.caching else None

    def take(self, request: SlowRequest) -> bool:
        free = self.free()
        if not free:
            return False
        block = free[0]
        block.key, block.holders = None, 1
        request.blocks.append(block)
        return True

    def give_back(self, request: SlowRequest) -> None:
        for block in reversed(request.blocks):
            block.holders -= 1
            if block.holders == 0:
                self.clock += 1
                block.released = self.clock
        request.blocks = []

    def key_at(self, request: SlowRequest, index: int) -> int:
        return request.keys[index] if index < len(request.keys) else -(request.serial * 1000 + index + 1)

    def publish(self, request: SlowRequest) -> None:
        for index in range(request.computed // self.size):
            block = request.blocks[index]
            key = self.key_at(request, index)
            # Asked first: an offer that meets a cached twin is used up as well.
            if not self.was_published(request, index) and self.caching and block.key is None:
                block.key = key if self.cached(key) is None else None

    def was_published(self, request: SlowRequest, index: int) -> bool:
        # A block is offered once, when it gets full; a duplicate then stays without a key for good.
        offered = getattr(request, "offered", 0)
        if index < offered:
            return True
        request.offered = index + 1
        return False

    def plan(self) -> SlowStep | None:  # noqa: C901  # one straight reading of the rules
        budget = self.budget
        preempted: list[int] = []
        decoding: list[SlowRequest] = []
        chunks: list[tuple[int, int, int]] = []
        context = 0
        emit: list[SlowRequest] = []
        for request in list(self.running):
            if request.serial in preempted or request.done or request.computed < request.goal:
                continue
            needs_block = request.computed % self.size == 0
            while needs_block and not self.take(request):
                victim = next(r for r in reversed(self.running) if not r.done)
                self.preempt(victim)
                preempted.append(victim.serial)
                if victim is request:
                    break
            if request.serial in preempted:
                continue
            decoding.append(request)
        for request in decoding:
            if request.serial in preempted:
                raise AssertionError("a request that was scheduled must not be preempted in the same step")
            # the token made last is written now: its block may have been filled by the token before
            self.publish(request)
            request.computed += 1
            context += request.computed
            emit.append(request)
            budget -= 1
        for request in list(self.running):
            if not request.done and request.computed < request.goal:
                count = min(budget, request.goal - request.computed)
                if count > 0:
                    budget -= count
                    chunks.append((request.serial, request.computed, count))
                    request.computed += count
                    self.publish(request)
                    if request.computed == request.goal:
                        emit.append(request)
        stuck = any(not r.done and r.computed < r.goal for r in self.running)
        while not preempted and self.waiting and budget > 0 and not stuck and len(self.running) < self.seats:
            request = self.waiting[0]
            hits: list[Block] = []
            for index in range((request.goal - 1) // self.size):
                block = self.cached(self.key_at(request, index))
                if block is None:
                    break
                hits.append(block)
            rest = request.goal - len(hits) * self.size
            if not self.chunked and rest > budget:
                break
            fresh = -(-request.goal // self.size) - len(hits)
            if fresh > len([b for b in self.free() if b not in hits]):
                break
            self.waiting.pop(0)
            self.running.append(request)
            for block in hits:
                block.holders += 1
            request.blocks = list(hits)
            for _ in range(fresh):
                assert self.take(request)
            request.offered = len(hits)
            count = min(rest, budget)
            chunks.append((request.serial, len(hits) * self.size, count))
            request.computed = len(hits) * self.size + count
            budget -= count
            self.publish(request)
            if request.computed == request.goal:
                emit.append(request)
            else:
                stuck = True
        finishing = []
        for request in emit:
            request.out += 1
            if request.out == request.output:
                request.done = True
                finishing.append(request.serial)
        if not decoding and not chunks:
            return None
        return SlowStep(
            tuple(sorted(r.serial for r in decoding)),
            context,
            tuple(chunks),
            tuple(sorted(finishing)),
            tuple(preempted),
        )

    def preempt(self, request: SlowRequest) -> None:
        self.running.remove(request)
        self.give_back(request)
        request.goal = request.prompt + request.out
        request.computed = 0
        request.preemptions += 1
        self.waiting.insert(0, request)

    def complete(self, serials: tuple[int, ...]) -> None:
        for request in [r for r in self.running if r.serial in serials]:
            self.running.remove(request)
            self.give_back(request)
