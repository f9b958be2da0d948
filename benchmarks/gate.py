"""Error rates of the gate before a promotion: `python -m benchmarks.gate [--json] [--pairs 400] [--launches 4]`.

Pairs of configs are made up: what runs today and a candidate that truly is the same, has 5 % more throughput, has a
20 % lower p95 TTFT, or is that much worse. Every launch and every window of arrivals gets noise, and the gate's own
decision (`autotune.promote.gate.judge`, with its default number of windows) is asked. Run to run, throughput differs by
0.5 or 1 % and the p95 TTFT of one window by 10, 20 or 30 % (standard deviations). How much of the latter lies between
launches, where more windows do not help, is not known of a node in general: it is varied from nothing to all.

The study had two repeats, which is what it makes by default, and its claims are the truth with the noise of one launch.
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
from autotune.promote.gate import Evidence, judge
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
from autotune.verification import LAUNCHES, RATE_FACTOR, order_of

THROUGHPUT_SDS = (0.005, 0.01)
TTFT_SDS = (0.1, 0.2, 0.3)
SHARES = (0.0, 0.1, 0.25, 0.5, 1.0)
REPEATS = 2

MOST_FALSE, LEAST_FOUND = 0.05, 0.90
"""The project's own goals."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """What the candidate really is against what runs today: factors."""

    name: str
    throughput: float = 1.0
    ttft: float = 1.0


SAME = Truth(name="the same")
TRUTHS = (
    SAME,
    Truth(name="5 % more throughput", throughput=1.05),
    Truth(name="20 % lower TTFT", ttft=0.8),
    Truth(name="5 % less throughput", throughput=1 / 1.05),
    Truth(name="25 % higher TTFT", ttft=1.25),
)


def main() -> None:
    """Print how often the gate is right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=400, help="of each kind")
    parser.add_argument("--launches", type=int, default=LAUNCHES)
    parser.add_argument("--windows", type=int, default=None, help="instead of what the first launch asks for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rule = WindowRule() if args.windows is None else WindowRule.fixed(args.windows)
    cells = measured(args.pairs, args.launches, rule, args.seed)
    if args.json:
        print(json.dumps({"schema": "autotune.benchmarks.gate", "version": 1, "pairs": args.pairs, "cells": cells}))
        return
    for line in table(cells, args.launches, args.pairs):
        print(line)


def measured(pairs: int, launches: int, rule: WindowRule, seed: int) -> list[dict[str, Any]]:
    """One entry for every kind of noise: verdicts by truth, as shares, and the windows that a launch had."""
    found = []
    for place, (throughput, ttft, between) in enumerate(product(THROUGHPUT_SDS, TTFT_SDS, SHARES)):
        noise = Noise(throughput=throughput, ttft=ttft, between=between)
        windows: list[int] = []
        verdicts = {}
        for truth_place, truth in enumerate(TRUTHS):
            rng = np.random.default_rng((seed, place, truth_place))
            counts: Counter[GateVerdict] = Counter()
            for _ in range(pairs):
                evidence = pair(rng, noise, truth, launches, rule)
                windows.append(len(evidence.launches[0].levels) - 2)
                counts[judge(evidence).verdict] += 1
            verdicts[truth.name] = {str(verdict): counts[verdict] / pairs for verdict in GateVerdict if counts[verdict]}
        found.append(
            {
                "throughput_sd": throughput,
                "ttft_sd": ttft,
                "between_share": between,
                "launches": launches,
                "windows": sum(windows) / len(windows),
                "verdicts": verdicts,
            }
        )
    return found


def pair(rng: np.random.Generator, noise: Noise, truth: Truth, launches: int, rule: WindowRule) -> Evidence:
    """What the gate would see of one pair."""
    between, within = noise.ttft * math.sqrt(noise.between), noise.ttft * math.sqrt(1 - noise.between)
    arrivals = rng.normal(0.0, within, rule.most)  # what a window's arrivals do, the same in all launches
    made: list[GateLaunch] = []
    count = rule.most
    for place, side in enumerate(order_of(launches), start=1):
        theirs = truth if side is GateSideName.CANDIDATE else SAME
        tok_s = 1000.0 * theirs.throughput * math.exp(rng.normal(0.0, noise.throughput))
        launch = math.log(0.3 * theirs.ttft) + rng.normal(0.0, between)
        windows = launch + arrivals + rng.normal(0.0, within, rule.most)
        if place == 1:
            count = next(n for n in range(1, rule.most + 1) if rule.enough(list(windows[:n])))
        over = launch + 0.7 + rng.normal(0.0, within)
        made.append(_launch(place, side, tok_s, [math.exp(one) for one in windows[:count]], math.exp(over)))
    claims = [_claims(rng, noise, one) for one in (truth, SAME)]
    candidate, against = (
        GateSide(label=label, config=Config.of({"x": label}), model="m", gpus=1, tok_s_per_gpu=tok, ttft_p95_s=ttft)
        for label, (tok, ttft) in zip(("candidate", "today"), claims, strict=True)
    )
    return Evidence(
        candidate=candidate,
        against=against,
        order="".join(order_of(launches)),
        launches=tuple(made),
        slo=None,
        noise=_study_noise(rng, noise),
        rate_factor=RATE_FACTOR,
    )


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


def table(cells: list[dict[str, Any]], launches: int, pairs: int) -> Iterator[str]:
    """The rates, and where they miss the goals."""
    yield f"{launches} launches, {pairs} pairs of each kind; share of verdicts"
    yield ""
    yield "noise run to run, part       windows  promoted, truly                 stopped, truly"
    yield "tok/s TTFT  between launches          the same   +5 % tok/s  -20 % TTFT   -5 % tok/s  +25 % TTFT"
    for cell in cells:
        told = cell["verdicts"]
        passed = [told[truth.name].get("pass", 0.0) for truth in TRUTHS]
        failed = [told[truth.name].get("fail", 0.0) for truth in TRUTHS]
        yield (
            f"{cell['throughput_sd']:5.1%} {cell['ttft_sd']:4.0%} {cell['between_share']:10.0%} {cell['windows']:15.1f}"
            f" {passed[0]:12.1%} {passed[1]:12.1%} {passed[2]:11.1%} {failed[3]:12.1%} {failed[4]:11.1%}"
        )
    yield ""
    worst = max(cell["verdicts"][SAME.name].get("pass", 0.0) for cell in cells)
    yield f"false promotion: at most {worst:.1%}; goal {MOST_FALSE:.0%}: {_met(worst <= MOST_FALSE)}"
    for truth in TRUTHS[1:3]:
        rates = [cell["verdicts"][truth.name].get("pass", 0.0) for cell in cells]
        good = sum(rate >= LEAST_FOUND for rate in rates)
        yield (
            f"{truth.name} found: {min(rates):.1%} to {max(rates):.1%}; goal {LEAST_FOUND:.0%}: "
            f"{_met(good == len(rates))} (reached in {good} of {len(rates)} kinds of noise)"
        )


def _met(met: bool) -> str:
    return "met" if met else "missed"


if __name__ == "__main__":
    main()
