"""One engine replica in virtual time: plans steps ahead of the GPU and says when their outputs are ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autotune.simulator.coefficients import Coefficients
from autotune.simulator.scheduler import Scheduler, StepPlan
from autotune.simulator.step_time import StepTimer


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that was handed to the GPUs; `end_s` is when its outputs leave the last stage.

    Attributes:
        plans: the plan of each rank that has work, with the rank's position in its replica.
    """

    lane: int
    plans: tuple[tuple[int, StepPlan], ...]
    end_s: float


class Replica:
    """The engine loop around one scheduler, or around several that run in lock-step.

    One step for each stage is in flight, and under asynchronous scheduling one more, so that a request that arrives
    while steps run joins the one after those; without it a lone stage waits while the next step is planned. With
    pipeline parallelism micro-batches take turns: a request's next token is planned `stages` steps later, and computed
    when its last one has left the last stage (AsyncScheduler, 0.25: `next_decode_eligible_step`).

    Data-parallel ranks that share MoE layers are in lock-step: a step takes as long as its slowest rank, and ranks
    without work wait (vLLM lets them run on dummy tokens).

    Attributes:
        limit: steps that may be planned and not yet finished (vLLM's `max_concurrent_batches`).
        depth: of these, steps of one micro-batch.
        planning_s: from when a step can be planned to its start on an idle GPU.
    """

    def __init__(
        self,
        schedulers: Sequence[Scheduler],
        timer: StepTimer,
        coefficients: Coefficients,
        *,
        stages: int,
        overlapped: bool = True,
        limit: int | None = None,
    ) -> None:
        self.schedulers = tuple(schedulers)
        self.kv_usage_max = 0.0
        self.running_max = 0
        self.waiting_max = 0
        self.heat = 0.0
        self.timer = timer
        self._c = coefficients
        alone = stages == 1
        self.limit = limit if limit is not None else stages + (1 if alone and overlapped else 0)
        self.depth = 1 + (self.limit > stages)
        self.planning_s = coefficients.unoverlapped_cpu_s if alone and not overlapped else coefficients.engine_cpu_s
        self._in_flight = [0] * stages
        self._stage_free_s = [0.0] * stages
        self._lane_free_s = [0.0] * stages
        self._turn = 0

    def start_level(self, now_s: float) -> None:
        """Forget the gauges' maxima and let the GPU be free from `now_s`."""
        self.kv_usage_max, self.running_max, self.waiting_max = 0.0, 0, 0
        self._stage_free_s = [now_s] * len(self._stage_free_s)
        self._lane_free_s = [now_s] * len(self._lane_free_s)
        self._turn = 0
        self._in_flight = [0] * len(self._in_flight)

    @property
    def polls(self) -> bool:
        """Whether the loop can plan a step now, rather than wait for one to end."""
        return sum(self._in_flight) < self.limit

    def launch(self, now_s: float, noise: Callable[[], float]) -> Iterator[Launched]:
        """Plan and start every step that can start now; `noise` gives a factor for each step's time."""
        idle = 0  # turns in a row that had nothing to run
        while idle < len(self._in_flight) and self.polls:
            lane = self._turn
            self._turn = (lane + 1) % len(self._in_flight)
            plans = self._plan(lane) if self._in_flight[lane] < self.depth else ()
            idle = 0 if plans else idle + 1
            if plans:
                self._in_flight[lane] += 1
                yield Launched(lane, plans, self._run(lane, plans, now_s, noise()))

    def _plan(self, lane: int) -> tuple[tuple[int, StepPlan], ...]:
        """A step of this micro-batch, by rank; empty when nothing can run."""
        schedulers = self.schedulers
        if not any(scheduler.has_work(lane) for scheduler in schedulers):
            return ()
        self.waiting_max = max(self.waiting_max, sum(len(s.waiting) for s in schedulers))
        planned = ((rank, scheduler.plan(lane)) for rank, scheduler in enumerate(schedulers))
        plans = tuple((rank, plan) for rank, plan in planned if plan is not None)
        if plans:
            self.running_max = max(self.running_max, sum(len(s.running) for s in schedulers))
            self.kv_usage_max = max(self.kv_usage_max, *(s.pool.usage for s in schedulers))
        return plans

    def finish(self, step: Launched) -> None:
        """The step's outputs are out."""
        self._in_flight[step.lane] -= 1
        for rank, plan in step.plans:
            self.schedulers[rank].complete(plan)

    def _run(self, lane: int, plans: Sequence[tuple[int, StepPlan]], now_s: float, factor: float) -> float:
        together = sum(plan.tokens for _, plan in plans)
        slowest_s, slowest = 0.0, plans[0][1]
        for _, plan in plans:
            alone_s = self.timer.stage_s(plan, heat=self.heat, group_tokens=together)
            if alone_s > slowest_s:
                slowest_s, slowest = alone_s, plan
        stage_s = slowest_s * factor
        at = max(now_s + self.planning_s, self._lane_free_s[lane])
        for stage, free_s in enumerate(self._stage_free_s):
            at = max(at, free_s) + stage_s
            self._stage_free_s[stage] = at
        self._lane_free_s[lane] = at
        # First-order response of the clock to how busy the matrix units are.
        weight = min(1.0, stage_s / self._c.heat_tau_s)
        self.heat += (self.timer.busy_share(slowest, stage_s) - self.heat) * weight
        return at
