"""A study's hold on its GPUs: leased node-wide for as long as it runs, and proven free before each of its launches.

The lease keeps other tuners away, whatever database they use; the proof finds everybody else. Whoever is killed leaves
a lease that the kernel frees and a record of what ran under it: the next holder stops that first, by the marker that
its processes carry. Strangers are never signalled: they are named, and the study waits for them or stops.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from autotune.engine.base import ServerIdentity
from autotune.engine.gpu_memory import GpuGuard, HeldGpu
from autotune.engine.marker import marker_of
from autotune.engine.processes import snapshot
from autotune.engine.reaping import ReapReport, abandoned_marker, marked, reap
from autotune.errors import NodeBusy
from autotune.node.leases import TRIES, Lease, LeaseRecord, NodeLeases, ResourceKind, gpu_resource
from autotune.records import Gpu

SETTLES_S = 60.0
"""What memory of a server that has just ended may take to come back, before anybody is told that the study waits."""

LEASE_POLL_S = 2.0
TOLD_AGAIN_S = 600.0

_STOPS = "Let it end, or end it, then run the same command again; --gpu-busy wait would have waited."


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """What a study does about GPUs that somebody else uses.

    Attributes:
        limit_s: how long it waits; 0 stops at once, inf waits for ever.
        clock, sleep: real ones but in tests.
    """

    limit_s: float = math.inf
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep


class NodeHold:
    """The GPUs of one study. `take` before anything is launched, `close` at the very end.

    Args:
        gpus: that the study uses; none for one without real GPUs, and then nothing is ever waited for.
        leases: of this node; None without GPUs.
        tell: one line for the operator.
        stop: how what a dead tuner left is stopped; blocks, so it is called in a thread.
    """

    def __init__(
        self,
        gpus: Sequence[Gpu] = (),
        leases: NodeLeases | None = None,
        guard: GpuGuard | None = None,
        *,
        tell: Callable[[str], None] = lambda _: None,
        patience: Patience | None = None,
        settles_s: float = SETTLES_S,
        stop: Callable[[ServerIdentity], ReapReport] = reap,
    ) -> None:
        self._gpus, self._leases = tuple(gpus), leases
        self._guard = guard or GpuGuard(None)
        self._tell = tell
        self._patience = patience or Patience()
        self._settles_s = settles_s
        self._stop = stop
        self._held: dict[int, Lease] = {}

    async def take(self) -> None:
        """Lease all GPUs of the study, and stop what a dead tuner left on them.

        Raises:
            NodeBusy: another tuner holds one for longer than the study waits, or a leftover cannot be stopped.
            StorageError: leases cannot be written.
        """
        leases = self._leases
        if leases is None or not self._gpus or self._held:
            return
        resources = sorted(gpu_resource(gpu) for gpu in self._gpus)
        waiting = _Waiting(self._patience, self._tell)
        tries = 1 if self._patience.limit_s else TRIES  # who waits will look again anyway
        while (taken := await asyncio.to_thread(leases.take_all, resources, tries=tries)) is None:
            # The keeper of a tuner that was killed holds its leases until it has stopped the server.
            least_s = self._settles_s if self._all_ended(leases) else 0.0
            await waiting.on(self._other_tuners(leases), LEASE_POLL_S, least_s=least_s)
        by_resource = {lease.resource: lease for lease in taken}
        self._held = {gpu.index: by_resource[gpu_resource(gpu)] for gpu in self._gpus}
        waiting.over()
        try:
            for index, lease in self._held.items():
                await self._clear(index, lease)
        except BaseException:
            self.close()
            raise

    async def prove_free(self, indices: Sequence[int]) -> None:
        """Return when nobody computes on the GPUs and their memory is at its baseline.

        Raises:
            NodeBusy: somebody still does after the study's patience.
        """
        held = await self._guard.wait_free(indices, 0.0)
        reaped = bool(held) and await self._reaped(held)
        # Who was there before any server of ours will not leave by waiting for a driver.
        if reaped or any(gpu.baseline_bytes is not None for gpu in held):
            held = await self._guard.wait_free(indices, self._settles_s)
        waiting = _Waiting(self._patience, self._tell)
        while held:
            await waiting.on("; ".join(str(gpu) for gpu in held), LEASE_POLL_S)
            held = await self._guard.wait_free(indices, 0.0)
        waiting.over()

    def seen_free(self, index: int, baseline_bytes: int) -> None:
        """The guard has seen a GPU free: recorded, for whoever takes it after a crash."""
        lease = self._held.get(index)
        if lease is not None:
            lease.seen_free(baseline_bytes)

    def descriptors(self, indices: Iterable[int]) -> tuple[int, ...]:
        """Of the leases of some GPUs: a keeper that has them holds them until its server is gone."""
        return tuple(lease.descriptor for lease in self._of(indices))

    def server_started(self, indices: Iterable[int], identity: ServerIdentity) -> None:
        """On record before the server can hold a GPU."""
        for lease in self._of(indices):
            lease.server_started(identity.marker, identity.pgid)

    def server_gone(self, indices: Iterable[int]) -> None:
        """Nothing of it is left."""
        for lease in self._of(indices):
            lease.server_gone()

    def neighbours(self) -> tuple[LeaseRecord | None, ...]:
        """Who holds other GPUs of this node now, one entry for each such GPU."""
        if self._leases is None:
            return ()
        mine = {lease.resource.file for lease in self._held.values()}
        return tuple(found.record for found in self._leases.held(ResourceKind.GPU) if found.file not in mine)

    def pids_of_study(self) -> frozenset[int]:
        """Processes of this study's servers on GPUs that another of its processes holds: other trials on a shared node.

        By what the leases tell, each with the marker of the server under it.
        """
        mine = {lease.study for lease in self._held.values()}
        markers = {found.marker for found in self.neighbours() if found is not None and found.study in mine}
        markers.discard("")
        return frozenset(pid for pid in snapshot() if marker_of(pid) in markers) if markers else frozenset()

    def close(self) -> None:
        """Give everything back; twice is fine."""
        for lease in self._held.values():
            lease.release()
        self._held = {}

    def _of(self, indices: Iterable[int]) -> tuple[Lease, ...]:
        return tuple(self._held[index] for index in indices if index in self._held)

    def _all_ended(self, leases: NodeLeases) -> bool:
        records = [held.record for gpu in self._gpus if (held := leases.holder(gpu_resource(gpu))) is not None]
        return all(record is not None and not record.is_alive for record in records)

    def _other_tuners(self, leases: NodeLeases) -> str:
        found = [(gpu, leases.holder(gpu_resource(gpu))) for gpu in self._gpus]
        said: dict[str, list[str]] = {}
        for gpu, held in found:
            if held is not None:
                who = "another tuner" if held.record is None else str(held.record)
                said.setdefault(who, []).append(str(gpu.index))
        return "; ".join(f"GPU {', '.join(indices)} leased by {who}" for who, indices in said.items())

    async def _clear(self, index: int, lease: Lease) -> None:
        """Stop what the holder before, who was killed, left running; and know the memory it found."""
        left = lease.left
        if left is None:
            return
        if left.baseline_bytes is not None:
            self._guard.remember(index, left.baseline_bytes)
            lease.seen_free(left.baseline_bytes)
        if left.marker:
            await self._stopped(left.marker, left.pgid, f"what {left.study!r}, whose tuner was killed, left running")

    async def _reaped(self, held: Sequence[HeldGpu]) -> bool:
        """Whether something there was a dead tuner's, which is stopped; no live one's can be, as the lease is ours."""
        pids = sorted({pid for gpu in held for pid in gpu.pids})
        markers = [await asyncio.to_thread(abandoned_marker, pid) for pid in pids]
        for marker in dict.fromkeys(marker for marker in markers if marker):
            await self._stopped(marker, None, "what a tuner that was killed left running")
        return any(markers)

    async def _stopped(self, marker: str, pgid: int | None, what: str) -> None:
        report = await asyncio.to_thread(self._stop, marked(marker, pgid))
        if report.found:
            pids = ", ".join(str(found.pid) for found in report.found)
            self._tell(f"stopped {what} on the GPU (pid {pids})")
        if report.remaining:
            pids = ", ".join(map(str, report.remaining))
            raise NodeBusy(
                f"process {pids}, left by a tuner that was killed, cannot be stopped",
                hint="End it by hand (it may be stuck in the driver), then run the same command again.",
            )


class _Waiting:
    """One wait: told when it begins, now and then, and when it is over."""

    def __init__(self, patience: Patience, tell: Callable[[str], None]) -> None:
        self._patience, self._tell = patience, tell
        self._began_s = patience.clock()
        self._told_s = -math.inf

    async def on(self, reason: str, pause_s: float, *, least_s: float = 0.0) -> None:
        """Wait a little longer.

        Args:
            least_s: how long to wait at least, whatever the study's patience.

        Raises:
            NodeBusy: patience is at its end.
        """
        now = self._patience.clock()
        left_s = max(self._patience.limit_s, least_s) - (now - self._began_s)
        if left_s <= 0:
            waited = f" (waited {now - self._began_s:.0f} s)" if self._patience.limit_s else ""
            raise NodeBusy(f"the GPUs of this study are in use{waited}: {reason or 'by another tuner'}", hint=_STOPS)
        if now - self._told_s >= TOLD_AGAIN_S:
            self._tell(f"waiting until the GPUs are free: {reason or 'another tuner has just taken them'}")
            self._told_s = now
        await self._patience.sleep(min(pause_s, left_s))

    def over(self) -> None:
        """What was waited for has come."""
        if self._told_s > -math.inf:
            self._tell(f"the GPUs are free after {self._patience.clock() - self._began_s:.0f} s")
