"""The engine without GPUs: the discrete-event simulation in virtual time, behind the same seam as real servers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from autotune.engine.base import DriveResult, LaunchFailed, LaunchPlan, Milestone, ServerIdentity
from autotune.engine.command import shown_argv
from autotune.engine.flags import to_argv
from autotune.engine.logs import MilestoneName
from autotune.engine.remedies import remedies_for
from autotune.engine.virtual_time import VirtualTime
from autotune.errors import UnknownName
from autotune.load.arrivals import default_stagger_s
from autotune.load.growing import Looks
from autotune.node.defaults import ResolvedSettings, resolve
from autotune.node.memory import MemoryEstimate, estimate
from autotune.quality.answers import Answers
from autotune.quality.prompts import QualityPrompt
from autotune.records import (
    Arrivals,
    Caveat,
    ClockKind,
    EngineKind,
    Failure,
    LoadLevel,
    ModelShape,
    Node,
    PlannedRequest,
    ServerFacts,
    Value,
)
from autotune.simulator.engine_model import Simulation
from autotune.simulator.graph_sizes import captured_sizes
from autotune.simulator.stage_costs import in_lock_step
from autotune.simulator.start_checks import StartProblem, config_problem, memory_problem

# A start on the recorded H200 (cold compile cache) took 83 s: about 18 s of imports in each of two processes, 18 s of
# compiling, 5 s of 51 graphs, 14 s until the server answered. Weights come on top, from a disk of 2 GB/s shared by
# ranks.
IMPORT_S = 36.0
COMPILE_S = 20.0
GRAPHS_S = 5.0
FITTED_GRAPHS = 51
READY_S = 16.0
DISK_BYTES_PER_S = 2e9
STOP_S = 0.6


@dataclass(slots=True, kw_only=True)
class SimulatedEngine:
    """Starts simulated servers on one node.

    Attributes:
        shape: of every model whose name is not in `shapes`: the convenience for studies of one checkpoint.
        shapes: by model name, for studies that try several checkpoints of a model.
        seed: of the noise; the trial's number is mixed in, so that repeats differ as real ones do. The attempt's is
            not: a study that was killed and goes on finds what an undisturbed one finds.
        fixed: flags passed through beside the configs, as the defaults see them.
        time: the clock of everything that this engine starts; trials beside each other share it.
    """

    node: Node
    shape: ModelShape | None = None
    seed: int
    fixed: tuple[tuple[str, Value], ...] = ()
    shapes: Mapping[str, ModelShape] = field(default_factory=dict)
    kind: EngineKind = EngineKind.SIMULATED
    clock: ClockKind = ClockKind.VIRTUAL
    time: VirtualTime = field(default_factory=VirtualTime)

    def now(self) -> float:
        """Seconds on the virtual clock."""
        return self.time.now()

    async def launch(
        self,
        plan: LaunchPlan,
        *,
        on_identity: Callable[[ServerIdentity], None],
        on_milestone: Callable[[Milestone], None],
    ) -> SimulatedServer:
        """Start in virtual time: refused at once where vLLM refuses the settings, and where memory does not suffice
        once the weights are loaded.

        Raises:
            UnknownName: the plan's model has no shape here.
        """
        del on_identity  # no process, nothing to reap
        await asyncio.sleep(0)
        shape = self.shape_of(plan.model)
        settings = resolve(plan.config, self.node, shape, extra=dict(self.fixed))
        argv = shown_argv(("vllm", "serve", plan.model, *to_argv(plan.config), *plan.extra_args))
        refused = config_problem(self.node, shape, settings)
        if refused is not None:
            await self.time.sleep(IMPORT_S / 2)  # the API server's process alone
            raise LaunchFailed(_failure(refused, (("max_model_len", settings.max_model_len),)), None, argv)
        begun = self.now()
        memory = estimate(shape, self.node.gpus[0], settings)
        load_s = _loaded_bytes(shape, settings, memory) / DISK_BYTES_PER_S
        graphs_s = GRAPHS_S * len(captured_sizes(settings)) / FITTED_GRAPHS
        compile_s = 0.0 if settings.enforce_eager else COMPILE_S
        facts = _facts(settings, memory, load_s=load_s, compile_s=compile_s, graphs_s=graphs_s)
        for name, seconds in (
            (MilestoneName.ENGINE_STARTED, IMPORT_S),
            (MilestoneName.WEIGHTS_LOADED, load_s),
            (MilestoneName.PROFILED, compile_s),
        ):
            await self.time.sleep(seconds)
            on_milestone(Milestone(name=name, at_s=self.now() - begun))
        problem = memory_problem(self.node, shape, settings, memory)
        if problem is not None:
            raise LaunchFailed(_failure(problem, _memory_facts(settings, memory)), facts, argv)
        await self.time.sleep(graphs_s + READY_S)
        on_milestone(Milestone(name=MilestoneName.SERVER_READY, at_s=self.now() - begun))
        simulation = Simulation(self.node, shape, settings, memory.kv_tokens, seed=self._launch_seed(plan))
        return SimulatedServer(engine=self, simulation=simulation, facts=facts, argv=argv)

    def shape_of(self, model: str) -> ModelShape:
        """The shape that a plan's model is simulated with.

        Raises:
            UnknownName: neither `shapes` nor `shape` has one for it.
        """
        shape = self.shapes.get(model, self.shape)
        if shape is None:
            raise UnknownName("model", model, tuple(self.shapes), source="simulated engine")
        return shape

    def _launch_seed(self, plan: LaunchPlan) -> int:
        return (self.seed * 1_000_003 + plan.trial) % 2**32


@dataclass(slots=True)
class SimulatedServer:
    """A simulated server that is ready."""

    engine: SimulatedEngine
    simulation: Simulation
    facts: ServerFacts
    argv: tuple[str, ...]
    caveats: tuple[Caveat, ...] = ()

    async def drive(
        self,
        level: LoadLevel,
        requests: Sequence[PlannedRequest],
        *,
        deadline_s: float,
        looks: Looks | None = None,
    ) -> DriveResult:
        """Run the level in a thread, so that progress stays live; the result does not depend on it."""
        concurrency = level.concurrency or 1
        stagger = default_stagger_s(concurrency) if level.arrivals is Arrivals.CLOSED else 0.0
        level_run = await asyncio.to_thread(
            self.simulation.run, level, requests, stagger_s=stagger, deadline_s=deadline_s, looks=looks
        )
        await self.engine.time.sleep(level_run.duration_s)
        return DriveResult(records=level_run.records, server=level_run.server, duration_s=level_run.duration_s)

    async def ask(self, prompts: Sequence[QualityPrompt], *, output_tokens: int, deadline_s: float) -> Answers:
        """Nothing: a made-up figure could be taken for a measured one."""
        del prompts, output_tokens, deadline_s
        return Answers(problem="a simulated server computes no tokens")

    async def stop(self) -> float:
        """The recorded time from TERM to memory free."""
        await self.engine.time.sleep(STOP_S)
        return STOP_S


def _loaded_bytes(shape: ModelShape, settings: ResolvedSettings, memory: MemoryEstimate) -> float:
    """Read from the disk by all ranks together; replicas find the files in the page cache."""
    if in_lock_step(shape, settings):
        return shape.weight_bytes  # experts are dealt over the replicas, none of them loads the whole
    return memory.weights_bytes_per_gpu * settings.gpus / settings.data_parallel


def _facts(
    settings: ResolvedSettings, memory: MemoryEstimate, *, load_s: float, compile_s: float, graphs_s: float
) -> ServerFacts:
    return ServerFacts(
        kv_cache_tokens=memory.kv_tokens * settings.data_parallel,
        max_concurrency=memory.max_concurrency * settings.data_parallel,
        available_kv_bytes=memory.available_kv_bytes,
        weights_bytes=memory.weights_bytes_per_gpu,
        max_model_len=settings.max_model_len,
        max_num_batched_tokens=settings.max_num_batched_tokens,
        max_num_seqs=settings.max_num_seqs,
        gpu_memory_utilization=settings.gpu_memory_utilization,
        kv_cache_dtype=settings.kv_cache_dtype,
        dtype=settings.dtype,
        prefix_caching=settings.prefix_caching,
        chunked_prefill=settings.chunked_prefill,
        startup_s=IMPORT_S + load_s + compile_s + graphs_s + READY_S,
        load_s=load_s,
        compile_s=compile_s,
        graph_capture_s=graphs_s,
        simulated=True,
    )


def _memory_facts(settings: ResolvedSettings, memory: MemoryEstimate) -> tuple[tuple[str, Value], ...]:
    return (
        ("available_kv_bytes", memory.available_kv_bytes),
        ("needed_kv_bytes", memory.needed_kv_bytes),
        ("max_model_len", settings.max_model_len),
    )


def _failure(problem: StartProblem, facts: tuple[tuple[str, Value], ...]) -> Failure:
    message = " ".join(problem.message.split())
    return Failure(
        kind=problem.failure,
        line=f"simulated: {problem.exception}: {message}",
        facts=facts,
        remedies=remedies_for(problem.failure, dict(facts)),
    )
