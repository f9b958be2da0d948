"""Fitting coefficients: to figures made with known ones, and to a linear model whose answer is known by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import exp, log, nan

import numpy as np
import pytest

from autotune.node.defaults import resolve
from autotune.node.gpus import parse_node_name
from autotune.node.model_shape import load_shape
from autotune.records import Arrivals, Config, LevelRole, LoadLevel, PlannedRequest
from autotune.simulator.calibrate import (
    UNCERTAINTIES,
    Accuracy,
    calibrate,
    deviations,
    informative,
    moved,
    relevant,
)
from autotune.simulator.coefficients import DATASHEET, Coefficients
from autotune.simulator.measured import Figures, MeasuredLoad, Repeated

SILENT = replace(DATASHEET, step_noise=0.0, run_noise=0.0)
FEW = {"compute_share": 0.12, "weight_read_share": 0.15, "eager_floor_s": 0.4}
NO_FLAGS: Mapping[str, int | bool] = {}
UNKNOWN = Figures(output_tok_s=1.0, tpot_p50_s=1.0, ttft_p50_s=1.0, ttft_p95_s=1.0)


def load(
    flags: Mapping[str, int | bool] = NO_FLAGS,
    *,
    clients: int = 16,
    prompt: int = 300,
    output: int = 24,
    node: str = "1xH200-141GB",
) -> MeasuredLoad:
    where, shape = parse_node_name(node), load_shape("meta-llama/Llama-3.1-8B-Instruct")
    return MeasuredLoad(
        node=where,
        shape=shape,
        settings=resolve(Config.of({"max-model-len": 8192, **flags}), where, shape),
        kv_tokens=400_000,
        level=LoadLevel(
            name="l",
            role=LevelRole.EXTRA,
            arrivals=Arrivals.CLOSED,
            requests=2 * clients,
            seed=1,
            concurrency=clients,
        ),
        requests=tuple(
            PlannedRequest(index=i, prompt_tokens=prompt, output_tokens=output, content_seed=i)
            for i in range(2 * clients)
        ),
        measured=UNKNOWN,
    )


def told(by: Coefficients, what: MeasuredLoad) -> MeasuredLoad:
    return replace(what, measured=Repeated(what).figures(by, seeds=1)[0])


LOADS = (load(), load(clients=2, output=64), load(clients=8, prompt=3000, output=4))


def test_figures_made_with_other_coefficients_give_these_back() -> None:
    truth = replace(SILENT, compute_share=0.55, sustained_compute_share=0.55, weight_read_share=0.7)
    loads = [told(truth, one) for one in LOADS]
    two = {"compute_share": 0.12, "sustained_compute_share": 0.12, "weight_read_share": 0.15}
    found = calibrate(loads, SILENT, uncertainties=two, seeds=1)
    assert found.coefficients.weight_read_share == pytest.approx(0.7, rel=0.03)
    assert found.coefficients.sustained_compute_share == pytest.approx(0.55, rel=0.06)
    assert found.misfit_after < 0.3 * found.misfit_before
    assert found.loads == 3
    assert 0 < found.spreads["weight_read_share"] < 0.15


def test_what_no_load_depends_on_keeps_its_prior() -> None:
    truth = replace(SILENT, weight_read_share=0.7, eager_floor_s=30e-3)
    found = calibrate([told(truth, LOADS[1])], SILENT, uncertainties=FEW, seeds=1)
    assert found.coefficients.eager_floor_s == SILENT.eager_floor_s
    assert "eager_floor_s" not in found.spreads


def test_it_answers_the_same_twice() -> None:
    loads = [told(replace(DATASHEET, weight_read_share=0.7), LOADS[1])]
    first, second = (calibrate(loads, DATASHEET, uncertainties=FEW, rounds=2) for _ in range(2))
    assert first == second


def test_an_odd_row_does_not_carry_the_others_away() -> None:
    truth = replace(SILENT, weight_read_share=0.7)
    odd = told(truth, load(clients=4, output=32))
    odd = replace(odd, measured=replace(odd.measured, tpot_p50_s=5 * odd.measured.tpot_p50_s))
    loads = [told(truth, load(clients=n, output=48)) for n in (1, 2, 3)]
    found = calibrate([*loads, odd], SILENT, uncertainties={"weight_read_share": 0.15}, seeds=1)
    assert found.coefficients.weight_read_share == pytest.approx(0.7, rel=0.08)


def test_without_loads_or_with_an_unknown_name_it_refuses() -> None:
    with pytest.raises(ValueError, match="at least one"):
        calibrate([], SILENT)
    with pytest.raises(ValueError, match="no such coefficients: warp_factor"):
        calibrate([LOADS[0]], SILENT, uncertainties={"warp_factor": 1.0})


def test_a_load_without_figures_is_refused() -> None:
    one = told(SILENT, LOADS[1])
    with pytest.raises(ValueError, match="no figures"):
        calibrate([replace(one, measured=replace(one.measured, tpot_p50_s=nan))], SILENT, uncertainties=FEW, seeds=1)


def test_every_uncertain_coefficient_exists_and_is_positive() -> None:
    for name, sigma in UNCERTAINTIES.items():
        assert getattr(DATASHEET, name) > 0
        assert getattr(Coefficients(), name) > 0
        assert sigma > 0


@pytest.mark.parametrize(
    ("flags", "node", "there", "not_there"),
    [
        ({}, "1xH200-141GB", "uncaptured_floor_s", {"eager_floor_s", "allreduce_latency_s", "stage_overhead_s"}),
        ({"enforce-eager": True}, "1xH200-141GB", "eager_floor_s", {"uncaptured_floor_s"}),
        ({"tensor-parallel-size": 2}, "2xH200-141GB", "allreduce_latency_s", {"stage_overhead_s"}),
        ({"pipeline-parallel-size": 2}, "2xH200-141GB", "stage_overhead_s", {"allreduce_latency_s"}),
    ],
)
def test_only_what_the_servers_depend_on_is_fitted(
    flags: Mapping[str, int | bool], node: str, there: str, not_there: set[str]
) -> None:
    found = relevant([load(flags, node=node)])
    assert there in found
    assert not not_there & set(found)
    assert "expert_share" not in found
    assert "compute_share" in found


def test_moving_stays_within_what_is_physical() -> None:
    assert moved(SILENT, {"compute_share": log(0.5)}).compute_share == pytest.approx(0.325)
    assert moved(SILENT, {"compute_share": 5.0}).compute_share == 0.98
    assert moved(SILENT, {"overlap_norm": -5.0}).overlap_norm == 1.0


def test_deviations_are_logarithms_in_units_of_accuracy() -> None:
    measured = Figures(output_tok_s=100.0, tpot_p50_s=0.01, ttft_p50_s=1.0, ttft_p95_s=2.0)
    simulated = Figures(output_tok_s=100.0 * exp(0.04), tpot_p50_s=0.01, ttft_p50_s=9.0, ttft_p95_s=2.0 * exp(-0.06))
    found = deviations(simulated, measured, Accuracy(output_tok_s=0.02, tpot_p50_s=0.03, ttft_p95_s=0.06))
    assert found == pytest.approx(np.array([2.0, 0.0, -1.0]))  # the mean of TTFT was not measured


def test_the_most_telling_trials_are_chosen_and_no_measured_figure_is_looked_at() -> None:
    idle = [load(clients=1, prompt=20, output=2)]
    eager = [load({"enforce-eager": True})]
    rich = list(LOADS)
    uncertain = {"compute_share": 0.12, "weight_read_share": 0.15, "eager_floor_s": 0.4}
    chosen = informative([idle, eager, rich], SILENT, 2, uncertainties=uncertain)
    assert set(chosen) == {1, 2}
    assert informative([idle, eager, rich], SILENT, 9, uncertainties=uncertain)[:2] == chosen
    other = [[replace(one, measured=replace(UNKNOWN, output_tok_s=7.0)) for one in t] for t in (idle, eager, rich)]
    assert informative(other, SILENT, 2, uncertainties=uncertain) == chosen
