"""The guide's first step (G30): a small server with a short context, asked once and stopped, all through the engine."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from autotune.doctor.findings import Findings, Problem, Served, ServeFailure
from autotune.engine.base import LaunchFailed, LaunchPlan, ServerDied
from autotune.engine.command import VllmCommand
from autotune.engine.flag_cache import InstalledVllm
from autotune.engine.flags import from_argv
from autotune.engine.gpu_memory import GpuGuard
from autotune.engine.holding import NodeHold, Patience
from autotune.engine.process import ProcessEngine, ProcessSettings
from autotune.engine.process_server import LoadSettings, ProcessServer
from autotune.engine.remedies import remedies_for
from autotune.engine.server_http import ServerDoor
from autotune.errors import Interrupted, NoFeasibleConfig
from autotune.load.workloads import Api
from autotune.node.leases import NodeLeases
from autotune.node.probe import GpuProbe
from autotune.records import Arrivals, Config, Failure, FailureClass, Gpu, LevelRole, LoadLevel, PlannedRequest, Value
from autotune.search.starting import baseline

DEFAULT_MODEL = "Qwen/Qwen3-0.6B"
"""What `vllm serve` serves when no model is named (vllm/config/model.py 0.32)."""
SHORT_CONTEXT = 2048
FEW_SEQUENCES = 8
PROMPT_TOKENS, OUTPUT_TOKENS = 16, 8
ANSWER_DEADLINE_S = 120.0
STALL_DEADLINE_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SmallServer:
    """What is started.

    Attributes:
        config: layout as the model needs it, a short context, few sequences, no CUDA graphs.
        extra: flags of the operator, passed on as they are.
    """

    model: str
    config: Config
    gpus: tuple[int, ...]
    extra: tuple[str, ...]


def plan_small(found: Findings, model: str, extra: Sequence[str], version: str | None) -> SmallServer | Problem:
    """The smallest sensible server of a model on the node that was found.

    Raises:
        InvalidOption: `extra` is no list of flags.
    """
    given = dict(from_argv(extra))
    shape = found.model.shape if found.model else None
    values: dict[str, Value] = {
        "max-model-len": min(SHORT_CONTEXT, shape.max_position_embeddings) if shape else SHORT_CONTEXT,
        "max-num-seqs": FEW_SEQUENCES,
        "enforce-eager": True,
    }
    if found.node is not None:
        fixed = {**values, **given}
        try:
            base, _ = baseline(found.node, shape, None, vllm_version=version, fixed=tuple(fixed.items()))
        except NoFeasibleConfig as error:
            return Problem(text=error.message, remedy=error.hint or "Use a smaller or a quantised model.")
        values |= {name: value for name, value in base if value is not None}
    config = Config.of({name: value for name, value in values.items() if name not in given})
    used = _product(given | config.as_dict())
    indices = tuple(gpu.index for gpu in found.node.gpus) if found.node else ()
    if found.node is not None and used > len(indices):
        text = f"the server needs {used} GPUs, and {len(indices)} are visible"
        return Problem(text=text, remedy="Lower the parallel sizes after `--`, or name more GPUs with --gpus.")
    return SmallServer(model=model, config=config, gpus=indices[:used], extra=tuple(extra))


def hold_for(gpus: Sequence[Gpu], leases: NodeLeases) -> NodeHold:
    """The hold of one server, which waits for nobody: that the node is used is what whoever asks wants to know."""
    return NodeHold(gpus, leases, patience=Patience(limit_s=0.0))


def engine_for(
    command: VllmCommand, installed: InstalledVllm, probe: GpuProbe | None, hold: NodeHold | None = None
) -> ProcessEngine:
    """The engine that studies use, for one server. `probe` is None where no GPU is used."""
    load = LoadSettings(api=Api.COMPLETIONS, api_key_env="VLLM_API_KEY")
    settings = ProcessSettings(command=command, load=load, accepted=installed.accepted)
    return ProcessEngine(settings, guard=GpuGuard(probe), hold=hold)


def serve_small(
    small: SmallServer,
    engine: ProcessEngine,
    probe: GpuProbe | None,
    *,
    directory: Path,
    start_deadline_s: float,
    tell: Callable[[str], None],
    hold: NodeHold | None = None,
) -> Served | ServeFailure:
    """Start, ask, stop. Nothing of it runs on when this returns or raises, Ctrl-C and TERM included.

    Args:
        directory: takes server.log.
        tell: is told each step, for whoever waits.

    Raises:
        Interrupted: SIGINT, SIGTERM or SIGHUP.
        VllmCommandError: the command cannot be executed, or is no OpenAI server.
        StorageError: the log cannot be written.
    """
    plan = LaunchPlan(
        model=small.model,
        config=small.config,
        gpu_indices=small.gpus,
        extra_args=small.extra,
        directory=directory,
        start_deadline_s=start_deadline_s,
        stall_deadline_s=min(STALL_DEADLINE_S, start_deadline_s),
    )
    run = _Run(engine=engine, probe=probe if small.gpus else None, plan=plan, tell=tell)
    mine = hold or NodeHold()
    try:
        with closing(mine):
            return asyncio.run(_until_signalled(run, mine))
    except asyncio.CancelledError:
        raise Interrupted("the small server was stopped before it had answered") from None


@dataclass(slots=True, kw_only=True)
class _Run:
    engine: ProcessEngine
    probe: GpuProbe | None
    plan: LaunchPlan
    tell: Callable[[str], None]

    async def perform(self) -> Served | ServeFailure:
        log = str(self.plan.directory / "server.log")
        self.tell(f"starting a small server of {self.plan.model}; its log: {log}")
        begun = time.monotonic()
        try:
            server = await self.engine.launch(
                self.plan, on_identity=lambda _: None, on_milestone=lambda mark: self.tell(f"  {mark.name}")
            )
        except LaunchFailed as error:
            return ServeFailure(step="the server did not start", failure=error.failure, log=log)
        startup_s = time.monotonic() - begun
        answered: _Answer | Failure | None = None
        stop_s = 0.0
        try:
            answered = await self._ask(server)
        finally:
            # Also when cancelled: the server is ours to stop.
            self.tell("stopping it")
            left, stop_s = await _stop(server)
        if isinstance(answered, Failure):
            return ServeFailure(step="the server did not answer", failure=answered, log=log)
        if left is not None:
            return ServeFailure(step="the server did not go away", failure=left, log=log)
        return Served(
            model=self.plan.model,
            models=answered.models,
            gpus=self.plan.gpu_indices,
            version=server.facts.vllm_version,
            max_model_len=server.facts.max_model_len,
            kv_cache_tokens=server.facts.kv_cache_tokens,
            startup_s=startup_s,
            answer_s=answered.seconds,
            output_tokens=answered.tokens,
            stop_s=stop_s,
            memory_back=True if self.probe is not None else None,  # `stop` would have failed otherwise
            simulated=server.facts.simulated,
        )

    async def _ask(self, server: ProcessServer) -> _Answer | Failure:
        """The models it names, and one completion."""
        self.tell("asking /v1/models and one completion")
        cards = await ServerDoor(server.base_url).models()
        level = LoadLevel(
            name="doctor", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=1, seed=0, concurrency=1
        )
        request = PlannedRequest(index=0, prompt_tokens=PROMPT_TOKENS, output_tokens=OUTPUT_TOKENS, content_seed=0)
        try:
            result = await server.drive(level, [request], deadline_s=ANSWER_DEADLINE_S)
        except ServerDied as error:
            return error.failure
        record = result.records[0]
        if record.error is not None or record.done_s is None:
            line = f"the completion ended with {record.error or 'nothing'}: {record.message or 'no message'}"
            kind = FailureClass.CRASH
            return Failure(kind=kind, line=line, remedies=remedies_for(kind, {}))
        return _Answer(
            models=tuple(card.id for card in cards or ()), seconds=record.done_s, tokens=record.output_tokens
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    models: tuple[str, ...]
    seconds: float
    tokens: int | None


async def _stop(server: ProcessServer) -> tuple[Failure | None, float]:
    """What is left of it, if anything, and how long stopping took."""
    begun = time.monotonic()
    try:
        await server.stop()
    except LaunchFailed as error:
        return error.failure, time.monotonic() - begun
    return None, time.monotonic() - begun


async def _until_signalled(run: _Run, hold: NodeHold) -> Served | ServeFailure:
    """Signals cancel the task: its `finally` blocks stop the server before anything else happens."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None  # inside a coroutine that asyncio.run drives there is one
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            loop.add_signal_handler(number, task.cancel)
    await hold.take()
    return await run.perform()


def _product(values: dict[str, Value]) -> int:
    """GPUs of a config: TP x PP x DP."""
    product = 1
    for size in ("tensor", "pipeline", "data"):
        value = values.get(f"{size}-parallel-size")
        product *= value if isinstance(value, int) and not isinstance(value, bool) else 1
    return product
