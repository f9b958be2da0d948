"""Proof that GPUs are free: before a launch, and again after a stop.

A stop is over when memory is back, not when the processes are gone: the driver frees it later (0.6 s on an H200, 3 s
for data-parallel engines), and orphans hold it without holding the port. Every GPU's own baseline is the memory in use,
and the processes that compute on it, before our first launch on it. It is free when there is neither more memory in use
nor another process: one that has just begun holds little yet.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import psutil

from autotune.engine.remedies import remedies_for
from autotune.node.probe import GpuProbe
from autotune.records import Failure, FailureClass, Value
from autotune.units import GIB, MIB, format_bytes

TOLERANCE_BYTES = 512 * MIB
"""More than a CUDA context of a neighbour that comes and goes, far less than any model."""

FIRST_SEEN_BYTES = 4 * GIB
"""A desktop holds no more. A GPU with more in use when it is first seen is held, though the driver names no process:
inside a container it does not see those outside."""

POLL_S = 0.0625
"""A stop ends half a step late on average, and every trial has one; asking NVML costs a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpu:
    """A GPU that is not free.

    Attributes:
        baseline_bytes: in use when it last was free; None when it never was.
        holders: compute processes on it that were not there when it was free, `pid (name)`; the driver does not always
            tell.
        pids: theirs.
    """

    index: int
    used_bytes: int
    baseline_bytes: int | None
    holders: tuple[str, ...]
    pids: tuple[int, ...] = ()

    def __str__(self) -> str:
        expected = "" if self.baseline_bytes is None else f", {format_bytes(self.baseline_bytes)} when free"
        who = f", held by process {', '.join(self.holders)}" if self.holders else ""
        return f"GPU {self.index}: {format_bytes(self.used_bytes)} in use{expected}{who}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Free:
    """A GPU as it was when it was free."""

    used_bytes: int
    pids: frozenset[int] = frozenset()


class GpuGuard:
    """Watches the memory of GPUs around launches; one per engine. Without a probe there is nothing to watch."""

    def __init__(
        self,
        probe: GpuProbe | None,
        *,
        tolerance_bytes: int = TOLERANCE_BYTES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        on_baseline: Callable[[int, int], None] | None = None,
    ) -> None:
        """Args:
        on_baseline: called with a GPU's index and the bytes in use on it when it is first seen free.
        """
        self._probe = probe
        self._tolerance_bytes = tolerance_bytes
        self._clock = clock
        self._sleep = sleep
        self._on_baseline = on_baseline
        self._free: dict[int, _Free] = {}

    @property
    def probe(self) -> GpuProbe | None:
        """What it asks; None where there is nothing to watch."""
        return self._probe

    def remember(self, index: int, baseline_bytes: int) -> None:
        """What another tuner recorded before its first launch: what it left behind must not pass for a baseline."""
        self._free.setdefault(index, _Free(used_bytes=baseline_bytes))

    async def wait_free(self, indices: Iterable[int], deadline_s: float) -> tuple[HeldGpu, ...]:
        """Wait until the GPUs are at their baseline, at most `deadline_s`; those that still are not.

        A GPU seen for the first time is free unless a process computes on it, or more memory is in use than nobody
        could hold; what is in use then is its baseline.
        """
        wanted = tuple(indices)
        until = self._clock() + deadline_s
        while True:
            held = await asyncio.to_thread(self._held, wanted)
            if not held or self._clock() >= until:
                return held
            await self._sleep(POLL_S)

    def strangers(self, indices: Iterable[int], own: Collection[int]) -> tuple[HeldGpu, ...]:
        """GPUs on which, beside our own processes, others compute that were not there when they were free.

        Where the driver names none of our own, it counts processes as another namespace does (a container), and who is
        a stranger cannot be told.
        """
        probe = self._probe
        if probe is None:
            return ()
        found = []
        for index in indices:
            pids = set(probe.processes(index))
            known = self._free.get(index, _Free(used_bytes=0))
            others = pids - known.pids - set(own)
            if others and pids & set(own):
                found.append(_held_gpu(index, probe.memory_used(index), known.used_bytes, others))
        return tuple(found)

    def neighbours(self, indices: Iterable[int], own: Collection[int], tuner: Collection[int]) -> tuple[HeldGpu, ...]:
        """Other GPUs of the node that processes of nobody here hold: they share its host memory, PCIe, CPUs and power.

        Args:
            indices: the server's GPUs, which are none of those.
            own: the server's processes; where the driver names none of them, nothing can be told, as for `strangers`.
            tuner: all that this tuner has started: its other trials tell of themselves.
        """
        probe, leased = self._probe, set(indices)
        if probe is None or not any(set(probe.processes(index)) & set(own) for index in leased):
            return ()
        others = [gpu.index for gpu in probe.list_gpus() if gpu.index not in leased]
        seen = [(index, set(probe.processes(index)) - set(tuner) - set(own)) for index in others]
        return tuple(_held_gpu(index, probe.memory_used(index), None, pids) for index, pids in seen if pids)

    def _held(self, indices: tuple[int, ...]) -> tuple[HeldGpu, ...]:
        probe = self._probe
        if probe is None:
            return ()
        held = []
        for index in indices:
            used, pids = probe.memory_used(index), frozenset(probe.processes(index))
            known = self._free.get(index)
            if known is None:
                if used <= self._tolerance_bytes or (not pids and used <= FIRST_SEEN_BYTES):
                    self._learn(index, _Free(used_bytes=used, pids=pids))
                else:
                    held.append(_held_gpu(index, used, None, pids))
            elif used > known.used_bytes + self._tolerance_bytes or pids - known.pids:
                held.append(_held_gpu(index, used, known.used_bytes, pids - known.pids))
        return tuple(held)

    def _learn(self, index: int, free: _Free) -> None:
        self._free[index] = free
        if self._on_baseline is not None:
            self._on_baseline(index, free.used_bytes)


def _held_gpu(index: int, used_bytes: int, baseline_bytes: int | None, pids: Collection[int]) -> HeldGpu:
    ordered = tuple(sorted(pids))
    holders = tuple(_named(pid) for pid in ordered)
    return HeldGpu(index=index, used_bytes=used_bytes, baseline_bytes=baseline_bytes, holders=holders, pids=ordered)


def gpus_busy(held: Sequence[HeldGpu]) -> Failure:
    """The environment fault of GPUs whose memory somebody holds; every number is a fact of it."""
    facts: list[tuple[str, Value]] = []
    for gpu in held:
        facts.append((f"gpu_{gpu.index}_used_bytes", gpu.used_bytes))
        if gpu.baseline_bytes is not None:
            facts.append((f"gpu_{gpu.index}_baseline_bytes", gpu.baseline_bytes))
        if gpu.holders:
            facts.append((f"gpu_{gpu.index}_holders", ", ".join(gpu.holders)))
    kind = FailureClass.GPU_BUSY
    line = "; ".join(str(gpu) for gpu in held) or None
    return Failure(kind=kind, line=line, remedies=remedies_for(kind, dict(facts)), facts=tuple(facts))


def _named(pid: int) -> str:
    try:
        return f"{pid} ({psutil.Process(pid).name()})"
    except psutil.Error:
        return f"{pid} (not visible from here)"
