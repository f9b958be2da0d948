"""The prior of a known node: its ranks against the event simulator, its fit, its memory."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from autotune.load.ramp import plan_levels
from autotune.load.requests import plan_requests
from autotune.load.workloads import load_workload
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Config, LoadPlan
from autotune.search.parameter import Parameter
from autotune.search.prior.completing import completing
from autotune.search.prior.expectation import Observation
from autotune.search.prior.physical import PhysicalPrior
from autotune.search.rules_base import CHECKPOINT
from autotune.search.space import SearchSpace
from autotune.simulator.closed_form import Factors, Offered

NODE = parse_node_name("2xH100-80GB")
SHAPE = load_shape("meta-llama/Llama-3.1-8B-Instruct")
CHAT = load_workload("chat")
LOAD = LoadPlan(
    concurrency_per_gpu=48,
    rate_rps_per_gpu=20.0,
    throughput_requests_per_gpu=144,
    ttft_requests_per_gpu=120,
    warmup_requests_per_gpu=1,
)


def levels(gpus):
    _, throughput, ttft = plan_levels(LOAD, gpus, seed=1)
    return (throughput, plan_requests(CHAT, throughput, 0)), (ttft, plan_requests(CHAT, ttft, 0))


PRIOR = PhysicalPrior(
    node=NODE,
    shape=SHAPE,
    offered=Offered(
        prompt_tokens=CHAT.prompt_tokens.mean,
        output_tokens=CHAT.output_tokens.mean,
        concurrency=48,
        rate_rps=20.0,
        requests=120,
    ),
    vllm_version="0.25.1",
    levels=levels,
)
LAYOUTS = ({}, {"tensor-parallel-size": 2}, {"data-parallel-size": 2})
CONFIGS = [
    Config.of({**layout, "max-num-seqs": seqs, "enforce-eager": eager, "max-model-len": 4096})
    for layout in LAYOUTS
    for seqs in (4, 16, 64)
    for eager in (False, True)
]


def ranks(values):
    return np.argsort(np.argsort(values))


@pytest.mark.no_cover
def test_configs_are_ordered_as_by_the_event_simulator():
    quick, slow = PRIOR.expect(CONFIGS), PRIOR.refine(CONFIGS)
    for one, other in zip(quick.logs, slow.logs, strict=True):
        assert np.corrcoef(ranks(one), ranks(other))[0, 1] > 0.9
    # Throughput is meant to be near as well; overloaded TTFT depends on how long the run is.
    assert np.abs(quick.log_throughput - slow.log_throughput).mean() < 0.2


@pytest.mark.parametrize(
    "odd",
    [
        {"kv-cache-dtype": "nvfp4"},  # of a size that is not known
        {"max-num-seqs": "many"},
        {"tensor-parallel-size": 4},  # more than there are GPUs
        {"max-model-len": 64},  # no request is as short
    ],
)
def test_what_the_event_simulator_cannot_run_is_nothing_known(odd):
    slow = PRIOR.refine([Config.of(odd), CONFIGS[0]])
    for logs in slow.logs:
        assert np.isnan(logs[0])
        assert np.isfinite(logs[1])


def test_factors_are_found_again_from_a_few_trials():
    truth = replace(PRIOR, factors=Factors(compute=1.3, overhead=1.4))
    seen = [
        Observation(config=config, feasible=True, logs=(float(x), float(y)))
        for config, x, y in zip(CONFIGS, *truth.expect(CONFIGS).logs, strict=True)
    ]
    fitted = PRIOR.refit(seen[::3])
    before = np.abs(PRIOR.expect(CONFIGS).log_throughput - truth.expect(CONFIGS).log_throughput).mean()
    after = np.abs(fitted.expect(CONFIGS).log_throughput - truth.expect(CONFIGS).log_throughput).mean()
    assert after < 0.35 * before


def test_without_trials_nothing_is_fitted():
    assert PRIOR.refit([]) == PRIOR


def test_memory_decides_what_starts():
    large = load_shape("meta-llama/Llama-3.1-70B-Instruct")
    prior = replace(PRIOR, shape=large)
    chances = prior.expect([Config.of({}), Config.of({"tensor-parallel-size": 2}), Config.of({"max-num-seqs": "x"})])
    # 70B in 16 bit is 141 GB: too much for one GPU of 80 GB, and two of them leave next to nothing.
    assert chances.feasible[0] < 0.01
    assert chances.feasible[2] < 0.1
    assert PRIOR.expect([Config.of({})]).feasible[0] > 0.9


def test_logs_correct_the_memory_arithmetic():
    config = Config.of({"max-model-len": 4096})
    gib = 1024**3
    seen = [Observation(config=config, feasible=True, available_kv_bytes=30 * gib)]
    fitted = PRIOR.refit(seen)
    again = fitted.refit(seen)
    assert isinstance(fitted, PhysicalPrior)
    assert fitted.learnt_bytes == 1
    # 80 GB x 0.92 less 15 of weights leave about 55 GiB: the log says 25 less.
    assert -30 * gib < fitted.shift_bytes < -20 * gib
    assert again == fitted


def test_defaults_are_filled_in_where_the_space_asks_for_them():
    space = SearchSpace(
        name="s",
        parameters=(
            Parameter(name="max-num-seqs", choices=(64, 256)),
            Parameter(name="enforce-eager", choices=(True, False)),
            Parameter(name="dtype", choices=(None, "float16")),
        ),
    )
    complete = completing(space, NODE, SHAPE, "0.25.1")
    # vLLM 0.25 takes 1,024 sequences on a GPU of 80 GB; a space that leaves dtype to vLLM is not told one.
    assert complete(Config.of({})) == Config.of({"max-num-seqs": 1024, "enforce-eager": False})
    assert complete(Config.of({"max-num-seqs": 64})).get("max-num-seqs") == 64


def test_expectations_are_finite_for_every_layout_and_model():
    for name, model in (
        ("8xH100-80GB", "mistralai/Mixtral-8x7B-Instruct-v0.1"),
        ("4xL40S-48GB", "meta-llama/Llama-3.1-8B-Instruct"),
    ):
        prior = replace(PRIOR, node=parse_node_name(name), shape=load_shape(model))
        configs = [
            Config.of({"tensor-parallel-size": tp, "pipeline-parallel-size": pp, "data-parallel-size": dp, **more})
            for tp, pp, dp in ((1, 1, 1), (2, 1, 2), (1, 2, 1), (4, 1, 1))
            for more in (
                {},
                {"enable-expert-parallel": True} if "Mixtral" in model else {"enable-prefix-caching": False},
            )
        ]
        found = prior.expect(configs)
        assert all(np.isfinite(column).all() for column in (*found.logs, found.feasible, found.minutes))
        assert (found.log_throughput < math.log(1e6)).all()
        assert found.minutes == pytest.approx(found.minutes.clip(0.5, 60))


def test_the_clock_is_set_by_what_the_baseline_was_seen_to_do():
    """A node twice as slow: throughput halves and TTFT doubles, and half the load is still the same share of it."""
    config = Config.of({})
    quick = PRIOR.expect([config])
    capacity = math.exp(quick.log_throughput[0]) / CHAT.output_tokens.mean
    slow = replace(PRIOR, offered=replace(PRIOR.offered, rate_rps=10.0)).paced(config, capacity / 2)
    assert slow.pace == pytest.approx(2.0)
    found = slow.expect(CONFIGS)
    assert found.log_throughput == pytest.approx(PRIOR.expect(CONFIGS).log_throughput - math.log(2))
    assert found.log_ttft == pytest.approx(PRIOR.expect(CONFIGS).log_ttft + math.log(2))
    assert PRIOR.paced(config, capacity).pace == pytest.approx(1.0)
    assert PRIOR.paced(config, 1e9).pace == pytest.approx(1 / 4)
    assert PRIOR.paced(Config.of({"max-num-seqs": "x"}), capacity) is PRIOR


@pytest.mark.no_cover
def test_the_event_simulator_runs_by_the_same_clock():
    slow = replace(PRIOR, pace=2.0)
    half = replace(LOAD, rate_rps_per_gpu=10.0)

    def slow_levels(gpus):
        _, throughput, ttft = plan_levels(half, gpus, seed=1)
        return (throughput, plan_requests(CHAT, throughput, 0)), (ttft, plan_requests(CHAT, ttft, 0))

    slow = replace(slow, offered=replace(PRIOR.offered, rate_rps=10.0), levels=slow_levels)
    known, found = PRIOR.refine(CONFIGS[:2]), slow.refine(CONFIGS[:2])
    assert found.log_throughput == pytest.approx(known.log_throughput - math.log(2), abs=0.01)
    assert found.log_ttft == pytest.approx(known.log_ttft + math.log(2), abs=0.05)


def test_each_checkpoint_has_its_own_physics():
    """Configs of another checkpoint are expected as a study of it alone would expect them."""
    other = load_shape("meta-llama/Llama-3.1-70B-Instruct")
    wide = replace(PRIOR, shapes={"other": other}, node=parse_node_name("8xH100-80GB"))
    alone = replace(wide, shape=other, shapes={})
    plain = Config.of({"tensor-parallel-size": 4})
    named = Config.of({"tensor-parallel-size": 4, CHECKPOINT: "other"})
    both = wide.expect([plain, named])
    assert both.log_throughput == pytest.approx(
        [wide.expect([plain]).log_throughput[0], alone.expect([plain]).log_throughput[0]]
    )
    # Nine times the parameters: several times slower.
    assert both.log_throughput[0] - both.log_throughput[1] > math.log(3)
    assert both.log_ttft[1] > both.log_ttft[0]
