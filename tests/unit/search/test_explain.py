"""Explanations of studies whose truth is known: what matters, what does nothing, what nobody tried, and how sure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import explained_studies as studies
import numpy as np
import prior_surfaces as invented
import pytest

from autotune.records import Config, Origin
from autotune.search.explain import Nothing, PriorUse, explain
from autotune.search.explain_changes import Change
from autotune.search.explain_effect import Basis, Standing
from autotune.search.explain_knobs import Weight
from autotune.search.explain_model import Question
from autotune.search.knob import LAYOUT, knobs
from autotune.search.parameter import Parameter
from autotune.search.prior.expectation import Expectation, Observation, Reason
from autotune.search.space import SearchSpace

CLEAR = (Standing.REAL, Standing.INFERRED, Standing.EXPECTED)


def true_ratios(change: Change) -> tuple[float, float]:
    base = studies.truth(Config.of(studies.BASELINE))
    there = studies.truth(Config.of({**studies.BASELINE, **dict(change.values)}))
    return math.exp(there[0] - base[0]), math.exp(there[1] - base[1])


def weight(found: tuple[Weight, ...], name: str) -> Weight:
    return next(one for one in found if one.knob.name == name)


@pytest.mark.parametrize("seed", range(4))
def test_the_knob_that_matters_comes_first_with_its_best_and_worst_value(seed: int) -> None:
    found = explain(studies.study(seed), studies.question())
    first = found.weights[0]
    assert first.knob.name == "max-num-seqs"
    assert first.shares[0] > 0.8  # by the table above: 0.19 of 0.21 of the variance
    assert weight(found.weights, "scheduling-policy").shares[0] < 0.05
    throughput, ttft = first.swings
    assert throughput is not None
    assert ttft is not None
    assert (dict(throughput.better), dict(throughput.worse)) == ({"max-num-seqs": 256}, {"max-num-seqs": 32})
    assert throughput.effect.low < math.exp(1.15) < throughput.effect.high
    assert throughput.effect.standing in CLEAR[:2]
    assert ttft.effect.ratio < 1.0  # the better value has the shorter TTFT


def test_what_nobody_launched_is_never_called_real() -> None:
    rng = np.random.default_rng(11)
    flags = ({}, {"max-num-seqs": 256}, {"max-num-seqs": 64, "kv-cache-dtype": "fp8"})
    servers = [*flags, *({**one, "max-num-batched-tokens": 8192} for one in flags)]
    trials = [
        studies.measured(number, Config.of({**studies.BASELINE, **one}), rng) for number, one in enumerate(servers)
    ]
    found = explain(trials, studies.question(Exact()))
    by = {change.values: change for change in found.changes}
    bases = {
        (("max-num-seqs", 256),): (Basis.MEASURED, {Standing.REAL}),  # trial 1, and nothing else of it differs
        (("max-num-batched-tokens", 8192),): (Basis.MEASURED, {Standing.REAL}),
        # Only ever launched together:
        (("kv-cache-dtype", "fp8"),): (Basis.INFERRED, {Standing.INFERRED, Standing.UNKNOWN}),
        (("max-num-seqs", 64),): (Basis.INFERRED, {Standing.INFERRED, Standing.UNKNOWN}),
        (("max-num-seqs", 32),): (Basis.EXPECTED, {Standing.EXPECTED, Standing.UNKNOWN}),
        (("scheduling-policy", "priority"),): (Basis.EXPECTED, {Standing.NOISE, Standing.UNKNOWN}),
    }
    for values, (basis, standings) in bases.items():
        effects = by[values].effects
        assert effects is not None
        assert {effect.basis for effect in effects} == {basis}, values
        assert effects[0].standing in standings, values
    swings = {one.knob.name: one.swings[0] for one in found.weights}
    seqs, policy = swings["max-num-seqs"], swings["scheduling-policy"]
    assert seqs is not None
    assert policy is not None
    assert dict(seqs.worse) == {"max-num-seqs": 64}  # not 32, which is worse and was never launched
    assert policy.effect.basis is Basis.EXPECTED
    assert "scheduling-policy" not in {one.knob for one in found.idle}


def test_intervals_of_single_changes_hold_the_truth() -> None:
    inside, told = [0, 0], 0
    for seed in range(12):
        for count in (10, 18):
            for change in explain(studies.study(seed, count), studies.question()).changes:
                assert change.effects is not None
                told += 1
                for objective, truth in enumerate(true_ratios(change)):
                    effect = change.effects[objective]
                    inside[objective] += effect.low <= truth <= effect.high
                    assert effect.standing is not Standing.NOISE or 0.75 < truth < 1.33
    assert told == 12 * 2 * 8  # 3 + 2 + 1 + 1 + 1 other values
    assert min(inside) / told > 0.93


def test_after_enough_trials_effects_are_told_from_noise() -> None:
    found = explain(studies.study(0, 80), studies.question())
    by = {tuple(change.values): change for change in found.changes}
    many, fp8 = by[("max-num-seqs", 32),], by[("kv-cache-dtype", "fp8"),]
    for change in (many, fp8):
        assert change.effects is not None
        assert change.effects[0].standing in CLEAR
    policy = by[("scheduling-policy", "priority"),]
    assert policy.effects is not None
    assert {effect.standing for effect in policy.effects} == {Standing.NOISE}


def test_what_resolves_to_the_same_server_is_told_and_its_launches_are_repeats() -> None:
    trials = studies.study(2, 16)
    twin = Config.of({**studies.BASELINE, "enable-chunked-prefill": True})
    trials = tuple(one for one in trials if one.config != twin)
    again = studies.measured(len(trials), twin, np.random.default_rng(1))
    found = explain([*trials, again], studies.question())
    idle = next(one for one in found.idle if one.knob == "enable-chunked-prefill")
    assert idle.how is Nothing.SAME_SERVER
    assert [dict(values)["enable-chunked-prefill"] for values in idle.values] == [None, True]
    assert (0, again.number) in found.merged
    change = next(one for one in found.changes if one.knob == "enable-chunked-prefill")
    assert change.same
    assert change.effects is not None
    assert [effect.ratio for effect in change.effects] == [1.0, 1.0]


def test_a_flag_that_was_launched_and_did_nothing_is_told_only_when_that_is_known() -> None:
    policy = "scheduling-policy"
    many = explain(studies.study(0, 48), studies.question())
    assert [one.how for one in many.idle if one.knob == policy] == [Nothing.MEASURED]
    for seed in range(3):
        few = explain(studies.study(seed, 4), studies.question())
        assert policy not in {one.knob for one in few.idle}
        never = explain(studies.study(seed, without={policy: "priority"}), studies.question())
        assert policy not in {one.knob for one in never.idle}  # nobody launched it


def test_what_was_never_tried_is_named_with_what_is_expected_there() -> None:
    trials = studies.study(3, 20, without={"max-num-seqs": 256})
    found = explain(trials, studies.question())
    region = next(one for one in found.regions if dict(one.values) == {"max-num-seqs": 256})
    assert region.configs == len(studies.question().configs) // 4
    assert region.failed == ()
    launched = {studies.same(one.config) for one in trials}
    assert len(found.untried) == 5
    assert len({studies.same(one.config) for one in found.untried}) == 5
    for one in found.untried:
        assert studies.same(one.config) not in launched
        assert all(studies.BASELINE[name] != value for name, value in one.changed)
        assert one.tok_s_per_gpu.low is not None
        assert one.tok_s_per_gpu.low < one.tok_s_per_gpu.value
    assert found.left == len(studies.question().configs) - len({one.config for one in trials})


def test_expectations_of_untried_configs_hold_the_truth() -> None:
    inside, told = 0, 0
    for seed in range(8):
        for one in explain(studies.study(seed, 16), studies.question()).untried:
            throughput, ttft = (math.exp(value) for value in studies.truth(one.config))
            for figure, truth in ((one.tok_s_per_gpu, throughput), (one.ttft_p95_s, ttft)):
                assert figure.low is not None
                assert figure.high is not None
                told += 1
                inside += figure.low <= truth <= figure.high
    assert told == 80
    assert inside / told > 0.93


def test_a_change_that_cannot_start_says_why_and_has_no_figures() -> None:
    found = explain(studies.study(1, without={"max-num-seqs": 256}), studies.question(refused={"max-num-seqs": 256}))
    change = next(one for one in found.changes if dict(one.values) == {"max-num-seqs": 256})
    assert change.effects is None
    assert change.refusal == "max-num-seqs=256 cannot start"
    assert not any(one.config.get("max-num-seqs") == 256 for one in found.untried)


def test_a_value_that_only_failed_is_told_with_its_trials() -> None:
    trials = studies.study(4, 12, without={"kv-cache-dtype": "fp8"})
    bad = studies.failing(12, Config.of({**studies.BASELINE, "kv-cache-dtype": "fp8"}))
    found = explain([*trials, bad], studies.question())
    change = next(one for one in found.changes if one.knob == "kv-cache-dtype")
    assert (change.trials, change.failure) == ((12,), "oom_at_load")
    region = next(one for one in found.regions if one.knob == "kv-cache-dtype")
    assert region.failed == (12,)
    assert region.best.feasible < 0.85


def test_every_trial_has_a_reason_and_a_line() -> None:
    trials = studies.study(0, 3)
    told = replace(trials[1], why="exploration: uncertain enough to beat the front")
    recipe = replace(trials[2], origin=Origin.ENQUEUED)
    again = replace(trials[0], number=3, origin=Origin.REPEAT, repeat_of=0, why="trial 0 again: to see noise")
    lines = explain([trials[0], told, recipe, again], studies.question()).lines
    reasons = [Reason.BASELINE, Reason.EXPLORATION, Reason.RECIPE, Reason.REPEAT]
    assert [one.reason for one in lines] == reasons
    assert lines[1].why == "uncertain enough to beat the front"
    assert lines[3].why == "trial 0 again: to see noise"
    assert all(one.why for one in lines)


class Exact:
    """A prior that knows everything, or its opposite."""

    def __init__(self, sign: float = 1.0) -> None:
        self.sign = sign

    def expect(self, configs: Sequence[Config]) -> Expectation:
        logs = np.array([studies.truth(config) for config in configs]).reshape(-1, 2)
        base = np.array(studies.truth(Config.of(studies.BASELINE)))
        throughput, ttft = (base + self.sign * (logs - base)).T
        n = len(configs)
        return Expectation(log_throughput=throughput, log_ttft=ttft, feasible=np.full(n, 0.9), minutes=np.full(n, 3.0))

    def refine(self, configs: Sequence[Config]) -> Expectation:
        return self.expect(configs)

    def refit(self, observations: Sequence[Observation]) -> Exact:
        return self


def test_a_prior_sharpens_what_few_trials_say_and_one_that_is_contradicted_is_told() -> None:
    trials = studies.study(0, 9)
    alone, sure = explain(trials, studies.question()), explain(trials, studies.question(Exact()))
    assert (alone.prior, sure.prior) == (PriorUse.NONE, PriorUse.USED)

    def width(change: Change) -> float:
        assert change.effects is not None
        return math.log(change.effects[0].high / change.effects[0].low)

    assert sum(map(width, sure.changes)) < 0.7 * sum(map(width, alone.changes))
    wrong = explain(studies.study(0, 24), studies.question(Exact(-1.0)))
    assert wrong.contradicted
    assert wrong.prior in (PriorUse.PARTLY, PriorUse.CONTRADICTED)


def test_before_anything_can_be_compared_only_reasons_are_told() -> None:
    for trials in ((), studies.study(0, 1)):
        found = explain(trials, studies.question())
        assert len(found.lines) == len(trials)
        assert (found.weights, found.changes, found.idle) == ((), (), ())
    failed = explain([studies.failing(0, Config.of(studies.BASELINE))], studies.question())
    assert (failed.launched, failed.measured, failed.changes) == (1, 0, ())


def test_layout_flags_are_one_knob() -> None:
    space = SearchSpace(
        name="layouts",
        parameters=(
            Parameter(name="tensor-parallel-size", choices=(1, 2)),
            Parameter(name="data-parallel-size", choices=(1, 2)),
            Parameter(name="max-num-seqs", choices=(64, 128)),
            Parameter(name="stream-interval", choices=(1, 4), when=(("max-num-seqs", (128,)),)),
        ),
    )
    found = {one.name: one for one in knobs(space)}
    assert set(found) == {LAYOUT, "max-num-seqs", "stream-interval"}
    assert [one.name for one in found[LAYOUT].parameters] == ["tensor-parallel-size", "data-parallel-size"]
    assert found["max-num-seqs"].dependent == {3}


@pytest.mark.no_cover
def test_a_node_with_cliffs_and_failures_is_explained_without_wrong_signs() -> None:
    wrong, real = 0, 0
    for seed in range(2):
        surface = invented.invented(seed)
        rng = np.random.default_rng([9, seed])
        base = Config.of(invented.BASELINE)
        drawn = [surface.configs[place] for place in rng.permutation(len(surface.configs))[:23]]
        trials = [surface.measure(number, config, seed) for number, config in enumerate([base, *drawn])]
        question = Question(space=invented.SPACE, configs=surface.configs, prior=invented.InventedPrior())
        for change in explain(trials, question).changes:
            place = surface.index[Config.of({**invented.BASELINE, **dict(change.values)})]
            for objective, truth in enumerate((surface.throughput, surface.ttft)):
                effect = change.effects[objective] if change.effects else None
                if effect is not None and effect.standing in CLEAR:
                    real += 1
                    wrong += (truth[place] - truth[surface.index[base]]) * math.log(effect.ratio) < 0
    assert real > 5
    assert wrong == 0


def test_a_flag_that_is_not_named_is_one_left_to_vllm() -> None:
    bare = Config.of({name: value for name, value in studies.BASELINE.items() if value is not None})
    trials = studies.study(6, 14)
    found = explain([replace(trials[0], config=bare), *trials[1:]], studies.question())
    turned = [dict(one.values) for one in found.changes if one.knob == "enable-chunked-prefill"]
    assert turned == [{"enable-chunked-prefill": True}]
    assert not any(("enable-chunked-prefill", None) in one.changed for one in found.untried)


def test_the_same_trials_give_the_same_explanation() -> None:
    assert explain(studies.study(7), studies.question()) == explain(studies.study(7), studies.question())
