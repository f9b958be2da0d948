"""Launches of a verification, made up for tests of its decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.promote.gate import Evidence
from autotune.records import (
    Arrivals,
    Config,
    Estimate,
    GateLaunch,
    GateLevel,
    GateSide,
    GateSideName,
    LevelRole,
    LoadLevel,
)
from autotune.search.noise import RunNoise

TODAY, CANDIDATE = GateSideName.AGAINST, GateSideName.CANDIDATE
LEVEL = LoadLevel(name="", role=LevelRole.EXTRA, arrivals=Arrivals.POISSON, requests=100, seed=1, rate_rps=5.0)


def level(name: str, *, tok_s: float | None = None, ttft_s: float | None = None, **changes: object) -> GateLevel:
    made = GateLevel(
        level=replace(LEVEL, name=name),
        completed=100,
        failed=0,
        preemptions=0,
        tok_s_per_gpu=None if tok_s is None else Estimate(value=tok_s),
        ttft_p95_s=None if ttft_s is None else Estimate(value=ttft_s),
    )
    return replace(made, **changes)


def launch(
    place: int,
    side: GateSideName,
    *,
    tok_s: float = 1000.0,
    windows: Sequence[float] = (0.2, 0.2, 0.2),
    over_s: float = 0.4,
    **changes: object,
) -> GateLaunch:
    levels = [level("throughput", tok_s=tok_s)]
    levels += [level("ttft" if n == 1 else f"ttft-{n}", ttft_s=one) for n, one in enumerate(windows, start=1)]
    made = GateLaunch(
        place=place,
        side=side,
        directory="/gate",
        startup_s=30.0,
        stop_s=1.0,
        stopped_cleanly=True,
        levels=(*levels, level("rate-plus", ttft_s=over_s)),
        longest_prompt_tokens=4000,
        longest_answered=True,
    )
    return replace(made, **changes)


def abba(**candidate: object) -> tuple[GateLaunch, ...]:
    """What runs today as `launch` has it; the candidate with changes."""
    return (
        launch(1, TODAY),
        launch(2, CANDIDATE, **candidate),
        launch(3, CANDIDATE, **candidate),
        launch(4, TODAY),
    )


def side(label: str, **changes: object) -> GateSide:
    return replace(GateSide(label=label, config=Config.of({"max-num-seqs": len(label)}), model="m", gpus=1), **changes)


def evidence(launches: Sequence[GateLaunch] = (), **changes: object) -> Evidence:
    made = Evidence(
        candidate=side("trial 7"),
        against=side("the baseline"),
        order="ABBA",
        launches=tuple(launches) or abba(tok_s=1100.0),
        slo=None,
        noise=RunNoise(throughput_sd=0.01, ttft_sd=0.1, repeats=0),
        rate_factor=1.2,
    )
    return replace(made, **changes)
