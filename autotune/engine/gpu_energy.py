"""Energy of GPUs over a level, from the driver's own counters."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import UnsupportedHardware
from autotune.node.probe import GpuProbe


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuEnergy:
    """Counters of some GPUs at one moment, joules since the driver was loaded, in the order asked."""

    joules: tuple[float, ...]


async def read_energy(probe: GpuProbe | None, indices: Sequence[int]) -> GpuEnergy | None:
    """The counters now; None without GPUs, or where one of them has none or the driver does not answer."""
    if probe is None or not indices:
        return None
    try:
        counters = await asyncio.to_thread(lambda: [probe.energy_j(index) for index in indices])
    except UnsupportedHardware:
        return None  # the launch's own checks tell of a driver that is gone; a level is not lost for its energy
    known = tuple(counter for counter in counters if counter is not None)
    return GpuEnergy(joules=known) if len(known) == len(counters) else None


def energy_between(before: GpuEnergy | None = None, after: GpuEnergy | None = None) -> float | None:
    """Joules used by all of them together; None where a reading is missing or a counter went back (driver reload)."""
    if before is None or after is None:
        return None
    used = [late - early for early, late in zip(before.joules, after.joules, strict=True)]
    return sum(used) if all(one >= 0 for one in used) else None
