from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engine.histograms import Histogram, histogram

DATA = Path(__file__).parents[2] / "data" / "metrics"


def recorded(name: str) -> str:
    return gzip.decompress((DATA / name).read_bytes()).decode()


def test_a_recorded_server() -> None:
    # 608 requests of 256-768 and 64-192 tokens; sums and buckets as the exposition has them.
    prompt = histogram(recorded("h200-0.25-after.txt.gz"), "request_prompt_tokens")
    assert prompt is not None
    assert (prompt.count, prompt.longest) == (608, 1000)
    assert prompt.mean == pytest.approx(284_114 / 608)
    # The 577.6th of 608: 359 are at most 500 tokens, 249 more at most 1000.
    assert prompt.interpolated(0.95) == pytest.approx(500 + 500 * (577.6 - 359) / 249)
    output = histogram(recorded("h200-0.25-after.txt.gz"), "request_generation_tokens")
    assert output is not None
    assert output.mean == pytest.approx(67_266 / 608)
    assert output.longest == 200


def test_a_level_of_one_length() -> None:
    output = histogram(recorded("cpu-0.32-after.txt.gz"), "request_generation_tokens")
    assert output is not None
    assert (output.count, output.mean, output.longest) == (6, 100.0, 100)


def test_engines_add_up() -> None:
    text = "".join(
        f'vllm:request_prompt_tokens_bucket{{engine="{engine}",le="{bound}"}} {count}\n'
        for engine, counts in enumerate(((4, 10), (0, 10)))
        for bound, count in zip(("10.0", "+Inf"), counts, strict=True)
    )
    text += "vllm:request_prompt_tokens_sum 300\nvllm:request_prompt_tokens_count 20\n"
    found = histogram(text, "request_prompt_tokens")
    assert found == Histogram(count=20, total=300.0, buckets=((10.0, 4), (float("inf"), 20)))
    assert found.longest is None
    assert found.interpolated(0.95) == 10.0  # beyond the last bound nothing is known
    assert found.interpolated(0.1) == 5.0


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
    assert histogram(text, "request_prompt_tokens") is None


@settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text(text: str) -> None:
    assert histogram("vllm:request_prompt_tokens_bucket" + text, "request_prompt_tokens") is None


@settings(deadline=None)
@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.floats(0.01, 1))
def test_a_quantile_is_in_the_bucket_of_the_true_one(lengths: list[int], share: float) -> None:
    bounds = [1.0, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, float("inf")]
    buckets = tuple((bound, sum(1 for length in lengths if length <= bound)) for bound in bounds)
    found = Histogram(count=len(lengths), total=sum(lengths), buckets=buckets)
    true = sorted(lengths)[max(0, -int(-share * len(lengths) // 1) - 1)]
    low, high = found.quantile(share)
    assert low < true <= high
    assert low <= found.interpolated(share) <= high
    wide_low, wide_high = found.quantile_interval(share)
    assert wide_low <= low
    assert high <= wide_high


def of(*lengths: float, bounds: tuple[float, ...] = (1.0, 2, 5, 10, float("inf"))) -> Histogram:
    buckets = tuple((bound, sum(1 for length in lengths if length <= bound)) for bound in bounds)
    return Histogram(count=len(lengths), total=sum(lengths), buckets=buckets)


def test_what_came_between_two_readings() -> None:
    before, after = of(1, 4, 8), of(1, 4, 8, 4, 4, 20)
    assert after.since(before) == of(4, 4, 20)
    assert after.since(None) == after
    assert before.since(before) is None


def test_a_quantile_of_few_requests_is_wide() -> None:
    few, many = of(*([1] * 19), 8), of(*([1] * 1900), *([8] * 100))
    assert few.quantile_interval(0.95) == (0.0, float("inf"))  # nobody knows what a 21st would have been
    assert many.quantile_interval(0.95) == (0.0, 10.0)
    assert many.quantile_interval(0.9) == (0.0, 1.0)
    assert many.quantile_interval(0.99) == (5.0, 10.0)


def test_the_mean_is_exact_and_its_interval_of_the_buckets_middles() -> None:
    found = of(*([4] * 50), *([8] * 50)).mean_estimate
    assert found.value == 6.0
    # Middles 3.5 and 7.5 around 6: sqrt((2.5² + 1.5²) / 2) = 2.0616; 1.96 x 2.0616 / 10.
    assert found.high == pytest.approx(6.404, abs=0.001)


def test_the_first_name_that_is_there() -> None:
    text = 'vllm:b_bucket{le="1"} 2\nvllm:b_bucket{le="+Inf"} 2\nvllm:b_sum 1.5\nvllm:b_count 2\n'
    assert histogram(text, "a", "b") == Histogram(count=2, total=1.5, buckets=((1.0, 2), (float("inf"), 2)))
