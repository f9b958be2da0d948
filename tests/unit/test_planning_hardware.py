"""Machines that cannot be at hand in a test: AMD, MIG, a broken driver, several GPUs of which some are hidden."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engine.flags import AcceptedFlags, FlagSpec
from autotune.errors import ExitCode, InvalidOption, UnsupportedHardware
from autotune.node.probe import FakeGpuProbe, GpuProbe, ProbedGpu
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import EngineChoice, Recipe
from autotune.records import EngineKind
from autotune.scheduling.packing import Demand
from autotune.scheduling.seats import Seats
from autotune.units import GIB

LLAMA = "meta-llama/Llama-3.1-8B-Instruct"
GPUS = tuple(
    ProbedGpu(
        index=index,
        name="NVIDIA A100-SXM4-80GB",
        uuid=f"GPU-{index}",
        memory_bytes=round(79.15 * GIB),
        compute_capability=(8, 0),
    )
    for index in range(2)
)
FLAGS = (
    *("max-num-seqs", "max-num-batched-tokens", "max-model-len", "gpu-memory-utilization", "kv-cache-dtype"),
    *("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size", "enable-prefix-caching", "enforce-eager"),
)


def test_memory_that_others_hold_narrows_the_utilisation(tmp_path: Path) -> None:
    """A shared card gets the guide's lower range (G6); 20 GiB of 79 leave less than 0.75."""
    alone = planned(tmp_path, FakeGpuProbe(gpus=GPUS, nvlink=True, used_bytes={0: 300 << 20}))
    shared = planned(tmp_path, FakeGpuProbe(gpus=GPUS, nvlink=True, used_bytes={1: 20 * GIB}))
    wanted = [plan.space.parameter("gpu-memory-utilization") for plan in (alone, shared)]
    assert wanted[0] is not None
    assert wanted[1] is not None
    assert min(float(str(choice)) for choice in wanted[0].choices) >= 0.88
    assert max(float(str(choice)) for choice in wanted[1].choices) <= 0.75
    assert "other processes hold 20 GiB" in wanted[1].why


class Machine(Surroundings):
    """Its vLLM knows the flags of the default space."""

    def ask(self, command: object, *, deadline_s: float) -> tuple[str | None, AcceptedFlags]:
        switches = ("enable-prefix-caching", "enforce-eager")
        flags = (FlagSpec(name=name, takes_value=name not in switches, negatable=name in switches) for name in FLAGS)
        return "0.25.1", AcceptedFlags(flags=tuple(sorted(flags, key=lambda flag: flag.name)))


def planned(
    tmp_path: Path,
    probe: GpuProbe | None,
    *,
    has_kfd: bool = False,
    visible: str | None = None,
    gpus: tuple[int, ...] | None = None,
    engine: EngineChoice = EngineChoice.AUTO,
) -> StudyPlan:
    vllm = tmp_path / "vllm"
    vllm.write_text("#!/bin/sh\n", encoding="utf-8")
    vllm.chmod(0o755)
    environ = {"PATH": str(tmp_path)} | ({} if visible is None else {"CUDA_VISIBLE_DEVICES": visible})
    here = Machine(
        environ=environ, home=tmp_path, probe=probe, shm_bytes=1 << 30, has_kfd=has_kfd, cache_dir=tmp_path / "cache"
    )
    return make_plan(Recipe(name="s", model=LLAMA, gpus=gpus, engine=engine), here)


@pytest.mark.parametrize("engine", [EngineChoice.AUTO, EngineChoice.PROCESS])
def test_rocm_is_refused_by_name(tmp_path: Path, engine: EngineChoice) -> None:
    for probe in (None, FakeGpuProbe()):
        with pytest.raises(UnsupportedHardware, match=r"AMD.*ROCm") as caught:
            planned(tmp_path, probe, has_kfd=True, engine=engine)
        assert caught.value.exit_code is ExitCode.UNSUPPORTED_HARDWARE
        assert "--engine simulated" in caught.value.hint


def test_rocm_does_not_keep_anybody_from_simulating(tmp_path: Path) -> None:
    plan = planned(tmp_path, None, has_kfd=True, engine=EngineChoice.SIMULATED)
    assert plan.engine is EngineKind.SIMULATED


def test_mig_is_refused_unless_that_gpu_is_left_out(tmp_path: Path) -> None:
    probe = FakeGpuProbe(gpus=(GPUS[0], replace(GPUS[1], mig=True)))
    with pytest.raises(UnsupportedHardware, match="GPU 1 is in MIG mode") as caught:
        planned(tmp_path, probe)
    assert "--gpus" in caught.value.hint
    plan = planned(tmp_path, probe, gpus=(0,))
    assert plan.engine is EngineKind.PROCESS
    assert [gpu.index for gpu in plan.node.gpus] == [0]


def test_a_mig_instance_in_the_environment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedHardware, match="MIG-1234"):
        planned(tmp_path, FakeGpuProbe(gpus=GPUS), visible="MIG-1234")


def test_a_driver_that_stops_answering(tmp_path: Path) -> None:
    class Lost(FakeGpuProbe):
        def list_gpus(self) -> tuple[ProbedGpu, ...]:
            raise UnsupportedHardware("the NVIDIA driver does not answer: Unknown Error")

    with pytest.raises(UnsupportedHardware, match="does not answer"):
        planned(tmp_path, Lost())


def test_gpus_and_the_environment_are_honoured_together(tmp_path: Path) -> None:
    probe = FakeGpuProbe(gpus=GPUS, nvlink=True)
    assert [gpu.index for gpu in planned(tmp_path, probe, visible="1").node.gpus] == [1]
    assert Seats(planned(tmp_path, probe, gpus=(1, 0)).node).whole(Demand(group=1)).indices == (1,)
    assert planned(tmp_path, probe).node.name == "2xA100-80GB-NVLink"
    with pytest.raises(InvalidOption, match="CUDA_VISIBLE_DEVICES hides"):
        planned(tmp_path, probe, visible="1", gpus=(0,))


def test_gpus_mean_nothing_to_a_simulation(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="--gpus"):
        planned(tmp_path, FakeGpuProbe(gpus=GPUS), gpus=(0,), engine=EngineChoice.SIMULATED)
