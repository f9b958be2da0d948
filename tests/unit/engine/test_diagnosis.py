# ruff: noqa: E501  # lines of logs and metrics stand as servers print them
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engine.diagnosis import LogFollower, diagnose
from autotune.engine.logs import MilestoneName
from autotune.engine.remedies import LOW_THROUGHPUT, PREEMPTION, remedies_for
from autotune.records import FailureClass

DATA = Path(__file__).parents[2] / "data" / "logs"
STUDIES = Path(__file__).parents[3] / "studies"
C = FailureClass


def recorded(name: str) -> bytes:
    return gzip.decompress((DATA / f"{name}.log.gz").read_bytes())


def test_json_has_exactly_the_four_keys():
    found = diagnose(recorded("h200-0.25/H-len131072-util0.15")).as_json_dict()
    assert list(found) == ["class", "line", "remedies", "facts"]
    assert found["class"] == "kv_cache_too_small"
    assert found["facts"]["estimated_max_model_len"] == 37984
    assert found["facts"]["vllm_version"] == "0.25.1"
    assert found["remedies"][0] == "Lower --max-model-len to 37984 or less."
    assert json.loads(json.dumps(found)) == found


def test_a_study_with_little_memory_tells_none_from_too_little():
    logs = (STUDIES / "h200-tight-memory" / f"trial-{number}-server.log.gz" for number in (1, 2, 3))
    none, little, enough = (diagnose(gzip.decompress(log.read_bytes())) for log in logs)
    assert (none.kind, dict(none.facts)["available_kv_bytes"]) == (C.KV_CACHE_NONE, round(-0.67 * 2**30))
    assert (little.kind, dict(little.facts)["available_kv_bytes"]) == (C.KV_CACHE_TOO_SMALL, round(0.67 * 2**30))
    assert (dict(little.facts)["needed_kv_bytes"], dict(little.facts)["estimated_max_model_len"]) == (2**30, 5504)
    assert (enough.kind, dict(enough.facts)["kv_cache_tokens"]) == (C.HEALTHY, 16944)


def test_a_healthy_log_tells_its_capacity_and_asks_for_nothing():
    found = diagnose(recorded("h200-0.25/A-default"))
    assert (found.kind, found.line, found.remedies) == (C.HEALTHY, None, ())
    assert dict(found.facts)["kv_cache_tokens"] == 919824
    assert found.milestones[-1] is MilestoneName.SHUTDOWN


def test_a_queue_beside_an_empty_kv_cache_is_pointed_out():
    # 32 sequences at once were allowed while 128 requests were open and the KV cache stayed at 2 to 6 %
    assert diagnose(recorded("h200-0.25/B-seqs32")).remedies == LOW_THROUGHPUT


def test_a_full_kv_cache_is_pointed_out_even_where_no_preemption_is_printed():
    # /metrics counted 106 preemptions in this run, its log not one
    found = diagnose(recorded("h200-0.25/E-util0.18"))
    assert found.remedies == PREEMPTION
    assert "preemptions" not in dict(found.facts)


def test_steady_preemption_is_pointed_out_and_a_few_are_not():
    line = b"Application startup complete.\nEngine 000: Avg generation throughput: 1.0 tokens/s, Preemptions: %d\n"
    assert diagnose(line % 500).remedies == PREEMPTION
    assert diagnose(line % 2).remedies == ()


# The guide's order by its first words (rows G34 to G37).
GUIDE = {
    C.OOM_AT_LOAD: ["--max-model-len", "--dtype", "quantised", "--tensor-parallel-size", "smaller model"],
    C.OOM_UNDER_LOAD: ["--max-model-len", "--max-num-seqs", "--kv-cache-dtype fp8", "--gpu-memory-utilization", "--tensor-parallel-size"],
    C.NCCL: ["visible GPUs", "topo -m", "--tensor-parallel-size", "--pipeline-parallel-size", "--ipc=host", "versions", "Ray"],
}  # fmt: skip


@pytest.mark.parametrize("kind", GUIDE)
def test_remedies_keep_the_guides_order(kind):
    found = remedies_for(kind, {})
    assert len(found) == len(GUIDE[kind])
    assert [word for word, remedy in zip(GUIDE[kind], found, strict=True) if word not in remedy] == []


def test_the_direction_of_utilisation_differs_by_class():
    assert remedies_for(C.KV_CACHE_NONE, {})[0].startswith("Raise --gpu-memory-utilization")
    assert any(r.startswith("Lower --gpu-memory-utilization") for r in remedies_for(C.OOM_AT_WARMUP, {}))
    assert not any(r.startswith("Raise --gpu-memory-utilization") for r in remedies_for(C.OOM_AT_LOAD, {}))


def test_every_failure_has_a_remedy():
    assert [kind for kind in C if kind is not C.HEALTHY and not remedies_for(kind, {})] == []


def test_numbers_make_the_advice_concrete():
    gib = 1024**3
    busy = remedies_for(C.GPU_BUSY, {"free_bytes": 60 * gib, "wanted_bytes": 71 * gib})
    assert busy[0] == "Free 11 GiB more on the GPU: 60 GiB of 71 GiB are there."
    assert "OOM killer" in remedies_for(C.CRASH, {"signal": 9})[0]
    assert remedies_for(C.HANG, {"stuck_in": "nccl"}) == remedies_for(C.NCCL, {})


def test_secrets_never_reach_the_diagnosis():
    secret = "hf_" + "Q7w9" * 6
    log = (
        f"non-default args: {{'hf_token': '{secret}', 'max_num_seqs': 3}}\n"
        f"ValueError: cannot be used with {secret} and https://u:{secret}@h/ --api-key {secret}\n"
    )
    found = diagnose(log.encode())
    assert found.kind is C.INVALID_COMBINATION
    assert secret not in repr(found)
    assert secret not in json.dumps(found.as_json_dict())


def test_causes_are_found_behind_a_progress_bar_on_the_same_line():
    bar = "Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  88%|####8 | 45/51 [00:04<00:00,  9.30it/s]"
    assert diagnose(f"{bar}RuntimeError: CUDA error: device kernel image is invalid\n".encode()).kind is C.DRIVER


def test_a_follower_says_when_the_start_advances():
    follower = LogFollower()
    assert not follower.feed(b"Waiting for 1 local, 0 remote core engine proc(s) to start.\n")
    assert follower.feed(b"Model loading took 15.0 GiB and 1.4 seconds\n")
    assert not follower.feed(b"Model loading took 15.0 GiB and 1.4 seconds\n")
    assert not follower.feed(b"Application startup complete.")
    assert follower.close()
    assert follower.failure(exit_status=-9).kind is C.CRASH


@settings(max_examples=100, deadline=None)
@given(
    st.binary(max_size=300),
    st.sampled_from([None, 0, 1, 2, -9, 137]),
    st.sampled_from(sorted(p.stem.removesuffix(".log") for p in (DATA / "cpu-0.32").iterdir())),
)
def test_no_log_makes_it_raise(noise, status, name):
    tail = recorded(f"cpu-0.32/{name}")[-2000:]
    found = diagnose(noise + tail, status)
    assert found.as_json_dict()["class"] in set(C)
    assert diagnose([noise, tail], status) == found
