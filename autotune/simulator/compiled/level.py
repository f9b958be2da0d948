"""One level on the compiled core: fill the arrays, run the loop, read the arrays. The one door to this package."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, get_type_hints

import numpy as np
from numpy.typing import NDArray

from autotune.load.growing import Looks
from autotune.node.defaults import ResolvedSettings
from autotune.records import LoadLevel, PlannedRequest
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.compiled import layout
from autotune.simulator.compiled.blocks import by_age
from autotune.simulator.compiled.contents import NOTHING_KEPT, Contents, Kept, Numbering, number_blocks
from autotune.simulator.compiled.layout import Array, State
from autotune.simulator.compiled.load import Load
from autotune.simulator.compiled.loop import run
from autotune.simulator.level_times import LevelOutcome, LevelTimes
from autotune.simulator.replica import Replica
from autotune.simulator.step_formula import StepNumbers

PLANS_AT_FIRST = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What does not change in one launch.

    Attributes:
        replicas, ranks: replicas, and ranks in lock-step in each.
        blocks: KV blocks of one rank.
        depth: steps planned and not yet finished, per micro-batch.
        planning_s: from the moment a step can be planned to its start on an idle GPU.
    """

    replicas: int
    ranks: int
    stages: int
    depth: int
    limit: int
    blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    prefix_caching: bool
    chunked_prefill: bool
    stream_interval: int
    api_servers: int
    planning_s: float

    @classmethod
    def of(cls, settings: ResolvedSettings, replicas: Sequence[Replica], api_servers: int) -> Shape:
        """The shape of a server with these replicas."""
        return cls(
            replicas=len(replicas),
            ranks=len(replicas[0].schedulers),
            stages=settings.pipeline_parallel,
            depth=replicas[0].depth,
            limit=replicas[0].limit,
            blocks=replicas[0].schedulers[0].pool.blocks,
            block_size=settings.block_size,
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            max_model_len=settings.max_model_len,
            prefix_caching=settings.prefix_caching,
            chunked_prefill=settings.chunked_prefill,
            stream_interval=settings.stream_interval,
            api_servers=api_servers,
            planning_s=replicas[0].planning_s,
        )


