"""Proof that GPUs are free: before a launch, and again after a stop.

A stop is over when memory is back, not when the processes are gone: the driver frees it later (0.6 s on an H200, 3 s
for data-parallel engines), and orphans hold it without holding the port. Every GPU's own baseline is what was in use
before our first launch on it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

import psutil

from autotune.engine.remedies import remedies_for
from autotune.node.probe import GpuProbe
from autotune.records import Failure, FailureClass, Value
from autotune.units import MIB, format_bytes

TOLERANCE_BYTES = 512 * MIB
"""More than a CUDA context of a neighbour that comes and goes, far less than any model."""

POLL_S = 0.0625
"""A stop ends half a step late on average, and every trial has one; asking NVML costs a millisecond."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldGpu:
    """A GPU that is not free.

    Attributes:
        baseline_bytes: in use when it last was free; None when it never was.
        holders: compute processes on it, `pid (name)`; the driver does not always tell.
    """

    index: int
    used_bytes: int
    baseline_bytes: int | None
    holders: tuple[str, ...]

    def __str__(self) -> str:
        expected = "" if self.baseline_bytes is None else f", {format_bytes(self.baseline_bytes)} when free"
        who = f", held by process {', '.join(self.holders)}" if self.holders else ""
        return f"GPU {self.index}: {format_bytes(self.used_bytes)} in use{expected}{who}"


class GpuGuard:
    """Watches the memory of GPUs around launches; one per engine. Without a probe there is nothing to watch."""

    def __init__(
        self,
        probe: GpuProbe | None,
        *,
        tolerance_bytes: int = TOLERANCE_BYTES,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._probe = probe
        self._tolerance_bytes = tolerance_bytes
        self._clock = clock
        self._sleep = sleep
        self._baseline_bytes: dict[int, int] = {}

    @property
    def probe(self) -> GpuProbe | None:
        """What it asks; None where there is nothing to watch."""
        return self._probe

    async def wait_free(self, indices: Iterable[int], deadline_s: float) -> tuple[HeldGpu, ...]:
        """Wait until the GPUs are at their baseline, at most `deadline_s`; those that still are not.

        A GPU seen for the first time is free unless a process computes on it; what is in use then is its baseline.
        """
        wanted = tuple(indices)
        until = self._clock() + deadline_s
        while True:
            held = await asyncio.to_thread(self._held, wanted)
            if not held or self._clock() >= until:
                return held
            await self._sleep(POLL_S)

    def _held(self, indices: tuple[int, ...]) -> tuple[HeldGpu, ...]:
        probe = self._probe
        if probe is None:
            return ()
        held = []
        for index in indices:
            used, pids = probe.memory_used(index), probe.processes(index)
            baseline = self._baseline_bytes.get(index)
            if baseline is None and not (pids and used > self._tolerance_bytes):
                self._baseline_bytes[index] = used
            elif used > (baseline or 0) + self._tolerance_bytes:
                holders = tuple(_named(pid) for pid in pids)
                held.append(HeldGpu(index=index, used_bytes=used, baseline_bytes=baseline, holders=holders))
        return tuple(held)


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
