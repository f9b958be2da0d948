"""How sure front and pick are: by hand where noise decides nothing, by simulated studies of known truth elsewhere."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from search_samples import failed, measured

from autotune.records import (
    Config,
    Estimate,
    Origin,
    Outcome,
    PickRule,
    Quality,
    QualityState,
    Slo,
    Trial,
)
from autotune.search import draws
from autotune.search.again import CONFIGS_AGAIN, lacking, next_again, seed_of
from autotune.search.pareto import front, pick
from autotune.search.shrinkage import Shrunken
from autotune.search.stability import CANDIDATE, CONFIDENCE, assess
from autotune.search.validation import ValidationState, validation

Truth = tuple[float, float]
THROUGHPUT_SD, TTFT_SD = 0.01, 0.10


def config(number: int) -> Config:
    return Config.of({"x": number})


def again(number: int, original: int, truth: Truth, *, fresh: bool = False) -> Trial:
    origin = Origin.VALIDATION if fresh else Origin.REPEAT
    return replace(measured(number, *truth, config(original)), origin=origin, repeat_of=original)


def noisy(truth: Truth, rng: random.Random) -> Truth:
    return truth[0] * math.exp(rng.gauss(0, THROUGHPUT_SD)), truth[1] * math.exp(rng.gauss(0, TTFT_SD))


def searched(truths: Sequence[Truth], rng: random.Random) -> list[Trial]:
    return [measured(number, *noisy(truth, rng)) for number, truth in enumerate(truths)]


def finished(truths: Sequence[Truth], rng: random.Random, repeats: int) -> list[Trial]:
    """A study with its launches again, as `next_again` asks for them."""
    trials = searched(truths, rng)
    while (asked := next_again(trials, pick(trials), repeats)) is not None:
        original = asked.original.number
        trials.append(again(len(trials), original, noisy(truths[original], rng), fresh=asked.fresh))
    return trials


# --- by hand --------------------------------------------------------------------------------------------------------


def test_what_noise_cannot_change_is_sure() -> None:
    trials = [measured(0, 1000.0, 1.0), measured(1, 2000.0, 0.2), measured(2, 500.0, 4.0), failed(3, Outcome.FAULTED)]
    found = assess(trials, pick(trials))
    assert [(one.number, one.front_probability, one.pick_probability) for one in found.standings] == [
        (0, 0.0, 0.0),
        (1, 1.0, 1.0),
        (2, 0.0, 0.0),
    ]
    assert found.is_stable
    assert found.pick == 1
    assert not found.tied_with_baseline
    # Far from the others nothing is taken off: 2.0 and 0.2.
    assert found.throughput_gain is not None
    assert found.ttft_gain is not None
    assert found.throughput_gain.value == pytest.approx(2.0, rel=0.005)
    assert found.ttft_gain.value == pytest.approx(0.2, rel=0.02)


def test_nothing_measured_is_no_standing() -> None:
    found = assess([failed(0, Outcome.FAULTED)], None)
    assert (found.standings, found.pick, found.is_stable) == ((), None, False)


def test_equal_configs_are_tied_and_share_the_pick() -> None:
    trials = [measured(0, 500.0, 1.0), measured(1, 1000.0, 0.3), measured(2, 1002.0, 0.301), measured(3, 1200.0, 0.9)]
    found = assess(trials, pick(trials))
    one, two = found.standing(1), found.standing(2)
    assert one is not None
    assert two is not None
    assert (one.tied_with, two.tied_with) == ((2,), (1,))
    assert one.pick_probability + two.pick_probability == pytest.approx(1.0, abs=0.05)
    assert abs(one.pick_probability - two.pick_probability) < 0.3
    assert not found.is_stable


def test_a_slower_config_with_the_same_latency_is_beaten_whatever_its_luck() -> None:
    trials = [measured(0, 500.0, 1.0), measured(1, 1000.0, 0.300), measured(2, 800.0, 0.295)]
    found = assess(trials, pick(trials))
    two = found.standing(2)
    assert two is not None
    assert two.on_front  # by 5 ms, which is noise
    assert two.beaten_by == (1,)
    assert two.is_decided


def test_a_limit_decides_by_how_far_the_figures_are_from_it() -> None:
    trials = [measured(0, 500.0, 0.05), measured(1, 1000.0, 0.3), measured(2, 2000.0, 0.46)]
    slo = Slo.of(ttft_p95=0.5)
    near = assess(trials, pick(trials, slo=slo), slo=slo)
    assert near.pick == 2
    # ln(0.5 / 0.46) = 0.083 of 0.10: 80 % of the draws meet it.
    chance = near.standing(2)
    assert chance is not None
    assert chance.pick_probability == pytest.approx(0.8, abs=0.05)
    wide = assess(trials, pick(trials, slo=Slo.of(ttft_p95=2.0)), slo=Slo.of(ttft_p95=2.0))
    assert wide.pick_is_sure


def test_a_baseline_whose_rate_may_have_been_0_is_no_bound() -> None:
    """Tokens in a few bursts: the interval of the rate begins at 0, and nothing is worse than that."""
    trials = [measured(0, (0.0, 1000.0, 1800.0), 1.0), measured(1, 2000.0, 0.2)]
    found = assess(trials, pick(trials))
    best = found.standing(1)
    assert best is not None
    assert best.pick_probability == 1.0


@pytest.mark.parametrize("rule", list(PickRule))
def test_the_same_history_gives_the_same_answer_in_any_order(rule: PickRule) -> None:
    trials = searched([(1000.0, 0.4), (1010.0, 0.35), (1200.0, 0.5), (1250.0, 0.52)], random.Random(3))
    chosen = pick(trials, rule=rule)
    assert assess(trials, chosen, rule=rule) == assess(list(reversed(trials)), chosen, rule=rule)


def test_without_a_baseline_the_knee_is_drawn_as_it_is_picked() -> None:
    trials = [measured(1, 1000.0, 0.1), measured(2, 1900.0, 0.13), measured(3, 2000.0, 1.0)]
    chosen = pick(trials)
    found = assess(trials, chosen)
    assert chosen is not None
    best = found.standing(chosen.number)
    assert best is not None
    assert best.pick_probability > 0.95
    assert found.throughput_gain is None


FIGURES = st.tuples(st.floats(100.0, 5000.0), st.floats(0.02, 5.0))


@settings(max_examples=40, deadline=None)
@given(st.lists(FIGURES, min_size=1, max_size=7), st.sampled_from(list(PickRule)), st.floats(0.5, 4.0))
def test_chances_are_chances_and_know_no_units(figures: list[Truth], rule: PickRule, factor: float) -> None:
    def assessed(scale: float) -> list[tuple[float, float]]:
        trials = [measured(number, one[0] * scale, one[1]) for number, one in enumerate(figures)]
        chosen = pick(trials, rule=rule)
        found = assess(trials, chosen, rule=rule)
        assert chosen is not None
        assert found.pick == chosen.number
        for one in found.standings:
            assert set(one.tied_with).isdisjoint(one.beaten_by)
            # What is picked is on the front, but for the baseline, which is picked where nothing else is told from it.
            assert one.number == 0 or one.pick_probability <= one.front_probability + 1e-9
            for other in one.tied_with:
                back = found.standing(other)
                assert back is not None
                assert one.number in back.tied_with
        return [(one.front_probability, one.pick_probability) for one in found.standings]

    chances = assessed(1.0)
    assert math.fsum(chosen for _, chosen in chances) == pytest.approx(1.0)
    assert math.fsum(on_front for on_front, _ in chances) >= 1.0
    # Rounding may turn a draw or two.
    assert [one for pair in assessed(factor) for one in pair] == pytest.approx(
        [one for pair in chances for one in pair], abs=0.02
    )


# --- validation -----------------------------------------------------------------------------------------------------


def test_a_pick_is_validated_where_fresh_seeds_do_not_show_it_worse() -> None:
    trials = [measured(0, 1000.0, 0.5, config(0)), measured(1, 1500.0, 0.4, config(1))]
    assert validation(trials, 1).state is ValidationState.MISSING
    assert validation(trials, 0).state is ValidationState.BASELINE
    assert validation(trials, 7).state is ValidationState.MISSING
    kept = validation([*trials, again(2, 1, (1480.0, 0.42), fresh=True)], 1)
    assert (kept.state, kept.launches) == (ValidationState.VALIDATED, (2,))
    assert kept.throughput is not None
    assert kept.throughput.ratio == pytest.approx(1480 / 1500)
    for worse in ((1400.0, 0.4), (1500.0, 0.8)):
        assert validation([*trials, again(2, 1, worse, fresh=True)], 1).state is ValidationState.WORSE
    # Launched again under the same seeds proves nothing; nor does a launch that failed.
    assert validation([*trials, again(2, 1, (1490.0, 0.4))], 1).state is ValidationState.MISSING
    lost = replace(failed(2, Outcome.FAULTED, config(1)), origin=Origin.VALIDATION, repeat_of=1)
    assert validation([*trials, lost], 1).state is ValidationState.MISSING


# --- which config is launched again ---------------------------------------------------------------------------------


def test_the_baseline_is_first_and_last_and_the_pick_ends_on_fresh_seeds() -> None:
    truths = [(1000.0, 1.0), (2000.0, 0.2), (500.0, 4.0)]
    trials = finished(truths, random.Random(1), repeats=3)
    asked = [(trial.repeat_of, trial.origin) for trial in trials[3:]]
    assert asked == [
        (0, Origin.REPEAT),
        (1, Origin.REPEAT),
        (1, Origin.REPEAT),
        (1, Origin.VALIDATION),
        (0, Origin.REPEAT),
        (0, Origin.REPEAT),
    ]
    assert lacking(trials, pick(trials), 3) == 0
    assert next_again(trials, pick(trials), 0) is None


@pytest.mark.parametrize("repeats", [1, 2])
def test_a_study_that_is_taken_up_for_more_trials_ends_once_more(repeats: int) -> None:
    rng = random.Random(1)
    truths = [(1000.0, 1.0), (2000.0, 0.2), (500.0, 4.0)]
    trials = finished(truths, rng, repeats)
    first = len(trials)
    assert [trial.repeat_of for trial in trials[3:]] == [0, *[1] * repeats, *[0] * (repeats - 1)]
    trials.append(measured(first, 4000.0, 0.1))  # a new config, and by far the best: the new pick
    assert lacking(trials, pick(trials), repeats) == 2 * repeats
    truth = {0: truths[0], first: (4000.0, 0.1)}
    while (asked := next_again(trials, pick(trials), repeats)) is not None:
        original = asked.original.number
        trials.append(again(len(trials), original, noisy(truth[original], rng), fresh=asked.fresh))
    assert [one.repeat_of for one in trials[first + 1 :]] == [0, *[first] * repeats, *[0] * (repeats - 1)]
    assert [one.origin for one in trials if one.repeat_of == first][-1] is Origin.VALIDATION
    assert lacking(trials, pick(trials), repeats) == 0
    assert next_again(trials, pick(trials), repeats) is None  # and the same command a third time launches nothing


def test_room_for_a_new_pick_does_not_depend_on_what_was_launched_again_before() -> None:
    trials = [measured(0, 1000.0, 0.5), *(measured(number, 1500.0, 0.4) for number in range(1, CONFIGS_AGAIN + 1))]
    trials += [again(len(trials) + number, number, (1500.0, 0.4)) for number in range(CONFIGS_AGAIN + 1)]
    trials.append(measured(len(trials), 4000.0, 0.1))
    trials.append(again(len(trials), 0, (1000.0, 0.5)))
    found = next_again(trials, pick(trials), 1)
    assert found is not None
    assert (found.original.number, found.fresh) == (len(trials) - 2, True)


def test_where_time_is_short_only_baseline_and_pick_are_launched() -> None:
    trials = searched([(1000.0, 0.5), *[(1500.0, 0.4)] * 6], random.Random(2))
    trials.append(again(len(trials), 0, (1000.0, 0.5)))
    chosen = pick(trials)
    assert chosen is not None
    spare, short = (next_again(trials, chosen, 2, spare=spare) for spare in (True, False))
    assert spare is not None
    assert short is not None
    assert short.original.number == chosen.number
    assert "by what is known" in spare.why


@pytest.mark.parametrize("last", [False, True])
def test_a_pick_that_has_time_for_one_launch_has_it_on_fresh_seeds(last: bool) -> None:
    trials = [measured(0, 1000.0, 1.0), measured(1, 2000.0, 0.2, config(1))]
    trials.append(again(2, 0, (1000.0, 1.0)))
    found = next_again(trials, pick(trials), 2, spare=False, last=last)
    assert found is not None
    assert (found.original.number, found.fresh) == (1, last)


def test_a_baseline_that_is_the_pick_takes_no_other_configs_place() -> None:
    trials = [measured(0, 1000.0, 0.300), *(measured(number, 1001.0, 0.301) for number in (1, 2, 3))]
    trials += [again(4 + number, number, (1000.0, 0.301)) for number in (0, 1, 2)]
    chosen = pick(trials, rule=PickRule.LATENCY)
    assert chosen is not None
    assert chosen.number == 0
    found = next_again(trials, chosen, 1, rule=PickRule.LATENCY)
    assert found is not None
    assert found.original.number == 3


def test_validations_have_seeds_of_their_own_and_the_same_for_all_configs() -> None:
    trials = [
        *searched([(1000.0, 0.5), (1500.0, 0.4), (1600.0, 0.5)], random.Random(2)),
        again(3, 1, (1500.0, 0.4), fresh=True),
        again(4, 2, (1500.0, 0.4), fresh=True),
        again(5, 1, (1500.0, 0.4)),
        again(6, 1, (1500.0, 0.4), fresh=True),
    ]
    seeds = [seed_of(trials, trial, 7) for trial in trials]
    assert seeds[:3] == [7, 7, 7]
    assert seeds[5] == 7
    assert seeds[3] == seeds[4]
    assert len({7, seeds[3], seeds[6]}) == 3


@pytest.mark.parametrize("repeats", [1, 2, 4])
def test_launches_again_end_and_none_is_launched_too_often(repeats: int) -> None:
    rng = random.Random(repeats)
    for _ in range(4):
        truths = [(1000.0, 0.5), *((rng.uniform(1000, 1100), rng.uniform(0.3, 0.5)) for _ in range(12))]
        trials = finished(truths, rng, repeats)
        counts: dict[int, int] = {}
        for trial in trials[13:]:
            assert trial.repeat_of is not None
            counts[trial.repeat_of] = counts.get(trial.repeat_of, 0) + 1
        assert max(counts.values()) <= repeats
        assert len(counts) <= 1 + CONFIGS_AGAIN
        assert trials[13].repeat_of == 0
        chosen = pick(trials)
        assert chosen is not None
        if len(counts) <= CONFIGS_AGAIN:
            assert validation(trials, chosen.number).state is not ValidationState.MISSING


# --- simulated studies of known truth -------------------------------------------------------------------------------


def test_ties_and_optimism_in_studies_of_known_truth() -> None:
    """12 configs are truly the same; one of them, the luckiest, is picked; 11 others are clearly worse."""
    rng = random.Random(11)
    good = (1400.0, 0.35)
    truths = [(1000.0, 0.5), *[good] * 12, *((rng.uniform(700, 1100), rng.uniform(0.5, 1.5)) for _ in range(11))]
    tied = pairs = held = 0
    raw, ours, rounds = [], [], 40
    for _ in range(rounds):
        trials = searched(truths, rng)
        chosen = pick(trials)
        assert chosen is not None
        found = assess(trials, chosen)
        candidates = [one for one in found.standings if one.on_front or one.front_probability >= CANDIDATE]
        for one in candidates:
            alike = [other for other in candidates if truths[other.number] == truths[one.number] and other != one]
            pairs += len(alike)
            tied += len({other.number for other in alike} & set(one.tied_with))
            assert 0 not in one.tied_with  # 40 % less throughput
        true_gain = truths[chosen.number][1] / truths[0][1]
        assert found.ttft_gain is not None
        assert found.ttft_gain.low is not None
        assert found.ttft_gain.high is not None
        assert chosen.ttft_gain is not None
        raw.append(math.log(chosen.ttft_gain / true_gain))
        ours.append(math.log(found.ttft_gain.value / true_gain))
        held += found.ttft_gain.low <= true_gain <= found.ttft_gain.high
    # Candidates are the extremes of the twelve, so their ties are rarer than 0.95 squared.
    assert tied / pairs > 0.75
    assert sum(raw) / rounds < -0.12
    assert abs(sum(ours) / rounds) < abs(sum(raw) / rounds) / 2
    assert held / rounds > 0.85


@pytest.mark.no_cover
def test_any_two_equal_configs_are_tied_as_often_as_two_intervals_hold() -> None:
    rng = random.Random(12)
    tied = 0
    for _ in range(400):
        trials = searched([(1000.0, 0.4), (1000.0, 0.4)], rng)
        base = assess(trials, None).standing(0)
        assert base is not None
        tied += base.tied_with == (1,)
    assert tied / 400 == pytest.approx(0.95**2, abs=0.04)


@pytest.mark.no_cover
def test_launches_again_find_the_right_pick_and_few_sure_members_are_false() -> None:
    rng = random.Random(1)
    truths = [
        (1000.0, 0.5),
        *((1000 * math.exp(rng.gauss(0.1, 0.12)), 0.4 * math.exp(rng.gauss(0, 0.3))) for _ in "x" * 23),
    ]
    true_front = set(front(truths))

    def score(number: int) -> float:
        """What the knee is the highest of."""
        return math.log(truths[number][0] / 500) * math.log(2.0 / truths[number][1])

    best = max(map(score, range(24)))
    regret_before = regret_after = 0.0
    sure: list[bool] = []
    validated = 0
    rounds = 30
    for _ in range(rounds):
        trials = searched(truths, rng)
        begun = pick(trials)
        while (asked := next_again(trials, pick(trials), 2)) is not None:
            original = asked.original.number
            trials.append(again(len(trials), original, noisy(truths[original], rng), fresh=asked.fresh))
        ended = pick(trials)
        assert begun is not None
        assert ended is not None
        regret_before += best - score(begun.number)
        regret_after += best - score(ended.number)
        found = assess(trials, ended)
        sure += [
            one.number in true_front
            for one in found.standings
            if one.front_probability >= CONFIDENCE and not one.beaten_by
        ]
        assert found.validation is not None
        validated += found.validation.state is ValidationState.VALIDATED
    assert regret_after < regret_before / 2
    assert len(sure) > rounds
    assert sum(sure) / len(sure) >= CONFIDENCE
    assert validated >= 0.9 * rounds


@pytest.mark.parametrize("slo", [None, Slo.of(ttft_p95=0.3)])
def test_configs_out_of_reach_change_nothing(slo: Slo | None, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(5)
    truths = [(rng.uniform(500, 1500), rng.uniform(0.1, 1.0)) for _ in range(60)]
    trials = tuple(measured(number, *noisy(truth, rng), config(number)) for number, truth in enumerate(truths))
    few = assess(trials, pick(trials, slo=slo), slo=slo)
    drawn = sum(
        draws._within_reach(
            [[belief(s.tok_s_per_gpu) for s in few.standings], [belief(s.ttft_p95_s) for s in few.standings]],
            np.ones(len(trials), dtype=bool),
        )
    )
    assert drawn < 30
    monkeypatch.setattr(draws, "_REACH", 1e9)
    assert assess(trials, pick(trials, slo=slo), slo=slo) == few


@pytest.mark.parametrize("slo", [None, Slo.of(ttft_p95=0.3)])
@pytest.mark.parametrize("rule", PickRule)
@pytest.mark.parametrize("baseline", [0, 1])
def test_configs_beaten_in_all_of_some_draws_change_nothing(
    rule: PickRule, slo: Slo | None, baseline: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the baseline among the best, or none at all, and some of the best whose answers are lost."""
    rng = random.Random(7)
    truths = [(1400.0, 0.15), *((rng.uniform(500, 1500), rng.uniform(0.1, 1.0)) for _ in range(60))]
    trials = [measured(number, *noisy(truth, rng), config(number)) for number, truth in enumerate(truths)]
    for number in sorted(range(1, len(truths)), key=lambda number: truths[number][1] / truths[number][0])[:2]:
        trials[number] = without_answers(trials[number])
    study = tuple(trials[baseline:])
    few = assess(study, pick(study, rule=rule, slo=slo), rule=rule, slo=slo)
    kept: list[int] = []

    def everyone(*spans: tuple[NDArray[np.float64], NDArray[np.float64]] | NDArray[np.bool_]) -> NDArray[np.bool_]:
        found = unbeaten(*spans)
        kept.append(int(found.sum()))
        return np.ones_like(found)

    unbeaten = draws._unbeaten
    monkeypatch.setattr(draws, "_unbeaten", everyone)
    assert assess(study, pick(study, rule=rule, slo=slo), rule=rule, slo=slo) == few
    assert min(kept[1:]) < kept[0] < len(study)


