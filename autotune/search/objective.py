"""The two objectives of a trial, and service level objectives as text; pure."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.errors import InvalidOption
from autotune.records import Estimate, Slo, Trial

SLO_METRICS = ("ttft_p95",)
"""What an SLO may limit; seconds, lower is better."""

_SLO = re.compile(r"(?:(?P<metric>[A-Za-z_][A-Za-z0-9_]*)\s*<=?\s*)?(?P<number>\d+(?:\.\d*)?|\.\d+)\s*(?P<unit>ms|s)")
_UNIT_S = {"ms": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A measured config: its objectives, over all its repeats.

    Attributes:
        number: of its first measured trial, which stands for it everywhere.
        numbers: of all its measured trials.
        tok_s_per_gpu: output tokens/s per GPU used, to maximise.
        ttft_p95_s: p95 time to first token, to minimise.
    """

    number: int
    numbers: tuple[int, ...]
    config_hash: str
    tok_s_per_gpu: Estimate
    ttft_p95_s: Estimate

    @property
    def values(self) -> tuple[float, float]:
        """(tokens/s per GPU, seconds)."""
        return self.tok_s_per_gpu.value, self.ttft_p95_s.value

    @property
    def logs(self) -> tuple[float, float]:
        """Natural logarithms of both: a factor counts the same anywhere, which is what people compare."""
        return math.log(self.tok_s_per_gpu.value), math.log(self.ttft_p95_s.value)


def points(trials: Sequence[Trial]) -> tuple[Point, ...]:
    """The measured configs, repeats of one config (same hash) joined, in order of their first trial."""
    found: dict[str, Point] = {}
    evidence: dict[str, list[tuple[Estimate, Estimate]]] = {}
    for trial in sorted(trials, key=lambda trial: trial.number):
        pair = trial.objectives
        if pair is None:
            continue
        key = trial.config.hash
        evidence.setdefault(key, []).append(pair)
        numbers = (*found[key].numbers, trial.number) if key in found else (trial.number,)
        point = Point(number=trial.number, numbers=numbers, config_hash=key, tok_s_per_gpu=pair[0], ttft_p95_s=pair[1])
        found[key] = replace(point, number=numbers[0])
    return tuple(
        replace(
            point,
            tok_s_per_gpu=_joined([pair[0] for pair in evidence[key]]),
            ttft_p95_s=_joined([pair[1] for pair in evidence[key]]),
        )
        for key, point in found.items()
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What is shown of a trial.

    Attributes:
        runs: launches that the figures are means of; 0 for a trial that was not measured.
        output_tok_s: all GPUs of the config together.
    """

    runs: int
    output_tok_s: Estimate | None
    output_tok_s_per_gpu: Estimate | None
    ttft_p95_s: Estimate | None


def own_figures(trial: Trial) -> Figures:
    """Those of its own launch, for lists in which every launch stands by itself."""
    return Figures(
        runs=int(trial.measured),
        output_tok_s=trial.output_tok_s,
        output_tok_s_per_gpu=trial.output_tok_s_per_gpu,
        ttft_p95_s=trial.ttft_p95_s,
    )


def joined_figures(trial: Trial, trials: Sequence[Trial]) -> Figures:
    """Those that front and pick are decided by: over all measured launches of its config among `trials`.

    A trial without objectives has only its own.
    """
    point = next((point for point in points(trials) if trial.number in point.numbers), None)
    if point is None:
        return own_figures(trial)
    totals = [one.output_tok_s for one in trials if one.number in point.numbers and one.output_tok_s is not None]
    return Figures(
        runs=len(point.numbers),
        output_tok_s=_joined(totals),
        output_tok_s_per_gpu=point.tok_s_per_gpu,
        ttft_p95_s=point.ttft_p95_s,
    )


def _joined(estimates: Sequence[Estimate]) -> Estimate:
    """The mean of repeats. Its interval spans all of theirs: runs differ by more than each one's own noise shows."""
    if len(estimates) == 1:
        return estimates[0]
    lows = [one.low for one in estimates if one.low is not None]
    highs = [one.high for one in estimates if one.high is not None]
    values = [one.value for one in estimates]
    return Estimate(
        value=math.fsum(values) / len(values),
        low=min(*lows, *values) if lows else None,
        high=max(*highs, *values) if highs else None,
    )


def parse_slo(text: str, *, option: str = "--slo") -> Slo:
    """An SLO from text: `ttft_p95<=500ms`, or the limit alone (`1.5s`), which then limits `ttft_p95`.

    Raises:
        InvalidOption: not of that form, an unknown metric, or a limit of 0.
    """
    metrics = ", ".join(SLO_METRICS)
    found = _SLO.fullmatch(text.strip())
    if found is None:
        raise InvalidOption(
            option, text, f"METRIC<=DURATION such as ttft_p95<=500ms or ttft_p95<=1.5s; METRIC: {metrics}"
        )
    metric = found["metric"] or SLO_METRICS[0]
    if metric not in SLO_METRICS:
        raise InvalidOption(option, metric, f"METRIC one of: {metrics}")
    limit_s = float(found["number"]) * _UNIT_S[found["unit"]]
    if limit_s <= 0:
        raise InvalidOption(option, text, "a limit above 0")
    return Slo(metric=metric, limit_s=limit_s)
