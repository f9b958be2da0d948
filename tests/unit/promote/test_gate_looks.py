"""Looking at a verification several times: what chance each look has, and when to go on."""

from __future__ import annotations

from dataclasses import replace
from statistics import NormalDist

import numpy as np
import pytest
from gate_cases import CANDIDATE, TODAY, abba, evidence, launch, side

from autotune.promote.gate import Evidence, Look, Outlook, judge, looks, outlook
from autotune.promote.gate.prospects import launches_for
from autotune.promote.gate.spending import levels
from autotune.records import Estimate, GateVerdict, Slo
from autotune.search.noise import RunNoise

FIRST = Look(at=(4, 8, 12))


def ahead(made: Evidence) -> Outlook:
    return outlook(made, judge(made))


def noisy(*shifts: float, least: float = 0.2) -> Evidence:
    """Launches of both sides that differ by these factors, the candidate's all lower by `least`."""
    made = []
    for place, shift in enumerate(shifts, start=1):
        which = TODAY if place % 4 in (0, 1) else CANDIDATE
        base = 0.2 * shift * (1 - least if which is CANDIDATE else 1.0)
        made.append(launch(place, which, windows=(base, base, base), over_s=2 * base))
    return evidence(made, look=FIRST)


def test_looks_are_taken_after_whole_abbas_and_at_the_end() -> None:
    assert looks(4, 4) == (4,)
    assert looks(4, 14) == (4, 8, 12, 14)
    assert looks(6, 8) == (6, 8)


def test_one_look_may_spend_everything() -> None:
    (level,) = levels((1.0,), 0.025)
    assert level == pytest.approx(0.025, rel=1e-3)
    assert Look().level(0.01) == pytest.approx(0.01, rel=1e-3)


@pytest.mark.parametrize("shares", [(0.25, 0.5, 0.75, 1.0), (1 / 6, 1 / 3, 1 / 2, 2 / 3, 5 / 6, 1.0), (0.6, 1.0)])
def test_all_looks_together_are_wrong_as_often_as_allowed(shares: tuple[float, ...]) -> None:
    # The oracle walks: normal steps, and a look at each share.
    steps = np.diff((0.0, *shares))
    rng = np.random.default_rng(0)
    walks = np.cumsum(rng.normal(0.0, np.sqrt(steps), (400_000, len(steps))), axis=1) / np.sqrt(shares)
    bounds = [NormalDist().inv_cdf(1 - level) for level in levels(shares, 0.05)]
    crossed = np.cumsum(np.cumsum(walks > bounds, axis=1) > 0, axis=1) > 0
    # Half of the chance is spent at a quarter, as f ** 0.5 has it, and all of it in the end.
    assert crossed.mean(axis=0) == pytest.approx([0.05 * share**0.5 for share in shares], abs=0.0015)


def test_a_sample_size_is_the_textbooks() -> None:
    # 2 (1.960 + 1.282)^2 (0.1 / 0.2231)^2 = 4.22 launches of each.
    assert launches_for(0.2231, 0.1, 0.025) == 10
    assert launches_for(1.0, 0.01, 0.025) == 2


def test_verdicts_that_stand_are_not_gone_on_with() -> None:
    assert ahead(evidence(abba(tok_s=1100.0), look=FIRST)) == Outlook(goes_on=False)
    assert judge(evidence(abba(tok_s=900.0), look=FIRST)).verdict is GateVerdict.FAILED
    assert ahead(evidence(abba(tok_s=900.0), look=FIRST)) == Outlook(goes_on=False)


def test_what_no_launch_tells_is_not_gone_on_for() -> None:
    silent = abba(memory_used_bytes=None, memory_total_bytes=100)
    assert not ahead(evidence(silent, look=FIRST)).goes_on


def test_a_gain_that_is_likely_but_not_shown_is_gone_on_for_and_no_further_than_allowed() -> None:
    made = noisy(1.0, 1.2, 0.9, 1.15)
    found = ahead(made)
    assert found.goes_on
    assert found.why.endswith("going on to 8")
    last = ahead(replace(made, look=Look(at=(4,))))
    assert (last.goes_on, last.wanted) == (False, found.wanted)
    assert last.why.startswith("4 launches were not enough (about ")


def test_a_gain_that_is_ruled_out_is_not_gone_on_for() -> None:
    loud = noisy(1.0, 1.0, 1.01, 1.0, 1.0, 1.0, 0.99, 1.0, least=-0.01)
    quiet = RunNoise(throughput_sd=0.003, ttft_sd=0.03, repeats=30)
    found = ahead(replace(loud, noise=quiet, look=Look(at=(8, 12))))
    assert not found.goes_on
    assert "would hardly show" in found.why


def test_the_claim_says_how_many_launches_would_be_wanted() -> None:
    claims = {
        "candidate": side("trial 7", tok_s_per_gpu=Estimate(value=1000.0), ttft_p95_s=Estimate(value=0.1)),
        "against": side("the baseline", tok_s_per_gpu=Estimate(value=1000.0), ttft_p95_s=Estimate(value=0.2)),
    }
    nothing_seen = noisy(1.0, 1.6, 0.9, 1.5, least=0.0)
    assert ahead(nothing_seen).wanted is None
    assert ahead(replace(nothing_seen, **claims)).wanted is not None


def test_an_slo_that_is_missed_by_the_figure_itself_is_not_gone_on_for() -> None:
    won = abba(tok_s=1100.0)
    near, beyond = (evidence(won, slo=Slo.of(ttft_p95=bound), look=FIRST) for bound in (0.21, 0.195))
    assert [judge(one).verdict for one in (near, beyond)] == [GateVerdict.INCONCLUSIVE] * 2
    assert ahead(near).goes_on
    assert ahead(beyond).why == "the figures themselves are beyond the SLO, not only their intervals"
