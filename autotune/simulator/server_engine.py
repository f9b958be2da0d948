"""The engine behind the HTTP surface: the simulator's replicas, with an event loop's clock in place of virtual time.

Only the engine is simulated here; the API server's cost is that of this very process.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from autotune.simulator.coefficients import Coefficients
from autotune.simulator.engine_model import build_replicas
from autotune.simulator.replica import Launched, Replica
from autotune.simulator.scheduler import Scheduler, SimRequest, StepPlan
from autotune.simulator.server_log import IntervalStats
from autotune.simulator.server_metrics import EngineMetrics
from autotune.simulator.server_start import Started


@dataclass(slots=True, eq=False)
class Generation:
    """One request's tokens on their way to its client.

    Attributes:
        ready: tokens produced and not yet taken; several when the client's side was behind.
        dead: the engine died; nothing more will come.
    """

    request: SimRequest
    rank: int
    arrived_s: float
    ready: int = 0
    produced: int = 0
    dead: bool = False
    stream_interval: int = 1
    last_token_s: float | None = None
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    async def take(self) -> int:
        """Wait for a chunk's tokens and take all that are there; 0 when all were taken, or the engine died."""
        while not self._due and not self.dead and self.produced < self.request.output_tokens:
            self._wake.clear()
            await self._wake.wait()
        taken, self.ready = self.ready, 0
        return taken

    @property
    def _due(self) -> bool:
        """Whether a chunk leaves now: for the first token, the last, and each stream interval between."""
        first = self.ready and self.ready == self.produced
        return bool(first or self.ready >= self.stream_interval)

    @property
    def finished(self) -> bool:
        """Whether every token has been produced and taken."""
        return self.produced >= self.request.output_tokens and not self.ready

    def give(self) -> None:
        """One token more."""
        self.ready += 1
        self.produced += 1
        self._wake.set()

    def die(self) -> None:
        """The engine is gone."""
        self.dead = True
        self._wake.set()


