"""A vLLM server in virtual time: give it a load level, get every request's times and the server's counters.

Noise is small, seeded and documented in `Coefficients`: with the defaults throughput varies by about 0.5 % between
seeds and TTFT percentiles by several times that, as between identical runs of a real server. A simulation made with the
same arguments and given the same levels answers the same. The prefix cache and the GPU's heat stay between the levels
of one launch.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autotune.load.growing import Looks
from autotune.node.defaults import ResolvedSettings
from autotune.records import LoadLevel, ModelShape, Node, PlannedRequest, RequestRecord, ServerDelta
from autotune.simulator.api_server import ApiServer
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.core import PATIENCE, Core
from autotune.simulator.kv_cache import BlockPool
from autotune.simulator.level_run import LevelRun
from autotune.simulator.level_times import LevelFigures, LevelOutcome, build_figures, build_records, times_of
from autotune.simulator.replica import Replica
from autotune.simulator.scheduler import Scheduler, SimRequest
from autotune.simulator.stage_costs import in_lock_step
from autotune.simulator.step_time import StepTimer
from autotune.simulator.wiring import wire_of

if TYPE_CHECKING:
    from autotune.simulator.compiled.level import CompiledServer
    from autotune.simulator.compiled.load import Load


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLevel:
    """What one load level did. Times in `records` count from the level's start."""

    records: tuple[RequestRecord, ...]
    server: ServerDelta
    duration_s: float


