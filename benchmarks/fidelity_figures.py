"""Errors, ordered pairs and regret of predicted loads. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from autotune.simulator.measured import Figures

THROUGHPUT_NOISE, TTFT_NOISE = 0.05, 0.25
"""Pairs that differ by less than this share are not told apart: identical runs differ by that much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One load of one server, measured and predicted.

    Attributes:
        config: equal for launches of the same flags.
        kv_tokens, kv_tokens_predicted: of one replica.
        preemptions, preemptions_predicted: during the load.
    """

    name: str
    load: str
    config: str
    measured: Figures
    predicted: Figures
    kv_tokens: float
    kv_tokens_predicted: float
    preemptions: float
    preemptions_predicted: float

    @property
    def errors(self) -> dict[str, float | None]:
        """Relative errors by figure; None where the row does not state it."""
        return {
            "throughput": self.predicted.output_tok_s / self.measured.output_tok_s - 1,
            "tpot": self.predicted.tpot_p50_s / self.measured.tpot_p50_s - 1,
            "ttft_p95": self.predicted.ttft_p95_s / self.measured.ttft_p95_s - 1,
            "ttft_mean": (
                None
                if self.predicted.ttft_mean_s is None or self.measured.ttft_mean_s is None
                else self.predicted.ttft_mean_s / self.measured.ttft_mean_s - 1
            ),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Fidelity:
    """How good predictions are. Shares 0..1; None where nothing could be judged.

    Attributes:
        throughput_worst, tpot_worst, ttft_p95_worst: the largest error of a row.
        pairs_right_throughput: of two configs under one load that differ by more than 5 %, how often the better one was
            named; the same for 25 % of TTFT p95.
        regret: output tokens per second lost by running the config that is predicted to be the best under a load, mean
            over loads.
        preemptions_right: rows in which preemptions were predicted where the server had them, and only there.
    """

    rows: int
    throughput_mape: float | None
    tpot_mape: float | None
    ttft_p95_mape: float | None
    ttft_mean_mape: float | None
    kv_tokens_mape: float | None
    throughput_worst: float | None
    tpot_worst: float | None
    ttft_p95_worst: float | None
    pairs_throughput: int
    pairs_right_throughput: float | None
    pairs_ttft_p95: int
    pairs_right_ttft_p95: float | None
    regret: float | None
    regret_worst: float | None
    preemptions_right: float | None


def fidelity(judged: Sequence[Predicted], known: Sequence[Predicted] = ()) -> Fidelity:
    """The figures over `judged`.

    Args:
        known: rows that the coefficients were calibrated on: never judged themselves, but configs that a judged one is
            compared with and that may be chosen.
    """
    sizes = {key: _sizes(judged, key) for key in ("throughput", "tpot", "ttft_p95", "ttft_mean")}
    kv = [abs(row.kv_tokens_predicted / row.kv_tokens - 1) for row in judged]
    throughput = [*_ordered(judged, known, lambda f: f.output_tok_s, THROUGHPUT_NOISE)]
    ttft = [*_ordered(judged, known, lambda f: f.ttft_p95_s, TTFT_NOISE)]
    regrets = [*_regrets(judged, known)]
    preempted = [(row.preemptions > 0) == (row.preemptions_predicted > 0) for row in judged]
    return Fidelity(
        rows=len(judged),
        throughput_mape=_mean(sizes["throughput"]),
        tpot_mape=_mean(sizes["tpot"]),
        ttft_p95_mape=_mean(sizes["ttft_p95"]),
        ttft_mean_mape=_mean(sizes["ttft_mean"]),
        kv_tokens_mape=_mean(kv),
        throughput_worst=max(sizes["throughput"], default=None),
        tpot_worst=max(sizes["tpot"], default=None),
        ttft_p95_worst=max(sizes["ttft_p95"], default=None),
        pairs_throughput=len(throughput),
        pairs_right_throughput=_mean(throughput),
        pairs_ttft_p95=len(ttft),
        pairs_right_ttft_p95=_mean(ttft),
        regret=_mean(regrets),
        regret_worst=max(regrets, default=None),
        preemptions_right=_mean(preempted),
    )


def config_blind(judged: Sequence[Predicted], every: Sequence[Predicted]) -> dict[str, float | int | None]:
    """Errors of a table that knows the load but not the config: the geometric mean of what other configs did under it.

    It is given more than calibration is: every other config's measured figures. Rows whose load no other config was
    measured under are left out.
    """
    errors: dict[str, list[float]] = {"throughput": [], "tpot": [], "ttft_p95": [], "ttft_mean": []}
    rows = 0
    for row in judged:
        others = [other for other in every if other.load == row.load and other.config != row.config]
        if not others:
            continue
        rows += 1
        for key, get in _FIGURES.items():
            truth, seen = get(row.measured), [get(other.measured) for other in others]
            values = [value for value in seen if value is not None]
            if truth is not None and values:
                errors[key].append(abs(float(np.exp(np.mean(np.log(values)))) / truth - 1))
    return {"rows": rows, **{f"{key}_mape": _mean(found) for key, found in errors.items()}}


_FIGURES: dict[str, Callable[[Figures], float | None]] = {
    "throughput": lambda f: f.output_tok_s,
    "tpot": lambda f: f.tpot_p50_s,
    "ttft_p95": lambda f: f.ttft_p95_s,
    "ttft_mean": lambda f: f.ttft_mean_s,
}


def _sizes(rows: Sequence[Predicted], key: str) -> list[float]:
    return [abs(error) for row in rows if (error := row.errors[key]) is not None]


def _ordered(
    judged: Sequence[Predicted], known: Sequence[Predicted], figure: Callable[[Figures], float], noise: float
) -> Iterator[bool]:
    """For each pair that differs by more than noise, whether the prediction has it the same way round."""
    fresh = {id(row) for row in judged}
    for one, other in combinations((*judged, *known), 2):
        if one.load != other.load or one.config == other.config or not {id(one), id(other)} & fresh:
            continue
        a, b = figure(one.measured), figure(other.measured)
        if max(a, b) / min(a, b) - 1 > noise:
            yield (figure(one.predicted) > figure(other.predicted)) == (a > b)


def _regrets(judged: Sequence[Predicted], known: Sequence[Predicted]) -> Iterator[float]:
    for load in dict.fromkeys(row.load for row in judged):
        rows = [row for row in (*judged, *known) if row.load == load]
        if len({row.config for row in rows}) > 1:
            chosen = max(rows, key=lambda row: row.predicted.output_tok_s)
            yield 1 - chosen.measured.output_tok_s / max(row.measured.output_tok_s for row in rows)


def _mean(values: Sequence[float]) -> float | None:
    return float(np.mean(values)) if values else None
