"""One engine replica in virtual time: plans steps ahead of the GPU and says when their outputs are ready."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autotune.simulator.scheduler import Scheduler, StepPlan
from autotune.simulator.step_time import Coefficients, StepTimer

ASYNC_DEPTH = 2
"""Steps planned and not yet finished under async scheduling: one runs while the next is planned."""


@dataclass(frozen=True, slots=True)
class Launched:
    """A step that was handed to the GPU; `end_s` is when its outputs leave the last stage."""

    plan: StepPlan
    end_s: float


class Replica:
    """The engine loop around one scheduler.

    Without pipeline parallelism two steps are in flight, so a request that arrives while one runs joins the step after
    the next. With it, one step of each micro-batch is in flight and the stages work on different micro-batches.
    """

    def __init__(self, scheduler: Scheduler, timer: StepTimer, coefficients: Coefficients, *, stages: int) -> None:
        self.scheduler = scheduler
        self.kv_usage_max = 0.0
        self.running_max = 0
        self.waiting_max = 0
        self.heat = 0.0
        self._timer = timer
        self._c = coefficients
        self._depth = ASYNC_DEPTH if stages == 1 else 1
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
        return min(self._in_flight) < self._depth

    def launch(self, now_s: float, noise: Callable[[], float]) -> Iterator[Launched]:
        """Plan and start every step that can start now; `noise` gives a factor for each step's time."""
        for lane in range(len(self._in_flight)):
            while self._in_flight[lane] < self._depth and self.scheduler.has_work(lane):
                self.waiting_max = max(self.waiting_max, len(self.scheduler.waiting))
                plan = self.scheduler.plan(lane)
                if plan is None:
                    break
                self.running_max = max(self.running_max, len(self.scheduler.running))
                self.kv_usage_max = max(self.kv_usage_max, self.scheduler.pool.usage)
                self._in_flight[lane] += 1
                yield Launched(plan, self._run(plan, now_s, noise()))

    def finish(self, plan: StepPlan) -> None:
        """The step's outputs are out."""
        self._in_flight[plan.lane] -= 1
        self.scheduler.complete(plan)

    def _run(self, plan: StepPlan, now_s: float, factor: float) -> float:
        stage_s = self._timer.stage_s(plan, heat=self.heat) * factor
        at = now_s + self._c.engine_cpu_s
        for stage, free_s in enumerate(self._stage_free_s):
            at = max(at, free_s) + stage_s
            self._stage_free_s[stage] = at
        # First-order response of the clock to how busy the matrix units are.
        weight = min(1.0, stage_s / self._c.heat_tau_s)
        self.heat += (self._timer.busy_share(plan, stage_s) - self.heat) * weight
        return at
