"""The load side of one attempt: warm-up, ramp and levels on a server that is ready."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from autotune.engine.base import DriveResult, LaunchPlan, Server
from autotune.load.early_end import Bars, LevelLooks, looks_of
from autotune.load.measure import is_valid, summarise
from autotune.load.ramp import (
    RampPoint,
    most_ttft_requests,
    next_concurrency,
    plan_levels,
    ramp_level,
    ramp_per_slot,
    ramp_point,
)
from autotune.load.ramp import load_plan as plan_load
from autotune.load.records_file import level_path, write_records
from autotune.load.requests import plan_caveats, plan_requests
from autotune.load.warming import MOST_WARMUP_S, Warming
from autotune.load.workloads import Workload
from autotune.records import (
    Caveat,
    ClockKind,
    EarlyEnd,
    Failure,
    FailureClass,
    Goodput,
    GoodputEnd,
    LevelRole,
    LoadLevel,
    LoadPlan,
    Measurement,
    Objective,
    Phase,
    PlannedRequest,
    Quality,
    Slo,
)
from autotune.search.early import Rivals, early_caveat
from autotune.trial_further import Drive, FurtherLoad, drive_further
from autotune.trial_goodput import GoodputOrder, find_goodput, goodput_caveats, slo_failure
from autotune.trial_level_ends import LevelBeaten, LevelFailed, level_failure
from autotune.trial_quality import QualityOrder, ask_quality

_WARMUP, _LEVELS, _WARMUP_AGAIN, _RAMP, _GOODPUT, _FURTHER = 1, 2, 6, 100, 10_000_000, 20_000_000
"""What a level's seed is for. `plan_levels` counts on from _LEVELS, every step of the ramp from _RAMP, the passes of a
warm-up in tens from where it begins, the search for a goodput from _GOODPUT, a verification from _FURTHER."""

_AGAIN = 1_000_000
"""Added to a trial's salt for a level that is driven again: the same load, in words that are new to the server."""

