"""The gate's benchmark judges made-up pairs as it says, on a few of them."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.load.arrival_windows import WindowRule
from autotune.promote.gate import judge
from autotune.records import GateSideName, GateVerdict
from benchmarks.gate import SAME, TRUTHS, Noise, Truth, measured, pair, table

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
    assert judge(pair(np.random.default_rng(1), QUIET, truth, 4, RULE)).verdict is verdict


def test_a_pair_has_the_noise_that_was_asked_for() -> None:
    noise = Noise(throughput=0.01, ttft=0.2, between=0.25)
    rng = np.random.default_rng(2)
    means, residuals = [], []
    for _ in range(300):
        evidence = pair(rng, noise, SAME, 4, WindowRule.fixed(8))
        rows = np.array([one.windows for one in evidence.ttft if one.side is GateSideName.AGAINST])
        means.append(np.diff(rows.mean(axis=1)).item())
        residuals.append(np.diff(rows - rows.mean(axis=1, keepdims=True), axis=0).std())
    # Between launches 0.1, within 0.173 over 8 windows; differences have twice the variance.
    assert np.std(means) == pytest.approx(np.sqrt(2 * (0.01 + 0.03 / 8)), rel=0.12)
    assert np.mean(residuals) == pytest.approx(np.sqrt(2 * 0.03 * 7 / 8), rel=0.12)


def test_the_table_tells_every_kind_of_noise_and_the_goals() -> None:
    cells = measured(pairs=1, launches=4, rule=RULE, seed=0)
    assert len(cells) == 30
    assert all(sum(told.values()) == 1.0 for cell in cells for told in cell["verdicts"].values())
    assert {cell["windows"] for cell in cells} == {3.0}
    lines = list(table(cells, 4, 1))
    assert len([line for line in lines if line.startswith("  0.5%") or line.startswith(" 0.5%")]) == 15
    assert any("false promotion" in line for line in lines)
