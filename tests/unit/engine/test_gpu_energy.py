"""Energy of a level: differences of counters, and None wherever one is missing."""

from __future__ import annotations

import pytest

from autotune.engine.gpu_energy import GpuEnergy, energy_between, read_energy
from autotune.errors import UnsupportedHardware
from autotune.node.probe import FakeGpuProbe


async def test_differences_of_all_gpus_add_up() -> None:
    probe = FakeGpuProbe(energies_j={0: 1000.0, 1: 50.5, 2: 7.0})
    before = await read_energy(probe, (0, 1))
    probe.energies_j |= {0: 1300.0, 1: 60.0, 2: 900.0}
    assert energy_between(before, await read_energy(probe, (0, 1))) == pytest.approx(309.5)


async def test_a_gpu_without_a_counter_makes_it_unknown() -> None:
    assert await read_energy(FakeGpuProbe(energies_j={0: 1.0}), (0, 1)) is None
    assert await read_energy(FakeGpuProbe(energies_j={0: 1.0}), ()) is None
    assert await read_energy(None, (0,)) is None


async def test_a_driver_that_is_gone_costs_the_energy_and_not_the_level() -> None:
    class Gone(FakeGpuProbe):
        def energy_j(self, index: int) -> float | None:
            raise UnsupportedHardware("the driver does not answer")

    assert await read_energy(Gone(), (0,)) is None


def test_missing_readings_and_counters_that_went_back() -> None:
    reading = GpuEnergy(joules=(5.0, 5.0))
    assert energy_between() is None
    assert energy_between(reading, None) is None
    assert energy_between(reading, GpuEnergy(joules=(9.0, 4.0))) is None
    assert energy_between(reading, reading) == 0
