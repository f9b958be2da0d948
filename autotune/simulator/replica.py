"""One engine replica in virtual time: plans steps ahead of the GPU and says when their outputs are ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from autotune.simulator.coefficients import Coefficients
from autotune.simulator.scheduler import Scheduler, StepPlan
from autotune.simulator.step_time import StepTimer

ASYNC_DEPTH = 2
"""Steps planned and not yet finished under async scheduling: one runs while the next is planned."""


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

    Without pipeline parallelism two steps are in flight, so a request that arrives while one runs joins the step after
    the next; without asynchronous scheduling it is one, and the GPU waits while the next is planned. With pipeline
    parallelism one step of each micro-batch is in flight and the stages work on different micro-batches.

    Data-parallel ranks that share MoE layers are in lock-step: a step takes as long as its slowest rank, and ranks
    without work wait (vLLM lets them run on dummy tokens).

    Attributes:
        depth: steps of one micro-batch that may be planned and not yet finished.
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
    ) -> None:
        self.schedulers = tuple(schedulers)
        self.kv_usage_max = 0.0
        self.running_max = 0
        self.waiting_max = 0
        self.heat = 0.0
        self.timer = timer
        self._c = coefficients
        alone = stages == 1
        self.depth = ASYNC_DEPTH if alone and overlapped else 1
        self.planning_s = coefficients.unoverlapped_cpu_s if alone and not overlapped else coefficients.engine_cpu_s
        self._in_flight = [0] * stages
        self._stage_free_s = [0.0] * stages

    def start_level(self, now_s: float) -> None:
        """Forget the gauges' maxima and let the GPU be free from `now_s`."""
        self.kv_usage_max, self.running_max, self.waiting_max = 0.0, 0, 0
        self._stage_free_s = [now_s] * len(self._stage_free_s)
        self._in_flight = [0] * len(self._in_flight)

    @property
    def polls(self) -> bool:
        """Whether the loop can plan a step now, rather than wait for one to end."""
        return min(self._in_flight) < self.depth

    def launch(self, now_s: float, noise: Callable[[], float]) -> Iterator[Launched]:
        """Plan and start every step that can start now; `noise` gives a factor for each step's time."""
        schedulers = self.schedulers
        for lane in range(len(self._in_flight)):
            while self._in_flight[lane] < self.depth and any(s.has_work(lane) for s in schedulers):
                self.waiting_max = max(self.waiting_max, sum(len(s.waiting) for s in schedulers))
                planned = ((rank, scheduler.plan(lane)) for rank, scheduler in enumerate(schedulers))
                plans = tuple((rank, plan) for rank, plan in planned if plan is not None)
                if not plans:
                    break
                self.running_max = max(self.running_max, sum(len(s.running) for s in schedulers))
                self.kv_usage_max = max(self.kv_usage_max, *(s.pool.usage for s in schedulers))
                self._in_flight[lane] += 1
                yield Launched(lane, plans, self._run(plans, now_s, noise()))

    def finish(self, step: Launched) -> None:
        """The step's outputs are out."""
        self._in_flight[step.lane] -= 1
        for rank, plan in step.plans:
            self.schedulers[rank].complete(plan)

    def _run(self, plans: Sequence[tuple[int, StepPlan]], now_s: float, factor: float) -> float:
        together = sum(plan.tokens for _, plan in plans)
        slowest_s, slowest = 0.0, plans[0][1]
        for _, plan in plans:
            alone_s = self.timer.stage_s(plan, heat=self.heat, group_tokens=together)
            if alone_s > slowest_s:
                slowest_s, slowest = alone_s, plan
        stage_s = slowest_s * factor
        at = now_s + self.planning_s
        for stage, free_s in enumerate(self._stage_free_s):
            at = max(at, free_s) + stage_s
            self._stage_free_s[stage] = at
        # First-order response of the clock to how busy the matrix units are.
        weight = min(1.0, stage_s / self._c.heat_tau_s)
        self.heat += (self.timer.busy_share(slowest, stage_s) - self.heat) * weight
        return at