@pytest.mark.parametrize("slo", [None, Slo.of(ttft_p95=0.3)])
@pytest.mark.parametrize("rule", PickRule)
def test_a_pick_far_behind_a_config_that_lost_its_answers_is_sure(rule: PickRule, slo: Slo | None) -> None:
    trials = (
        measured(0, 1000.0, 0.5, config(0)),
        measured(1, 1300.0, 0.1, config(1)),
        without_answers(measured(2, 3000.0, 0.002, config(2))),
    )
    chosen = pick(trials, rule=rule, slo=slo)
    assert chosen is not None
    standings = assess(trials, chosen, rule=rule, slo=slo).standings
    assert chosen.number == 1
    assert [one.pick_probability > 0.95 for one in standings] == [False, True, False]
    assert [one.front_probability > 0.95 for one in standings] == [False, False, True]


def test_what_the_baseline_beats_within_its_interval_is_no_other_choice() -> None:
    figures = (((800.0, 1000.0, 1200.0), (0.15, 0.2, 0.32)), (850.0, 0.3), (8000.0, 0.45))
    trials = [measured(number, *both, config(number % 3)) for number, both in enumerate(figures * 3)]
    chosen = pick(trials)
    assert chosen is not None
    assert chosen.number == 2
    assert assess(trials, chosen).standings[2].pick_probability > 0.9


