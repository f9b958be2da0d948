"""The compiled core answers as the plain twin does, to the last bit, in everything a level can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace

import numpy as np
import pytest
from model_shapes import deepseek_v3, mixtral

from autotune.load.arrivals import open_level
from autotune.load.early_end import Bar, Bars, LevelLooks
from autotune.load.requests import plan_requests
from autotune.load.workloads import load_workload
from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import (
    ArrivalProcess,
    Arrivals,
    Config,
    LevelRole,
    LoadLevel,
    ModelShape,
    PlannedRequest,
    SharedSpan,
    Value,
)
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.core import Core
from autotune.simulator.engine_model import SimulatedLevel, Simulation
from autotune.simulator.level_times import LevelFigures
from autotune.simulator.many import Server, simulate_many

pytest.importorskip("numba", reason="there is no numba for this Python yet")

SMALL = load_shape("meta-llama/Llama-3.1-8B-Instruct")
Level = tuple[LoadLevel, tuple[PlannedRequest, ...]]


@dataclass(frozen=True, kw_only=True)
class Case:
    params: Mapping[str, Value] = field(default_factory=dict)
    node: str = "1xH200-141GB"
    shape: ModelShape = SMALL
    kv_tokens: int = 400_000
    coefficients: Coefficients = field(default_factory=Coefficients)
    seed: int = 3

    def simulation(self, core: Core) -> Simulation:
        node = parse_node_name(self.node)
        values: dict[str, Value] = {"max-model-len": 8192, **self.params}
        settings = resolve(Config.of(values), node, self.shape)
        return Simulation(node, self.shape, settings, self.kv_tokens, self.coefficients, self.seed, core=core)


def requests(count: int, seed: int, *, conversations: bool = False) -> tuple[PlannedRequest, ...]:
    """Prompts of 1 to 900 tokens, answers of 1 to 120, some with shared beginnings, some the same as others."""
    rng = np.random.default_rng(seed)
    made = []
    for i in range(count):
        spans = tuple(
            SharedSpan(content=int(rng.integers(3)) - 2, tokens=int(rng.integers(0, 200)))
            for _ in range(int(rng.integers(0, 4)))
        )
        own = int(rng.integers(1, 300))
        made.append(
            PlannedRequest(
                index=i + 7,
                prompt_tokens=own + sum(span.tokens for span in spans),
                output_tokens=int(rng.integers(1, 120)),
                content_seed=int(rng.integers(count)),
                shared=spans,
                after=i + 7 - int(rng.integers(1, 6)) if conversations and i > 6 and rng.random() < 0.5 else None,
            )
        )
    return tuple(made)


def closed(count: int = 150, concurrency: int = 40, seed: int = 1, *, conversations: bool = False) -> Level:
    level = LoadLevel(
        name="c", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=count, seed=seed, concurrency=concurrency
    )
    return level, requests(count, seed, conversations=conversations)


def open_loop(count: int = 150, rate_rps: float = 30.0, seed: int = 2, *, conversations: bool = False) -> Level:
    due = np.random.default_rng(seed).exponential(1 / rate_rps, count).cumsum()
    level = LoadLevel(
        name="o", role=LevelRole.EXTRA, arrivals=Arrivals.POISSON, requests=count, seed=seed, rate_rps=rate_rps
    )
    planned = requests(count, seed, conversations=conversations)
    return level, tuple(replace(r, scheduled_s=float(at)) for r, at in zip(planned, due, strict=True))


def both(case: Case, levels: Sequence[Level]) -> list[SimulatedLevel]:
    """Run the levels of one launch on both cores; what they agreed on."""
    twin, core = case.simulation(Core.PYTHON), case.simulation(Core.COMPILED)
    agreed = []
    for level in levels:
        expected, got = twin.run(*level), core.run(*level)
        assert got.records == expected.records
        assert got == expected
        agreed.append(got)
    return agreed


TP = {"tensor-parallel-size": 2}
CASES = {
    "defaults": Case(),
    "small steps": Case(params={"max-num-batched-tokens": 128, "max-num-seqs": 16}),
    "few seats": Case(params={"max-num-seqs": 3}),
    "no chunks": Case(params={"enable-chunked-prefill": False, "max-num-batched-tokens": 8192}),
    "no prefix cache": Case(params={"enable-prefix-caching": False}),
    "tight memory": Case(kv_tokens=3_000),
    "tight memory, no prefix cache": Case(kv_tokens=3_000, params={"enable-prefix-caching": False}),
    "tight memory, small steps": Case(kv_tokens=3_200, params={"max-num-batched-tokens": 64, "max-num-seqs": 32}),
    "large blocks": Case(params={"block-size": 64}, kv_tokens=9_000),
    "eager": Case(params={"enforce-eager": True}),
    "fp8 cache": Case(params={"kv-cache-dtype": "fp8"}),
    "fine graphs": Case(params={"performance-mode": "interactivity"}),
    "planned between steps": Case(params={"async-scheduling": False}),
    "drafts": Case(
        params={"speculative-config": '{"method": "ngram", "num_speculative_tokens": 3}'},
        coefficients=Coefficients(draft_acceptance=0.4),
    ),
    "stream interval": Case(params={"stream-interval": 5}),
    "API servers": Case(params={"api-server-count": 3, "stream-interval": 3}),
    "a slow API server": Case(coefficients=Coefficients(api_token_s=1e-3, api_out_latency_s=0.2)),
    "turns of the API server": Case(coefficients=Coefficients(api_turns=4)),
    "TP": Case(params=TP, node="2xH200-141GB"),
    "PP": Case(params={"pipeline-parallel-size": 2}, node="2xH200-141GB"),
    "PP, tight memory": Case(params={"pipeline-parallel-size": 4}, node="4xH200-141GB", kv_tokens=3_000),
    "DP": Case(params={"data-parallel-size": 4}, node="4xH200-141GB"),
    "DP of TP over PCIe": Case(params={**TP, "data-parallel-size": 2}, node="4xL40S-48GB"),
    "experts": Case(params={**TP}, node="2xH200-141GB", shape=mixtral()),
    "EP in lock-step": Case(
        params={"data-parallel-size": 4, "enable-expert-parallel": True}, node="4xH200-141GB", shape=mixtral()
    ),
    "EP in lock-step, tight memory": Case(
        params={"data-parallel-size": 4, "enable-expert-parallel": True},
        node="4xH200-141GB",
        shape=mixtral(),
        kv_tokens=3_000,
    ),
    "MLA": Case(params={"tensor-parallel-size": 8}, node="8xH200-141GB", shape=deepseek_v3()),
    "EP, DP and PP": Case(
        params={"data-parallel-size": 2, **TP, "pipeline-parallel-size": 2, "enable-expert-parallel": True},
        node="8xH200-141GB",
        shape=deepseek_v3(),
    ),
}


@pytest.mark.parametrize(
    "case",
    # The first one compiles, unless that is kept: a quarter of a minute, and half of one where it is traced.
    [pytest.param(case, marks=pytest.mark.no_cover if case == Case() else ()) for case in CASES.values()],
    ids=CASES.keys(),
)
def test_every_setting(case: Case) -> None:
    levels = (closed(), closed(conversations=True, seed=4), open_loop(), closed())
    agreed = both(case, levels)
    assert all(level.server.generation_tokens for level in agreed)
    if "tight" in next(name for name, c in CASES.items() if c is case):
        assert any(level.server.preemptions for level in agreed)  # else the case tests nothing


@pytest.mark.parametrize("name", [f.name for f in fields(Coefficients)])
def test_every_coefficient_counts_the_same(name: str) -> None:
    default = getattr(Coefficients(), name)
    other = replace(Coefficients(), **{name: default + 2 if isinstance(default, int) else default * 1.4 + 1e-6})
    case = Case(
        params={**TP, "data-parallel-size": 2, "enable-expert-parallel": True, "api-server-count": 2},
        node="4xH200-141GB",
        shape=mixtral(),
        coefficients=other,
    )
    both(case, (closed(60, 24),))


@pytest.mark.parametrize("seed", range(12))
def test_loads_by_chance(seed: int) -> None:
    rng = np.random.default_rng(seed)
    case = Case(
        params={
            "max-num-batched-tokens": int(rng.integers(40, 600)),
            "max-num-seqs": int(rng.integers(1, 40)),
            "data-parallel-size": int(rng.integers(1, 3)),
            "pipeline-parallel-size": int(rng.integers(1, 3)),
            "stream-interval": int(rng.integers(1, 4)),
        },
        node="4xH200-141GB",
        kv_tokens=int(rng.integers(1_200, 12_000)),
        seed=seed,
    )
    both(
        case,
        (
            closed(int(rng.integers(1, 80)), int(rng.integers(1, 90)), seed, conversations=True),
            open_loop(80, float(rng.uniform(5, 200)), seed, conversations=True),
        ),
    )


@pytest.mark.parametrize(("rate_rps", "deadline_s"), [(45.0, 100.0), (5.0, 100.0), (300.0, 100.0), (45.0, 3.0)])
def test_levels_that_grow(rate_rps: float, deadline_s: float) -> None:
    load = open_level(
        "ttft", LevelRole.TTFT, ArrivalProcess(), rate_rps=rate_rps, requests=100, seed=1, most_requests=400
    )
    planned = plan_requests(load_workload("chat"), load, trial_salt=1)
    twin, core = (Case(kv_tokens=900_000).simulation(c) for c in (Core.PYTHON, Core.COMPILED))
    got = core.run(load, planned, deadline_s=deadline_s)
    assert got == twin.run(load, planned, deadline_s=deadline_s)
    assert 100 <= len(got.records) < len(planned)
    assert len(core.figures(load, planned).ttft_s) == len(twin.figures(load, planned).ttft_s)


@pytest.mark.parametrize("deadline_s", [1e9, 3.0])
def test_levels_that_another_config_ends(deadline_s: float) -> None:
    """At 60 requests/s the queue grows: both cores stop at the same look, and send nothing after it."""
    load = open_level("ttft", LevelRole.TTFT, ArrivalProcess(), rate_rps=60.0, requests=200, seed=1, most_requests=400)
    planned = plan_requests(load_workload("chat"), load, trial_salt=1)
    bar = Bar(rival=1, ttft_s=0.01)
    found = []
    for core in (Core.PYTHON, Core.COMPILED):
        looks = LevelLooks(load, Bars(dominated=bar, saturated=bar))
        got = Case(kv_tokens=900_000).simulation(core).run(load, planned, deadline_s=deadline_s, looks=looks)
        assert looks.found is not None
        assert len(got.records) == looks.found.requests < 200
        found.append((got, looks.found))
    assert found[0] == found[1]


@pytest.mark.parametrize("deadline_s", [0.0, 0.05, 0.5, 1.5])
def test_deadlines_leave_the_same_behind(deadline_s: float) -> None:
    twin, core = (Case(kv_tokens=6_000).simulation(c) for c in (Core.PYTHON, Core.COMPILED))
    for level in (closed(), open_loop(), closed(seed=9)):
        assert core.run(*level, deadline_s=deadline_s) == twin.run(*level, deadline_s=deadline_s)
        assert core.run(*level) == twin.run(*level)


def test_staggered_starts_pauses_and_forgotten_caches() -> None:
    twin, core = (Case().simulation(c) for c in (Core.PYTHON, Core.COMPILED))
    assert core.run(*closed(), stagger_s=0.3) == twin.run(*closed(), stagger_s=0.3)
    assert core.run(*closed(), 60.0) == twin.run(*closed(), 60.0)
    for simulation in (twin, core):
        simulation.reset_prefix_cache()
    again = core.run(*closed())
    assert again == twin.run(*closed())


def test_requests_beyond_the_context_and_levels_of_nothing() -> None:
    level, planned = closed(20, 4, conversations=True)
    long = tuple(replace(r, prompt_tokens=9000) if i % 3 == 0 else r for i, r in enumerate(planned))
    (got,) = both(Case(), ((level, long),))
    assert {r.status for r in got.records} == {200, 400}
    both(Case(), ((level, ()),))


def test_what_one_refuses_the_other_refuses() -> None:
    level, planned = closed(3, 2)
    scheduled = open_loop(3)[0]
    for case, wrong, words in (
        (Case(), (replace(level, concurrency=None), planned), "without concurrency"),
        (Case(), (scheduled, planned), "no scheduled time"),
        (Case(), (level, (replace(planned[0], after=planned[1].index), *planned[1:])), "which is not planned before"),
        (Case(kv_tokens=64), (level, planned), "KV blocks, the pool has 4"),
        (Case(), (level, (replace(planned[0], prompt_tokens=0),)), "at least 1 prompt"),
    ):
        for core in (Core.PYTHON, Core.COMPILED):
            with pytest.raises(ValueError, match=words):
                case.simulation(core).run(*wrong)


def same(one: LevelFigures, other: LevelFigures) -> bool:
    names = ("ttft_s", "tpot_s", "e2e_s", "completed", "output_tokens")
    return (
        all(np.array_equal(getattr(one, n), getattr(other, n), equal_nan=n.endswith("_s")) for n in names)
        and one.server == other.server
        and one.duration_s == other.duration_s
    )


@pytest.mark.parametrize("deadline_s", [1.0, 100.0])
def test_figures_are_those_of_the_records(deadline_s: float) -> None:
    level, planned = closed()
    got = Case().simulation(Core.COMPILED).figures(level, planned, deadline_s=deadline_s)
    assert same(got, Case().simulation(Core.PYTHON).figures(level, planned, deadline_s=deadline_s))
    records = Case().simulation(Core.PYTHON).run(level, planned, deadline_s=deadline_s).records
    ended = [r for r in records if r.error is None]
    assert got.output_tokens.sum() == sum(r.output_tokens or 0 for r in ended)
    ttfts = [r.first_token_s - r.sent_s for r in records if r.first_token_s is not None and r.sent_s is not None]
    assert sorted(got.ttft_s[~np.isnan(got.ttft_s)]) == sorted(ttfts)
    tpots = [
        (r.last_token_s - r.first_token_s) / (r.output_tokens - 1)
        for r in ended
        if r.last_token_s is not None and r.first_token_s is not None and r.output_tokens and r.output_tokens > 1
    ]
    assert sorted(got.tpot_s[~np.isnan(got.tpot_s)]) == sorted(tpots)


@pytest.mark.parametrize("core", [Core.COMPILED, Core.PYTHON])
def test_many_servers_answer_as_each_alone(core: Core) -> None:
    node = parse_node_name("2xH200-141GB")
    params: tuple[Mapping[str, Value], ...] = ({}, {"max-num-seqs": 8}, {"enable-prefix-caching": False}, TP)
    servers = [
        Server(settings=resolve(Config.of({"max-model-len": 8192, **p}), node, SMALL), kv_tokens=100_000)
        for p in params
    ]
    level, planned = closed()
    got = list(simulate_many(node, SMALL, servers, level, planned, seed=5, core=core))
    for server, figures in zip(servers, got, strict=True):
        alone = Simulation(node, SMALL, server.settings, server.kv_tokens, seed=5, core=Core.PYTHON)
        assert same(figures, alone.figures(level, planned))
    assert len({figures.duration_s for figures in got}) == len(params)
