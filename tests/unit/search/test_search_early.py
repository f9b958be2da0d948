"""Which configs a running trial is held against, and how high they put the bar."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from search_samples import failed, measured, void

from autotune.load.early_end import Bar, Found
from autotune.records import (
    Config,
    EarlyEnd,
    EarlyReason,
    Estimate,
    LevelRole,
    Origin,
    Outcome,
    Quality,
    QualityState,
    Trial,
)
from autotune.search.early import Rivals, early_caveat, rivals_of
from autotune.search.noise import run_noise
from autotune.search.prior.evidence import SHOWN_TTFT_SD, observations
from autotune.search.proposer import Proposer
from autotune.search.savings import early_count, saved_s
from autotune.search.space import Parameter, SearchSpace
from autotune.slo_text import parse_slo

BASELINE = replace(measured(0, 1000.0, 0.5), origin=Origin.BASELINE)
FAST = measured(1, 2000.0, 0.2)
OPEN = Trial(number=9, config=Config.of({"x": 99}), origin=Origin.SAMPLER, gpus=1, attempts=1, result=None)


def rivals(*others: Trial, trial: Trial = OPEN, confidence: float = 0.99, slo: str | None = None) -> Rivals | None:
    limits = parse_slo(slo) if slo else None
    return rivals_of(trial, (BASELINE, *others, trial), confidence, limits)


@pytest.mark.parametrize("origin", [Origin.BASELINE, Origin.REPEAT, Origin.VALIDATION])
def test_what_others_are_judged_by_is_measured_to_its_end(origin: Origin) -> None:
    assert rivals(FAST, trial=replace(OPEN, origin=origin)) is None


def test_nothing_is_held_against_a_trial_where_that_is_off_or_nothing_was_measured() -> None:
    assert rivals(FAST, confidence=0.0) is None
    assert rivals_of(OPEN, (OPEN,), 0.99) is None
    assert rivals_of(replace(OPEN, number=0), (BASELINE, FAST), 0.99) is None


def test_the_bar_is_the_rivals_ttft_and_what_launches_differ_by() -> None:
    found = rivals(FAST)
    assert found is not None
    bars = found.bars(Estimate(value=1500.0))
    assert bars is not None
    # Launches differ by 10 %, assumed; the rival's mean and this launch each have that. Two rivals, the
    # baseline among them: z(1 - 0.01 / 2) = 2.5758.
    assert bars.dominated == Bar(rival=1, ttft_s=pytest.approx(0.2 * math.exp(2.5758 * math.hypot(0.1, 0.1)), rel=1e-4))
    assert bars.saturated == bars.dominated


def test_wide_intervals_of_the_ttft_raise_the_bar() -> None:
    """The rival's own, and those of measured trials, as the trial's own will be as wide."""
    wide = measured(1, 2000.0, (0.1, 0.2, 0.4))  # its logarithm is known to 0.3536
    found = rivals(wide)
    assert found is not None
    bars = found.bars(Estimate(value=1500.0))
    assert bars is not None
    assert bars.dominated is not None
    own = (math.log(4) / (2 * 1.96)) ** 2
    sd = math.sqrt(own + 0.01 + own / 2 + 0.01)  # two measured trials, one of them without an interval
    assert bars.dominated.ttft_s == pytest.approx(0.2 * math.exp(2.5758 * sd), rel=1e-3)


def test_more_throughput_must_be_sure_unless_the_queue_grows() -> None:
    found = rivals(FAST)
    assert found is not None
    close = found.bars(Estimate(value=1980.0))  # 1 % less, where launches differ by as much
    assert close is not None
    assert close.dominated is None
    assert close.saturated is not None
    unsure = found.bars(Estimate(value=1500.0, low=1000.0, high=2200.0))
    assert unsure is not None
    assert unsure.dominated is None
    best = found.bars(Estimate(value=2100.0))
    assert best is not None
    assert (best.dominated, best.saturated) == (None, None)


def test_of_several_rivals_the_quickest_counts() -> None:
    found = rivals(FAST, measured(2, 1900.0, 0.1), measured(3, 1200.0, 0.01))
    assert found is not None
    bars = found.bars(Estimate(value=1500.0))
    assert bars is not None
    assert bars.dominated is not None
    assert bars.dominated.rival == 2  # trial 3 has less throughput


def test_void_and_failed_trials_are_no_rivals_and_a_config_is_none_of_its_own() -> None:
    found = rivals(void(1, 3000.0, 0.1), failed(2, Outcome.INFEASIBLE), measured(3, 3000.0, 0.1, OPEN.config))
    assert found is not None
    assert [rival.number for rival in found.rivals] == [0]


def test_a_rival_keeps_to_the_other_limits() -> None:
    # The samples have no TPOT: nobody is sure to keep to a limit of it.
    assert rivals(FAST, slo="ttft_p95<=1s,tpot_p95<=50ms") is None
    alone = rivals(FAST, slo="ttft_p95<=1ms")
    assert alone is not None


@pytest.mark.parametrize(
    ("state", "counts"), [(QualityState.LOST, 1), (QualityState.UNDECIDED, 1), (QualityState.HELD, 2)]
)
def test_a_rival_may_be_promoted_in_the_trials_place(state: QualityState, counts: int) -> None:
    assert FAST.result is not None
    found = rivals(replace(FAST, result=replace(FAST.result, quality=Quality(state=state, why="w"))))
    assert found is not None
    assert len(found.rivals) == counts


def test_what_is_kept_of_an_early_end() -> None:
    found = rivals(FAST)
    assert found is not None
    assert FAST.result is not None
    level = replace(FAST.result.measurements[1], duration_s=0.25)
    end = found.end(Found(reason=EarlyReason.SATURATED, bar=Bar(rival=1, ttft_s=0.3), requests=75), level)
    # Both measured trials have a TTFT level of 1 s.
    assert end == EarlyEnd(
        reason=EarlyReason.SATURATED, rival=1, ttft_s=0.3, confidence=0.99, requests=75, planned=1, saved_s=0.75
    )
    caveat = early_caveat(end)
    assert caveat.code == "saturated"
    assert "trial 1 has more throughput" in caveat.text
    assert "0.99 confidence" in caveat.text


def abandoned(number: int, reason: EarlyReason, *, config: Config | None = None) -> Trial:
    whole = measured(number, 1500.0, 0.9, config)
    assert whole.result is not None
    end = EarlyEnd(reason=reason, rival=1, ttft_s=0.3, confidence=0.99, requests=75, planned=300, saved_s=20.0)
    return replace(whole, result=replace(whole.result, outcome=Outcome.ABANDONED, early=end))


def test_savings_add_up() -> None:
    trials = (BASELINE, abandoned(1, EarlyReason.DOMINATED), abandoned(2, EarlyReason.SATURATED))
    assert (early_count(trials), saved_s(trials)) == (2, 40.0)
    assert saved_s((BASELINE,)) is None


@pytest.mark.parametrize("reason", EarlyReason)
def test_the_sampler_learns_what_an_abandoned_trial_showed(reason: EarlyReason) -> None:
    trials = (BASELINE, FAST, abandoned(2, reason))
    seen = observations(trials)[2]
    assert seen.feasible
    assert seen.partial
    assert seen.logs == (math.log(1500.0), math.log(0.9))
    noise = run_noise(trials)
    assert seen.sds == (noise.throughput_sd, pytest.approx(math.hypot(noise.ttft_sd, SHOWN_TTFT_SD)))


def test_one_that_showed_no_ttft_is_known_to_start() -> None:
    cut = abandoned(2, EarlyReason.DOMINATED)
    assert cut.result is not None
    cut = replace(cut, result=replace(cut.result, measurements=cut.result.measurements[:1], early=None))
    assert cut.result is not None
    assert cut.result.of_role(LevelRole.TTFT) is None
    seen = observations((BASELINE, cut))[1]
    assert (seen.feasible, seen.logs, seen.partial) == (True, None, False)


def test_tpe_keeps_away_from_what_was_shown_to_be_bad() -> None:
    """It is told the figures as measured: without them it would know no more than that such configs run."""
    space = SearchSpace(
        name="s",
        parameters=(Parameter(name="y", choices=tuple(range(60))), Parameter(name="bad", choices=(True, False))),
    )
    history: list[Trial] = [BASELINE]
    for number in range(1, 31):
        config = Proposer(space, "tpe", 3).propose(history, budget=30)
        assert config is not None
        bad = bool(config.get("bad"))
        good = measured(number, 2000.0 + number, 0.2, config)
        history.append(abandoned(number, EarlyReason.DOMINATED, config=config) if bad else good)
    assert sum(bool(trial.config.get("bad")) for trial in history[16:]) <= 4  # of 15
