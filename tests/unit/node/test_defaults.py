"""vLLM's defaults by GPU and version."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.errors import InvalidOption
from autotune.node.defaults import parse_version, resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Config, Link, Node, Value
from autotune.units import GIB

SHAPE = load_shape("meta-llama/Llama-3.1-8B", env={"HF_HUB_CACHE": "/nonexistent"})
CPU = Node(name="cpu", gpus=(), link=Link.NONE, simulated=False)


@pytest.mark.parametrize(
    ("node", "version", "tokens", "seqs", "utilization"),
    [
        ("1xH200-141GB", "0.25.1", 8192, 1024, 0.92),  # measured
        ("1xH100-80GB", None, 8192, 1024, 0.92),
        ("1xH100-80GB", "0.19.0", 8192, 1024, 0.9),
        ("1xH100-80GB", "0.8.4", 8192, 256, 0.9),
        ("1xA100-80GB", None, 2048, 256, 0.92),
        ("1xRTX4090-24GB", "0.10.2", 2048, 256, 0.9),
        ("1xB200-180GB", "0.31.0", 8192, 1024, 0.92),
        ("1xB200-180GB", "0.32.0", 16384, 1024, 0.92),
    ],
)
def test_defaults(node: str, version: str | None, tokens: int, seqs: int, utilization: float) -> None:
    settings = resolve(Config.of({}), parse_node_name(node), SHAPE, version)
    assert (settings.max_num_batched_tokens, settings.max_num_seqs) == (tokens, seqs)
    assert settings.gpu_memory_utilization == utilization
    assert settings.max_model_len == 131072
    assert (settings.prefix_caching, settings.chunked_prefill, settings.enforce_eager) == (True, True, False)
    assert (settings.kv_cache_dtype, settings.dtype, settings.gpus) == ("auto", "bfloat16", 1)


def test_gb10_counts_as_small_since_0_33() -> None:
    node = parse_node_name("1xH100-80GB")
    gb10 = replace(node, gpus=(replace(node.gpus[0], name="NVIDIA GB10", memory_bytes=119 * GIB),))
    assert resolve(Config.of({}), gb10, SHAPE, "0.32.0").max_num_batched_tokens == 8192
    assert resolve(Config.of({}), gb10, SHAPE, "0.33.0").max_num_batched_tokens == 2048


def test_cpu_defaults_grow_with_the_world() -> None:
    one = resolve(Config.of({}), CPU, SHAPE, "0.32.0")
    two = resolve(Config.of({"tensor-parallel-size": 2}), CPU, SHAPE, "0.32.0")
    assert (one.max_num_batched_tokens, one.max_num_seqs) == (2048, 128)
    assert (two.max_num_batched_tokens, two.max_num_seqs) == (4096, 256)


def test_the_config_wins_over_extra_and_extra_over_defaults() -> None:
    node = parse_node_name("4xH100-80GB")
    config = Config.of({"tensor-parallel-size": 2, "max-num-seqs": 64, "enable-prefix-caching": False, "dtype": None})
    settings = resolve(config, node, SHAPE, None, {"max-num-seqs": 8, "max-model-len": "8K", "dtype": "float16"})
    assert (settings.max_num_seqs, settings.max_model_len, settings.dtype) == (64, 8192, "float16")
    assert (settings.tensor_parallel, settings.prefix_caching) == (2, False)
    assert resolve(Config.of({}), node, SHAPE, None, {"max-model-len": "8k"}).max_model_len == 8000


def test_without_chunked_prefill_the_default_batch_holds_the_longest_prompt() -> None:
    settings = resolve(Config.of({"enable-chunked-prefill": False}), parse_node_name("1xL4-24GB"), SHAPE)
    assert settings.max_num_batched_tokens == 131072


def test_the_default_batch_never_exceeds_what_all_sequences_can_hold() -> None:
    config = Config.of({"max-num-seqs": 2, "max-model-len": 512})
    assert resolve(config, parse_node_name("1xH100-80GB"), SHAPE).max_num_batched_tokens == 1024


def test_the_default_cap_of_sequences_never_exceeds_a_batch_that_is_set() -> None:
    node = parse_node_name("1xH100-80GB")
    assert resolve(Config.of({"max-num-batched-tokens": 512}), node, SHAPE).max_num_seqs == 512
    assert resolve(Config.of({"max-num-batched-tokens": 512, "max-num-seqs": 600}), node, SHAPE).max_num_seqs == 600


def test_turing_has_no_bfloat16() -> None:
    assert resolve(Config.of({}), parse_node_name("1xT4-16GB"), SHAPE).dtype == "float16"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("tensor-parallel-size", 0),
        ("max-num-seqs", True),
        ("max-num-batched-tokens", "many"),
        ("gpu-memory-utilization", 1.2),
        ("enable-prefix-caching", "yes"),
        ("max-model-len", "long"),
    ],
)
def test_values_of_the_wrong_type_are_named(flag: str, value: object) -> None:
    with pytest.raises(InvalidOption, match=f"--{flag}"):
        resolve(Config.of({flag: value}), parse_node_name("1xH100-80GB"), SHAPE)


def test_versions() -> None:
    assert parse_version("0.10.2rc1+cu128") == (0, 10, 2)
    assert parse_version("v0.9") == (0, 9, 0)
    assert parse_version("dev") == parse_version(None) > (0, 33, 0)


@pytest.mark.parametrize(
    ("values", "field", "expected"),
    [
        ({}, "expert_parallel", False),
        ({"enable-expert-parallel": True}, "expert_parallel", True),
        ({}, "api_server_count", 1),
        ({"data-parallel-size": 4}, "api_server_count", 4),
        ({"data-parallel-size": 4, "api-server-count": 2}, "api_server_count", 2),
        ({}, "async_scheduling", True),
        ({"async-scheduling": False}, "async_scheduling", False),
        ({}, "concurrent_batches", 2),
        ({"async-scheduling": False}, "concurrent_batches", 1),
        ({"pipeline-parallel-size": 2}, "concurrent_batches", 3),
        ({"pipeline-parallel-size": 2, "async-scheduling": False}, "concurrent_batches", 2),
        ({"stream-interval": 8}, "stream_interval", 8),
        ({}, "max_cudagraph_capture_size", 512),
        ({"max-num-seqs": 32}, "max_cudagraph_capture_size", 64),
        ({"max-num-seqs": 32, "max-cudagraph-capture-size": 512}, "max_cudagraph_capture_size", 512),
        ({"max-num-seqs": 32, "max-num-batched-tokens": 40}, "max_cudagraph_capture_size", 40),
        ({"enforce-eager": True, "max-cudagraph-capture-size": 512}, "max_cudagraph_capture_size", None),
        ({"performance-mode": "throughput"}, "max_num_batched_tokens", 16384),
        ({"performance-mode": "throughput"}, "max_num_seqs", 2048),
        ({"performance-mode": "throughput", "max-num-seqs": 64}, "max_num_seqs", 64),
        ({"performance-mode": "interactivity"}, "max_num_batched_tokens", 8192),
        ({"quantization": "fp8"}, "quantization", "fp8"),
        ({}, "quantization", None),
        ({"speculative-config": '{"method": "ngram", "num_speculative_tokens": 4}'}, "speculative_tokens", 4),
        ({"speculative-config": '{"method": "ngram", "num_speculative_tokens": 4}'}, "async_scheduling", False),
        ({"speculative-config": '{"method": "eagle3", "model": "m"}'}, "speculative_tokens", 0),
        ({"speculative-config": '{"method": "eagle3", "model": "m"}'}, "async_scheduling", True),
    ],
)
def test_settings_beyond_the_scheduler(values: dict[str, Value], field: str, expected: object) -> None:
    assert getattr(resolve(Config.of(values), parse_node_name("4xH100-80GB"), SHAPE), field) == expected


def test_one_api_server_before_there_was_one_per_replica() -> None:
    config = Config.of({"data-parallel-size": 4})
    node = parse_node_name("4xH100-80GB")
    assert resolve(config, node, SHAPE, "0.10.2").api_server_count == 1
    assert resolve(config, node, SHAPE, "0.25.1").api_server_count == 4  # recorded


def test_blackwell_captures_larger_graphs() -> None:
    node = parse_node_name("1xB200-180GB")
    assert resolve(Config.of({}), node, SHAPE, "0.32.0").max_cudagraph_capture_size == 1024
    assert resolve(Config.of({}), node, SHAPE, "0.31.0").max_cudagraph_capture_size == 512


def test_auto_means_what_the_checkpoint_says() -> None:
    shape = replace(SHAPE, quantization="compressed-tensors", kv_cache_dtype="fp8")
    node = parse_node_name("1xH100-80GB")
    settings = resolve(Config.of({}), node, shape)
    assert (settings.quantization, settings.kv_cache_dtype) == ("compressed-tensors", "fp8")
    assert resolve(Config.of({"kv-cache-dtype": "auto"}), node, shape).kv_cache_dtype == "fp8"
    assert resolve(Config.of({"kv-cache-dtype": "bfloat16"}), node, shape).kv_cache_dtype == "bfloat16"


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("api-server-count", 0),
        ("stream-interval", 0),
        ("max-cudagraph-capture-size", 0),
        ("performance-mode", "fast"),
        ("performance-mode", 3),
        ("async-scheduling", "on"),
        ("enable-expert-parallel", 1),
        ("speculative-config", "ngram"),
        ("speculative-config", 4),
        ("speculative-config", "[4]"),
        ("speculative-config", "[" * 100_000),
        ("speculative-config", '{"method": "ngram"}'),
        ("speculative-config", '{"method": "ngram", "num_speculative_tokens": true}'),
        ("speculative-config", '{"method": "ngram", "num_speculative_tokens": 99999}'),
    ],
)
def test_more_values_of_the_wrong_type_are_named(flag: str, value: Value) -> None:
    with pytest.raises(InvalidOption, match=f"--{flag}"):
        resolve(Config.of({flag: value}), parse_node_name("1xH100-80GB"), SHAPE)