class Simulation:
    """One launch of a simulated server.

    Args:
        kv_tokens: capacity of one replica's KV cache; the memory model knows it.
        seed: of the noise; with `coefficients.step_noise` and `.run_noise` at 0 it changes nothing.
        api_servers: API-server processes, instead of those in `settings`; settings that do not say have one per
            data-parallel replica.
        core: what runs the levels; both answer the same.

    Raises:
        ValueError: the GPU's peaks are unknown, the node has too few GPUs, or the settings cannot be scheduled.
    """

    def __init__(
        self,
        node: Node,
        shape: ModelShape,
        settings: ResolvedSettings,
        kv_tokens: int,
        coefficients: Coefficients | None = None,
        seed: int = 0,
        *,
        api_servers: int | None = None,
        core: Core = Core.AUTO,
    ) -> None:
        if settings.gpus > node.gpu_count:
            raise ValueError(f"{settings.gpus} GPUs are needed, {node.name} has {node.gpu_count}")
        self.settings = settings
        self.coefficients = coefficients or Coefficients()
        self._seed = seed
        self._replicas = build_replicas(node, shape, settings, kv_tokens, self.coefficients)
        self._api_servers = api_servers or settings.api_server_count or settings.data_parallel
        self._core = core
        self._compiled: CompiledServer | None = None
        self._serial = 0
        self._clock_s = 0.0

    def run(
        self,
        level: LoadLevel,
        requests: Sequence[PlannedRequest],
        start_s: float | None = None,
        *,
        stagger_s: float = 0.0,
        deadline_s: float = math.inf,
        looks: Looks | None = None,
    ) -> SimulatedLevel:
        """Run one load level to its end.

        Args:
            start_s: virtual time of its start; None continues where the last level ended. A pause cools the GPU.
            stagger_s: closed loop only: the first requests are spread evenly over this long.
            deadline_s: requests still open this long after the start come back with error `deadline`.
            looks: end an open loop; None for those of a level that may grow.

        Raises:
            ValueError: a closed loop without concurrency, or an open loop without schedule.
        """
        self._begin(start_s)
        if (compiled := self._compiled_for(requests)) is not None:
            load = compiled.load(level, requests, looks)
            outcome = self._run_compiled(compiled, load, level.seed, stagger_s, deadline_s, stamping=True)
            records = build_records(requests[: len(outcome.times.due_s)], outcome.times, self.settings.max_model_len)
            return SimulatedLevel(records=records, server=self._delta(outcome), duration_s=outcome.end_s)
        return self._run_twin(level, requests, stagger_s, deadline_s, looks)

    def figures(
        self,
        level: LoadLevel,
        requests: Sequence[PlannedRequest],
        *,
        deadline_s: float = math.inf,
        load: Load | None = None,
    ) -> LevelFigures:
        """Run one load level for its figures alone: no chunk's time is kept. Otherwise as `run`.

        Args:
            load: the same level and requests, made ready once for many servers; for the first level of a server only.
        """
        self._begin(None)
        if (compiled := self._compiled_for(requests)) is not None:
            load = compiled.load(level, requests) if load is None else load
            outcome = self._run_compiled(compiled, load, level.seed, 0.0, deadline_s, stamping=False)
            return build_figures(
                outcome.times, load.outputs[: len(outcome.times.due_s)], self._delta(outcome), outcome.end_s
            )
        ran = self._run_twin(level, requests, 0.0, deadline_s)
        outputs = np.array([record.wanted_output_tokens for record in ran.records], dtype=np.int64)
        return build_figures(times_of(ran.records), outputs, ran.server, ran.duration_s)

    def prepare(self, level: LoadLevel, requests: Sequence[PlannedRequest]) -> Load | None:
        """A level made ready for `figures` of other simulations on their first level; None on the plain core."""
        compiled = self._compiled_for(requests)
        return None if compiled is None else compiled.load(level, requests)

    def reset_prefix_cache(self) -> None:
        """As `POST /reset_prefix_cache` between levels."""
        if self._compiled is not None:
            self._compiled.reset_prefix_cache()
        for scheduler in self._schedulers:
            scheduler.pool.reset_prefix_cache()

    def _begin(self, start_s: float | None) -> None:
        """Let the clock go on to the start of a level."""
        begin = self._clock_s if start_s is None else max(start_s, self._clock_s)
        cooled = math.exp((self._clock_s - begin) / self.coefficients.heat_tau_s)
        for replica in self._replicas:
            replica.heat *= cooled
        if self._compiled is not None:
            self._compiled.heat *= cooled
        self._clock_s = begin

    def _noise(self, seed: int) -> _Noise:
        # Two words of entropy: a level's noise must not depend on which levels ran before it.
        return _Noise(np.random.default_rng([self._seed, seed]), self.coefficients)

    def _compiled_for(self, requests: Sequence[PlannedRequest]) -> CompiledServer | None:
        """The compiled core, if this launch runs on it: what its first level ran on, as the caches are there."""
        if self._compiled is None and self._serial == 0:
            tokens = sum(request.output_tokens for request in requests)
            if PATIENCE.compiled(self._core, tokens):
                # Imported here: it takes numba's import, which short processes do without.
                from autotune.simulator.compiled.level import CompiledServer, Shape

                self._compiled = CompiledServer(
                    shape=Shape.of(self.settings, self._replicas, self._api_servers),
                    numbers=self._replicas[0].timer.numbers,
                    coefficients=self.coefficients,
                )
        return self._compiled

    def _run_compiled(
        self, compiled: CompiledServer, load: Load, seed: int, stagger_s: float, deadline_s: float, *, stamping: bool
    ) -> LevelOutcome:
        noise = self._noise(seed)
        outcome = compiled.run(load, noise.take, stagger_s=stagger_s, deadline_s=deadline_s, stamping=stamping)
        self._clock_s += outcome.end_s
        return outcome

    def _delta(self, outcome: LevelOutcome) -> ServerDelta:
        caching = self.settings.prefix_caching
        return ServerDelta(
            preemptions=outcome.preemptions,
            prompt_tokens=outcome.prompt_tokens,
            generation_tokens=outcome.generation_tokens,
            prefix_queries=outcome.prefix_queries if caching else None,
            prefix_hits=outcome.prefix_hits if caching else None,
            queue_time_mean_s=outcome.queue_time_mean_s,
            kv_usage_max=outcome.kv_usage_max,
            running_max=float(outcome.running_max),
            waiting_max=float(outcome.waiting_max),
        )

    def _run_twin(
        self,
        level: LoadLevel,
        requests: Sequence[PlannedRequest],
        stagger_s: float,
        deadline_s: float,
        looks: Looks | None = None,
    ) -> SimulatedLevel:
        before = self._counters()
        sims = tuple(self._sim_request(request) for request in requests)
        run = LevelRun(
            level,
            requests,
            sims,
            self._replicas,
            [self._api_server(sims) for _ in range(self._api_servers)],
            self.coefficients,
            self._noise(level.seed),
            max_model_len=self.settings.max_model_len,
            looks=looks,
        )
        for replica in self._replicas:
            replica.start_level(0.0)
        end = run.run(stagger_s=stagger_s, deadline_s=deadline_s)
        self._clock_s += end
        after = self._counters()
        preemptions, queries, hits = (b - a for a, b in zip(before, after, strict=True))
        caching = self.settings.prefix_caching
        server = ServerDelta(
            preemptions=preemptions,
            prompt_tokens=run.prompt_tokens,
            generation_tokens=run.generation_tokens,
            prefix_queries=queries if caching else None,
            prefix_hits=hits if caching else None,
            queue_time_mean_s=run.queue_time_mean_s,
            kv_usage_max=max(r.kv_usage_max for r in self._replicas),
            running_max=float(sum(r.running_max for r in self._replicas)),
            waiting_max=float(sum(r.waiting_max for r in self._replicas)),
        )
        return SimulatedLevel(records=run.records(), server=server, duration_s=end)

    def _sim_request(self, request: PlannedRequest) -> SimRequest:
        self._serial += 1
        keys = block_keys(request, self.settings.block_size) if self.settings.prefix_caching else ()
        return SimRequest(self._serial, request.prompt_tokens, request.output_tokens, keys)

    def _api_server(self, sims: Sequence[SimRequest]) -> ApiServer:
        first = sims[0].serial if sims else 0
        return ApiServer(
            self.coefficients,
            stream_interval=self.settings.stream_interval,
            serials=range(first, first + len(sims)),
        )

    @property
    def _schedulers(self) -> list[Scheduler]:
        return [scheduler for replica in self._replicas for scheduler in replica.schedulers]

    def _counters(self) -> tuple[int, int, int]:
        schedulers = self._schedulers
        return (
            sum(s.preemptions for s in schedulers),
            sum(s.prefix_queries for s in schedulers),
            sum(s.prefix_hits for s in schedulers),
        )