def without_answers(trial: Trial) -> Trial:
    assert trial.result is not None
    lost = Quality(state=QualityState.LOST, why="answers differ", reference=None)
    return replace(trial, result=replace(trial.result, quality=lost))


def test_without_a_baseline_a_config_that_beats_all_others_is_picked() -> None:
    trials = [measured(1, 1000.0, 0.2, config(1)), measured(2, 1300.0, 0.1, config(2))]
    chances = [one.pick_probability for one in assess(trials, pick(trials)).standings]
    assert chances[1] > 0.9


def belief(figure: Estimate) -> Shrunken:
    assert figure.high is not None
    return Shrunken(mean=math.log(figure.value), sd=math.log(figure.high / figure.value) / 1.959964)


def test_an_slo_that_allows_no_error_leaves_the_probabilities_to_the_times() -> None:
    trials = [measured(0, 500.0, 0.05), measured(1, 1000.0, 0.3), measured(2, 2000.0, 0.46)]
    times, all_of_it = Slo.of(ttft_p95=0.5), Slo.of(ttft_p95=0.5, error_rate=0.0)
    found = assess(trials, pick(trials, slo=all_of_it), slo=all_of_it)
    assert found.pick == 2
    assert found.standings == assess(trials, pick(trials, slo=times), slo=times).standings