@dataclass(slots=True)
class CompiledServer:
    """One launch: the prefix caches and the GPUs' heat stay between its levels."""

    shape: Shape
    numbers: StepNumbers
    coefficients: Coefficients
    contents: Contents = field(default_factory=Contents)
    heat: NDArray[np.float64] = field(init=False)
    _last: tuple[State, Numbering] | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.heat = np.zeros(self.shape.replicas)
        self.numbers = _as_arrays(self.numbers)

    def load(self, level: LoadLevel, requests: Sequence[PlannedRequest], looks: Looks | None = None) -> Load:
        """A level made ready for this server."""
        return Load.of(level, requests, self.contents, looks)

    def reset_prefix_cache(self) -> None:
        """Forget cached blocks."""
        self._last = None

    def run(
        self,
        load: Load,
        noise: Callable[[int], NDArray[np.float64]],
        *,
        stagger_s: float,
        deadline_s: float,
        stamping: bool,
    ) -> LevelOutcome:
        """Run one load level to its end.

        Args:
            load: this server's own, or another's on its first level.
            noise: the next n factors of step times, or some more.
            stamping: keep the time of every chunk, not of each request's first and last alone.

        Raises:
            ValueError: as `LevelRun` and `Scheduler.add` do.
        """
        s = self.shape
        if load.contents is not self.contents:
            if self._last is not None:
                raise ValueError("the caches' contents have other numbers than those of a level made ready elsewhere")
            self.contents = load.contents
        numbering = number_blocks(
            load.spans, load.prompts, load.outputs, s.block_size, self._kept(), caching=s.prefix_caching
        )
        state = self._state(load, numbering, stagger_s, deadline_s, stamping)
        self._last = None
        while (why := run(state)) >= layout.NEEDS_NOISE:
            if why == layout.NEEDS_NOISE:
                left = state.noise[int(state.whole["noise_at"][0]) :]
                state = state._replace(noise=np.concatenate([left, noise(max(512, len(state.noise)))]))
                state.whole["noise_at"] = 0
            elif why == layout.NEEDS_PLANS:
                state = _more_plans(state)
            elif why == layout.NEEDS_LOOK:
                _look(load, state)
        if why == layout.MISFIT:
            self._refuse(load, int(state.whole["misfit"][0]))
        if why == layout.TIME_UP and load.looks is not None:
            # What such a level had not come to by then was never part of it.
            due = max(load.least, int((state.requests["due"] <= deadline_s).sum()))
            state.whole["planned"] = min(int(state.whole["planned"][0]), due)
        self.heat = state.replicas["heat"].copy()
        self._last = (state, numbering)
        return _outcome(state)

    def _kept(self) -> list[Kept]:
        """What the caches hold after the last level."""
        seats = self.shape.replicas * self.shape.ranks
        if self._last is None:
            return [NOTHING_KEPT] * seats
        state, numbering = self._last
        kept = []
        for seat in range(seats):
            blocks = np.empty(int(state.seats["evictable"][seat]), dtype=np.int64)
            by_age(state, seat, blocks)
            kept.append(numbering.known(blocks))
        return kept

    def _refuse(self, load: Load, position: int) -> None:
        s, prompt, output = self.shape, int(load.prompts[position]), int(load.outputs[position])
        blocks = -(-(prompt + output - 1) // s.block_size)
        if blocks > s.blocks:
            raise ValueError(f"request {position} of the level needs {blocks} KV blocks, the pool has {s.blocks}")
        raise ValueError(
            f"request {position} of the level has {prompt} + {output} tokens, more than max_num_batched_tokens "
            f"({s.max_num_batched_tokens}) with chunked prefill off"
        )

    def _state(self, load: Load, numbering: Numbering, stagger_s: float, deadline_s: float, stamping: bool) -> State:
        s, count = self.shape, len(load.prompts)
        seats = s.replicas * s.ranks
        rows = load.rows.copy()
        rows["keys"], rows["own_blocks"], rows["segment"] = (
            numbering.keys,
            numbering.own_blocks,
            numbering.first_segment,
        )
        rows["too_long"] = load.prompts + load.outputs > s.max_model_len
        held = (load.prompts + load.outputs) // s.block_size + 1
        rows["held_from"] = np.cumsum(held) - held
        events = load.first_events(stagger_s)
        whole = self._whole(closed=load.closed, deadline_s=deadline_s, stamping=stamping)
        whole["open"] = whole["planned"] = count
        whole["events"] = whole["seq"] = len(events)
        whole["free"] = len(load.free) if load.closed else 0
        steps = s.replicas * s.stages * s.depth
        room = 2 * count + s.api_servers + steps + len(events) + 8
        replicas = np.zeros(s.replicas, dtype=layout.REPLICA)
        replicas["first_seat"], replicas["ranks"] = np.arange(s.replicas) * s.ranks, s.ranks
        replicas["first_arrived"], replicas["heat"] = -1, self.heat
        lanes = np.zeros(seats * s.stages, dtype=layout.LANE)
        lanes["partial"] = -1
        servers = np.zeros(s.api_servers, dtype=layout.SERVER)
        for name in ("first_in", "last_in", "first_out", "last_out"):
            servers[name] = -1
        pools, blocks = _pools(numbering, seats)
        state = State(
            whole=whole,
            requests=rows,
            segments=numbering.segments,
            seats=pools,
            lanes=lanes,
            batch=np.empty((seats * s.stages, s.max_num_seqs), dtype=np.int32),
            replicas=replicas,
            in_flight=np.zeros((s.replicas, s.stages), dtype=np.int64),
            stage_free=np.zeros((s.replicas, s.stages)),
            servers=servers,
            plans=np.zeros(0, dtype=layout.PLAN),
            emitting=np.empty((0, s.max_num_seqs), dtype=np.int32),
            next_out=np.empty((s.api_servers, 0), dtype=np.int32),
            steps=np.zeros(steps, dtype=layout.STEP),
            step_plans=np.full((steps, s.ranks), -1, dtype=np.int32),
            blocks=blocks,
            held=np.zeros(int(held.sum()) if s.prefix_caching else 0, dtype=np.bool_),
            events=np.concatenate([events, np.zeros(room, dtype=layout.EVENT)]),
            job=np.empty((s.api_servers, count), dtype=np.int32),
            ended=np.empty((s.api_servers, count), dtype=np.int32),
            free=np.concatenate([load.free, np.zeros(count - len(load.free), dtype=np.int32)]),
            noise=np.empty(0),
            stamps=np.empty(int(load.outputs.sum()) if stamping else 0),
            numbers=self.numbers,
        )
        return _more_plans(state)

    def _whole(self, *, closed: bool, deadline_s: float, stamping: bool) -> Array:
        s, c = self.shape, self.coefficients
        whole = np.zeros(1, dtype=layout.WHOLE)
        for name, value in {
            "closed": closed,
            "caching": s.prefix_caching,
            "chunked": s.chunked_prefill,
            "stamping": stamping,
            "blocks": s.blocks,
            "block_size": s.block_size,
            "max_num_seqs": s.max_num_seqs,
            "max_tokens": s.max_num_batched_tokens,
            "stages": s.stages,
            "depth": s.depth,
            "limit": s.limit,
            "interval": s.stream_interval,
            "deadline": deadline_s,
            "planning": s.planning_s,
            "heat_tau": c.heat_tau_s,
            "request_s": c.api_request_s,
            "prompt_token_s": c.api_prompt_token_s,
            "token_s": c.api_token_s,
            "chunk_s": c.api_chunk_s,
            "in_latency": c.api_in_latency_s,
            "out_latency": c.api_out_latency_s,
            "turns": c.api_turns,
            "first_free_plan": -1,
        }.items():
            whole[name] = value
        return whole


def _as_arrays(numbers: StepNumbers) -> StepNumbers:
    """Sequences as arrays, whose type does not tell their length: one compilation serves all models."""
    hints = get_type_hints(StepNumbers)
    return StepNumbers(*(_AS[hints[name]](value) for name, value in numbers._asdict().items()))


_AS: Mapping[object, Callable[[Any], Any]] = {
    float: float,
    int: int,
    bool: bool,
    Sequence[float]: partial(np.array, dtype=np.float64),
    Sequence[int]: partial(np.array, dtype=np.int64),
}


def _pools(numbering: Numbering, seats: int) -> tuple[Array, Array]:
    """Idle pools that hold the kept blocks."""
    pools = np.zeros(seats, dtype=layout.SEAT)
    for name in ("oldest", "newest", "first_waiting", "last_waiting"):
        pools[name] = -1
    blocks = np.full(numbering.count, -1, dtype=layout.BLOCK)
    for seat, kept in enumerate(numbering.kept):
        if len(kept):
            blocks["holders"][kept] = 0
            blocks["before"][kept[1:]] = kept[:-1]
            blocks["after"][kept[:-1]] = kept[1:]
            pools[seat]["oldest"], pools[seat]["newest"] = kept[0], kept[-1]
            pools[seat]["evictable"] = len(kept)
    return pools, blocks


def _look(load: Load, state: State) -> None:
    """Where a level may end: leave it at the requests sent so far, if they are enough."""
    rows, whole = state.requests, state.whole
    count, planned = int(whole["look"][0]), int(whole["planned"][0])
    if load.looks is None or count >= planned:
        return
    while count < planned and not np.isnan(rows["sent"][count]):
        count += 1  # due at the same instant
    sent = rows[:count][~np.isnan(rows["sent"][:count])]
    firsts = [None if np.isnan(first) else first for first in sent["first"].tolist()]
    if load.looks.enough(list(zip(sent["due"].tolist(), firsts, strict=True))):
        whole["open"] -= planned - count
        whole["planned"] = count


def _more_plans(state: State) -> State:
    """Twice as many rows of plans, and room for the events that hand them out."""
    before = len(state.plans)
    ranks = state.step_plans.shape[1]
    more = max(PLANS_AT_FIRST, before, 2 * ranks * len(state.steps))
    added = np.zeros(more, dtype=layout.PLAN)
    added["next_free"] = np.append(np.arange(before + 1, before + more), state.whole["first_free_plan"][0])
    state.whole["first_free_plan"] = before
    state.whole["free_plans"] += more
    servers, width = len(state.servers), state.emitting.shape[1]
    return state._replace(
        plans=np.concatenate([state.plans, added]),
        emitting=np.concatenate([state.emitting, np.empty((more, width), dtype=np.int32)]),
        next_out=np.concatenate([state.next_out, np.full((servers, more), -1, dtype=np.int32)], axis=1),
        events=np.concatenate([state.events, np.zeros(more * servers, dtype=layout.EVENT)]),
    )


def _outcome(state: State) -> LevelOutcome:
    whole = state.whole[0]
    rows = state.requests[: min(int(whole["planned"]), len(state.requests))]
    times = LevelTimes(
        due_s=rows["due"].copy(),
        sent_s=rows["sent"].copy(),
        first_s=rows["first"].copy(),
        last_s=rows["last"].copy(),
        done_s=rows["done"].copy(),
        chunks=rows["chunks"].astype(np.int64),
        stamps=state.stamps if whole["stamping"] else None,
        stamps_from=rows["stamps_from"].copy(),
        refused=rows["too_long"].copy(),
    )
    queued = int(whole["queue_count"])
    return LevelOutcome(
        times=times,
        end_s=float(whole["now"]),
        prompt_tokens=int(whole["prompt_tokens"]),
        generation_tokens=int(whole["generation_tokens"]),
        queue_time_mean_s=float(whole["queue_sum"]) / queued if queued else None,
        preemptions=int(state.seats["preemptions"].sum()),
        prefix_queries=int(state.seats["prefix_queries"].sum()),
        prefix_hits=int(state.seats["prefix_hits"].sum()),
        kv_usage_max=float(state.replicas["kv_usage_max"].max()),
        running_max=int(state.replicas["running_max"].sum()),
        waiting_max=int(state.replicas["waiting_max"].sum()),
    )
