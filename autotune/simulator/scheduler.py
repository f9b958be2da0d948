"""Which tokens run in which step: continuous batching as vLLM V1 does it (`vllm/v1/core/sched/scheduler.py`, 0.25).

Every step first gives one token to each decoding request, then goes on with a prompt that was cut by the budget, then
admits waiting requests in order of arrival. A request's whole prompt is reserved in the KV cache when it is admitted;
decoding takes one block more whenever a block is full; when there is none, the request admitted last is preempted
and later recomputed from its first token.

Cost: a step touches only the requests that join, leave or need a block. All decoding requests advance by one token a
step, so their lengths follow from one counter (`_Lane.tick`), and steps in which nothing joins or leaves cost the same
for 1 and for 1,000 running requests. tests/unit/simulator compares this with a scheduler that walks over every request.

Pure: no clock, no randomness.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.simulator.kv_cache import BlockPool


@dataclass(slots=True, eq=False)
class SimRequest:
    """One request inside the engine. The first four fields are given, the rest is the scheduler's own state.

    Attributes:
        serial: unique among the requests of one simulation.
        output_tokens: exact number to generate, at least 1.
        keys: content keys of the prompt's full blocks, first to last.
        emitted: tokens planned so far, up to date when the request joins, leaves or is preempted.
        target: tokens that must be in the KV cache before the next token comes out: prompt plus what was generated
            before the last preemption.
        computed: how many of them are, or are planned to be.
    """

    serial: int
    prompt_tokens: int
    output_tokens: int
    keys: Sequence[int] = ()
    lane: int = 0
    order: int = -1
    target: int = 0
    computed: int = 0
    emitted: int = 0
    preemptions: int = 0
    cached_tokens: int = 0
    joined_tick: int = 0
    last_tick: int = -1
    held: list[int] = field(default_factory=list)
    unkeyed: int = 0
    filled: int = 0

    def __post_init__(self) -> None:
        if self.prompt_tokens < 1 or self.output_tokens < 1:
            raise ValueError(
                f"a request needs at least 1 prompt and 1 output token, not {self.prompt_tokens} and "
                f"{self.output_tokens}"
            )
        self.target = self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One planned step of one lane.

    Attributes:
        decoding: requests that emit one token from one token of input.
        decode_context: sum over them of the tokens whose KV is read.
        finished_prefill: requests whose prompt ends in this step: they emit a token too.
        admitted: requests that left the queue in this step.
        prefill_tokens: prompt tokens computed; prefix hits are not among them.
        prefill_pairs: sum over prompt chunks of (query, key) pairs under the causal mask.
        prefill_context: tokens whose KV the chunks read, themselves included.
        finishing: requests whose last token this step emits; their blocks and seats are free after `complete`.
    """

    lane: int
    decoding: tuple[SimRequest, ...]
    decode_context: int
    finished_prefill: tuple[SimRequest, ...]
    admitted: tuple[SimRequest, ...]
    prefill_tokens: int
    prefill_chunks: int
    prefill_pairs: int
    prefill_context: int
    finishing: tuple[SimRequest, ...]
    preempted: tuple[SimRequest, ...]

    @property
    def tokens(self) -> int:
        """Input tokens of the step."""
        return len(self.decoding) + self.prefill_tokens

    @property
    def emitting(self) -> int:
        """Requests that get a token out of this step."""
        return len(self.decoding) + len(self.finished_prefill)


class _Lane:
    """The requests of one micro-batch (pipeline parallel has several); they advance together."""

    __slots__ = ("context", "decoding", "finish_at", "grow_at", "partial", "snapshot", "tick")

    def __init__(self) -> None:
        self.tick = 0
        self.decoding: dict[SimRequest, None] = {}
        self.context = 0
        self.finish_at: dict[int, list[SimRequest]] = {}
        self.grow_at: dict[int, list[tuple[int, SimRequest]]] = {}  # with the order of the admission it is for
        self.partial: SimRequest | None = None
        self.snapshot: tuple[SimRequest, ...] | None = ()


