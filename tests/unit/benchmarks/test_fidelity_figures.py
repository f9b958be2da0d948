"""Errors, pairs and regret of predictions, by hand."""

from __future__ import annotations

import pytest

from autotune.simulator.measured import Figures
from benchmarks.fidelity_figures import Predicted, config_blind, fidelity


def row(
    config: str,
    measured: float,
    predicted: float,
    *,
    load: str = "chat",
    ttft: tuple[float, float] = (1.0, 1.0),
    preemptions: tuple[float, float] = (0, 0),
    mean: float | None = None,
) -> Predicted:
    return Predicted(
        name=config,
        load=load,
        config=config,
        measured=Figures(output_tok_s=measured, tpot_p50_s=0.02, ttft_p50_s=0.5, ttft_p95_s=ttft[0], ttft_mean_s=mean),
        predicted=Figures(output_tok_s=predicted, tpot_p50_s=0.03, ttft_p50_s=0.5, ttft_p95_s=ttft[1], ttft_mean_s=1.0),
        kv_tokens=1000,
        kv_tokens_predicted=990,
        preemptions=preemptions[0],
        preemptions_predicted=preemptions[1],
    )


def test_errors_are_relative_to_what_was_measured() -> None:
    found = fidelity([row("a", 100, 110), row("b", 100, 80, ttft=(2.0, 1.0), mean=0.8)])
    assert found.rows == 2
    assert found.throughput_mape == pytest.approx(0.15)
    assert found.throughput_worst == pytest.approx(0.2)
    assert found.tpot_mape == pytest.approx(0.5)
    assert found.ttft_p95_mape == pytest.approx(0.25)
    assert found.ttft_mean_mape == pytest.approx(0.25)  # of the one row that states it
    assert found.kv_tokens_mape == pytest.approx(0.01)


def test_nothing_judged_gives_no_figures() -> None:
    found = fidelity([])
    assert found.rows == 0
    assert found.throughput_mape is None
    assert found.pairs_right_throughput is None
    assert found.regret is None


def test_only_pairs_beyond_noise_of_the_same_load_count() -> None:
    rows = [row("a", 100, 100), row("b", 104, 90), row("c", 120, 95), row("d", 300, 1, load="rag")]
    found = fidelity(rows)
    # a-b differ by 4 %: noise. a-c and b-c do: a-c is predicted the wrong way round, b-c the right way.
    assert found.pairs_throughput == 2
    assert found.pairs_right_throughput == 0.5


def test_ttft_pairs_need_a_quarter_of_difference() -> None:
    rows = [row("a", 1, 1, ttft=(1.0, 1.0)), row("b", 1, 1, ttft=(1.2, 0.5)), row("c", 1, 1, ttft=(2.0, 3.0))]
    found = fidelity(rows)
    assert found.pairs_ttft_p95 == 2
    assert found.pairs_right_ttft_p95 == 1.0


def test_launches_of_the_same_config_are_no_pair() -> None:
    assert fidelity([row("a", 100, 100), row("a", 200, 100)]).pairs_throughput == 0


def test_calibrated_rows_are_compared_with_and_not_among_themselves() -> None:
    known = [row("k", 100, 100), row("l", 200, 100)]
    found = fidelity([row("a", 150, 150)], known)
    assert found.rows == 1
    assert found.pairs_throughput == 2  # a-k, a-l, not k-l
    assert found.throughput_mape == 0.0


def test_regret_is_what_the_predicted_best_loses() -> None:
    rows = [row("a", 100, 100), row("b", 80, 120), row("c", 50, 10, load="rag"), row("d", 60, 20, load="rag")]
    found = fidelity(rows)
    assert found.regret_worst == pytest.approx(0.2)
    assert found.regret == pytest.approx(0.1)
    assert fidelity([row("a", 100, 100)]).regret is None  # nothing to choose between


def test_preemptions_are_right_where_both_have_some_or_none() -> None:
    rows = [
        row("a", 1, 1, preemptions=(8, 3)),
        row("b", 1, 1, preemptions=(0, 0)),
        row("c", 1, 1, preemptions=(4, 0)),
        row("d", 1, 1, preemptions=(0, 1)),
    ]
    assert fidelity(rows).preemptions_right == 0.5


def test_the_blind_table_is_the_geometric_mean_of_the_other_configs() -> None:
    rows = [row("a", 100, 1), row("b", 400, 1), row("b", 100, 1), row("c", 5, 1, load="alone")]
    found = config_blind(rows, rows)
    # a: others 400 and 100, mean 200, off by 100 %. b: other 100: off by 75 % and by 0. c: no other config.
    assert found["rows"] == 3
    assert found["throughput_mape"] == pytest.approx((1.0 + 0.75 + 0.0) / 3)
    assert found["ttft_mean_mape"] is None
