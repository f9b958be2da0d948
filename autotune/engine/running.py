"""One started server as the engine handles it: its keeper, its log, its HTTP door."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from autotune.engine.command import CommandKind
from autotune.engine.diagnosis import LogFollower
from autotune.engine.keeper_client import Keeper, StopReport
from autotune.engine.log_facts import SIMULATED_MARK
from autotune.engine.log_tail import LogTail
from autotune.engine.logs import MilestoneName
from autotune.engine.metrics_text import parse_metrics
from autotune.engine.ports import listeners
from autotune.engine.processes import descendants, snapshot
from autotune.engine.server_http import ModelCard, ServerDoor
from autotune.records import Failure, ServerFacts

MOST_PIECES = 16
"""Pieces of the log (256 KiB each) read in one go, so that a flood does not keep the engine from everything else."""


class RunningServer:
    """Owns nothing but its children: whoever makes it must await `stop`."""

    def __init__(self, *, keeper: Keeper, log: LogTail, door: ServerDoor, port: int, kind: CommandKind) -> None:
        self.keeper = keeper
        self.door = door
        self.port = port
        self._kind = kind
        self._tail = log
        self._follower = LogFollower()
        self._told: set[MilestoneName] = set()
        self._reading: asyncio.Future[bytes] | None = None

    async def read_log(self) -> bool:
        """Take in what the log has grown by; whether the start advanced."""
        advanced = False
        for _ in range(MOST_PIECES):
            piece = await self._piece()
            if not piece:
                break
            advanced = self._follower.feed(piece) or advanced
        return advanced

    async def read_rest_of_log(self) -> None:
        """Take in everything to the end; call it when nobody writes any more."""
        while piece := await self._piece():
            self._follower.feed(piece)
            await asyncio.sleep(0)
        self._follower.close()

    async def _piece(self) -> bytes:
        """The log's next piece; one whose reader was cancelled goes to the next reader, for no line may be lost."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._tail.read())
        piece = await asyncio.shield(self._reading)
        self._reading = None
        return piece

    def new_milestones(self) -> tuple[MilestoneName, ...]:
        """Milestones reached since the last call, in their order."""
        fresh = tuple(name for name in self._follower.reader.milestones if name not in self._told)
        self._told.update(fresh)
        return fresh

    @property
    def milestones(self) -> tuple[MilestoneName, ...]:
        """All milestones reached, in their order."""
        return self._follower.reader.milestones

    @property
    def jit_compiles(self) -> int:
        """Kernels compiled while serving, as far as the log was read."""
        return self._follower.jit_compiles

    @property
    def family_pid(self) -> int | None:
        """The process whose descendants are the server; None for a container, whose processes are not below it."""
        return None if self._kind is CommandKind.TEMPLATE else self.keeper.identity.pid

    def failure(self, *, exit_status: int | None = None, hung: bool = False) -> Failure:
        """The verdict on what the log has said so far."""
        return self._follower.failure(exit_status=exit_status, hung=hung)

    async def others_on_port(self) -> frozenset[int]:
        """Foreign processes that listen on our port; empty for containers, whose listener is never our child."""
        if self._kind is CommandKind.TEMPLATE:
            return frozenset()
        return await asyncio.to_thread(self._others)

    def _others(self) -> frozenset[int]:
        family = {process.pid for process in descendants(self.keeper.identity.pid, snapshot())}
        return listeners(self.port) - family

    async def facts(self, *, card: ModelCard | None = None, startup_s: float | None = None) -> ServerFacts:
        """What the log said, corrected and completed by what the server says over HTTP."""
        said = self._follower.reader.facts()
        version = await self.door.version()
        metrics = parse_metrics(await self.door.metrics() or "")
        length = card.max_model_len if card else None
        return replace(
            said,
            vllm_version=version or said.vllm_version,
            simulated=SIMULATED_MARK in (version or said.vllm_version or ""),
            max_model_len=length or said.max_model_len,
            kv_cache_tokens=metrics.kv_cache_tokens or said.kv_cache_tokens or metrics.kv_cache_block_tokens,
            max_concurrency=metrics.kv_cache_max_concurrency or said.max_concurrency,
            startup_s=startup_s if startup_s is not None else said.startup_s,
        )

    def facts_so_far(self) -> ServerFacts:
        """What the log alone has settled."""
        return self._follower.reader.facts()

    async def stop(self, grace_s: float) -> StopReport:
        """Stop everything, even while cancelled again and again: the second Ctrl-C hurries it, none abandons it.

        Raises:
            asyncio.CancelledError: the caller was cancelled meanwhile; nothing runs any more.
        """
        stopping = asyncio.ensure_future(self.keeper.stop(grace_s))
        cancelled = False
        while not stopping.done():
            try:
                await asyncio.wait({stopping})
            except asyncio.CancelledError:
                cancelled = True
                hurrying = asyncio.ensure_future(self.keeper.hurry())
                hurrying.add_done_callback(lambda task: task.cancelled() or task.exception())
        if cancelled:
            raise asyncio.CancelledError
        return stopping.result()
