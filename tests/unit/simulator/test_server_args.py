"""Flags of the simulated server reach the settings it runs with."""

from __future__ import annotations

import pytest

from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.simulator.server_args import parse_args


def test_every_flag_that_the_simulation_knows_is_taken() -> None:
    words = [
        "serve",
        "m",
        "--enable-expert-parallel",
        "--api-server-count",
        "3",
        "--no-async-scheduling",
        "--stream-interval",
        "4",
        "--max-cudagraph-capture-size",
        "256",
        "--performance-mode",
        "interactivity",
        "--quantization",
        "fp8",
        "--numa-bind",
        "--distributed-executor-backend",
        "mp",
        "--all2all-backend",
        "naive",
    ]
    config = parse_args(words, {}).config
    settings = resolve(config, parse_node_name("1xH100-80GB"), load_shape("meta-llama/Llama-3.1-8B"))
    assert settings.expert_parallel
    assert (settings.api_server_count, settings.stream_interval, settings.max_cudagraph_capture_size) == (3, 4, 256)
    assert (settings.async_scheduling, settings.performance_mode, settings.quantization) == (
        False,
        "interactivity",
        "fp8",
    )


def test_speculation_is_taken_as_json() -> None:
    words = ["m", "--speculative-config", '{"method": "ngram", "num_speculative_tokens": 3}']
    config = parse_args(words, {}).config
    settings = resolve(config, parse_node_name("1xH100-80GB"), load_shape("meta-llama/Llama-3.1-8B"))
    assert (settings.speculative_tokens, settings.async_scheduling) == (3, False)


def test_a_mode_that_does_not_exist_is_refused_by_the_parser(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_args(["m", "--performance-mode", "fast"], {})
    assert "invalid choice: 'fast'" in capsys.readouterr().err
