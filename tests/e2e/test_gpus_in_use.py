"""A study whose GPUs somebody else uses, from the plan to the error's exit code; the GPUs are a scripted probe's."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.engine.flags import AcceptedFlags, FlagSpec
from autotune.errors import ExitCode, NodeBusy
from autotune.node.leases import NodeLeases, gpu_resource, lease_folder, this_process
from autotune.node.probe import FakeGpuProbe, ProbedGpu
from autotune.planning import StudyPlan, Surroundings, make_plan
from autotune.recipe import EngineChoice, LoadChoice, Recipe
from autotune.records import Phase, Trial
from autotune.session import Target, run_study
from autotune.store.places import Places
from autotune.store.repository import Store
from autotune.store.study_record import StudyState
from autotune.units import GIB

FAKE_VLLM = Path(__file__).parents[1] / "contract" / "fake_vllm.py"
GPU = ProbedGpu(index=0, name="NVIDIA H200", uuid="GPU-in-use", memory_bytes=140 * GIB, compute_capability=(9, 0))
SPACE = """
name: s
parameters:
  max-num-seqs: {choices: [64, 128], why: w}
"""


class Machine(Surroundings):
    """Its vLLM is not asked for its flags."""

    def ask(self, command: object, *, deadline_s: float) -> tuple[str | None, AcceptedFlags]:
        flags = (FlagSpec(name=name, takes_value=True) for name in ("load-format", "max-model-len", "max-num-seqs"))
        return "0.25.1", AcceptedFlags(flags=tuple(flags))


class Notes:
    """An observer that keeps what it is told."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def trial_started(self, trial: Trial, *, counted: int, target: int, repeats_left: int) -> None: ...

    def phase(self, phase: Phase, detail: str, *, number: int) -> None: ...

    def trial_ended(self, trial: Trial, trials: Sequence[Trial]) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)


def planned(folder: Path, probe: FakeGpuProbe, busy_s: float, **more: Any) -> StudyPlan:
    (folder / "space.yaml").write_text(SPACE, encoding="utf-8")
    here = Machine(environ={}, home=folder, probe=probe, shm_bytes=1 << 34, has_kfd=False, cache_dir=folder / "cache")
    recipe = Recipe(
        name="s",
        model="meta-llama/Llama-3.1-8B",
        workload="tiny",
        space=str(folder / "space.yaml"),
        engine=EngineChoice.PROCESS,
        extra_args=("--load-format", "dummy"),
        load=LoadChoice(concurrency=2, rate_rps=20.0, requests=4),
        gpu_busy_s=busy_s,
        **more,
    )
    command = shlex.join([sys.executable, "-I", "-S", str(FAKE_VLLM), "serve"])
    return make_plan(recipe, here, vllm_command=command)


@pytest.fixture(autouse=True)
def _own_leases(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_LEASE_DIR", str(tmp_path / "leases"))


def test_another_study_has_the_gpu(tmp_path: Path) -> None:
    probe = FakeGpuProbe(gpus=(GPU,))
    plan = planned(tmp_path, probe, 0.0)
    other = NodeLeases(lease_folder({"AUTOTUNE_LEASE_DIR": str(tmp_path / "leases")}), this_process("other"))
    lease = other.take(gpu_resource(plan.node.gpus[0]))
    assert lease is not None
    with pytest.raises(NodeBusy, match="GPU 0 leased by study 'other'") as caught:
        run_study(plan, Places(root=tmp_path / "studies"), Target(trials=1), Notes(), probe=probe)
    assert caught.value.exit_code is ExitCode.NODE_BUSY
    with Store.open(tmp_path / "studies" / "autotune.db") as store:
        assert store.trials("s") == ()
        assert store.study("s").state is StudyState.STOPPED
    lease.release()


def test_a_stranger_computes_on_it(tmp_path: Path) -> None:
    """It came after planning; the study stops before its first launch, keeps the trial open and lets go of the GPU."""
    probe = FakeGpuProbe(gpus=(GPU,))
    plan = planned(tmp_path, probe, 0.0)
    probe.used_bytes[0], probe.pids[0] = 70 * GIB, (2**22 - 9,)
    with pytest.raises(NodeBusy, match=r"GPU 0: 70.* held by process 4194295"):
        run_study(plan, Places(root=tmp_path / "studies"), Target(trials=1), Notes(), probe=probe)
    with Store.open(tmp_path / "studies" / "autotune.db") as store:
        (trial,) = store.trials("s")
        assert trial.result is None
        assert store.unfinished_attempts("s") == ()
    assert list((tmp_path / "leases").iterdir()) == []


def test_two_servers_at_once_have_a_gpu_and_a_port_each(tmp_path: Path) -> None:
    """Real processes beside each other: what each sees of the GPUs, what is alone, and that nothing is left."""
    gpus = tuple(replace(GPU, index=index, uuid=f"GPU-{index}") for index in (0, 1))
    probe = FakeGpuProbe(gpus=gpus, nvlink=True)
    plan = planned(tmp_path, probe, 0.0, parallel=2, trials=3, repeats=0, sampler="grid")
    observer = Notes()
    run_study(plan, Places(root=tmp_path / "studies"), Target(trials=3), observer, probe=probe)
    assert "up to 2 trials at once; baseline and finalists are measured alone" in observer.notes
    with Store.open(tmp_path / "studies" / "autotune.db") as store:
        trials = store.trials("s")
        attempts = {trial.number: store.attempts("s", trial.number)[-1] for trial in trials}
    assert all(trial.result is not None for trial in trials)
    shared = [trial for trial in trials if not trial.alone]
    assert {1, 2} <= {trial.number for trial in shared}
    assert trials[0].alone
    seen = {}
    for number, attempt in attempts.items():
        log = (Path(attempt.directory) / "server.log").read_text(encoding="utf-8")
        seen[number] = re.search(r"CUDA_VISIBLE_DEVICES=(\S+)", log)
    visible = {number: found[1] for number, found in seen.items() if found}
    assert visible[0] == "0"
    assert {visible[1], visible[2]} == {"0", "1"}
    assert len({tuple(trial.argv) for trial in trials}) == len(trials)  # no port twice
    assert list((tmp_path / "leases").iterdir()) == []
