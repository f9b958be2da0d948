"""When requests start: pure schedules in seconds after the level's start."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import assert_never

import numpy as np

from autotune.records import ArrivalProcess, Arrivals, LevelRole, LoadLevel

STAGGER_PER_SLOT_S = 0.02
"""One slot of a closed loop opens every 20 ms, about the prefill of one chat prompt on a recent GPU, so that the first
wave neither queues behind itself nor runs in lock step afterwards."""

MAX_STAGGER_S = 10.0
"""The whole staggered start never takes longer."""

IN_FLIGHT_CAP = 2048
"""An open loop holds at most this many requests open; beyond it they are sent late, which the records show."""


def default_stagger_s(concurrency: int) -> float:
    """Seconds over which a closed loop of `concurrency` slots starts."""
    return min(MAX_STAGGER_S, STAGGER_PER_SLOT_S * concurrency)


def closed_offsets(concurrency: int, stagger_s: float) -> tuple[float, ...]:
    """Start of each slot of a closed loop: evenly spread over `stagger_s`, the first at 0."""
    return tuple(slot * stagger_s / concurrency for slot in range(concurrency))


def open_level(
    name: str,
    role: LevelRole,
    process: ArrivalProcess,
    *,
    rate_rps: float,
    requests: int,
    seed: int,
    most_requests: int | None = None,
) -> LoadLevel:
    """An open loop whose requests come by `process`; a ramp does not grow, for it would be another one."""
    return LoadLevel(
        name=name,
        role=role,
        arrivals=process.kind,
        requests=requests,
        seed=seed,
        rate_rps=rate_rps,
        cv=process.cv,
        ramp_from=process.ramp_from,
        ramp_to=process.ramp_to,
        most_requests=None if process.kind is Arrivals.RAMP else most_requests,
    )


def constant_schedule(rate_rps: float, requests: int) -> tuple[float, ...]:
    """One request every 1/rate seconds, the first at 0."""
    _check_rate(rate_rps)
    return tuple(index / rate_rps for index in range(requests))


def poisson_schedule(rate_rps: float, requests: int, seed: int | list[int]) -> tuple[float, ...]:
    """Arrivals of a Poisson process, given that exactly `requests` of them fall in requests/rate seconds.

    Under that condition arrival times are sorted independent uniforms (Kingman, Poisson Processes, 1993, 2.4). Gaps
    are as bursty as any Poisson stream's, while the offered rate is exact: summing exponential gaps instead would let
    the rate of a 300-request level be off by 6 %, and the p95 near the knee with it.
    """
    _check_rate(rate_rps)
    times = np.sort(np.random.default_rng(seed).random(requests)) * (requests / rate_rps)
    return tuple(float(t) for t in times)


def gamma_schedule(rate_rps: float, requests: int, seed: int | list[int], cv: float) -> tuple[float, ...]:
    """Arrivals with gamma-distributed gaps, given that exactly `requests` of them fall in requests/rate seconds.

    One gap more than requests is drawn, and all are stretched alike so that they fill that time. With cv 1 this is
    `poisson_schedule` in distribution: spacings of uniforms are exponentials over their sum (Devroye, Non-Uniform
    Random Variate Generation, 1986, V.2).

    Args:
        cv: coefficient of variation of the gaps, above 0: the shape is 1 / cv^2 (`vllm bench serve` calls that
            --burstiness). A level of few requests cannot show a large one: its sample's is at most sqrt(requests).
    """
    _check_rate(rate_rps)
    if not 0 < cv < float("inf"):
        raise ValueError(f"gaps need a positive coefficient of variation, got {cv}")
    ends = np.cumsum(np.random.default_rng(seed).gamma(shape=1 / cv**2, size=requests + 1))
    if not ends[-1] > 0:  # all gaps below the smallest float, as a huge cv may have them
        return constant_schedule(rate_rps, requests)
    whole_s = requests / rate_rps
    return tuple(min(whole_s, float(t)) for t in ends[:-1] / ends[-1] * whole_s)


def ramp_schedule(
    rate_rps: float, requests: int, seed: int | list[int], *, ramp_from: float, ramp_to: float
) -> tuple[float, ...]:
    """Poisson arrivals whose rate goes in a straight line from start to end; their mean rate is exactly `rate_rps`.

    Given their number, arrivals of such a process are sorted independent draws with the rate as density (Kingman,
    2.4); the share F of them before the share u of the time is (a u + (b - a) u^2 / 2) / ((a + b) / 2), solved for u.

    Args:
        ramp_from, ramp_to: a and b, rates in any unit: only their ratio counts. Not negative, not both 0.
    """
    _check_rate(rate_rps)
    total = ramp_from + ramp_to
    if not (ramp_from >= 0 and ramp_to >= 0 and 0 < total < float("inf")):
        raise ValueError(f"a ramp needs rates of 0 and above, got {ramp_from} to {ramp_to}")
    a, b = ramp_from / total, ramp_to / total
    shares = np.sort(np.random.default_rng(seed).random(requests))
    # The root without the difference of near-equal numbers that a flat ramp would make of the usual form; a ramp from 0
    # has its first draw of exactly 0, should it come, at the start.
    below = a + np.sqrt(np.maximum(0.0, a * a + (b - a) * shares))
    times = np.divide(shares, below, out=np.zeros_like(shares), where=below > 0)
    return tuple(float(t) for t in np.minimum(times, 1.0) * (requests / rate_rps))


def trace_schedule(rate_rps: float, times_s: Sequence[float]) -> tuple[float, ...]:
    """Recorded arrivals at another mean rate: all gaps are stretched alike, so that bursts stay bursts.

    Args:
        times_s: ascending; one more than requests, the last being when the next request would have come. The span is
            stretched to requests/rate seconds; recordings without any time between them come evenly.
    """
    _check_rate(rate_rps)
    requests, start = len(times_s) - 1, times_s[0]
    span = times_s[-1] - start
    if span <= 0:
        return constant_schedule(rate_rps, requests)
    return tuple((at - start) / span * requests / rate_rps for at in times_s[:-1])


def level_steps(level: LoadLevel) -> tuple[int, ...]:
    """How many requests each step of a level has: what is sent anyway, then halves of that as far as it may grow.

    One step for a level that does not grow. After every step the level may end.
    """
    step = math.ceil(level.requests / 2)
    further = 0 if level.most_requests is None or not step else (level.most_requests - level.requests) // step
    return (level.requests, *([step] * max(0, further)))


def schedule(level: LoadLevel, times_s: Sequence[float] | None = None) -> tuple[float, ...] | None:
    """Absolute due times of an open-loop level, ascending; None for a closed loop.

    Only the level's seed decides, so every config sees the same arrivals. Every step of a level that may grow is a
    schedule of its own, right after the one before, so that the mean rate is exact wherever it ends.

    Args:
        times_s: recorded arrivals, needed by a TRACE level alone (see `trace_schedule`), one more than all steps have.

    Raises:
        ValueError: an open-loop level without a positive rate or what its arrivals need, or a TRACE level without
            recorded arrivals.
    """
    if level.arrivals is Arrivals.CLOSED:
        return None
    rate_rps, steps = level.rate_rps or 0.0, level_steps(level)
    if level.arrivals is Arrivals.TRACE and (times_s is None or len(times_s) != sum(steps) + 1):
        raise ValueError(f"level {level.name} replays arrivals, and the workload has none recorded")
    due: list[float] = []
    for place, requests in enumerate(steps):
        part = times_s[len(due) : len(due) + requests + 1] if times_s is not None else None
        seed = [level.seed, place] if place else level.seed
        times = _step_schedule(level, rate_rps, requests, seed, part)
        start_s = len(due) / rate_rps
        due += [start_s + at for at in times]
    return tuple(due)


def _step_schedule(
    level: LoadLevel, rate_rps: float, requests: int, seed: int | list[int], times_s: Sequence[float] | None
) -> tuple[float, ...]:
    match level.arrivals:
        case Arrivals.CONSTANT:
            return constant_schedule(rate_rps, requests)
        case Arrivals.POISSON:
            return poisson_schedule(rate_rps, requests, seed)
        case Arrivals.GAMMA:
            if level.cv is None:
                raise ValueError(f"level {level.name} has gamma arrivals without a coefficient of variation")
            return gamma_schedule(rate_rps, requests, seed, level.cv)
        case Arrivals.RAMP:
            if level.ramp_from is None or level.ramp_to is None:
                raise ValueError(f"level {level.name} is a ramp without rates from and to")
            return ramp_schedule(rate_rps, requests, seed, ramp_from=level.ramp_from, ramp_to=level.ramp_to)
        case Arrivals.TRACE:
            return trace_schedule(rate_rps, times_s or ())
        case Arrivals.CLOSED:
            raise ValueError(f"level {level.name} is a closed loop")
        case _:
            assert_never(level.arrivals)


def _check_rate(rate_rps: float) -> None:
    if not 0 < rate_rps < float("inf"):
        raise ValueError(f"an open loop needs a positive rate, got {rate_rps}")