_WAITED = frozenset({"jit_compiling", "pauses"})
"""Caveats that say so of a level, by the log or by what arrived: vLLM's log tells of each kernel only once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLoad:
    """What the operator fixed of the load, per GPU used, in the words of `LoadPlan`; None is left to the ramp."""

    concurrency_per_gpu: int | None = None
    rate_rps_per_gpu: float | None = None
    throughput_requests_per_gpu: int | None = None
    ttft_requests_per_gpu: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialOrder:
    """What one attempt has to do.

    Attributes:
        load: the study's two levels; None when this attempt has to find them (the baseline).
        fixed_load: replaces what the ramp finds; used only when `load` is None.
        gpus: GPUs the config uses, at least 1; the levels are scaled by it.
        seed: the study's; with `number` it seeds the prompts' content.
        slo: what figures are held against; the goodput is searched under it.
        further: what a verification drives beyond the two levels.
        rivals: configs that may show this one to be dominated; None for a trial that is measured to its end.
        quality: what is asked after the load, to see whether the answers are still the reference's; None for nothing.
    """

    number: int
    launch: LaunchPlan
    workload: Workload
    load: LoadPlan | None
    gpus: int
    seed: int
    level_deadline_s: float
    fixed_load: FixedLoad = FixedLoad()
    slo: Slo | None = None
    objective: Objective = Objective.THROUGHPUT
    further: FurtherLoad | None = None
    rivals: Rivals | None = None
    quality: QualityOrder | None = None


class TrialLevels:
    """The load side of one attempt: which levels, in which order, and what they showed.

    Args:
        enter: called as a phase begins.
        told: called with each level before it is driven.

    Attributes:
        measurements: of the levels that count, the ramp's included, in order.
        caveats: doubts about all of them.
        load: the plan they are driven with; None until one is known.
        goodput: what the search for it found; None where it is not the objective, or was not reached.
        early: why a level ended before its time; None where none did.
        quality: what the guard found; None where it was not asked, or not reached.
    """

    def __init__(
        self,
        clock: ClockKind,
        server: Server,
        order: TrialOrder,
        *,
        enter: Callable[[Phase], None],
        told: Callable[[LoadLevel], None],
    ) -> None:
        self._clock, self._server, self._order = clock, server, order
        self._enter, self._told = enter, told
        self.measurements: list[Measurement] = []
        self.caveats: list[Caveat] = []
        self.load = order.load
        self.goodput: Goodput | None = None
        self.early: EarlyEnd | None = None
        self.quality: Quality | None = None

    async def measure(self) -> None:
        """Warm up, find the load where it is not known yet, then the two levels, busiest first; then the goodput.

        Raises:
            LevelFailed: a level failed in a way that says something about the config.
            Abandoned: a level did not end in its time, or showed that another config is better.
            ServerDied: the server ended under load.
        """
        order = self._order
        self._enter(Phase.WARMING)
        if order.load is None:
            await self._warm_up(order.workload.start_concurrency * order.gpus)
            self._enter(Phase.MEASURING)
            self.load = _fixed_over(await self._find_load(), order)
            warmup, *levels = self._levels(self.load)
            if self._clock is ClockKind.WALL:  # the ramp may have stayed below, and other batches are other kernels
                await self._warm_up(warmup.concurrency or 1, purpose=_WARMUP_AGAIN)
        else:
            warmup, *levels = self._levels(order.load)
            await self._warm_up(warmup.concurrency or 1, warmup.requests)
            self._enter(Phase.MEASURING)
        driven: dict[LevelRole, Measurement] = {}
        for level in levels:
            driven[level.role] = await self._drive(level, bars=self._bars(driven.get(LevelRole.THROUGHPUT)))
        if order.objective is Objective.GOODPUT and order.slo is not None:
            await self._find_goodput(order.slo, driven)
        if order.further is not None:
            await drive_further(
                order.further,
                driven[LevelRole.TTFT],
                self._server.facts.max_model_len,
                drive=Drive(
                    level=self._drive,
                    attempt=lambda level: self._drive(level, must_carry=False),
                    fixed=lambda level, requests: self._drive(level, must_carry=False, requests=requests),
                ),
                seed_of=lambda place: self._seed(_FURTHER + place),
            )
        if order.quality is not None:
            self.quality = await ask_quality(
                self._server,
                order.quality,
                order.launch.directory,
                simulated=self._clock is ClockKind.VIRTUAL or self._server.facts.simulated,
            )

    def _bars(self, throughput: Measurement | None) -> Bars | None:
        """What the levels after the throughput level are up against."""
        rivals, rate = self._order.rivals, None if throughput is None else throughput.output_tok_s
        if rivals is None or throughput is None or throughput.void is not None or rate is None:
            return None
        return rivals.bars(rate.times(1 / self._order.gpus))

    async def _find_goodput(self, slo: Slo, driven: Mapping[LevelRole, Measurement]) -> None:
        """Search the highest rate within the SLO, from what the two levels showed.

        Raises:
            LevelFailed: the config meets the SLO at no rate.
        """
        order, capacity = self._order, driven[LevelRole.THROUGHPUT].request_rps
        found = await find_goodput(
            GoodputOrder(slo=slo, workload=order.workload, gpus=order.gpus, longest_s=order.level_deadline_s / 2),
            driven[LevelRole.TTFT],
            None if capacity is None else capacity.value,
            drive=lambda level: self._drive(level, must_carry=False),
            seed_of=lambda place: self._seed(_GOODPUT + place),
        )
        self.goodput = found
        self.caveats += goodput_caveats(found)
        if found.rate_rps is None and found.end is not GoodputEnd.CLIENT_LIMIT:
            raise LevelFailed(slo_failure(found, self.measurements))

    def _levels(self, load: LoadPlan) -> tuple[LoadLevel, LoadLevel, LoadLevel]:
        order = self._order
        workload = order.workload
        return plan_levels(
            load,
            order.gpus,
            seed=self._seed(_LEVELS),
            open_arrivals=workload.open_arrivals,
            prompts=len(workload.texts),
        )

    async def _warm_up(self, concurrency: int, requests: int = 0, *, purpose: int = _WARMUP) -> None:
        """At least as many requests as run at once, on a real server until it is quiet; nothing of it is kept."""
        longest_s = min(MOST_WARMUP_S, self._order.level_deadline_s)
        warming = Warming(concurrency=concurrency, first_requests=requests, longest_s=longest_s)
        while not warming.over:
            driven, measurement = await self._run(warming.level(self._seed(purpose + 10 * warming.passes)))
            if not is_valid(measurement):
                raise level_failure(measurement)
            warming.see(driven.records, driven.duration_s, driven.use.jit_compiles if driven.use else None)
            if self._clock is ClockKind.VIRTUAL:
                return
        if warming.caveat is not None:
            self.caveats.append(warming.caveat)

    async def _find_load(self) -> LoadPlan:
        order = self._order
        limit = order.workload.max_concurrency * order.gpus
        points: list[RampPoint] = []
        longest_s = order.level_deadline_s / 2
        while (
            concurrency := next_concurrency(
                points, limit, start=order.workload.start_concurrency, gpus=order.gpus, longest_s=longest_s
            )
        ) is not None:
            level = ramp_level(
                concurrency,
                points,
                seed=self._seed(_RAMP + concurrency),
                longest_s=longest_s,
                per_slot=ramp_per_slot(order.workload),
            )
            measurement = await self._drive(level)
            point = ramp_point(measurement)
            if point is None or (points and measurement.void):
                break  # more in flight would show the client's capacity
            points.append(point)
        if not points:
            raise LevelFailed(Failure(kind=FailureClass.CRASH, line="the ramp measured no throughput"))
        return plan_load(points, order.workload, order.gpus, longest_s=longest_s)

    async def _drive(
        self,
        level: LoadLevel,
        *,
        must_carry: bool = True,
        requests: Sequence[PlannedRequest] | None = None,
        bars: Bars | None = None,
    ) -> Measurement:
        """Drive a level, keep its records and its figures.

        Args:
            must_carry: a level that the server does not carry ends the trial.
            requests: other ones than the workload's.
            bars: what ends the level before its time, and the trial with it.
        """
        looks = looks_of(level, bars)
        driven, measurement = await self._run(level, requests=requests, looks=looks)
        if is_valid(measurement) and any(caveat.code in _WAITED for caveat in measurement.caveats):
            # Its requests waited for a compiler. The kernels are there now, and the launch is paid for.
            looks = looks_of(level, bars)
            driven, measurement = await self._run(level, salt=_AGAIN, requests=requests, looks=looks)
        path = level_path(self._order.launch.directory, level)
        await asyncio.to_thread(
            write_records,
            path,
            level,
            self._clock,
            driven.records,
            driven.duration_s,
            driven.server,
            driven.energy_j,
            driven.use,
        )
        self.measurements.append(measurement)
        if must_carry and not is_valid(measurement):
            raise level_failure(measurement)
        rivals, found = self._order.rivals, None if looks is None else looks.found
        if rivals is not None and found is not None and measurement.void is None:
            self.early = rivals.end(found, measurement)
            raise LevelBeaten(early_caveat(self.early))
        return measurement

    async def _run(
        self,
        level: LoadLevel,
        *,
        salt: int = 0,
        requests: Sequence[PlannedRequest] | None = None,
        looks: LevelLooks | None = None,
    ) -> tuple[DriveResult, Measurement]:
        order = self._order
        self._told(level)
        if requests is None:
            requests = plan_requests(order.workload, level, trial_salt=order.number + salt)
        driven = await self._server.drive(level, requests, deadline_s=order.level_deadline_s, looks=looks)
        measurement = await asyncio.to_thread(
            summarise,
            level,
            driven.records,
            driven.duration_s,
            self._clock,
            order.slo.ttft_p95_s if order.slo else None,
            driven.server,
            shared_tokens_per_request=order.workload.shared_tokens_per_request,
            use=driven.use,
        )
        doubts = (*measurement.caveats, *plan_caveats(order.workload, level))
        return driven, replace(measurement, energy_j=driven.energy_j, caveats=doubts)

    def _seed(self, purpose: int) -> int:
        """Of a level: its own for every purpose of a study; trials differ by their salt."""
        return (self._order.seed * 1_000_003 + purpose) % 2**32


def _fixed_over(found: LoadPlan, order: TrialOrder) -> LoadPlan:
    """What the operator fixed replaces what the ramp found; counts that hang on the concurrency follow a fixed one."""
    fixed, workload = order.fixed_load, order.workload
    said = {name: value for name, value in asdict(fixed).items() if value is not None}
    slots = fixed.concurrency_per_gpu
    if slots is not None:
        # The ramp's counts are of its own concurrency: a larger one would never be reached with as few requests.
        counts = workload.requests
        enough = max(found.throughput_requests_per_gpu, counts.per_slot * slots)
        found = replace(
            found, throughput_requests_per_gpu=enough, warmup_requests_per_gpu=counts.warmup_per_slot * slots
        )
    fixed_over = replace(found, **said)
    if fixed.ttft_requests_per_gpu is not None:  # as many as were asked for
        return replace(fixed_over, ttft_most_requests_per_gpu=None)
    if fixed.rate_rps_per_gpu is not None:  # the time a level may grow to is another number of requests
        most = most_ttft_requests(
            workload,
            fixed_over.ttft_requests_per_gpu,
            fixed_over.rate_rps_per_gpu,
            longest_s=order.level_deadline_s / 2,
        )
        return replace(fixed_over, ttft_most_requests_per_gpu=most)
    return fixed_over
