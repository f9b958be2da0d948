"""Error rates of the gate before a promotion: `python -m benchmarks.gate [--json] [--pairs 400] [--most 40]`.

Pairs of configs are made up: what runs today and a candidate that truly is the same, has 5 % more throughput, has a
20 % lower p95 TTFT, or is that much worse. Every launch and every window of arrivals gets noise, and the gate's own
decision (`autotune.promote.gate`, with its default number of windows, going on as it would) is asked. Run to run,
throughput differs by 0.5 or 1 % and the p95 TTFT of one window by 10, 20 or 30 % (standard deviations). How much of the
latter lies between launches, where more windows do not help, is not known of a node in general: it is varied from
nothing to all, and what queueing has to do with it is marked: near the knee a wait changes by `KNEE_GAIN` times as much
as the capacity, so launches whose throughput differs by 1 % differ by 5.7 % in TTFT.

The study had two repeats, which is what it makes by default, and its claims are the truth with the noise of one launch.

Beside the rates stands what they cost: launches and minutes until the verdict, on average, and the launches that a
single look would need to find 20 % less TTFT in nine cases of ten at that noise (the textbook sample size).
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from autotune.load.arrival_windows import WindowRule
from autotune.promote.gate import Evidence, Look, judge, looks, outlook
from autotune.promote.gate.evidence import KNEE_GAIN
from autotune.promote.gate.performance import TTFT_GAIN_ALPHA
from autotune.promote.gate.prospects import launches_for
from autotune.records import (
    Arrivals,
    Config,
    Estimate,
    GateLaunch,
    GateLevel,
    GateSide,
    GateSideName,
    GateVerdict,
    LevelRole,
    LoadLevel,
)
from autotune.search.noise import ASSUMED_THROUGHPUT_SD, ASSUMED_TTFT_SD, PRIOR_WEIGHT, RunNoise
from autotune.verification import order_of
from autotune.verification_launch import LAUNCHES, MOST_LAUNCHES, RATE_FACTOR

THROUGHPUT_SDS = (0.005, 0.01)
TTFT_SDS = (0.1, 0.2, 0.3)
SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)
REPEATS = 2

MOST_FALSE, LEAST_FOUND = 0.05, 0.90
"""The project's own goals."""

