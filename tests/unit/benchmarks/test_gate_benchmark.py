"""The gate's benchmark judges made-up pairs as it says, on a few of them."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.load.arrival_windows import WindowRule
from autotune.promote.gate import Look
from autotune.records import GateSideName, GateVerdict
from benchmarks.gate import SAME, TRUTHS, Noise, Pair, Truth, cell, noises, table, verdicts_of

RULE = WindowRule.fixed(3)
QUIET = Noise(throughput=1e-6, ttft=1e-6, between=0.5)


@pytest.mark.parametrize(
    ("truth", "verdict"),
    [
        (SAME, GateVerdict.INCONCLUSIVE),
        (TRUTHS[1], GateVerdict.PASSED),
        (TRUTHS[2], GateVerdict.PASSED),
        (TRUTHS[3], GateVerdict.FAILED),
    ],
    ids=lambda one: getattr(one, "name", None),
)
def test_without_noise_the_verdict_is_the_truth(truth: Truth, verdict: GateVerdict) -> None:
    # 5 % less is shown even by the assumed noise of 1 %; what is the same shows nothing.
    assert verdicts_of(Pair(np.random.default_rng(1), QUIET, truth, 4, RULE), (4,)) == [verdict]


def test_a_pair_has_the_noise_that_was_asked_for() -> None:
    noise = Noise(throughput=0.01, ttft=0.2, between=0.25)
    rng = np.random.default_rng(2)
    means, residuals = [], []
    for _ in range(300):
        evidence = Pair(rng, noise, SAME, 4, WindowRule.fixed(8)).evidence(Look(at=(4,)))
        rows = np.array([one.windows for one in evidence.ttft if one.side is GateSideName.AGAINST])
        means.append(np.diff(rows.mean(axis=1)).item())
        residuals.append(np.diff(rows - rows.mean(axis=1, keepdims=True), axis=0).std())
    # Between launches 0.1, within 0.173 over 8 windows; differences have twice the variance.
    assert np.std(means) == pytest.approx(np.sqrt(2 * (0.01 + 0.03 / 8)), rel=0.12)
    assert np.mean(residuals) == pytest.approx(np.sqrt(2 * 0.03 * 7 / 8), rel=0.12)


def test_the_table_tells_every_kind_of_noise_and_the_goals() -> None:
    cells = [cell(noise, 1, (4, 8), RULE, (0, place)) for place, noise in enumerate(noises())]
    assert len(cells) == 36
    assert all(sum(told.values()) == 1.0 for one in cells for told in one["verdicts"].values())
    assert {one["windows"] for one in cells} == {3.0}
    # 1 % in throughput is 0.85 / 0.15 = 5.67 % in TTFT: of 10 % a share of 0.321, of 30 % one of 0.036.
    queueing = [one for one in cells if one["between_of_queueing"] and one["throughput_sd"] == 0.01]
    assert [one["between_share"] for one in queueing] == pytest.approx([0.3211, 0.0803, 0.0357], abs=1e-4)
    lines = list(table(cells, (4, 8), 1))
    assert len([line for line in lines if line.startswith(" 0.5%")]) == 18
    assert any("false promotion" in line for line in lines)


def test_the_launches_of_a_pair_are_the_same_at_every_look() -> None:
    made = Pair(np.random.default_rng(4), Noise(throughput=0.01, ttft=0.2, between=0.25), SAME, 8, RULE)
    late = made.evidence(Look(at=(4, 8), number=1))
    early = made.evidence(Look(at=(4, 8)))
    assert (late.order, early.order) == ("ABBAABBA", "ABBA")
    assert late.launches[:4] == early.launches
