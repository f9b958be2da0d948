"""A ready server of the process engine: load on it, its own counters beside the load, and its end."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from autotune.engine.asking import ask_server
from autotune.engine.base import DriveResult, LaunchFailed, ServerDied
from autotune.engine.command import shown_argv
from autotune.engine.gpu_energy import GpuEnergy, energy_between
from autotune.engine.gpu_memory import HeldGpu, gpus_busy
from autotune.engine.metrics_text import Metrics, delta, parse_metrics, restarted
from autotune.engine.processes import descendants, snapshot
from autotune.engine.remedies import remedies_for
from autotune.engine.running import RunningServer
from autotune.engine.sampling import LevelSampler, read_cpu
from autotune.load.client import DriveOptions, drive
from autotune.load.exchange import Timeouts
from autotune.load.growing import Looks
from autotune.load.preparing import PreparedPrompts, PromptSource
from autotune.load.prompts import Prompt
from autotune.load.tokenizing import TextTokenizer
from autotune.load.workloads import Api
from autotune.node.probe import GpuProbe
from autotune.quality.answers import Answers
from autotune.quality.prompts import QualityPrompt
from autotune.records import (
    Caveat,
    Failure,
    FailureClass,
    LoadLevel,
    PlannedRequest,
    RequestRecord,
    ServerFacts,
)

CHECK_S = 1.0
DEAD_ANSWERS = 2
"""/health says 503 when the engine died behind the API server; once may be a hiccup."""
EXIT_FOLLOWS_S = 3.0
"""An API server whose engine died closes its connections first and exits a moment later."""
ENDING_S = 10.0
"""Of one that does not even answer any more: on a busy machine its keeper is late to tell how it ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSettings:
    """How requests of a study are written, the same for every trial.

    Attributes:
        api_key_env: environment variable with the token that the server asks for, if it asks.
        study_salt: of the shared prefixes' content.
        tokenizer: the model's, where it was found.
        vocab_size: of the model's shape; None where unknown.
        texts: the workload's own prompts (`Workload.texts`).
    """

    api: Api
    study_salt: int = 0
    timeouts: Timeouts = field(default_factory=Timeouts)
    api_key_env: str | None = None
    tokenizer: TextTokenizer | None = None
    vocab_size: int | None = None
    texts: Sequence[Prompt] = ()

    @property
    def prompt_source(self) -> PromptSource:
        """What prompts can be made from."""
        return PromptSource(
            api=self.api,
            study_salt=self.study_salt,
            tokenizer=self.tokenizer,
            vocab_size=self.vocab_size,
            texts=self.texts,
        )

    def api_key(self, environ: Mapping[str, str]) -> str | None:
        """The token itself; use it, do not keep it."""
        return environ.get(self.api_key_env) if self.api_key_env else None

    def options(self, model: str) -> DriveOptions:
        """The load client's options, without prompts, deadline and abort."""
        return DriveOptions(
            api=self.api, model=model, render=_unprepared, api_key_env=self.api_key_env, timeouts=self.timeouts
        )


def _unprepared(request: PlannedRequest) -> Prompt:
    raise AssertionError(f"request {request.index} is rendered before prompts were prepared")


def _holders(found: Sequence[HeldGpu]) -> str:
    return "; ".join(f"process {', '.join(gpu.holders)} on GPU {gpu.index}" for gpu in found)


_KEEP_OFF = "Keep others off the GPUs of a study, or leave those out with --gpus; repeat this trial."
_SHARED_NODE = (
    "They share host memory, PCIe, CPUs and power with it: keep the node to the study, or compare with a repeat alone."
)


