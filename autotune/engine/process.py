"""The process engine: real `vllm serve` processes, each with its own keeper, port and log."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.engine.base import LaunchFailed, LaunchPlan, Milestone, ServerIdentity
from autotune.engine.command import VllmCommand, server_argv, shown_argv
from autotune.engine.compile_cache import REPLACED, CacheLease, CompileCaches
from autotune.engine.flags import AcceptedFlags, to_argv, to_env
from autotune.engine.gpu_energy import read_energy
from autotune.engine.gpu_memory import GpuGuard, gpus_busy
from autotune.engine.holding import NodeHold
from autotune.engine.keeper_client import Keeper, KeeperLost, ServerNotStarted, ServerOrder
from autotune.engine.log_tail import LogTail
from autotune.engine.logs import MilestoneName
from autotune.engine.ports import LOOPBACK, Ports
from autotune.engine.process_server import LoadSettings, ProcessServer
from autotune.engine.remedies import remedies_for
from autotune.engine.running import RunningServer
from autotune.engine.server_http import ModelCard, ServerDoor
from autotune.engine.start_watch import StartWatch
from autotune.errors import StorageError, VllmCommandError
from autotune.load.preparing import PreparedPrompts, prepare_prompts
from autotune.records import ClockKind, EngineKind, Failure, FailureClass, ServerFacts, Value

TICK_S = 0.1
LOG_SETTLES_S = 1.0
"""How long after a good /health the log's own word of readiness, and the facts before it, are waited for."""
ASK_AGAIN_S = 0.5
ASK_TIMES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    """How servers of a study are started and stopped.

    Attributes:
        command: already resolved to an executable (`command.resolve_command`).
        load: how requests are written.
        accepted: what this vLLM's parser accepts, which decides how switches are spelled.
        grace_s: from TERM to KILL.
        memory_deadline_s: for GPU memory to come back after a stop, and to be there before a launch.
        environ: the environment to inherit; secrets in it reach the server and nothing else.
        caches: where servers keep compiled code; None for servers whose files are not this machine's (a container).
    """

    command: VllmCommand
    load: LoadSettings
    accepted: AcceptedFlags | None = None
    grace_s: float = 20.0
    memory_deadline_s: float = 60.0
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ), repr=False)
    caches: CompileCaches | None = None


