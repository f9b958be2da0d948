"""What counts as drift, and what is told as not seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from promote_cases import deployment, trial

from autotune.engine.histograms import Histogram
from autotune.engine.observed import Observation
from autotune.promote import Offered, Promotion, serve_argv
from autotune.promote.drift import Checked, FindingKind, Shown, check, remedies, share_estimate
from autotune.records import Estimate, ServerFacts, Slo

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
FLAGS = {"max-num-seqs": 128, "enable-prefix-caching": False, "kv-cache-dtype": "fp8", "gpu-memory-utilization": 0.9}
FACTS = ServerFacts(vllm_version="0.32.0", max_model_len=8192, kv_cache_tokens=400_000)
LABELS = {"gpu_memory_utilization": "0.9", "enable_prefix_caching": "False", "cache_dtype": "fp8", "block_size": "16"}
SHOWN = Shown(
    vllm_version="0.32.0", names=(MODEL,), max_model_len=8192, kv_cache_tokens=400_000, labels=LABELS, info=None
)
BOUNDS = (0.1, 0.25, 0.5, 1.0, float("inf"))


def promotion(**changes: Any) -> Promotion:
    made = deployment(trial(FLAGS, facts=FACTS))
    found = Promotion.of(
        made,
        (),
        targets=["shell"],
        argv=serve_argv(made),
        simulated_allowed=False,
        offered=Offered(rate_rps_per_gpu=2.0, prompt_tokens_mean=500.0, output_tokens_mean=100.0, prefix_hit_share=0.1),
    )
    return replace(found, **changes)


def lengths(mean: float, count: int = 400) -> Histogram:
    """All of one length."""
    bounds = (100.0, 200.0, 500.0, 1000.0, float("inf"))
    buckets = tuple((bound, count if mean <= bound else 0) for bound in bounds)
    return Histogram(count=count, total=mean * count, buckets=buckets)


def times(*shares: float, count: int = 1000) -> Histogram:
    """Cumulative shares by BOUNDS."""
    buckets = tuple((bound, round(share * count)) for bound, share in zip(BOUNDS, shares, strict=True))
    return Histogram(count=count, total=0.2 * count, buckets=buckets)


def seen(**changes: Any) -> Observation:
    base = Observation(
        seconds=60.0,
        arrived=240,
        ended=240,
        rate_rps=Estimate(value=4.0, low=3.5, high=4.5),  # 2 GPUs
        prompt=lengths(500.0),
        output=lengths(100.0),
        ttft=times(0.5, 0.99, 1.0, 1.0, 1.0),
        preemptions=2,
        hit_share=0.1,
        failed_share=0.0,
    )
    return replace(base, **changes)


def found(checked: Checked) -> dict[str, FindingKind]:
    return {finding.what: finding.kind for finding in checked.findings}


def test_a_server_that_is_as_promoted() -> None:
    checked = check(promotion(), SHOWN, seen(), Slo.of(ttft_p95=0.5, error_rate=0.0))
    assert checked.findings == ()
    assert checked.worst is None
    assert any(text.startswith("ttft_p95<=500ms holds") for text in checked.same)
    (unseen,) = checked.unseen
    assert unseen.startswith("--max-num-seqs: outside of its development mode")


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"vllm_version": "0.33.0"}, "vLLM"),
        ({"names": ("other/Model",)}, "model"),
        ({"max_model_len": 4096}, "max-model-len"),
        ({"labels": {**LABELS, "enable_prefix_caching": "True"}}, "enable-prefix-caching"),
        ({"labels": {**LABELS, "cache_dtype": "auto"}}, "kv-cache-dtype"),
        ({"labels": {**LABELS, "gpu_memory_utilization": "0.92"}}, "gpu-memory-utilization"),
        ({"kv_cache_tokens": 200_000}, "KV cache tokens"),
        ({"info": "model='m', max_num_seqs=64, foo=1"}, "max-num-seqs"),
    ],
)
def test_settings_that_are_others(changes: dict[str, Any], what: str) -> None:
    checked = check(promotion(), replace(SHOWN, **changes), seen(), None)
    assert found(checked) == {what: FindingKind.CONFIG_DRIFT}


@pytest.mark.parametrize(
    "changes",
    [
        {"vllm_version": "0.32.0+cu129"},
        {"names": ("llama", f"/models/{MODEL}")},
        {"names": ("llama", "/cache/Llama-3.1-8B-Instruct/")},
        {"labels": {**LABELS, "gpu_memory_utilization": "0.90"}},
        {"labels": None, "kv_cache_tokens": None, "max_model_len": None},
        {"kv_cache_tokens": 395_000},
        {"info": "vllm_config(max_num_seqs=128, gpu_memory_utilization=0.9)"},
    ],
)
def test_settings_that_are_the_same_in_other_words(changes: dict[str, Any]) -> None:
    assert check(promotion(), replace(SHOWN, **changes), seen(), None).findings == ()


REAL = (
    "model='m', speculative_config=None, trust_remote_code=False, dtype=torch.bfloat16, max_seq_len=8192, "
    "load_format=auto, tensor_parallel_size=1, quantization=awq_marlin, enforce_eager=False, kv_cache_dtype=fp8_e4m3, "
    "served_model_name=m, enable_prefix_caching=True, compilation_config={'mode': <CompilationMode.VLLM_COMPILE: 3>}"
)
"""As vLLM 0.32 prints its configuration."""


def test_what_a_server_resolves_its_flags_to_is_no_drift() -> None:
    flags = {
        **{"dtype": "bfloat16", "quantization": "awq", "kv-cache-dtype": "fp8", "enforce-eager": False},
        **{
            "compilation-config": '{"mode": 3}',
            "served-model-name": "llama",
            "load-format": "auto",
            "max-model-len": -1,
        },
    }
    of = promotion(flags=tuple(flags.items()), resolved=None)
    shown = Shown(vllm_version="0.32.0", names=("llama", MODEL), max_model_len=4096, info=REAL)
    checked = check(of, shown, seen(), None)
    assert checked.findings == ()
    assert "--compilation-config: outside" in "".join(checked.unseen)
    other = check(replace(of, flags=(("tensor-parallel-size", 2), ("dtype", "half"))), shown, seen(), None)
    assert found(other) == {"tensor-parallel-size": FindingKind.CONFIG_DRIFT, "dtype": FindingKind.CONFIG_DRIFT}


def test_a_version_that_nobody_measured_is_no_drift() -> None:
    checked = check(promotion(version_measured=False), replace(SHOWN, vllm_version="0.25.1"), seen(), None)
    assert checked.findings == ()
    assert any("assumed" in text for text in checked.unseen)


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"prompt": lengths(700.0)}, "mean prompt tokens"),
        ({"output": lengths(60.0)}, "mean output tokens"),
        ({"rate_rps": Estimate(value=5.0, low=4.5, high=5.5)}, "requests/s per GPU"),
        ({"hit_share": 0.4}, "prefix cache hits"),
        ({"preemptions": 40}, "preemptions"),
    ],
)
def test_users_that_send_something_else(changes: dict[str, Any], what: str) -> None:
    checked = check(promotion(), SHOWN, seen(**changes), None)
    assert found(checked) == {what: FindingKind.WORKLOAD_DRIFT}
    assert checked.worst is FindingKind.WORKLOAD_DRIFT


@pytest.mark.parametrize(
    "changes",
    [
        {"prompt": lengths(600.0)},  # within a factor of 1.25
        {"prompt": lengths(5000.0, count=19)},  # too few to tell
        {"rate_rps": Estimate(value=0.1, low=0.05, high=0.2)},  # night
        {"hit_share": 0.3, "prompt": lengths(500.0, count=20)},  # 20 points, by 20 requests
        {"ended": 20, "preemptions": 2},
        {"prompt": None, "output": None, "rate_rps": None, "hit_share": None, "preemptions": None},
    ],
)
def test_what_is_no_drift(changes: dict[str, Any]) -> None:
    assert check(promotion(), SHOWN, seen(**changes), None).findings == ()


def test_an_slo_is_breached_only_where_that_is_sure() -> None:
    late = seen(ttft=times(0.1, 0.3, 0.5, 1.0, 1.0))
    slo = Slo.of(ttft_p95=0.5)
    assert found(check(promotion(), SHOWN, late, slo)) == {"ttft_p95": FindingKind.SLO_BREACH}
    between = check(promotion(), SHOWN, late, Slo.of(ttft_p95=0.8))  # somewhere from 500 ms to 1 s
    assert between.findings == ()
    assert any("too coarse" in text for text in between.unseen)
    few = check(promotion(), SHOWN, seen(ttft=times(0, 0, 0, 1, 1, count=19)), slo)
    assert few.findings == ()


def test_failed_requests_breach_a_limit_of_theirs() -> None:
    checked = check(promotion(), SHOWN, seen(failed_share=0.05), Slo.of(error_rate=0.01))
    assert found(checked) == {"error_rate": FindingKind.SLO_BREACH}
    one = check(promotion(), SHOWN, seen(failed_share=1 / 240), Slo.of(error_rate=0.0))  # none are allowed, one did
    assert found(one) == {"error_rate": FindingKind.SLO_BREACH}


def test_few_failures_among_few_requests_do_not_breach_a_limit() -> None:
    # With 1 % failing as is allowed, one or more of 20 fail 18 times in a hundred looks.
    few = check(promotion(), SHOWN, seen(ended=20, failed_share=0.05), Slo.of(error_rate=0.01))
    assert few.findings == ()
    assert any("too few requests to tell" in text for text in few.unseen)


@pytest.mark.parametrize(
    ("share", "count", "low", "high"),
    # Newcombe (1998), Statistics in Medicine 17, table I, method 3.
    [
        (81 / 263, 263, 0.2553, 0.3662),
        (15 / 148, 148, 0.0624, 0.1605),
        (0.0, 20, 0.0, 0.1611),
        (1 / 29, 29, 0.0061, 0.1718),
    ],
)
def test_the_interval_of_a_share(share: float, count: int, low: float, high: float) -> None:
    estimate = share_estimate(share, count)
    assert (estimate.low, estimate.high) == (pytest.approx(low, abs=5e-5), pytest.approx(high, abs=5e-5))


def test_the_worst_comes_first_and_the_remedy_fits() -> None:
    checked = check(
        promotion(),
        replace(SHOWN, max_model_len=1),
        seen(prompt=lengths(5000.0), failed_share=1.0),
        Slo.of(error_rate=0),
    )
    assert [finding.kind for finding in checked.findings] == list(FindingKind)
    kinds = [finding.kind for finding in checked.findings]
    lines = remedies(promotion(name="it's prod"), "it's prod@1", "http://p:1", "error_rate<=0", kinds)
    assert lines[0].startswith("""autotune promotions 'it'"'"'s prod' --json""")
    assert lines[1] == "autotune workload capture --url http://p:1 --seconds 600 --out it-s-prod-now.yaml"
    assert "--slo 'error_rate<=0'" in lines[2]
    assert lines[2].endswith("""--today 'it'"'"'s prod@1'""")
    with_extra = remedies(promotion(), "prod@1", "http://p:1", None, kinds, ("--trust-remote-code",))
    assert with_extra[2].endswith("--today prod@1 -- --trust-remote-code")
    assert remedies(promotion(), "l", "u", None, []) == ()
    assert len(remedies(promotion(), "l", "u", None, [FindingKind.CONFIG_DRIFT])) == 1
