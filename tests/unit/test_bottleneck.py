"""Each limit from the counters that show it; what is worked out is checked by hand arithmetic on an H200."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.bottleneck import Limit, Setting, Verdict, verdicts
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import (
    Arrivals,
    Caveat,
    ClockKind,
    Config,
    CpuUse,
    Estimate,
    GpuUse,
    Latency,
    LevelRole,
    LevelUse,
    LoadLevel,
    Measurement,
    Origin,
    Outcome,
    ServerDelta,
    Trial,
    TrialResult,
    Value,
)

LLAMA = load_shape("meta-llama/Llama-3.1-8B-Instruct")
H200 = Setting(node=parse_node_name("1xH200-141GB"), shape=LLAMA)
QUIET = ServerDelta(preemptions=0, kv_usage_max=0.3, running_max=64.0, waiting_max=0.0)


def _latency(value_s: float) -> Latency:
    one = Estimate(value=value_s)
    return Latency(count=100, mean=one, p50=one, p90=one, p95=one, p99=one)


def measured(config: dict[str, Value] | None = None, server: ServerDelta = QUIET, **changes: Any) -> Trial:
    level = Measurement(
        level=LoadLevel(
            name="throughput", role=LevelRole.THROUGHPUT, arrivals=Arrivals.CLOSED, requests=100, seed=0, concurrency=64
        ),
        clock=ClockKind.WALL,
        duration_s=20.0,
        steady_s=18.0,
        planned=100,
        completed=100,
        failed=0,
        errors=(),
        prompt_tokens=10_000,
        output_tokens=10_000,
        output_tok_s=Estimate(value=500.0),
        total_tok_s=Estimate(value=1000.0),
        request_rps=Estimate(value=5.0),
        goodput_rps=None,
        ttft_s=_latency(0.1),
        ttft_from_send_s=None,
        tpot_s=_latency(0.1),
        itl_s=None,
        e2e_s=None,
        server=server,
    )
    result = TrialResult(
        outcome=Outcome.MEASURED, clock=ClockKind.WALL, simulated=False, measurements=(replace(level, **changes),)
    )
    return Trial(number=1, config=Config.of(config or {}), origin=Origin.SAMPLER, gpus=1, attempts=1, result=result)


def first(trial: Trial, setting: Setting = H200) -> Verdict:
    return verdicts(trial, setting)[0]


def test_preemptions_and_a_full_cache_are_kv_memory() -> None:
    storm = first(measured(server=replace(QUIET, preemptions=6, kv_usage_max=0.99)))
    assert storm.limit is Limit.KV_MEMORY
    assert storm.evidence == ("6 preemptions in 100 requests", "KV cache used up to 99%")
    few = verdicts(measured(server=replace(QUIET, preemptions=5, kv_usage_max=0.99)), H200)
    assert Limit.KV_MEMORY not in {verdict.limit for verdict in few}
    full = first(measured(server=replace(QUIET, kv_usage_max=0.96, waiting_max=10.0)))
    assert full.limit is Limit.KV_MEMORY
    assert "up to 10 requests waited" in full.evidence


def test_a_full_batch_with_room_in_the_cache_is_the_sequence_cap() -> None:
    server = replace(QUIET, running_max=64.0, waiting_max=40.0)
    verdict = first(measured({"max-num-seqs": 64}, server))
    assert verdict.limit is Limit.SEQUENCE_CAP
    assert "64 of 64 places taken and up to 40 requests waiting" in verdict.evidence[0]
    # Two replicas have twice the places.
    two = Setting(node=parse_node_name("2xH200-141GB"), shape=LLAMA)
    apart = verdicts(measured({"max-num-seqs": 64, "data-parallel-size": 2}, server), two)
    assert Limit.SEQUENCE_CAP not in {found.limit for found in apart}


def test_a_late_client_comes_before_everything_else() -> None:
    late = Caveat(code="client_late", text="requests left late", remedy="more cores")
    server = replace(QUIET, preemptions=50)
    found = verdicts(measured(server=server, caveats=(late,)), H200)
    assert [verdict.limit for verdict in found][:2] == [Limit.CLIENT, Limit.KV_MEMORY]
    assert found[0].evidence == ("requests left late",)


def test_a_busy_api_server_is_named_and_more_of_them_relieve_it() -> None:
    # 6,000 chunks/s x (26.7 + 102) us + 50 requests/s x 1.3 ms + 25,000 prompt tokens/s x 1 us = 0.862 of a core.
    busy: dict[str, Any] = {
        "output_tok_s": Estimate(value=6000.0),
        "request_rps": Estimate(value=50.0),
        "prompt_tokens": 50_000,
    }
    verdict = next(v for v in verdicts(measured(**busy), H200) if v.limit is Limit.API_SERVER)
    assert verdict.strength == pytest.approx(0.862, abs=0.001)
    assert "about 86% of 1 API server process" in verdict.evidence[0]
    relieved = verdicts(measured({"api-server-count": 2}, **busy), H200)
    assert Limit.API_SERVER not in {v.limit for v in relieved}
    packed = verdicts(measured({"stream-interval": 4}, **busy), H200)
    assert Limit.API_SERVER not in {v.limit for v in packed}


def seen(*gpus: GpuUse, **cpu: float) -> dict[str, Any]:
    return {"use": LevelUse(gpus=gpus, cpu=CpuUse(**cpu))}


def test_a_client_without_cpu_time_is_the_limit_whatever_it_was_late_by() -> None:
    busy = Caveat(code="client_busy", text="the load client took 99% of a core", remedy="cores", void=True)
    verdict = first(measured(caveats=(busy,)))
    assert (verdict.limit, verdict.evidence) == (Limit.CLIENT, ("the load client took 99% of a core",))
    assert "no CPU time left" in verdict.text
    assert first(measured(caveats=(replace(busy, void=False),))).limit is Limit.LIGHT_LOAD


def test_the_api_servers_cpu_time_decides_where_it_was_seen() -> None:
    estimated: dict[str, Any] = {"output_tok_s": Estimate(value=6000.0), "request_rps": Estimate(value=50.0)}
    relaxed = verdicts(measured(**estimated, **seen(api_server_share=0.4)), H200)
    assert Limit.API_SERVER not in {v.limit for v in relaxed}
    verdict = first(measured(**seen(api_server_share=0.93)))
    assert (verdict.limit, verdict.strength) == (Limit.API_SERVER, 0.9)
    assert verdict.evidence == ("its busiest process took 93% of a core",)


def test_gpus_that_wait_while_requests_run_are_held_up_by_the_cpu() -> None:
    running = replace(QUIET, running_mean=40.0)
    idle = measured(server=running, **seen(GpuUse(index=0, samples=9, busy_share=0.45)))
    assert first(idle).limit is Limit.HOST
    assert first(idle).evidence == ("kernels ran 45% of the time, with 40 requests in the batch on average",)
    busy = measured(server=running, tpot_s=_latency(0.006), **seen(GpuUse(index=0, samples=9, busy_share=0.97)))
    assert first(busy).limit is Limit.DECODE
    assert "kernels ran 97% of the time" in first(busy).evidence
    # Nobody knows whether there was anything to do.
    unknown = measured(**seen(GpuUse(index=0, samples=9, busy_share=0.45)))
    assert Limit.HOST not in {v.limit for v in verdicts(unknown, H200)}


def test_a_power_limit_that_costs_clock_is_named() -> None:
    capped = GpuUse(
        index=3,
        samples=20,
        power_mean_w=698.0,
        sm_clock_mean_mhz=1500.0,
        sm_clock_limit_mhz=1980.0,
        power_capped_share=0.8,
    )
    verdict = first(measured(**seen(capped)))
    assert verdict.limit is Limit.POWER
    assert verdict.evidence == ("GPU 3 ran at 1500 of 1980 MHz at 698 W; its power limit held in 80% of the samples",)
    for harmless in (replace(capped, power_capped_share=0.4), replace(capped, sm_clock_mean_mhz=1950.0)):
        assert Limit.POWER not in {v.limit for v in verdicts(measured(**seen(harmless)), H200)}


def test_traffic_seen_on_the_links_stands_beside_the_estimate_and_can_overrule_it() -> None:
    config: dict[str, Value] = {"tensor-parallel-size": 2}
    pcie = Setting(node=parse_node_name("2xL40S-48GB-PCIe"), shape=LLAMA)
    moved = seen(GpuUse(index=0, samples=9, pcie_tx_bytes_per_s=2e9, pcie_rx_bytes_per_s=3e9))
    verdict = first(measured(config, tpot_s=_latency(0.020), **moved), pcie)
    assert verdict.evidence[1] == "one GPU moved 3.0 GB/s over the link, of about 18"
    # By the estimate 7.6 ms of 100 ms are no limit; 12 GB/s of 18 are.
    full = seen(GpuUse(index=1, samples=9, pcie_rx_bytes_per_s=12e9))
    slow = measured(config, tpot_s=_latency(0.100), **full)
    assert first(slow, pcie).limit is Limit.COMMUNICATION
    light = measured(config, tpot_s=_latency(0.100), **moved)
    assert Limit.COMMUNICATION not in {v.limit for v in verdicts(light, pcie)}


def test_prompts_that_fill_the_matrix_units_are_prefill() -> None:
    # 33,000 prompt tokens/s x 2 x 8.03e9 = 530 TFLOP/s of the 588 that are sustained.
    heavy: dict[str, Any] = {"request_rps": Estimate(value=10.0), "prompt_tokens": 330_000, "completed": 100}
    verdict = first(measured(**heavy))
    assert verdict.limit is Limit.PREFILL
    assert "33,000 prompt tokens/s keep 1 GPU busy for about 90%" in verdict.evidence[0]
    # What came from the prefix cache was not computed.
    hits = replace(QUIET, prefix_queries=100, prefix_hits=80)
    assert Limit.PREFILL not in {v.limit for v in verdicts(measured(server=hits, **heavy), H200)}


def test_steps_as_long_as_reading_takes_are_decode() -> None:
    # 16.06 GB / 0.74 + 64 x 150 tokens x 131,072 B / 0.92 at 4.8 TB/s: 4.5 + 0.3 ms.
    verdict = first(measured(tpot_s=_latency(0.006)))
    assert verdict.limit is Limit.DECODE
    assert "about 4.8 ms of reading in a step of 6.0 ms (80%)" in verdict.evidence[0]
    assert first(measured(tpot_s=_latency(0.012))).limit is Limit.LIGHT_LOAD


def test_all_reduces_over_pcie_are_communication_and_over_nvlink_less_so() -> None:
    # 64 all-reduces of 90 us and 64 x 4096 x 2 B over 18 GB/s: 7.6 ms.
    config: dict[str, Value] = {"tensor-parallel-size": 2}
    pcie = Setting(node=parse_node_name("2xL40S-48GB-PCIe"), shape=LLAMA)
    verdict = first(measured(config, tpot_s=_latency(0.020)), pcie)
    assert verdict.limit is Limit.COMMUNICATION
    assert "about 7.6 ms of all-reduces in a step of 20 ms (38%)" in verdict.evidence[0]
    nvlink = Setting(node=parse_node_name("2xH200-141GB-NVLink"), shape=LLAMA)
    assert Limit.COMMUNICATION not in {v.limit for v in verdicts(measured(config, tpot_s=_latency(0.020)), nvlink)}


def test_a_token_passes_every_stage_of_a_pipeline() -> None:
    config: dict[str, Value] = {"tensor-parallel-size": 2, "pipeline-parallel-size": 2}
    # All 64 all-reduces of 90 us, each of 32 requests x 4096 x 2 B over 18 GB/s: 6.7 ms.
    pcie = Setting(node=parse_node_name("4xL40S-48GB-PCIe"), shape=LLAMA)
    linked = verdicts(measured(config, tpot_s=_latency(0.020)), pcie)
    said = next(verdict for verdict in linked if verdict.limit is Limit.COMMUNICATION)
    assert "about 6.7 ms of all-reduces in a step of 20 ms (33%)" in said.evidence[0]
    # 16.06 GB over 2 stages are read one after the other: 4.5 ms; the KV of 32 requests on each: 2 x 0.07 ms.
    stages: dict[str, Value] = {"pipeline-parallel-size": 2}
    h200 = Setting(node=parse_node_name("2xH200-141GB-NVLink"), shape=LLAMA)
    verdict = first(measured(stages, tpot_s=_latency(0.008)), h200)
    assert verdict.limit is Limit.DECODE
    assert "about 4.7 ms of reading in a step of 8.0 ms (58%)" in verdict.evidence[0]


def test_a_batch_of_a_mixture_reads_the_experts_of_all_its_tokens() -> None:
    # Qwen3-30B-A3B: 54.0 GiB of experts. 64 tokens of 8 out of 128 touch 98.4 % of them, not the 6 % of one token:
    # (57.1 + 3.1) GB at 0.74 x 4.8 TB/s are 17 ms.
    moe = Setting(node=H200.node, shape=load_shape("Qwen/Qwen3-30B-A3B"))
    verdict = first(measured(tpot_s=_latency(0.020)), moe)
    assert verdict.limit is Limit.DECODE
    assert "about 17" in verdict.evidence[0]
    alone = measured(server=replace(QUIET, running_max=1.0), tpot_s=_latency(0.020))
    assert Limit.DECODE not in {found.limit for found in verdicts(alone, moe)}


def test_every_rank_reads_the_whole_latent() -> None:
    # 1,024 requests of 9,500 tokens x 61 layers x 576 numbers x 2 B over 0.92 x 4.8 TB/s: 155 ms, with TP 8 as with 1.
    shape = load_shape("deepseek-ai/DeepSeek-V3")
    node = Setting(node=parse_node_name("8xH200-141GB-NVLink"), shape=shape)
    slow = {"request_rps": Estimate(value=1.0), "tpot_s": _latency(0.300)}
    long = {"prompt_tokens": 900_000, "output_tokens": 100_000, **slow}
    busy = replace(QUIET, running_max=1024.0)
    found = verdicts(measured({"tensor-parallel-size": 8}, busy, **long), node)
    assert Limit.DECODE in {verdict.limit for verdict in found}


@pytest.mark.parametrize(
    ("config", "hits", "reachable", "missed"),
    [
        ({"enable-prefix-caching": False}, None, 0.7, True),
        ({}, 0.2, 0.7, True),
        ({}, 0.6, 0.7, False),
        ({"enable-prefix-caching": False}, None, 0.0, False),
        ({"enable-prefix-caching": False}, None, None, False),
    ],
)
def test_hits_that_the_workload_allows_and_that_did_not_come_are_missed(
    config: dict[str, Value], hits: float | None, reachable: float | None, missed: bool
) -> None:
    server = QUIET if hits is None else replace(QUIET, prefix_queries=1000, prefix_hits=round(1000 * hits))
    found = verdicts(measured(config, server), replace(H200, reachable_hits=reachable))
    assert (Limit.PREFIX_MISSED in {verdict.limit for verdict in found}) is missed


def test_a_light_load_is_no_limit_and_unknown_is_silent() -> None:
    assert first(measured()).limit is Limit.LIGHT_LOAD
    assert verdicts(measured(server=ServerDelta()), H200) == ()
    assert first(measured(), Setting()).limit is Limit.LIGHT_LOAD
    nothing = replace(measured(), result=None)
    assert verdicts(nothing, H200) == ()
