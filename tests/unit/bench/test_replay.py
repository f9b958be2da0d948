"""Replays on a surface made by hand: what is counted, when it ends, what the contenders do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest

from autotune.bench.chance import launches_by_chance
from autotune.bench.contenders import Known, SamplerName, available, make_contender
from autotune.bench.ours import Reversed, best_of
from autotune.bench.replay import Replay, replay
from autotune.bench.summary import Study, by_sampler, compare, pooled
from autotune.bench.surfaces import Noise, Surface, SurfaceKind
from autotune.bench.truth import compile_keys
from autotune.records import Config, FailureClass, Trial
from autotune.search.prior.expectation import Expectation, Observation, Prior
from autotune.search.space import Parameter, SearchSpace

SPACE = SearchSpace(
    name="hand",
    parameters=(
        Parameter(name="gpu-memory-utilization", choices=(0.9, 0.92, 0.94)),
        Parameter(name="max-num-seqs", choices=(32, 64, 128, 256)),
        Parameter(name="max-num-batched-tokens", choices=(2048, 4096, 8192)),
        Parameter(name="kv-cache-dtype", choices=("auto", "fp8")),
    ),
)
BASELINE = Config.of(
    {
        "gpu-memory-utilization": 0.9,
        "max-num-seqs": 64,
        "max-num-batched-tokens": 2048,
        "kv-cache-dtype": "auto",
    }
)


def by_hand() -> Surface:
    """More sequences: throughput; more tokens: TTFT; fp8 helps both; the largest share of memory never starts."""
    configs = tuple(SPACE)
    seqs = np.array([float(str(one.get("max-num-seqs"))) for one in configs])
    tokens = np.array([float(str(one.get("max-num-batched-tokens"))) for one in configs])
    fp8 = np.array([one.get("kv-cache-dtype") == "fp8" for one in configs])
    failing = np.array([one.get("gpu-memory-utilization") == 0.94 for one in configs])
    count = len(configs)
    return Surface(
        name="hand",
        kind=SurfaceKind.SIMULATED,
        space=SPACE,
        configs=configs,
        baseline=configs.index(BASELINE),
        gpus=np.ones(count, dtype=np.int64),
        log_throughput=0.5 * np.log(seqs) + 0.1 * fp8,
        log_ttft=0.2 * np.log(seqs) - 0.5 * np.log(tokens) - 0.2 * fp8,
        feasible=~failing,
        failures=(FailureClass.OOM_AT_WARMUP,) * count,
        missing_bytes=np.where(failing, 1e9, 0.0),
        kv_tokens=np.full(count, 1e5),
        cold_s=np.full(count, 120.0),
        warm_s=np.full(count, 60.0),
        measuring_s=np.where(failing, 0.0, 30.0),
        compiled=compile_keys(configs),
        noise=Noise(throughput_sd=0.0, ttft_sd=0.0),
    )


SURFACE = by_hand()
KNOWN = Known(space=SPACE, configs=SURFACE.configs, baseline=BASELINE, recipes=(), budget=150)


class Listed:
    def __init__(self, *indices: int) -> None:
        self.indices = list(indices)
        self.seen: list[Trial] = []

    def propose(self, history: Sequence[Trial]) -> Config | None:
        self.seen = list(history)
        return SURFACE.configs[self.indices.pop(0)] if self.indices else None


def at(**changes: float | str) -> int:
    names = {name.replace("_", "-"): value for name, value in changes.items()}
    return SURFACE.index[Config.of({**BASELINE.as_dict(), **names})]


def test_a_replay_counts_the_baseline_failures_and_minutes() -> None:
    other = at(gpu_memory_utilization=0.92)
    contender = Listed(at(gpu_memory_utilization=0.94), other, at(max_num_seqs=256))

    found = replay(SURFACE, contender, 0)

    assert found.gave_up
    assert found.infeasible == (False, True, False, False)
    # Cold start and both levels; a failed start, warm because the share compiles nothing; warm; compiled anew.
    assert found.minutes == pytest.approx((2.5, 3.5, 5.0, 7.5))
    assert found.gap[:3] == (0.0, 0.0, 0.0)
    # Front so far: the baseline at (ln 2, ln 4) from the reference, and one at (ln 4, ln 4 - 0.2 ln 4).
    best, alone = SURFACE.volumes[1], math.log(2) * math.log(4)
    more = math.log(2) * 0.8 * math.log(4)
    assert found.gap[3] == pytest.approx(more / (best - alone))


def test_the_contender_sees_trials_as_a_study_stores_them() -> None:
    contender = Listed(at(gpu_memory_utilization=0.94), at(max_num_seqs=256), at(max_num_seqs=128))
    replay(SURFACE, contender, 0)
    baseline, failed, measured = contender.seen[:3]

    assert baseline.config == BASELINE
    assert measured.objectives is not None
    assert measured.objectives[0].value == pytest.approx(16.0)
    assert failed.objectives is None
    assert failed.result is not None
    assert failed.result.failure is not None
    assert failed.result.failure.kind is FailureClass.OOM_AT_WARMUP
    assert failed.result.failure.facts == (("tried_bytes", 1_000_000_000),)


def test_it_ends_when_nothing_is_left_to_gain() -> None:
    best = [at(kv_cache_dtype="fp8", max_num_batched_tokens=8192, max_num_seqs=seqs) for seqs in (256, 128, 64, 32)]
    found = replay(SURFACE, Listed(*best, at(max_num_seqs=32)), 0)

    assert not found.gave_up
    assert found.gap[-1] >= 0.99
    assert found.launches_to(0.99) == len(found.gap) <= 5
    assert found.gap_at(40) == found.gap[-1]


def test_it_ends_after_the_last_launch() -> None:
    assert len(replay(SURFACE, Listed(*range(10, 40)), 0, most=7).gap) == 7


@pytest.mark.parametrize("indices", [(at(),), (at(max_num_seqs=32), at(max_num_seqs=32))])
def test_a_config_is_launched_once(indices: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="launched before"):
        replay(SURFACE, Listed(*indices), 0)


def test_noise_is_that_of_the_seed_and_the_config() -> None:
    from dataclasses import replace

    noisy = replace(SURFACE, noise=Noise(throughput_sd=0.1, ttft_sd=0.1))
    one, other, third = Listed(0, 1, 2), Listed(2, 0, 1), Listed(0, 1)
    replay(noisy, one, 3)
    replay(noisy, other, 3)
    replay(noisy, third, 4)
    shown = [{trial.config: trial.objectives for trial in each.seen} for each in (one, other, third)]

    assert len(shown[0]) == 4
    assert shown[0] == shown[1]
    assert shown[0][BASELINE] != shown[2][BASELINE]


@pytest.mark.parametrize("name", available())
def test_every_contender_is_deterministic_and_keeps_the_rules(name: SamplerName) -> None:
    runs = [replay(SURFACE, make_contender(name, KNOWN, 4), 4, most=18) for _ in range(2)]

    assert runs[0] == runs[1]
    assert all(later >= earlier for earlier, later in pairwise(runs[0].gap))


@pytest.mark.parametrize("name", [one for one in available() if one is not SamplerName.AUTO_TUNE])
def test_every_contender_goes_on_to_the_last_config(name: SamplerName) -> None:
    few = SURFACE.configs[:6]
    known = Known(space=SPACE, configs=(*few, BASELINE), baseline=BASELINE, recipes=(), budget=150)
    contender = make_contender(name, known, 1)
    history: list[Trial] = []
    from autotune.bench.launches import trial_of
    from autotune.records import Origin

    config: Config | None = BASELINE
    while config is not None:
        launch = SURFACE.launch(SURFACE.index[config], False, np.random.default_rng(0))
        history.append(trial_of(launch, len(history), config, 1, Origin.SAMPLER))
        config = contender.propose(tuple(history))

    assert {trial.config for trial in history} == {*few, BASELINE}


def test_auto_tune_loops_as_the_script_does() -> None:
    contender = make_contender(SamplerName.AUTO_TUNE, KNOWN, 0)
    history: list[Config] = []

    class Watch:
        def propose(self, trials: Sequence[Trial]) -> Config | None:
            found = contender.propose(trials)
            if found is not None:
                history.append(found)
            return found

    found = replay(SURFACE, Watch(), 0)
    values = [
        (one.get("gpu-memory-utilization"), one.get("max-num-seqs"), one.get("max-num-batched-tokens"))
        for one in history
    ]

    # 0.94 does not start, 0.92 does, both with the largest batch; then the loops, what was launched left out.
    assert values[:5] == [(0.94, 256, 8192), (0.92, 256, 8192), (0.92, 32, 2048), (0.92, 32, 4096), (0.92, 32, 8192)]
    assert len(values) == 1 + 12
    assert all(one.get("kv-cache-dtype") == "auto" for one in history)
    assert found.gave_up


def test_a_reversed_prior_is_as_wrong_as_can_be() -> None:
    class Believed:
        def expect(self, configs: Sequence[Config]) -> Expectation:
            at = [SURFACE.index[config] for config in configs]
            ones = np.ones(len(at))
            return Expectation(
                log_throughput=SURFACE.log_throughput[at], log_ttft=SURFACE.log_ttft[at], feasible=ones, minutes=ones
            )

        def refine(self, configs: Sequence[Config]) -> Expectation:
            return self.expect(configs)

        def refit(self, observations: Sequence[Observation]) -> Prior:
            return self

    plain = Believed().expect(SURFACE.configs)
    wrong = Reversed(inner=Believed())

    for one in (wrong.expect(SURFACE.configs), wrong.refine(SURFACE.configs)):
        assert np.corrcoef(one.log_throughput, plain.log_throughput)[0, 1] == pytest.approx(-1.0)
        assert np.corrcoef(one.log_ttft, plain.log_ttft)[0, 1] == pytest.approx(-1.0)
    assert wrong.refit(()) is wrong
    assert best_of(Believed(), SURFACE.configs, 1)[0].get("max-num-batched-tokens") == 8192


def study(sampler: str, gap: tuple[float, ...], surface: str = "s", *, gave_up: bool = False, seed: int = 0) -> Study:
    done = Replay(
        gap=gap,
        infeasible=tuple(index % 2 == 1 for index in range(len(gap))),
        minutes=tuple(2.0 * (index + 1) for index in range(len(gap))),
        gave_up=gave_up,
    )
    kind = SurfaceKind.RECORDED if surface == "r" else SurfaceKind.SIMULATED
    return Study(surface=surface, kind=kind, sampler=sampler, seed=seed, replay=done)


def test_figures_of_a_sampler() -> None:
    studies = [
        study("a", (0.0, 0.92, 1.0)),
        study("a", (0.0, 1.0), seed=1),
        study("a", (0.0, 0.0, 0.5), gave_up=True, seed=2),
        study("a", (*(0.0,) * 149, 0.94), seed=3),
    ]
    found = by_sampler(studies)["a"]

    assert found.studies == 4
    assert [(one.q1, one.median, one.q3, one.censored_share) for one in found.to] == [
        (2, 2, 150, 0.25),
        (2, 3, None, 0.5),
        (2, 3, None, 0.5),
    ]
    assert found.to[1].mean == pytest.approx((3 + 2 + 150 + 150) / 4)
    assert found.minutes == (4, 6, 6)
    assert found.gap_closed_at_20 == pytest.approx((1.0 + 1.0 + 0.5 + 0.0) / 4)
    assert found.infeasible_share == pytest.approx((1 + 1 + 1 + 75) / (3 + 2 + 3 + 150))


def test_recorded_surfaces_are_not_pooled_with_simulated_ones() -> None:
    studies = [study("a", (0.0, 1.0), "r"), study("a", (0.0, 0.5, 1.0))]

    assert pooled(studies)["a"].to[0].median == 3
    assert pooled(studies[:1])["a"].to[0].median == 2


def test_samplers_are_compared_on_the_studies_that_both_have() -> None:
    ours = [study("prior", (0.0, 1.0), seed=seed) for seed in range(4)]
    theirs = [study("gp", (*(0.0,) * 9, 1.0), seed=seed) for seed in range(2)]
    found = compare([*ours, *theirs], "prior")

    assert [one.against for one in found] == ["gp"]
    assert found[0].medians.value == pytest.approx(0.2)
    # Two studies each, all of ours first: chi-squared 3 at most with so few.
    assert found[0].p is not None
    assert found[0].p < 0.15


def test_chance_without_the_limit_is_what_a_replay_of_that_order_needs() -> None:
    for seed in range(4):
        order = [int(at) for at in np.random.default_rng(seed).permutation(len(SURFACE.configs))]
        order.remove(SURFACE.baseline)
        found = replay(SURFACE, Listed(*order), seed)
        assert launches_by_chance(SURFACE, 0.95, seed) == found.launches_to(0.95)
