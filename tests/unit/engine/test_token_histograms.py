from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engine.token_histograms import TokenHistogram, token_histogram

DATA = Path(__file__).parents[2] / "data" / "metrics"


def recorded(name: str) -> str:
    return gzip.decompress((DATA / name).read_bytes()).decode()


def test_a_recorded_server() -> None:
    # 608 requests of 256-768 and 64-192 tokens; sums and buckets as the exposition has them.
    prompt = token_histogram(recorded("h200-0.25-after.txt.gz"), "request_prompt_tokens")
    assert prompt is not None
    assert (prompt.count, prompt.longest) == (608, 1000)
    assert prompt.mean == pytest.approx(284_114 / 608)
    # The 577.6th of 608: 359 are at most 500 tokens, 249 more at most 1000.
    assert prompt.quantile(0.95) == pytest.approx(500 + 500 * (577.6 - 359) / 249)
    output = token_histogram(recorded("h200-0.25-after.txt.gz"), "request_generation_tokens")
    assert output is not None
    assert output.mean == pytest.approx(67_266 / 608)
    assert output.longest == 200


def test_a_level_of_one_length() -> None:
    output = token_histogram(recorded("cpu-0.32-after.txt.gz"), "request_generation_tokens")
    assert output is not None
    assert (output.count, output.mean, output.longest) == (6, 100.0, 100)


def test_engines_add_up() -> None:
    text = "".join(
        f'vllm:request_prompt_tokens_bucket{{engine="{engine}",le="{bound}"}} {count}\n'
        for engine, counts in enumerate(((4, 10), (0, 10)))
        for bound, count in zip(("10.0", "+Inf"), counts, strict=True)
    )
    text += "vllm:request_prompt_tokens_sum 300\nvllm:request_prompt_tokens_count 20\n"
    found = token_histogram(text, "request_prompt_tokens")
    assert found == TokenHistogram(count=20, mean=15.0, buckets=((10.0, 4), (float("inf"), 20)))
    assert found.longest is None
    assert found.quantile(0.95) == 10.0  # beyond the last bound nothing is known
    assert found.quantile(0.1) == 5.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "vllm:request_prompt_tokens_sum 5\nvllm:request_prompt_tokens_count 1\n",
        'vllm:request_prompt_tokens_bucket{le="+Inf"} 0\nvllm:request_prompt_tokens_count 0\n',
        'vllm:request_prompt_tokens_bucket{le="x"} nan\nvllm:request_prompt_tokens_count -3\n',
    ],
)
def test_no_histogram(text: str) -> None:
    assert token_histogram(text, "request_prompt_tokens") is None


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    assert token_histogram("vllm:request_prompt_tokens_bucket" + text, "request_prompt_tokens") is None


@settings(deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_true_one(lengths: list[int], share: float) -> None:
    bounds = [1.0, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, float("inf")]
    buckets = tuple((bound, sum(1 for length in lengths if length <= bound)) for bound in bounds)
    histogram = TokenHistogram(count=len(lengths), mean=sum(lengths) / len(lengths), buckets=buckets)
    true = sorted(lengths)[max(0, -int(-share * len(lengths) // 1) - 1)]
    high = next(bound for bound in bounds if bound >= true)
    low = max([0.0, *(bound for bound in bounds if bound < high)])
    assert low <= histogram.quantile(share) <= high