class ProcessEngine:
    """The engine seam over processes of this machine. `guard` is None where there are no GPUs to watch."""

    kind = EngineKind.PROCESS
    clock = ClockKind.WALL

    def __init__(
        self,
        settings: ProcessSettings,
        *,
        guard: GpuGuard | None = None,
        ports: Ports | None = None,
        hold: NodeHold | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """Args:
        hold: the study's, whose leases every server holds as long as it lives.
        """
        self._settings = settings
        self._guard = guard or GpuGuard(None)
        self._hold = hold or NodeHold()
        self._ports = ports or Ports()
        self._now = now
        self._prompts: PreparedPrompts | None = None
        self._blamed: set[str] = set()

    def now(self) -> float:
        """Seconds on the engine's clock."""
        return self._now()

    async def launch(
        self,
        plan: LaunchPlan,
        *,
        on_identity: Callable[[ServerIdentity], None],
        on_milestone: Callable[[Milestone], None],
    ) -> ProcessServer:
        """See the seam. GPUs must be at their baseline first; the port is fresh; the log is server.log in the folder.

        Raises:
            LaunchFailed: with the first root cause; everything is stopped.
            VllmCommandError: the command cannot be executed, or what it started is no OpenAI server.
            StorageError: the log file cannot be written.
        """
        settings = self._settings
        held = await self._guard.wait_free(plan.gpu_indices, settings.memory_deadline_s)
        if held:
            raise LaunchFailed(gpus_busy(held))
        caches = settings.caches
        lease = None if caches is None else await asyncio.to_thread(caches.take, to_env(plan.config))
        try:
            return await self._launch(plan, lease, on_identity, on_milestone)
        except BaseException:
            if lease is not None:
                lease.release()
            raise

    async def _launch(
        self,
        plan: LaunchPlan,
        lease: CacheLease | None,
        on_identity: Callable[[ServerIdentity], None],
        on_milestone: Callable[[Milestone], None],
    ) -> ProcessServer:
        port = self._ports.fresh()
        try:
            return await self._launch_at(port, plan, lease, on_identity, on_milestone)
        except BaseException:
            self._gone(plan, port, None)
            raise

    def _gone(self, plan: LaunchPlan, port: int, lease: CacheLease | None) -> None:
        """Nothing of a server runs any more: what it held is given back."""
        self._ports.give_back(port)
        self._hold.server_gone(plan.gpu_indices)
        if lease is not None:
            lease.release()

    async def _launch_at(
        self,
        port: int,
        plan: LaunchPlan,
        lease: CacheLease | None,
        on_identity: Callable[[ServerIdentity], None],
        on_milestone: Callable[[Milestone], None],
    ) -> ProcessServer:
        settings = self._settings
        order, log = await self._order(plan, port, lease)
        door = ServerDoor(f"http://{LOOPBACK}:{port}", api_key=settings.load.api_key(settings.environ))
        begun = self._now()
        locks = () if lease is None else (lease.lock,)
        keeper = await Keeper.spawn(settings.environ, held=(*locks, *self._hold.descriptors(plan.gpu_indices)))
        running = RunningServer(keeper=keeper, log=log, door=door, port=port, kind=settings.command.kind)
        started = False

        def identified(identity: ServerIdentity) -> None:
            self._hold.server_started(plan.gpu_indices, identity)
            on_identity(identity)

        try:
            identified(keeper.identity)
            identified(await keeper.order(order))
            started = True
            card = await self._until_ready(plan, running, begun, on_milestone)
            facts = await running.facts(card=card, startup_s=self._now() - begun)
            prompts = await self._prepared(door.base_url, card.id)
        except ServerNotStarted as error:
            raise VllmCommandError(f"cannot run the server command {settings.command.text!r}: {error.text}") from error
        except KeeperLost as error:
            raise LaunchFailed(_failure(FailureClass.CRASH, line=str(error)), argv=shown_argv(order.argv)) from error
        except _NotReady as error:
            raise await self._cleared_up(plan, running, error, shown_argv(order.argv), lease) from error
        except BaseException:
            # Cancelled, or the caller could not store the identity: nothing may run on.
            await running.stop(settings.grace_s if started else 0.0)
            raise
        return ProcessServer(
            running=running,
            argv=tuple(order.argv),
            facts=facts,
            model=card.id,
            prompts=prompts,
            load=settings.load,
            grace_s=settings.grace_s,
            judge=lambda failure: self._judged(failure, plan, lease),
            gone=lambda: self._gone(plan, port, lease),
            strangers=lambda own: self._guard.strangers(plan.gpu_indices, own),
            neighbours=lambda own, tuner: self._guard.neighbours(
                plan.gpu_indices, own, {*tuner, *self._hold.pids_of_study()}
            ),
            free_gpus=lambda: self._guard.wait_free(plan.gpu_indices, settings.memory_deadline_s),
            energy=lambda: read_energy(self._guard.probe, plan.gpu_indices),
            probe=self._guard.probe,
            gpu_indices=plan.gpu_indices,
            now=self._now,
        )

    async def _order(self, plan: LaunchPlan, port: int, lease: CacheLease | None) -> tuple[ServerOrder, LogTail]:
        """What the keeper is to start, and its log from here on: an earlier attempt may have left one in the folder.

        The log is created here, where a full disk can be told from a bad command.
        """
        settings = self._settings
        argv = server_argv(
            settings.command,
            model=plan.model,
            flags=to_argv(plan.config, settings.accepted),
            host=LOOPBACK,
            port=port,
            extra=plan.extra_args,
            gpus=plan.gpu_indices,
        )
        log = plan.directory / "server.log"
        try:
            await asyncio.to_thread(log.touch)
            size = (await asyncio.to_thread(log.stat)).st_size
        except OSError as error:
            raise StorageError(f"cannot write the server's log {str(log)!r}: {error.strerror}") from error
        env = ({} if lease is None else lease.env) | _environment(plan)
        order = ServerOrder(argv=argv, log=log, env=env, grace_s=settings.grace_s, cores=plan.server_cores)
        return order, LogTail(log, offset=size)

    async def _until_ready(
        self, plan: LaunchPlan, running: RunningServer, begun: float, on_milestone: Callable[[Milestone], None]
    ) -> ModelCard:
        """Follow the log and /health until the server is ready, dead, or overdue.

        Raises:
            _NotReady: dead, overdue, or not ours.
        """
        watch = StartWatch(
            begun_s=begun, start_deadline_s=plan.start_deadline_s, stall_deadline_s=plan.stall_deadline_s
        )

        async def follow() -> None:
            if await running.read_log():
                watch.advance(self._now())
            for name in running.new_milestones():
                on_milestone(Milestone(name=str(name), at_s=self._now() - begun))

        exit_task = asyncio.ensure_future(running.keeper.wait_exit())
        try:
            while True:
                await follow()
                if exit_task.done():
                    raise _NotReady(exit_status=exit_task.result())
                if await running.door.health() == 200:
                    card = await self._whose_door(plan, running)
                    settled = self._now() + LOG_SETTLES_S
                    while MilestoneName.SERVER_READY not in running.milestones and self._now() < settled:
                        await asyncio.sleep(TICK_S)
                        await follow()
                    return card
                now = self._now()
                overdue = watch.overdue(now)
                if overdue is not None:
                    failure = running.failure(hung=True)
                    seen: tuple[tuple[str, Value], ...] = (
                        ("overdue", str(overdue)),
                        ("waited_s", round(now - begun, 1)),
                        ("still_for_s", round(watch.still_for_s(now), 1)),
                    )
                    raise _NotReady(failure=replace(failure, facts=failure.facts + seen))
                await asyncio.wait({exit_task}, timeout=TICK_S)
        finally:
            exit_task.cancel()

    async def _whose_door(self, plan: LaunchPlan, running: RunningServer) -> ModelCard:
        """The model served behind the port, if it is our server that answers."""
        others = await running.others_on_port()
        if others:
            pids = ", ".join(str(pid) for pid in sorted(others))
            line = f"another process (pid {pids}) listens on port {running.port}"
            raise _NotReady(failure=_failure(FailureClass.PORT_IN_USE, line=line, facts=(("port", running.port),)))
        for _ in range(ASK_TIMES):
            listing = await running.door.listing()
            cards = listing.cards
            if cards:
                break
            if listing.refused:
                raise _key_wanted(self._settings.load.api_key_env)
            await asyncio.sleep(ASK_AGAIN_S)
        else:
            if running.keeper.exited:
                raise _NotReady(exit_status=await running.keeper.wait_exit())
            raise VllmCommandError(
                f"what {self._settings.command.text!r} started answers on its port, but has no /v1/models",
                hint="The server command must start vLLM's OpenAI-compatible server.",
            )
        wanted = {plan.model, *_served_names(plan.extra_args)}
        card = next((one for one in cards if one.id in wanted or one.root in wanted), None)
        if card is None:
            names = ", ".join(sorted(one.id for one in cards))
            line = f"port {running.port} is answered by a server of {names}, not of {plan.model}"
            raise _NotReady(failure=_failure(FailureClass.PORT_IN_USE, line=line, facts=(("port", running.port),)))
        return card

    async def _prepared(self, base_url: str, model: str) -> PreparedPrompts:
        """How this study's prompts are written: asked until a server tells, then the same for every trial.

        One that did not tell in time may have been busy; the trial that goes without has a caveat.
        """
        if self._prompts is not None:
            return self._prompts
        load = self._settings.load
        prompts = await prepare_prompts(base_url, load.prompt_source, load.options(model))
        if not prompts.caveats or prompts.exact:
            self._prompts = prompts
        return prompts

    async def _cleared_up(
        self,
        plan: LaunchPlan,
        running: RunningServer,
        why: _NotReady,
        argv: tuple[str, ...],
        lease: CacheLease | None,
    ) -> LaunchFailed:
        """Stop everything, then say why the start failed."""
        report = await running.stop(self._settings.grace_s)
        failure = why.failure
        if failure is None:
            await running.read_rest_of_log()
            failure = running.failure(exit_status=why.exit_status)
            if failure.kind is FailureClass.HEALTHY:
                # It ended calmly, but nobody had asked it to.
                failure = _failure(FailureClass.CRASH, line="the server ended by itself", facts=failure.facts)
                failure = replace(failure, exit_status=why.exit_status)
        held = await self._guard.wait_free(plan.gpu_indices, self._settings.memory_deadline_s)
        left: list[tuple[str, Value]] = [("gpu_memory_held", str(gpu)) for gpu in held]
        if report.remaining:
            left.append(("remaining_pids", ", ".join(map(str, report.remaining))))
        failure = self._judged(replace(failure, facts=failure.facts + tuple(left)), plan, lease)
        return LaunchFailed(failure, _some(running.facts_so_far()), argv)

    def _judged(self, failure: Failure, plan: LaunchPlan, lease: CacheLease | None) -> Failure:
        """Whose fault a failed compilation is: once per config the cache's, which is replaced, then the config's.

        A cache that was empty when the server started cannot have been damaged before.
        """
        if lease is None or failure.kind is not FailureClass.COMPILE_CACHE:
            return failure
        if lease.was_empty or plan.config.hash in self._blamed:
            kind = FailureClass.COMPILE_FAILED
            return replace(failure, kind=kind, remedies=remedies_for(kind, dict(failure.facts)))
        self._blamed.add(plan.config.hash)
        lease.condemn()
        return replace(failure, facts=(*failure.facts, (REPLACED, str(lease.aside))))


def _environment(plan: LaunchPlan) -> dict[str, str]:
    """What is added to the inherited environment."""
    added = {"PYTHONUNBUFFERED": "1"} | to_env(plan.config)
    if plan.gpu_indices:
        # NVML and nvidia-smi count in bus order; CUDA counts by speed unless told otherwise.
        added |= {
            "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
            "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in plan.gpu_indices),
        }
    return added


class _NotReady(Exception):
    """A start that failed; `failure` is set when the reason is not to be read from the log's end."""

    def __init__(self, *, failure: Failure | None = None, exit_status: int | None = None) -> None:
        super().__init__("not ready")
        self.failure, self.exit_status = failure, exit_status


def _key_wanted(variable: str | None) -> VllmCommandError:
    where = variable or "the environment variable that the server's key is read from"
    return VllmCommandError(
        "the server asks for an API key, and the one that was sent is not accepted",
        hint=f"Set {where} to the key that --api-key (or VLLM_API_KEY of the server) gives it.",
    )


def _failure(kind: FailureClass, *, line: str, facts: tuple[tuple[str, Value], ...] = ()) -> Failure:
    return Failure(kind=kind, line=line, remedies=remedies_for(kind, dict(facts)), facts=facts)


def _some(facts: ServerFacts) -> ServerFacts | None:
    return None if facts == ServerFacts() else facts


def _served_names(words: Sequence[str]) -> set[str]:
    """Values of --served-model-name, which takes several."""
    names: set[str] = set()
    taking = False
    for word in words:
        if word.startswith("--served-model-name"):
            names |= {word.partition("=")[2]} - {""}
            taking = True
        elif word.startswith("-"):
            taking = False
        elif taking:
            names.add(word)
    return names
