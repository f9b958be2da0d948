# ruff: noqa: E501  # lines of logs and metrics stand as servers print them
import gzip
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engine.metrics_text import delta, parse_metrics, restarted

DATA = Path(__file__).parents[2] / "data" / "metrics"


def recorded(name: str):
    return parse_metrics(gzip.decompress((DATA / f"{name}.txt.gz").read_bytes()).decode())


def test_a_recorded_load_on_the_cpu_build():
    # 6 requests of 42 prompt tokens and 100 output tokens, no prefix long enough to be reused
    found = delta(recorded("cpu-0.32-before"), recorded("cpu-0.32-after"))
    assert (found.prompt_tokens, found.generation_tokens, found.preemptions) == (252, 600, 0)
    assert (found.prefix_queries, found.prefix_hits, found.prefix_hit_share) == (252, 0, 0.0)
    assert found.queue_time_mean_s == pytest.approx(0.00011071500011894386 / 6)
    assert (found.kv_usage_max, found.running_max) == (None, None)


def test_a_recorded_snapshot_of_the_h200():
    found = recorded("h200-0.25-after")
    assert found.is_vllm
    assert (found.kv_cache_tokens, found.kv_cache_max_concurrency) == (919824, 112.283203125)
    assert found.kv_cache_block_tokens == 57489 * 16
    assert (found.running, found.waiting, found.kv_usage, found.preemptions) == (0, 0, 0, 0)
    assert found.counter("request_success") == 608
    # a histogram whose name ends in _total is no counter
    assert found.counter("iteration_tokens") is None


@pytest.mark.parametrize(
    ("text", "usage"),
    [
        ("vllm:gpu_cache_usage_perc 0.25", 0.25),
        ("vllm:kv_cache_usage_perc 0.5\nvllm:gpu_cache_usage_perc 0.25", 0.5),
        ('vllm:kv_cache_usage_perc{engine="0"} 0.5\nvllm:kv_cache_usage_perc{engine="1"} 0.7', 0.7),
        ("vllm:kv_cache_usage_perc NaN", None),
        ("ray_vllm_kv_cache_usage_perc 0.5", 0.5),
        ("vllm:num_requests_running 0", None),
    ],
)
def test_kv_usage_by_new_and_old_name(text, usage):
    assert parse_metrics(text).kv_usage == usage


def test_counters_add_up_over_engines_and_are_none_when_absent():
    before = 'vllm:prompt_tokens_total{engine="0"} 10\nvllm:prompt_tokens_total{engine="1"} 20\n'
    after = 'vllm:prompt_tokens_total{engine="0"} 15\nvllm:prompt_tokens_total{engine="1"} 27\n'
    after += 'vllm:prompt_tokens_created{engine="0"} 1.7e9\nvllm:gpu_prefix_cache_queries_total 100\nvllm:gpu_prefix_cache_hits_total 40\n'
    found = delta(parse_metrics(before), parse_metrics(after))
    assert found.prompt_tokens == 12
    assert (found.generation_tokens, found.preemptions, found.queue_time_mean_s) == (None, None, None)
    assert found.prefix_hit_share == pytest.approx(0.4)


def test_new_and_old_prefix_counters_are_not_added_up():
    text = "vllm:prefix_cache_queries_total 100\nvllm:gpu_prefix_cache_queries_total 100\n"
    assert delta(parse_metrics("vllm:x 1"), parse_metrics(text)).prefix_queries == 100


def test_peaks_come_from_the_samples_taken_under_load():
    def snapshot(usage, running, waiting):
        return parse_metrics(
            f"vllm:kv_cache_usage_perc {usage}\nvllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}"
        )

    found = delta(snapshot(0, 0, 0), snapshot(0, 0, 0), [snapshot(0.9, 5, 1), snapshot(0.4, 8, 0)])
    assert (found.kv_usage_max, found.running_max, found.waiting_max) == (0.9, 8, 1)


@pytest.mark.parametrize(
    ("before", "after", "again"),
    [
        ("vllm:generation_tokens_total 10", "vllm:generation_tokens_total 9", True),
        ("vllm:generation_tokens_total 10", "vllm:generation_tokens_total 10", False),
        ("process_start_time_seconds 100\nvllm:x 1", "process_start_time_seconds 200\nvllm:x 1", True),
        ("vllm:x 1", "vllm:x 0", False),
    ],
)
def test_a_server_that_restarted_gives_no_delta(before, after, again):
    first, second = parse_metrics(before), parse_metrics(after)
    assert restarted(first, second) is again
    assert (delta(first, second) is None) is again


@pytest.mark.parametrize(
    "text", ["", "python_info 1\nprocess_start_time_seconds 5\n", "<html>Internal Server Error</html>"]
)
def test_what_is_not_vllms_is_no_error(text):
    metrics = parse_metrics(text)
    assert not metrics.is_vllm
    assert metrics.running is None
    assert delta(metrics, metrics) is None
    assert delta(None, metrics) is None


def test_capacity_label_that_is_not_set_yet():
    info = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="%s",kv_cache_size_tokens="%s"} 1.0'
    assert parse_metrics(info % ("None", "None")).kv_cache_tokens is None
    assert parse_metrics(info % ("None", "None")).kv_cache_block_tokens is None
    assert parse_metrics(info % ("10", "150")).kv_cache_tokens == 150
    assert parse_metrics('vllm:cache_config_info{block_size="16",num_gpu_blocks="10"} 1').kv_cache_tokens is None


def test_labels_with_every_awkward_character():
    (sample,) = parse_metrics(r'vllm:x{a="b\"},{\\ c\nd",e=""} 1.5 1700000000 # {trace="t"} 1').series("x")
    assert sample.labels == (("a", 'b"},{\\ c\nd'), ("e", ""))
    assert sample.value == 1.5


@given(
    st.dictionaries(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), st.text(max_size=10), max_size=3),
    st.floats(allow_nan=False),
)
def test_labels_and_values_round_trip(labels, value):
    def escaped(text):
        return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")

    inner = ",".join(f'{key}="{escaped(text)}"' for key, text in labels.items())
    (sample,) = parse_metrics(f"vllm:x{{{inner}}} {value!r}").series("x")
    assert dict(sample.labels) == labels
    assert sample.value == value


@given(
    st.text(max_size=200)
    | st.lists(st.sampled_from(["vllm:x", "{", "}", '"', 'a="', " 1", "\n", "#", "\\"]), max_size=30).map("".join)
)
def test_no_text_makes_it_raise(text):
    metrics = parse_metrics(text)
    assert metrics.kv_cache_tokens is None