class RealTimeEngine:
    """Runs requests at the simulated pace.

    Args:
        speed: virtual seconds per second; delays of the event loop (about a millisecond) are not scaled.
        on_request: called with the number of each request (1-based) that reaches the engine; may end the process.
    """

    def __init__(
        self,
        started: Started,
        coefficients: Coefficients,
        *,
        seed: int,
        speed: float = 1.0,
        on_request: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.settings = started.settings
        self.replicas: list[Replica] = build_replicas(
            started.node, started.shape, started.settings, started.kv_tokens, coefficients
        )
        # Data-parallel ranks are numbered through all replicas; each is an engine of its own in the metrics.
        self._seats = [(index, rank) for index, r in enumerate(self.replicas) for rank in range(len(r.schedulers))]
        self._first_rank = [self._seats.index((index, 0)) for index in range(len(self.replicas))]
        self.metrics = [EngineMetrics.of_length(started.settings.max_model_len) for _ in self._seats]
        self._loop = asyncio.get_running_loop()
        self._begun = self._loop.time()
        self._speed = speed
        self._rng = np.random.default_rng(seed)
        self._sigma = coefficients.step_noise
        self._on_request = on_request
        self._serial = 0
        self._live: dict[int, Generation] = {}
        self._load = [0] * len(self._seats)
        self._dead = False

    async def idle(self) -> None:
        """Wait until no request waits for tokens."""
        while self._live:  # noqa: ASYNC110 - once, at the end: an event would be set and cleared with every request
            await asyncio.sleep(0.02)

    def now(self) -> float:
        """Virtual seconds since the engine was made."""
        return (self._loop.time() - self._begun) * self._speed

    @property
    def alive(self) -> bool:
        """False after `die`."""
        return not self._dead

    def submit(self, prompt_tokens: int, output_tokens: int, keys: Sequence[int]) -> Generation:
        """Queue a request on the rank with the fewest open ones.

        Raises:
            ValueError: it can never run.
        """
        self._serial += 1
        self._on_request(self._serial)
        request = SimRequest(self._serial, prompt_tokens, output_tokens, keys)
        seat = min(range(len(self._load)), key=self._load.__getitem__)
        self._scheduler(seat).add(request)
        interval = self.settings.stream_interval
        generation = Generation(request=request, rank=seat, arrived_s=self.now(), stream_interval=interval)
        self._load[seat] += 1
        if self._dead:  # by this very request
            generation.die()
            return generation
        self._live[request.serial] = generation
        # Not at once: requests that arrive in the same turn of the event loop reach the engine together.
        self._loop.call_soon(self._launch, self._seats[seat][0])
        return generation

    def abort(self, generation: Generation) -> None:
        """The client is gone."""
        request = generation.request
        if self._live.pop(request.serial, None) is None:
            return
        self._load[generation.rank] -= 1
        self._scheduler(generation.rank).abort(request)
        self.metrics[generation.rank].finished["abort"] += 1

    def die(self) -> None:
        """The engine process is gone: every open request ends without its tokens."""
        self._dead = True
        for generation in self._live.values():
            generation.die()
        self._live.clear()

    def reset_prefix_cache(self) -> bool:
        """Forget cached blocks; False where a replica still has requests."""
        # Each one, whatever the first says.
        done = [self._scheduler(seat).pool.reset_prefix_cache() for seat in range(len(self._seats))]
        return all(done)

    def refresh(self) -> None:
        """Bring gauges and scheduler counters in `metrics` up to date."""
        for seat, metrics in enumerate(self.metrics):
            scheduler = self._scheduler(seat)
            metrics.running, metrics.waiting = len(scheduler.running), len(scheduler.waiting)
            metrics.kv_usage = scheduler.pool.usage
            metrics.preemptions = scheduler.preemptions
            metrics.prefix_queries, metrics.prefix_hits = scheduler.prefix_queries, scheduler.prefix_hits

    def _scheduler(self, seat: int) -> Scheduler:
        index, rank = self._seats[seat]
        return self.replicas[index].schedulers[rank]

    def _launch(self, index: int) -> None:
        if self._dead:
            return
        now = self.now()
        for step in self.replicas[index].launch(now, self._noise):
            for rank, plan in step.plans:
                metrics = self.metrics[self._first_rank[index] + rank]
                for request in plan.admitted:
                    generation = self._live.get(request.serial)
                    if generation is not None and not request.preemptions:
                        metrics.queue.observe(max(0.0, now - generation.arrived_s))
            self._schedule(index, step)

    def _schedule(self, index: int, step: Launched) -> None:
        self._loop.call_at(self._begun + step.end_s / self._speed, self._step_end, index, step)

    def _noise(self) -> float:
        return float(np.exp(self._rng.normal(0.0, self._sigma)))

    def _step_end(self, index: int, step: Launched) -> None:
        if self._dead:
            return
        self.replicas[index].finish(step)
        for rank, plan in step.plans:
            self._deliver(self._first_rank[index] + rank, plan)
        self._launch(index)

    def _deliver(self, seat: int, plan: StepPlan) -> None:
        now, metrics = self.now(), self.metrics[seat]
        for request in plan.decoding:
            self._token(request, metrics, now)
        for request in plan.finished_prefill:
            generation = self._live.get(request.serial)
            if generation is not None and not generation.produced:
                metrics.prompt_tokens += request.prompt_tokens
            self._token(request, metrics, now)
        for request in plan.finishing:
            generation = self._live.pop(request.serial, None)
            if generation is not None:
                self._load[seat] -= 1
                metrics.finish(request.prompt_tokens, request.output_tokens, now - generation.arrived_s)

    def _token(self, request: SimRequest, metrics: EngineMetrics, now: float) -> None:
        generation = self._live.get(request.serial)
        if generation is None:
            return
        metrics.generation_tokens += 1
        if generation.last_token_s is None:
            metrics.ttft.observe(now - generation.arrived_s)
        else:
            metrics.itl.observe(now - generation.last_token_s)
        generation.last_token_s = now
        generation.give()


class StatsWindow:
    """Turns cumulative counters into what the periodic log line says."""

    def __init__(self) -> None:
        self._before = EngineMetrics()
        self._idle = True

    def take(self, metrics: EngineMetrics, seconds: float) -> IntervalStats | None:
        """The interval since the last call; None when nothing happened in this one nor in the one before."""
        before, self._before = (
            self._before,
            EngineMetrics(
                prompt_tokens=metrics.prompt_tokens,
                generation_tokens=metrics.generation_tokens,
                preemptions=metrics.preemptions,
                prefix_queries=metrics.prefix_queries,
                prefix_hits=metrics.prefix_hits,
            ),
        )
        queries = metrics.prefix_queries - before.prefix_queries
        stats = IntervalStats(
            seconds=seconds,
            prompt_tokens=metrics.prompt_tokens - before.prompt_tokens,
            generation_tokens=metrics.generation_tokens - before.generation_tokens,
            running=metrics.running,
            waiting=metrics.waiting,
            kv_usage=metrics.kv_usage,
            prefix_hit_share=(metrics.prefix_hits - before.prefix_hits) / queries if queries else 0.0,
            preemptions=metrics.preemptions - before.preemptions,
        )
        idle = not (stats.generation_tokens or stats.prompt_tokens or stats.running or stats.waiting)
        was_idle, self._idle = self._idle, idle
        return None if idle and was_idle else stats