def build_replicas(
    node: Node, shape: ModelShape, settings: ResolvedSettings, kv_tokens: int, coefficients: Coefficients
) -> list[Replica]:
    """One idle replica per data-parallel rank, or one of all ranks in lock-step; each rank has `kv_tokens`.

    Raises:
        ValueError: the GPU's peaks are unknown, or the settings cannot be scheduled.
    """
    timer = StepTimer(
        node.gpus[0],
        wire_of(node, settings.tensor_parallel),
        shape,
        settings,
        coefficients,
        around=wire_of(node, settings.gpus),
    )

    def scheduler() -> Scheduler:
        return Scheduler(
            BlockPool(kv_tokens // settings.block_size, prefix_caching=settings.prefix_caching),
            max_num_seqs=settings.max_num_seqs,
            max_num_batched_tokens=settings.max_num_batched_tokens,
            chunked_prefill=settings.chunked_prefill,
            block_size=settings.block_size,
            lanes=settings.pipeline_parallel,
        )

    ranks = settings.data_parallel
    groups = [ranks] if in_lock_step(shape, settings) else [1] * ranks
    return [
        Replica(
            [scheduler() for _ in range(size)],
            timer,
            coefficients,
            stages=settings.pipeline_parallel,
            overlapped=settings.async_scheduling,
            limit=settings.concurrent_batches,
        )
        for size in groups
    ]


NOISE_BLOCK = 512


class _Noise:
    """Factors around 1 for step times: one for the whole level, one for each step. Drawn in blocks, because single
    draws from a numpy generator would cost as much as planning the step."""

    def __init__(self, rng: np.random.Generator, coefficients: Coefficients) -> None:
        self._rng = rng
        self._sigma = coefficients.step_noise
        self._level = math.exp(rng.normal(0.0, 1.0) * coefficients.run_noise)
        self._block: list[float] = []

    def __call__(self) -> float:
        if not self._block:
            self._block = self._draw(1)[0].tolist()
        return self._block.pop()

    def take(self, count: int) -> NDArray[np.float64]:
        """The next `count` factors or some more, in the order in which calls would give them."""
        return self._draw(-(-count // NOISE_BLOCK))[:, ::-1].reshape(-1)

    def _draw(self, blocks: int) -> NDArray[np.float64]:
        drawn: NDArray[np.float64] = np.exp(self._rng.normal(0.0, 1.0, (blocks, NOISE_BLOCK)) * self._sigma)
        return drawn * self._level


def block_keys(request: PlannedRequest, block_size: int) -> list[int]:
    """Content keys of a synthetic prompt's full blocks: equal where everything up to the block's end is equal."""
    keys: list[int] = []
    before: tuple[Hashable, ...] = ()
    start = 0
    own = (("own", request.content_seed), request.prompt_tokens - request.shared_tokens)
    for content, tokens in (*((span.content, span.tokens) for span in request.shared), own):
        end = min(start + tokens, request.prompt_tokens)
        # A block inside a span does not see where that span ends, only where those before it did.
        base = _base((*before, content))
        keys.extend(range(base + start // block_size, base + end // block_size))
        before = (*before, (content, tokens))
        start = end
    return keys


def _base(identity: Hashable) -> int:
    # Consecutive keys from a random place among 2^62: two prompts meet there with negligible probability.
    digest = blake2b(repr(identity).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 2
