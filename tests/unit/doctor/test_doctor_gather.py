"""What `doctor` looks at, over a fake driver and a folder as home."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from autotune.doctor import CheckName, Problem, Status, examine
from autotune.doctor.findings import FoundVllm
from autotune.doctor.gather import Asked, Here, Looked, look, look_at_model, look_at_named
from autotune.doctor.serving import SmallServer, plan_small
from autotune.errors import InvalidOption, UnknownName
from autotune.node.probe import FakeGpuProbe, GpuProbe, ProbedGpu
from autotune.records import GpuPath, Topology
from autotune.units import GIB

SHAPE = (
    '{"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "hidden_size": 128, "intermediate_size": 256,'
    ' "num_attention_heads": 4, "vocab_size": 1024, "max_position_embeddings": 512}'
)
SECRET = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz"
GPUS = tuple(
    ProbedGpu(index=i, name="NVIDIA L40S", uuid=f"GPU-{i}", memory_bytes=44 * GIB, compute_capability=(8, 9))
    for i in range(3)
)
WIRING = Topology(
    paths=tuple(tuple(None if i == j else GpuPath.SOCKETS for j in range(3)) for i in range(3)),
    nvlinks=((0,) * 3,) * 3,
    numa=(0, 0, 1),
)


def here(home: Path, probe: GpuProbe | None = None, *, kfd: bool = False, **environ: str) -> Here:
    return Here(
        environ={"PATH": os.environ["PATH"], **environ},
        home=home,
        probe=probe,
        cache_dir=home / "cache",
        has_kfd=kfd,
    )


def looked(place: Here, **asked: str) -> Looked:
    return look(Asked(vllm_command=str(place.home / "no-such-vllm"), **asked), place)


def test_a_machine_with_gpus(tmp_path: Path) -> None:
    probe = FakeGpuProbe(gpus=GPUS, used_bytes={1: 3 * GIB}, pids={1: (1,)}, wiring=WIRING, peers=False)
    found = looked(here(tmp_path, probe, HF_TOKEN=SECRET, HF_HOME=str(tmp_path)), gpus="2,1").findings
    assert found.node is not None
    assert [(gpu.index, gpu.memory.used) for gpu in found.gpus] == [(2, 0), (1, 3 * GIB)]
    assert [process.pid for process in found.gpus[1].processes] == [1]
    assert (found.hidden, found.cuda, found.strangers) == (1, (13, 0), ((2, 1),))
    assert found.node.topology is not None
    assert found.node.topology.numa == (1, 0)
    assert found.shm is not None
    assert found.node.shm_bytes == found.shm.total
    assert found.token == "HF_TOKEN"
    assert SECRET not in repr(found)
    assert found.cache == str(tmp_path / "hub")
    assert found.cache_room is not None


def test_a_missing_command_is_a_finding(tmp_path: Path) -> None:
    result = looked(here(tmp_path))
    assert isinstance(result.findings.vllm, Problem)
    assert "no-such-vllm" in result.findings.vllm.text
    assert "--vllm-command" in result.findings.vllm.remedy
    assert (result.command, result.installed) == (None, None)


@pytest.mark.parametrize("mig", [True, False])
def test_hardware_that_is_refused_is_a_finding(tmp_path: Path, mig: bool) -> None:
    gpu = ProbedGpu(index=0, name="NVIDIA H200", uuid="GPU-x", memory_bytes=140 * GIB, mig=True)
    place = here(tmp_path, FakeGpuProbe(gpus=(gpu,))) if mig else here(tmp_path, kfd=True)
    (check,) = [c for c in examine(looked(place).findings) if c.name is CheckName.GPUS]
    assert check.status is Status.FAIL
    assert ("MIG" if mig else "AMD") in check.text
    assert check.remedy


def test_a_driver_that_does_not_answer(tmp_path: Path) -> None:
    problem = Problem(text="the driver is another version than its library", remedy="Reboot.")
    place = Here(
        environ={"PATH": ""}, home=tmp_path, probe=None, cache_dir=tmp_path, has_kfd=False, probe_problem=problem
    )
    (check,) = [c for c in examine(looked(place).findings) if c.name is CheckName.GPUS]
    assert (check.status, check.text, check.remedy) == (Status.FAIL, problem.text, "Reboot.")


def test_all_gpus_hidden_and_none_of_that_number(tmp_path: Path) -> None:
    probe = FakeGpuProbe(gpus=GPUS)
    assert looked(here(tmp_path, probe, CUDA_VISIBLE_DEVICES="")).findings.hidden == 3
    with pytest.raises(InvalidOption, match="--gpus"):
        looked(here(tmp_path, probe), gpus="7")


def test_models(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(SHAPE, encoding="utf-8")
    without = look_at_model(str(folder), {}, tmp_path)
    assert (without.is_folder, without.weights_here, without.doubt) == (True, False, "")
    (folder / "model.safetensors").touch()
    assert look_at_model(str(folder), {}, tmp_path).weights_here
    unknown = look_at_model("somebody/some-model", {}, tmp_path)
    assert (unknown.shape, unknown.is_folder, unknown.weights_here) == (None, False, False)
    assert "somebody/some-model" in unknown.doubt
    snapshot = tmp_path / ".cache/huggingface/hub/models--somebody--some-model/snapshots/abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text(SHAPE, encoding="utf-8")
    assert not look_at_model("somebody/some-model", {}, tmp_path).weights_here
    (snapshot / "model-00001-of-00002.safetensors").touch()
    cached = look_at_model("somebody/some-model", {}, tmp_path)
    assert cached.weights_here
    assert cached.shape is not None
    for wrong in ("no-such-model", "./no/such", "a\0b"):
        with pytest.raises(UnknownName):
            look_at_model(wrong, {}, tmp_path)


def test_a_taken_port(tmp_path: Path) -> None:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind(("127.0.0.1", 8000))
        except OSError:
            pytest.skip("somebody else has port 8000")
        server.listen()
        ports = looked(here(tmp_path)).findings.ports
        assert ports is not None
        assert ports.can_listen
        # The holder is this process itself, which is no stranger to name.
        assert ports.taken == ((8000, ()),)


def test_a_named_node(tmp_path: Path) -> None:
    found = look_at_named("4xL40S-48GB-PCIe", "meta-llama/Llama-3.1-8B-Instruct", here(tmp_path))
    assert found.node is not None
    assert found.node.simulated
    assert (found.gpus, found.vllm, found.shm) == ((), None, None)
    with pytest.raises(UnknownName):
        look_at_named("4xH300", None, here(tmp_path))


VLLM = FoundVllm(command="vllm serve", version="0.32.0", flags=200, binds_numa=True)


def small(tmp_path: Path, model: str, *extra: str, gpus: int = 3) -> SmallServer | Problem:
    place = here(tmp_path, FakeGpuProbe(gpus=GPUS[:gpus]) if gpus else None)
    found = look(Asked(vllm_command="/none", model=model), place).findings
    return plan_small(found, model, extra, "0.32.0")


def test_the_small_server(tmp_path: Path) -> None:
    plan = small(tmp_path, "meta-llama/Llama-3.1-8B-Instruct")
    assert isinstance(plan, SmallServer)
    assert plan.gpus == (0,)
    assert plan.config.as_dict() == {"enforce-eager": True, "max-model-len": 2048, "max-num-seqs": 8}


def test_a_large_model_gets_the_gpus_that_hold_it(tmp_path: Path) -> None:
    """141 GB of weights need four cards of 44 GiB (47 GB), and three are there; 66 GB need two, and fill them."""
    plan = small(tmp_path, "meta-llama/Llama-3.1-70B-Instruct")
    assert isinstance(plan, Problem)
    assert "70B" in plan.text or "weights" in plan.text
    several = small(tmp_path, "Qwen/Qwen2.5-32B")
    assert isinstance(several, SmallServer)
    layout = [several.config.get(f"{size}-parallel-size") or 1 for size in ("tensor", "pipeline")]
    assert len(several.gpus) >= 2
    assert several.gpus == tuple(range(int(layout[0]) * int(layout[1])))


def test_the_operators_flags_win(tmp_path: Path) -> None:
    plan = small(tmp_path, "Qwen/Qwen3-8B", "--max-model-len", "4096", "-tp", "2", "--no-enforce-eager")
    assert isinstance(plan, SmallServer)
    assert plan.config.as_dict() == {"max-num-seqs": 8}
    assert plan.gpus == (0, 1)
    assert plan.extra == ("--max-model-len", "4096", "-tp", "2", "--no-enforce-eager")
    too_many = small(tmp_path, "Qwen/Qwen3-8B", "-tp", "4")
    assert isinstance(too_many, Problem)


def test_without_a_gpu_and_without_a_shape(tmp_path: Path) -> None:
    plan = small(tmp_path, "somebody/some-model", gpus=0)
    assert isinstance(plan, SmallServer)
    assert plan.gpus == ()
    assert plan.config.get("max-model-len") == 2048
    unknown = small(tmp_path, "somebody/some-model")
    assert isinstance(unknown, SmallServer)
    assert unknown.gpus == (0,)