class Scheduler:
    """One engine replica's queue and batch.

    Args:
        pool: KV blocks, shared by all lanes; kept between load levels so that its prefix cache stays warm.
        max_num_seqs: seats, over all lanes together.
        max_num_batched_tokens: input tokens of one step; at least `max_num_seqs`.
        chunked_prefill: whether a prompt may be cut to fit the rest of the budget.
        lanes: micro-batches in flight: the pipeline-parallel size.

    Counters are cumulative. `prefix_queries` counts a waiting request's tokens once per attempt to admit it, as
    vLLM 0.25 does: with a full KV cache it grows far beyond the prompt tokens.
    """

    def __init__(
        self,
        pool: BlockPool,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        chunked_prefill: bool = True,
        block_size: int = 16,
        lanes: int = 1,
    ) -> None:
        if max_num_seqs < 1 or max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens ({max_num_batched_tokens}) must be at least max_num_seqs ({max_num_seqs}), "
                "and both at least 1"
            )
        self.pool = pool
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.chunked_prefill = chunked_prefill
        self.block_size = block_size
        self.waiting: deque[SimRequest] = deque()
        self.running: dict[SimRequest, None] = {}  # in order of admission
        self.preemptions = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self._lanes = [_Lane() for _ in range(lanes)]
        self._order = 0

    def add(self, request: SimRequest) -> None:
        """Queue a request.

        Raises:
            ValueError: it can never run: longer than the KV cache, or than the budget with chunked prefill off.
        """
        blocks = -(-(request.prompt_tokens + request.output_tokens - 1) // self.block_size)
        if blocks > self.pool.blocks:
            raise ValueError(f"request {request.serial} needs {blocks} KV blocks, the pool has {self.pool.blocks}")
        if not self.chunked_prefill and request.prompt_tokens + request.output_tokens > self.max_num_batched_tokens + 1:
            raise ValueError(
                f"request {request.serial} has {request.prompt_tokens} + {request.output_tokens} tokens, more than "
                f"max_num_batched_tokens ({self.max_num_batched_tokens}) with chunked prefill off"
            )
        self.waiting.append(request)

    def has_work(self, lane: int = 0) -> bool:
        """Whether `plan(lane)` might find something to run."""
        state = self._lanes[lane]
        return bool(state.decoding or state.partial or self.waiting)

    def plan(self, lane: int = 0) -> StepPlan | None:
        """The next step of `lane`; None when nothing can run (an empty lane, or all seats or blocks taken)."""
        state = self._lanes[lane]
        state.tick += 1
        preempted = self._grow(state)
        decoding = state.snapshot
        if decoding is None:
            decoding = state.snapshot = tuple(state.decoding)
        state.context += len(decoding)
        context = state.context
        prefill = _Prefill(self.max_num_batched_tokens - len(decoding))
        if state.partial is not None:
            self._continue(state, state.partial, prefill)
        if not preempted:
            self._admit(state, lane, prefill)
        for request in prefill.finished:
            self._join(state, request)
        finishing = self._leave(state)
        if not decoding and not prefill.tokens:
            return None
        return StepPlan(
            lane=lane,
            decoding=decoding,
            decode_context=context,
            finished_prefill=tuple(prefill.finished),
            admitted=tuple(prefill.admitted),
            prefill_tokens=prefill.tokens,
            prefill_chunks=prefill.chunks,
            prefill_pairs=prefill.pairs,
            prefill_context=prefill.context,
            finishing=finishing,
            preempted=tuple(preempted),
        )

    def complete(self, plan: StepPlan) -> None:
        """The step has run: finished requests give back their seat and their blocks."""
        for request in plan.finishing:
            if request in self.running:  # an aborted request is gone already
                self._drop(request)

    def abort(self, request: SimRequest) -> None:
        """Forget a request whose client is gone; unknown or finished ones are fine."""
        if request in self.running:
            state = self._lanes[request.lane]
            self._remove_from_batch(state, request, state.tick)
            self._drop(request)
        elif request in self.waiting:
            self.waiting.remove(request)

    def _grow(self, state: _Lane) -> list[SimRequest]:
        """Give a new block to each decoding request whose last one is full; preempt from the end where none is free."""
        preempted: list[SimRequest] = []
        due = state.grow_at.pop(state.tick, None)
        if due is None:
            return preempted
        for order, request in sorted(due, key=_order):
            # Left, or preempted and admitted anew since this was noted: the new admission has notes of its own.
            if request.order != order or request not in state.decoding:
                continue
            while not self.pool.grow():
                victim = self._victim(state)
                self._preempt(state, victim)
                preempted.append(victim)
                if victim is request:
                    break
            if request in state.decoding:
                # Tokens written before this step; a prompt of whole blocks has published its last one already.
                if (request.filled + 1) * self.block_size <= request.target + state.tick - 1 - request.joined_tick:
                    self._fill(request, request.filled + 1)
                request.unkeyed += 1
                following = state.tick + self.block_size
                if following <= request.last_tick:
                    state.grow_at.setdefault(following, []).append((order, request))
        return preempted

    def _victim(self, state: _Lane) -> SimRequest:
        """The request of this lane that was admitted last and still has tokens to come.

        Other lanes are in flight; a finishing request would only be recomputed to be thrown away.
        """
        return next(r for r in reversed(self.running) if r in state.decoding or r is state.partial)

    def _preempt(self, state: _Lane, request: SimRequest) -> None:
        if request in state.decoding:
            request.emitted += state.tick - 1 - request.joined_tick
        self._remove_from_batch(state, request, state.tick - 1)  # this tick's tokens are not given out yet
        self._drop(request)
        request.target = request.prompt_tokens + request.emitted
        request.computed = 0
        request.preemptions += 1
        self.preemptions += 1
        self.waiting.appendleft(request)

    @staticmethod
    def _remove_from_batch(state: _Lane, request: SimRequest, tick: int) -> None:
        """Take a request out of its lane; `tick` is the last one that `state.context` counts."""
        if request in state.decoding:
            state.context -= request.target + tick - request.joined_tick
            del state.decoding[request]
            state.snapshot = None
            at_finish = state.finish_at[request.last_tick]
            at_finish.remove(request)
        elif request is state.partial:
            state.partial = None

    def _drop(self, request: SimRequest) -> None:
        del self.running[request]
        self.pool.release(request.held, request.unkeyed)
        request.held = []
        request.unkeyed = 0
        request.filled = 0

    def _continue(self, state: _Lane, request: SimRequest, prefill: _Prefill) -> None:
        chunk = min(request.target - request.computed, prefill.budget)
        if chunk <= 0:
            return
        prefill.take(request.computed, chunk)
        self._advance(request, chunk)
        if request.computed == request.target:
            state.partial = None
            prefill.finished.append(request)

    def _admit(self, state: _Lane, lane: int, prefill: _Prefill) -> None:
        size = self.block_size
        while self.waiting and prefill.budget > 0 and state.partial is None and len(self.running) < self.max_num_seqs:
            request = self.waiting[0]
            keys = self._keys_of(request)
            hits = self.pool.lookup(keys)
            if not request.preemptions:
                self.prefix_queries += request.target
            new_tokens = request.target - hits * size
            if not self.chunked_prefill and new_tokens > prefill.budget:
                break
            if not self.pool.admit(keys[:hits], -(-request.target // size) - hits):
                break
            self.waiting.popleft()
            if not request.preemptions:
                self.prefix_hits += hits * size
            request.cached_tokens = hits * size
            request.lane, request.order = lane, self._order
            self._order += 1
            self.running[request] = None
            request.held = list(keys[:hits])
            request.unkeyed = -(-request.target // size) - hits
            request.computed, request.filled = hits * size, hits
            chunk = min(new_tokens, prefill.budget)
            prefill.take(request.computed, chunk)
            prefill.admitted.append(request)
            self._advance(request, chunk)
            if request.computed == request.target:
                prefill.finished.append(request)
            else:
                state.partial = request

    def _keys_of(self, request: SimRequest) -> Sequence[int]:
        """Keys that may be looked up: all full blocks but the one of the last token, which must be computed anew."""
        usable = (request.target - 1) // self.block_size
        own = len(request.keys)
        if usable <= own:
            return request.keys[:usable]
        return [*request.keys, *(self._output_key(request, index) for index in range(own, usable))]

    @staticmethod
    def _output_key(request: SimRequest, index: int) -> int:
        """Key of a block that holds generated tokens: only the request itself can meet it again, after a preemption."""
        return -((request.serial << 24) + index + 1)

    def _advance(self, request: SimRequest, tokens: int) -> None:
        request.computed += tokens
        if (request.filled + 1) * self.block_size <= request.computed:
            self._fill(request, request.computed // self.block_size)

    def _fill(self, request: SimRequest, full: int) -> None:
        """The request's first `full` blocks are full: publish those that became so under their keys."""
        first, request.filled = request.filled, full
        own = len(request.keys)
        keys: Sequence[int] = request.keys[first:full]
        if full > own:
            keys = [*keys, *(self._output_key(request, index) for index in range(max(first, own), full))]
        fresh = self.pool.publish_all(keys)
        request.held.extend(fresh)
        request.unkeyed -= len(fresh)

    def _join(self, state: _Lane, request: SimRequest) -> None:
        """The prompt is done: one token comes out of this step, one more out of each that follows."""
        request.emitted += 1
        request.joined_tick = state.tick
        request.last_tick = state.tick + request.output_tokens - request.emitted
        state.finish_at.setdefault(request.last_tick, []).append(request)
        state.decoding[request] = None
        state.snapshot = None
        state.context += request.target
        # Token number j after joining writes KV at position target + j - 1.
        first = state.tick + (-request.target) % self.block_size + 1
        if first <= request.last_tick:
            state.grow_at.setdefault(first, []).append((request.order, request))

    def _leave(self, state: _Lane) -> tuple[SimRequest, ...]:
        finishing = state.finish_at.pop(state.tick, None)
        if not finishing:
            return ()
        for request in finishing:
            del state.decoding[request]
            state.context -= request.target + state.tick - request.joined_tick
            request.emitted = request.output_tokens
        state.snapshot = None
        return tuple(finishing)


def _order(note: tuple[int, SimRequest]) -> int:
    return note[0]


class _Prefill:
    """What a step computes of prompts, while it is being planned."""

    __slots__ = ("admitted", "budget", "chunks", "context", "finished", "pairs", "tokens")

    def __init__(self, budget: int) -> None:
        self.budget = budget
        self.tokens = 0
        self.chunks = 0
        self.pairs = 0
        self.context = 0
        self.finished: list[SimRequest] = []
        self.admitted: list[SimRequest] = []

    def take(self, start: int, tokens: int) -> None:
        self.budget -= tokens
        self.tokens += tokens
        self.chunks += 1
        self.pairs += tokens * start + tokens * (tokens + 1) // 2
        self.context += start + tokens
