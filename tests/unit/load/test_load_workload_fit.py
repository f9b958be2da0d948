from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trace_samples import request_line

from autotune.errors import InvalidOption
from autotune.load.lengths import LengthShape
from autotune.load.requests import plan_requests, reachable_share
from autotune.load.workload_fit import Spread, fit_metrics, fit_trace, workload_yaml
from autotune.load.workload_summary import shown_level, sum_up
from autotune.load.workloads import Workload, load_workload, parse_workload, workload_from_numbers
from autotune.records import Arrivals


def fitted(folder: Path, name: str, text: str) -> tuple[Workload, Workload, str]:
    """The recorded workload, what was fitted to it, and the text of that."""
    (folder / name).write_text(text)
    recorded = load_workload(str(folder / name))
    made = workload_yaml(fit_trace(recorded))
    return recorded, parse_workload(made, file="made.yaml", name="made"), made


def test_lengths_of_a_trace(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    prompts = np.maximum(1, rng.lognormal(6, 0.8, 4000)).astype(int)
    lines = ["Timestamp,Request tokens,Response tokens", *(f"{i},{p},{1 + p % 50}" for i, p in enumerate(prompts))]
    recorded, made, _ = fitted(tmp_path, "a.csv", "\n".join(lines))
    assert made.prompt_tokens.mean == pytest.approx(prompts.mean(), rel=0.001)
    assert made.prompt_tokens.high == prompts.max() == recorded.prompt_tokens.high
    summary = sum_up(made, shown_level(made))
    assert summary.prompt.p95 == pytest.approx(np.percentile(prompts, 95), rel=0.08)
    assert made.prefixes is None
    assert made.turns is None


def test_a_system_prompt_is_a_shared_prefix(tmp_path: Path) -> None:
    lines = [request_line(float(i), "be kind " * 400, f"question {i} " * 40, tokens=(900, 20)) for i in range(200)]
    recorded, made, text = fitted(tmp_path, "a.jsonl", "\n".join(lines))
    assert made.prefixes is not None
    assert (made.prefixes.count, made.prefixes.share) == (1, 1.0)
    shares = [reachable_share(plan_requests(each, shown_level(each), 1)) for each in (recorded, made)]
    assert shares[1] == pytest.approx(shares[0], abs=0.02)
    assert shares[0] > 0.5
    assert made.prefixes.tokens + made.prompt_tokens.mean == pytest.approx(900, rel=0.01)
    assert "kind" not in text
    assert "question" not in text


def test_conversations(tmp_path: Path) -> None:
    talk = [{"from": who, "value": f"{who} says something "} for _ in range(3) for who in ("human", "gpt")]
    talks = [
        [{**each, "value": f"{each['value']}{number} " * 20} for number, each in enumerate(talk, start=100 * i)]
        for i in range(50)
    ]
    _, made, text = fitted(tmp_path, "a.json", json.dumps([{"conversations": one} for one in talks]))
    assert made.turns is not None
    assert (made.turns.count.low, made.turns.count.high) == (3, 3)
    # "human says something 101 " twenty times is about 500 characters, a quarter as many tokens.
    assert made.prompt_tokens.mean == pytest.approx(125, rel=0.05)
    assert "says" not in text


def test_hash_ids_keep_their_share(tmp_path: Path) -> None:
    rows = [
        {"timestamp": i, "input_length": 2048, "output_length": 10, "hash_ids": [1, 2 + i % 20, 1000 + i, 5000 + i]}
        for i in range(400)
    ]
    recorded, made, _ = fitted(tmp_path, "a.jsonl", "\n".join(map(json.dumps, rows)))
    assert recorded.trace is not None
    # Of 4 blocks two are shared: 399 and 380 of 400 times they were there before.
    assert reachable_share(recorded.trace.rows) == pytest.approx((399 + 380) / 1600)
    planned = plan_requests(made, shown_level(made, rate_rps=20.0), 1)
    assert len(planned) == 400
    assert reachable_share(planned) == pytest.approx((399 + 380) / 1600, abs=0.02)


@settings(deadline=None)
@given(st.lists(st.integers(1, 100_000), min_size=1, max_size=40))
def test_any_lengths_fit(lengths: list[int]) -> None:
    text = f"prompt_tokens: {Spread.of(lengths).yaml()}\noutput_tokens: {{fixed: 1}}\n"
    made = parse_workload(text, file="w", name="w").prompt_tokens
    assert made.mean == pytest.approx(np.mean(lengths), rel=0.05, abs=0.6)
    assert made.high >= max(lengths)


def test_metrics() -> None:
    # A quarter of 400 came from the prefix cache: 100 shared tokens and 300 of one's own.
    text = workload_yaml(fit_metrics(requests=77, prompt=(400, 900, 1000), output=(50, 120, None), hit_share=0.25))
    made = parse_workload(text, file="w", name="w")
    assert made.prefixes is not None
    assert (made.prefixes.tokens, made.prompt_tokens.mean, made.prompt_tokens.high) == (100, 300, 900)
    assert made.output_tokens.shape is LengthShape.LOGNORMAL
    assert "77 requests" in text
    no_hits = fit_metrics(requests=77, prompt=(400, 900, 1000), output=(50, 120, None), hit_share=0.0)
    assert no_hits.prefixes is None


def test_numbers() -> None:
    workload = workload_from_numbers(800, 2400, 150, 32)
    assert (workload.prompt_tokens.mean, workload.output_tokens.mean) == (800, 150)
    assert (workload.start_concurrency, workload.max_concurrency) == (8, 32)
    summary = sum_up(workload, shown_level(workload, rate_rps=50.0))
    assert summary.prompt.p95 == pytest.approx(2400, rel=0.03)
    assert summary.level.arrivals is Arrivals.POISSON
    assert summary.arrival_burstiness == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    ("numbers", "option", "said"),
    [
        ((800, 700, 150, 32), "--prompt-p95", "at least the mean, 800"),
        ((800, 8000, 150, 32), "--prompt-p95", "at most 3094"),
        ((0, 700, 150, 32), "--prompt-mean", "from 1"),
        ((float("nan"), 700, 150, 32), "--prompt-mean", "from 1"),
        ((800, float("inf"), 150, 32), "--prompt-p95", "from 1"),
        ((800, 900, 1e9, 32), "--output-mean", "10,000,000"),
        ((800, 900, 150, 0), "--concurrency", "65,536"),
    ],
)
def test_numbers_that_cannot_be(numbers: tuple[float, float, float, int], option: str, said: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        workload_from_numbers(*numbers)
    assert caught.value.option == option
    assert said in caught.value.allowed