LAUNCH_MIN, WINDOW_MIN = 2.5, 0.5
"""Minutes: what a launch with its warm-up, throughput level and higher rate takes on the H200 of docs/results-h200.md,
and a window of arrivals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """Standard deviations of logarithms.

    Attributes:
        ttft: of the p95 TTFT of one window, run to run.
        between: share of its variance that lies between launches, 0..1.
    """

    throughput: float
    ttft: float
    between: float

    @property
    def of_queueing(self) -> bool:
        """Whether launches differ in TTFT by just what their throughput makes them differ."""
        return math.isclose(self.between, _queueing(self.throughput, self.ttft))

    def launch_sd(self, windows: float) -> float:
        """Of a launch's mean over so many windows."""
        return self.ttft * math.sqrt(self.between + (1 - self.between) / windows)


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the candidate really is against what runs today: factors."""

    name: str
    throughput: float = 1.0
    ttft: float = 1.0


SAME = Truth(name="the same")
FASTER = Truth(name="5 % more throughput", throughput=1.05)
SOONER = Truth(name="20 % lower TTFT", ttft=0.8)
TRUTHS = (
    SAME,
    FASTER,
    SOONER,
    Truth(name="5 % less throughput", throughput=1 / 1.05),
    Truth(name="25 % higher TTFT", ttft=1.25),
)


def main() -> None:
    """Print how often the gate is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400, help="of each kind")
    parser.add_argument("--launches", type=int, default=LAUNCHES, help="before the first look")
    parser.add_argument("--most", type=int, default=MOST_LAUNCHES, help="launches where it goes on")
    parser.add_argument("--windows", type=int, default=None, help="instead of what the first launch asks for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rule = WindowRule() if args.windows is None else WindowRule.fixed(args.windows)
    at = looks(args.launches, args.most)
    cells = [cell(noise, args.pairs, at, rule, (args.seed, place)) for place, noise in enumerate(noises())]
    if args.json:
        print(json.dumps({"schema": "autotune.benchmarks.gate", "version": 2, "pairs": args.pairs, "cells": cells}))
        return
    for line in table(cells, at, args.pairs):
        print(line)


def noises() -> Iterator[Noise]:
    """Every kind of noise."""
    for throughput, ttft in product(THROUGHPUT_SDS, TTFT_SDS):
        for between in sorted({*SHARES, _queueing(throughput, ttft)}):
            yield Noise(throughput=throughput, ttft=ttft, between=between)


def _queueing(throughput: float, ttft: float) -> float:
    return min(1.0, (KNEE_GAIN * throughput / ttft) ** 2)


def cell(noise: Noise, pairs: int, at: tuple[int, ...], rule: WindowRule, seed: tuple[int, ...]) -> dict[str, Any]:
    """Of one kind of noise: verdicts by truth, as shares, at the first look and in the end, and what they took."""
    windows: list[int] = []
    verdicts, first, launches = {}, {}, {}
    for place, truth in enumerate(TRUTHS):
        rng = np.random.default_rng((*seed, place))
        at_first: Counter[GateVerdict] = Counter()
        at_last: Counter[GateVerdict] = Counter()
        made = 0
        for _ in range(pairs):
            pair = Pair(rng, noise, truth, at[-1], rule)
            told = verdicts_of(pair, at)
            windows.append(pair.windows)
            at_first[told[0]] += 1
            at_last[told[-1]] += 1
            made += at[len(told) - 1]
        verdicts[truth.name] = {str(verdict): at_last[verdict] / pairs for verdict in GateVerdict if at_last[verdict]}
        first[truth.name] = {str(verdict): at_first[verdict] / pairs for verdict in GateVerdict if at_first[verdict]}
        launches[truth.name] = made / pairs
    mean_windows = sum(windows) / len(windows)
    return {
        "throughput_sd": noise.throughput,
        "ttft_sd": noise.ttft,
        "between_share": noise.between,
        "between_of_queueing": noise.of_queueing,
        "launches": launches,
        "minutes": {name: count * (LAUNCH_MIN + WINDOW_MIN * mean_windows) for name, count in launches.items()},
        "most_launches": at[-1],
        "windows": mean_windows,
        "launches_for_ttft": launches_for(-math.log(SOONER.ttft), noise.launch_sd(mean_windows), TTFT_GAIN_ALPHA),
        "first_verdicts": first,
        "verdicts": verdicts,
    }


def verdicts_of(pair: Pair, at: tuple[int, ...]) -> list[GateVerdict]:
    """The gate's verdict at each look that it takes."""
    told = []
    for number in range(len(at)):
        evidence = pair.evidence(Look(at=at, number=number))
        found = judge(evidence)
        told.append(found.verdict)
        if not outlook(evidence, found).goes_on:
            break
    return told


class Pair:
    """Two configs that were made up, with all launches that may be made of them.

    Attributes:
        windows: that each launch has.
    """

    def __init__(self, rng: np.random.Generator, noise: Noise, truth: Truth, most: int, rule: WindowRule) -> None:
        between, within = noise.ttft * math.sqrt(noise.between), noise.ttft * math.sqrt(1 - noise.between)
        arrivals = rng.normal(0.0, within, rule.most)  # what a window's arrivals do, the same in all launches
        self._order = order_of(most, most)
        theirs = [truth if side is GateSideName.CANDIDATE else SAME for side in self._order]
        self._tok_s = [1000.0 * one.throughput * math.exp(rng.normal(0.0, noise.throughput)) for one in theirs]
        means = np.array([math.log(0.3 * one.ttft) for one in theirs]) + rng.normal(0.0, between, most)
        self._windows = means[:, None] + arrivals + rng.normal(0.0, within, (most, rule.most))
        self._over = means + 0.7 + rng.normal(0.0, within, most)
        self.windows = next(n for n in range(1, rule.most + 1) if rule.enough(list(self._windows[0, :n])))
        candidate, against = (
            GateSide(
                label=label, config=Config.of({"x": label}), model="m", gpus=1, tok_s_per_gpu=tok_s, ttft_p95_s=ttft_s
            )
            for label, (tok_s, ttft_s) in (
                ("candidate", _claims(rng, noise, truth)),
                ("today", _claims(rng, noise, SAME)),
            )
        )
        self._base = Evidence(
            candidate=candidate,
            against=against,
            order="",
            launches=(),
            slo=None,
            noise=_study_noise(rng, noise),
            rate_factor=RATE_FACTOR,
        )
        self._made: list[GateLaunch] = []

    def evidence(self, look: Look) -> Evidence:
        """What the gate would see of it by then."""
        for place in range(len(self._made), look.launches):
            windows = [math.exp(one) for one in self._windows[place, : self.windows]]
            side = self._order[place]
            self._made.append(_launch(place + 1, side, self._tok_s[place], windows, math.exp(self._over[place])))
        made = tuple(self._made[: look.launches])
        return replace(self._base, launches=made, order="".join(one.side for one in made), look=look)


def _claims(rng: np.random.Generator, noise: Noise, truth: Truth) -> tuple[Estimate, Estimate]:
    tok_s = 1000.0 * truth.throughput * math.exp(rng.normal(0.0, noise.throughput))
    ttft = 0.3 * truth.ttft * math.exp(rng.normal(0.0, noise.ttft))
    return _between(tok_s, noise.throughput), _between(ttft, noise.ttft)


def _between(value: float, sd: float) -> Estimate:
    return Estimate(value=value, low=value * math.exp(-1.96 * sd), high=value * math.exp(1.96 * sd))


def _study_noise(rng: np.random.Generator, noise: Noise) -> RunNoise:
    """As `run_noise` would pool the study's repeats."""
    pooled = [
        math.sqrt(
            (PRIOR_WEIGHT * assumed**2 + float(np.sum(rng.normal(0.0, sd, REPEATS) ** 2))) / (PRIOR_WEIGHT + REPEATS)
        )
        for sd, assumed in ((noise.throughput, ASSUMED_THROUGHPUT_SD), (noise.ttft, ASSUMED_TTFT_SD))
    ]
    return RunNoise(throughput_sd=pooled[0], ttft_sd=pooled[1], repeats=REPEATS)


_LEVEL = LoadLevel(name="", role=LevelRole.EXTRA, arrivals=Arrivals.POISSON, requests=1000, seed=0, rate_rps=10.0)


def _launch(place: int, side: GateSideName, tok_s: float, windows: list[float], over: float) -> GateLaunch:
    def level(name: str, *, tok_s: float | None = None, ttft_s: float | None = None) -> GateLevel:
        return GateLevel(
            level=replace(_LEVEL, name=name),
            completed=1000,
            failed=0,
            preemptions=0,
            tok_s_per_gpu=None if tok_s is None else Estimate(value=tok_s),
            ttft_p95_s=None if ttft_s is None else Estimate(value=ttft_s),
        )

    named = (level(f"ttft-{n}" if n > 1 else "ttft", ttft_s=value) for n, value in enumerate(windows, start=1))
    return GateLaunch(
        place=place,
        side=side,
        directory="",
        stopped_cleanly=True,
        longest_answered=True,
        levels=(
            level("throughput", tok_s=tok_s),
            *named,
            level("rate-plus", ttft_s=over),
        ),
    )


def table(cells: list[dict[str, Any]], at: tuple[int, ...], pairs: int) -> Iterator[str]:
    """The rates, what they cost, and where they miss the goals."""
    yield f"first look after {at[0]} launches, {at[-1]} at most; {pairs} pairs of each kind; share of verdicts"
    yield "q: launches differ in TTFT by what queueing makes of their throughput, and by no more"
    yield ""
    yield "noise run to run, part      win- promoted, truly             stopped, truly  -20 % TTFT:          launches,"
    yield "tok/s TTFT  between         dows the same +5 %   -20 % TTFT  -5 %   +25 %    launches  minutes   one look"
    yield "            launches                  tok/s  at once in all  tok/s  TTFT     (the same)          would need"
    for one in cells:
        passed = [one["verdicts"][truth.name].get("pass", 0.0) for truth in TRUTHS]
        failed = [one["verdicts"][truth.name].get("fail", 0.0) for truth in TRUTHS]
        at_once = one["first_verdicts"][SOONER.name].get("pass", 0.0)
        made = one["launches"]
        yield (
            f"{one['throughput_sd']:5.1%} {one['ttft_sd']:4.0%} {one['between_share']:8.0%} "
            f"{'q' if one['between_of_queueing'] else ' '} {one['windows']:9.1f} {passed[0]:8.1%} {passed[1]:6.1%} "
            f"{at_once:7.1%} {passed[2]:6.1%} {failed[3]:6.1%} {failed[4]:6.1%} {made[SOONER.name]:8.1f} "
            f"({made[SAME.name]:4.1f}) {one['minutes'][SOONER.name]:7.0f} {one['launches_for_ttft']:9}"
        )
    yield ""
    yield from _goals(cells)


def _goals(cells: list[dict[str, Any]]) -> Iterator[str]:
    worst = max(one["verdicts"][SAME.name].get("pass", 0.0) for one in cells)
    yield f"false promotion: at most {worst:.1%}; goal {MOST_FALSE:.0%}: {_met(worst <= MOST_FALSE)}"
    queueing = [one for one in cells if one["between_of_queueing"]]
    for truth, kinds, which in (
        (FASTER, cells, "all kinds of noise"),
        (SOONER, queueing, "where launches differ as queueing has it"),
        (SOONER, cells, "all kinds of noise"),
    ):
        rates = [one["verdicts"][truth.name].get("pass", 0.0) for one in kinds]
        good = sum(rate >= LEAST_FOUND for rate in rates)
        yield (
            f"{truth.name} found, {which}: {min(rates):.1%} to {max(rates):.1%}; goal {LEAST_FOUND:.0%}: "
            f"{_met(good == len(rates))} (reached in {good} of {len(rates)})"
        )


def _met(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    main()
