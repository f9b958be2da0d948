"""Proposals: deterministic, feasible, quick to find a front, robust against a prior that is wrong."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import search_samples as samples
from prior_surfaces import BASELINE, SPACE, InventedPrior, invented, replay

from autotune.records import (
    Config,
    Estimate,
    Failure,
    FailureClass,
    Goodput,
    GoodputEnd,
    Origin,
    Outcome,
    Slo,
)
from autotune.search.parameter import Parameter
from autotune.search.prior.bend import Bend
from autotune.search.prior.candidates import MOST, Candidates
from autotune.search.prior.evidence import observations
from autotune.search.prior.expectation import Reason
from autotune.search.prior.propose import _within, propose
from autotune.search.space import SearchSpace

BASE = Config.of(BASELINE)
PRIOR = InventedPrior()


@pytest.fixture(scope="module")
def listed():
    return {False: Candidates.of(SPACE, PRIOR), True: Candidates.of(SPACE, None)}


def proposed(history, candidates, prior=PRIOR, seed=0, **options):
    rng = np.random.default_rng([seed, len(history)])
    return propose(history, SPACE, prior, rng, candidates=candidates, **options)


def chooser(listed, prior, seed):
    return lambda history: proposed(history, listed[prior is None], prior, seed).config


@pytest.mark.no_cover
def test_the_prior_needs_a_third_of_what_random_needs(listed):
    launches = [replay(invented(seed), chooser(listed, PRIOR, 0), 0, 50)[0] for seed in (0, 3)]
    rng = np.random.default_rng(0)
    by_chance = []
    for seed in (0, 3):
        surface = invented(seed)
        order = iter(rng.permutation(len(surface.configs)))
        by_chance.append(replay(surface, lambda _, o=order, s=surface: s.configs[next(o)], 0, 180)[0])
    assert sum(launches) <= sum(by_chance) / 3


def test_a_reversed_prior_is_dropped_and_said_so(listed):
    surface, prior = invented(1), InventedPrior(upside_down=True)
    history = [surface.measure(0, BASE, 0)]
    candidates = Candidates.of(SPACE, prior)
    said = []
    for number in range(1, 12):
        found = proposed(history, candidates, prior)
        said.append("is not used" in found.why)
        history.append(surface.measure(number, found.config, 0))
    assert said[-1]
    assert any(said[:8])


def test_a_prior_that_holds_is_kept(listed):
    surface = invented(1, misfit=(0.1, 0.2))
    history = [surface.measure(0, BASE, 0)]
    for number in range(1, 10):
        found = proposed(history, listed[False])
        assert "is not used" not in found.why
        history.append(surface.measure(number, found.config, 0))


@pytest.mark.no_cover
def test_equal_history_and_seed_give_the_same(listed):
    surface = invented(2)
    history = [surface.measure(0, BASE, 0)]
    for number in range(1, 6):
        found = proposed(history, listed[False])
        assert propose(history, SPACE, PRIOR, np.random.default_rng([0, len(history)])) == found
        history.append(surface.measure(number, found.config, 0))


def test_running_trials_send_the_next_one_elsewhere(listed):
    history = [invented(0).measure(0, BASE, 0)]
    batch = []
    for number in range(1, 5):
        found = proposed(history, listed[False])
        batch.append(found.config)
        history.append(samples.trial(number, None, found.config))
    assert len(set(batch)) == 4


@pytest.mark.no_cover
def test_failures_are_learnt(listed):
    """fp8 fails whatever stands beside it: after a few failures it is left alone."""
    surface = invented(0)
    history = [surface.measure(0, BASE, 0)]
    for number in range(1, 25):
        found = proposed(history, listed[False])
        bad = found.config.get("kv-cache-dtype") == "fp8"
        history.append(
            samples.failed(number, Outcome.INFEASIBLE, found.config)
            if bad
            else samples.measured(number, 900.0, 0.2, found.config)
        )
    late = [trial.config.get("kv-cache-dtype") for trial in history[-8:]]
    assert late.count("fp8") <= 1


def test_without_a_prior_it_first_spreads_and_then_weighs(listed):
    surface = invented(0, failing=0.0)
    history = [surface.measure(0, BASE, 0)]
    reasons = []
    for number in range(1, 7):
        found = proposed(history, listed[True], None)
        reasons.append(found.reason)
        history.append(surface.measure(number, found.config, 0))
    assert reasons[:3] == [Reason.COVER] * 3
    assert Reason.COVER not in reasons[3:]


def test_a_reason_in_one_line(listed):
    found = proposed([invented(0).measure(0, BASE, 0)], listed[False])
    assert found.reason in (Reason.PRIOR, Reason.EXPLORATION)
    assert "tok/s/GPU" in found.why
    assert "minutes" in found.why
    assert "\n" not in found.why


def test_the_reason_of_a_goodput_study_calls_it_goodput(listed):
    plain = invented(0).measure(0, BASE, 0)
    rate = Estimate(value=8.0, low=7.8, high=8.2)
    goodput = Goodput(
        slo=Slo.of(ttft_p95=0.5),
        end=GoodputEnd.NARROW,
        rate_rps=rate,
        output_tok_s=Estimate(value=1000.0),
        levels=4,
        seconds=80.0,
    )
    searched = replace(plain, result=replace(plain.result, goodput=goodput))
    assert " tok/s/GPU of goodput (give or take" in proposed([searched], listed[False]).why
    assert "goodput" not in proposed([plain], listed[False]).why


def test_what_the_rules_refuse_and_what_was_tried_is_not_proposed(listed):
    history = [invented(0).measure(0, BASE, 0)]
    only = [config for config in SPACE if config.get("max-num-seqs") == 64][:3]
    for number in range(1, 4):
        found = proposed(history, listed[False], is_allowed=lambda config: config in only)
        assert found.config in only
        history.append(samples.failed(number, Outcome.FAULTED, found.config))
    assert proposed(history, listed[False], is_allowed=lambda config: config in only) is None


def test_a_baseline_without_its_parameters_teaches_once_completed(listed):
    bare = samples.measured(0, 1000.0, 0.2, Config.of({}))
    full = samples.measured(0, 1000.0, 0.2, BASE)
    told = proposed([bare], listed[False], complete=lambda config: Config.of({**BASELINE, **config.as_dict()}))
    assert told.config == proposed([full], listed[False]).config
    assert told.config != BASE


def test_a_minute_of_many_gpus_costs_more_than_one_of_few(listed):
    history = [invented(0).measure(0, BASE, 0)]
    plain = proposed(history, listed[False])
    sizes = np.array([float(config.get("tensor-parallel-size")) for config in listed[False].configs])
    assert proposed(history, listed[False], gpus=np.ones(len(sizes))) == plain
    for free in (1.0, 2.0, 4.0):
        found = proposed(history, listed[False], gpus=np.where(sizes == free, 1.0, 1e6))
        assert found.config.get("tensor-parallel-size") == free


def with_errors(trial, failed):
    """The trial with that many of 100 requests failed."""
    levels = tuple(replace(one, completed=100 - failed, failed=failed) for one in trial.result.measurements)
    return replace(trial, result=replace(trial.result, measurements=levels))


def test_a_limit_that_all_keep_changes_nothing(listed):
    history = [invented(0).measure(0, BASE, 0)]
    assert proposed(history, listed[False], limits=Slo.of(ttft_p95=1e6)) == proposed(history, listed[False])


def test_how_probably_a_limit_of_ttft_is_kept_by_hand(listed):
    """Half of the limit and twice the limit, both give or take ln 2: one standard deviation on either side."""
    means, sds = np.log([0.1, 0.4]), np.full(2, math.log(2))
    found, worst = _within(listed[False], np.arange(2), None, [], (means, sds), Bend(), math.log(0.2))
    assert found == pytest.approx([0.841345, 0.158655], abs=1e-5)
    assert worst == pytest.approx(math.log(0.2))


def test_other_limits_are_learnt_from_who_kept_them(listed):
    """More than 64 sequences break the limit of the errors, whatever stands beside them."""
    kept = Slo.of(error_rate=0.01)
    history = [with_errors(samples.measured(0, 1000.0, 0.2, BASE), 10)]
    for number in range(1, 20):
        found = proposed(history, listed[False], limits=kept)
        failed = 10 if found.config.get("max-num-seqs") > 64 else 0
        history.append(with_errors(samples.measured(number, 1000.0, 0.2, found.config), failed))
    assert sum(trial.config.get("max-num-seqs") <= 64 for trial in history[-8:]) >= 6


def test_repeats_are_one_observation_with_less_noise():
    once = [samples.measured(0, (90.0, 100.0, 110.0), 0.2, BASE)]
    twice = [*once, samples.measured(1, (90.0, 100.0, 110.0), 0.2, BASE)]
    (one,), (two,) = observations(once), observations(twice)
    assert one.logs == pytest.approx(two.logs)
    assert two.sds[0] < one.sds[0]
    assert twice[1].origin is Origin.SAMPLER


def test_no_flag_is_to_blame_where_a_config_that_started_missed_the_limit():
    failed = samples.failed(0, Outcome.INFEASIBLE, BASE)
    missed = replace(failed.result, failure=Failure(kind=FailureClass.SLO_MISSED, line=None))
    refused = replace(failed.result, failure=Failure(kind=FailureClass.INVALID_COMBINATION, line=None))
    kinds = [observations([replace(failed, result=result)])[0] for result in (failed.result, missed, refused)]
    assert [one.short_of_memory for one in kinds] == [True, None, False]
    assert not any(one.feasible for one in kinds)


def test_the_largest_case_is_proposed_for():
    """Two hundred trials and as many configs as are listed; `python -m benchmarks.sampler` times it."""
    space = SearchSpace(
        name="large", parameters=(*SPACE.parameters, Parameter(name="block-size", choices=(8, 16, 32, 64)))
    )
    prior = InventedPrior()
    candidates = Candidates.of(space, prior)
    assert len(candidates.configs) == MOST
    rng = np.random.default_rng(0)
    history = [
        samples.measured(number, 1000.0 * rng.uniform(0.5, 2), 0.2 * rng.uniform(0.5, 2), candidates.configs[place])
        if number % 5
        else samples.failed(number, Outcome.INFEASIBLE, candidates.configs[place])
        for number, place in enumerate(rng.choice(MOST, 200, replace=False))
    ]
    found = propose(history, space, prior, np.random.default_rng(0), candidates=candidates)
    assert found is not None
    assert found.config in candidates.places
    assert found.config not in {trial.config for trial in history}