class ProcessServer:
    """The server seam over a process; made by `ProcessEngine.launch`."""

    def __init__(
        self,
        *,
        running: RunningServer,
        argv: tuple[str, ...],
        facts: ServerFacts,
        model: str,
        prompts: PreparedPrompts,
        load: LoadSettings,
        grace_s: float,
        judge: Callable[[Failure], Failure],
        gone: Callable[[], None],
        strangers: Callable[[Collection[int]], tuple[HeldGpu, ...]],
        neighbours: Callable[[Collection[int], Collection[int]], tuple[HeldGpu, ...]],
        free_gpus: Callable[[], Awaitable[tuple[HeldGpu, ...]]],
        energy: Callable[[], Awaitable[GpuEnergy | None]],
        probe: GpuProbe | None = None,
        gpu_indices: Sequence[int] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._running = running
        self._argv = shown_argv(argv)
        self._facts = facts
        self._options = prompts.over(load.options(model))
        self._api_key = load.api_key(os.environ)
        self._caveats = prompts.caveats
        self._grace_s = grace_s
        self._judge, self._gone = judge, gone
        self._strangers, self._neighbours = strangers, neighbours
        self._free_gpus = free_gpus
        self._energy = energy
        self._probe, self._gpu_indices = probe, tuple(gpu_indices)
        self._now = now

    @property
    def facts(self) -> ServerFacts:
        """Resolved settings, by log and HTTP."""
        return self._facts

    @property
    def argv(self) -> tuple[str, ...]:
        """The command line as launched, secrets taken out."""
        return self._argv

    @property
    def caveats(self) -> tuple[Caveat, ...]:
        """That the prompts' lengths are a guess or they go elsewhere, or that strangers used the GPUs, where so."""
        return self._caveats

    @property
    def base_url(self) -> str:
        """Where it answers."""
        return self._running.door.base_url

    async def drive(
        self,
        level: LoadLevel,
        requests: Sequence[PlannedRequest],
        *,
        deadline_s: float,
        looks: Looks | None = None,
    ) -> DriveResult:
        """See the seam. The prefix cache is emptied first where the server offers it."""
        door = self._running.door
        await door.reset_prefix_cache()
        before = await self._metrics()
        await self._running.read_log()
        compiled = self._running.jit_compiles
        abort = asyncio.Event()
        watching = asyncio.create_task(self._watch(abort))
        sampler = self._sampler()
        used: list[GpuEnergy | None] = []

        async def begin() -> None:
            await sampler.begin()
            used.append(await self._energy())

        options = replace(
            self._options,
            deadline_s=deadline_s,
            abort=abort,
            before_start=begin,
            on_worker=sampler.worker_ended,
            looks=looks,
        )
        try:
            records, duration = await drive(door.base_url, level, requests, options=options)
            used.append(await self._energy())
        finally:
            watching.cancel()
            await asyncio.wait({watching})
            await sampler.close()
        await self._running.read_log()
        await self._look_for_strangers()
        use = await sampler.end(jit_compiles=self._running.jit_compiles - compiled)
        await self._raise_if_dead(records, told=abort.is_set())
        after = await self._metrics()
        if before is not None and after is not None and restarted(before, after):
            # A wrapper or a container's restart policy brought another server up behind the same port.
            kind = FailureClass.CRASH
            line = "the server's counters went back: it restarted under load"
            raise ServerDied(Failure(kind=kind, line=line, remedies=remedies_for(kind, {})), records)
        return DriveResult(
            records=records,
            server=delta(before, after, sampler.gauges),
            duration_s=duration,
            energy_j=energy_between(*used),
            use=use,
        )

    async def _look_for_strangers(self) -> None:
        """Whoever else computes on the server's GPUs spoils its figures, on the node's others may; told once."""
        family = self._running.family_pid
        if family is None or not self._gpu_indices:
            return

        def look() -> tuple[tuple[HeldGpu, ...], tuple[HeldGpu, ...]]:
            seen = snapshot()
            own = [process.pid for process in descendants(family, seen)]
            tuner = [process.pid for process in descendants(os.getpid(), seen)]
            return self._strangers(own), self._neighbours(own, tuner)

        on_own, on_others = await asyncio.to_thread(look)
        if on_own:
            text = f"somebody else used its GPUs: {_holders(on_own)}"
            self._tell(Caveat(code="stranger_on_gpu", text=text, remedy=_KEEP_OFF))
        if on_others:
            text = f"somebody else used other GPUs of the node: {_holders(on_others)}"
            self._tell(Caveat(code="stranger_on_node", text=text, remedy=_SHARED_NODE))

    def _tell(self, caveat: Caveat) -> None:
        if all(told.code != caveat.code for told in self._caveats):
            self._caveats = (*self._caveats, caveat)

    async def ask(self, prompts: Sequence[QualityPrompt], *, output_tokens: int, deadline_s: float) -> Answers:
        """See the seam."""
        return await ask_server(
            self._running.door.base_url,
            self._options.model,
            prompts,
            output_tokens=output_tokens,
            deadline_s=deadline_s,
            api_key=self._api_key,
        )

    def _sampler(self) -> LevelSampler:
        running = self._running
        return LevelSampler(
            metrics=running.door.metrics,
            cpu=lambda: read_cpu(running.family_pid, running.port),
            probe=self._probe,
            indices=self._gpu_indices,
        )

    async def stop(self) -> float:
        """See the seam."""
        begun = self._now()
        try:
            report = await self._running.stop(self._grace_s)
        finally:  # also when somebody cancels meanwhile: nothing runs any more then
            self._gone()
        held = await self._free_gpus()
        if held or report.remaining:
            failure = gpus_busy(held)
            if report.remaining:
                stuck = ("remaining_pids", ", ".join(map(str, report.remaining)))
                failure = replace(failure, facts=(*failure.facts, stuck))
            raise LaunchFailed(failure, self._facts, self._argv)
        return self._now() - begun

    async def _watch(self, abort: asyncio.Event) -> None:
        """Beside the load: follow the log, and end the level when the server is gone."""
        running = self._running
        gone = asyncio.ensure_future(running.keeper.wait_exit())
        dead_answers = 0
        try:
            while not gone.done():
                await asyncio.wait({gone}, timeout=CHECK_S)
                if gone.done():
                    break
                await running.read_log()
                dead_answers = dead_answers + 1 if await running.door.health() == 503 else 0
                if dead_answers >= DEAD_ANSWERS:
                    break
            abort.set()
        finally:
            gone.cancel()

    async def _raise_if_dead(self, records: Sequence[RequestRecord], *, told: bool) -> None:
        running = self._running
        if not running.keeper.exited:
            failed = any(record.error is not None for record in records)
            if not told and not (failed and await running.door.health() in (None, 503)):
                return
        status = None
        try:
            status = await asyncio.wait_for(running.keeper.wait_exit(), EXIT_FOLLOWS_S)
        except TimeoutError:
            health = await running.door.health()
            if not told and health == 200:
                return  # it was only too busy to answer
            if health is None:
                with suppress(TimeoutError):
                    status = await asyncio.wait_for(running.keeper.wait_exit(), ENDING_S)
        await running.read_log()
        failure = running.failure(exit_status=status)
        if failure.kind is FailureClass.HEALTHY:
            line = "the server ended by itself under load" if status is not None else "the server stopped answering"
            kind = FailureClass.CRASH
            failure = Failure(kind=kind, line=line, remedies=remedies_for(kind, {}), exit_status=status)
        raise ServerDied(self._judge(failure), records)

    async def _metrics(self) -> Metrics | None:
        text = await self._running.door.metrics()
        return None if text is None else parse_metrics(text)
