"""The search for a goodput: made-up servers whose true rate is known, with noise; the fit; when it ends."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.load.goodput import (
    FLOOR,
    LEVELS,
    MOST_STRESS,
    OVERLOAD_STRESS,
    Budget,
    Seen,
    Step,
    crossing,
    goodput_of,
    monotone,
    next_step,
    samples_wanted,
    seen_of,
)
from autotune.records import (
    Arrivals,
    Caveat,
    ClockKind,
    Estimate,
    Goodput,
    GoodputEnd,
    Latency,
    LevelRole,
    LoadLevel,
    Measurement,
    Slo,
)

SLO = Slo.of(ttft_p95=0.5)


class Server:
    """p95 TTFT = base + wait x load / (1 - load): the mean wait of a queue, which runs off at the capacity."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.capacity_rps = 10 ** self.rng.uniform(-0.5, 2)
        self.base_s = 10 ** self.rng.uniform(-1.5, -0.3)
        self.wait_s = self.base_s * 10 ** self.rng.uniform(-1, 0.3)
        self.limit_s = self.base_s * 10 ** self.rng.uniform(0.15, 1.2)
        self.noise = self.rng.uniform(0.04, 0.15)
        room = (self.limit_s - self.base_s) / self.wait_s
        self.true_rps = self.capacity_rps * room / (1 + room)  # solved for the load by hand

    def level(self, rate_rps: float, seconds: float) -> Seen:
        load = rate_rps / self.capacity_rps
        if load >= 0.99:
            stress = max(OVERLOAD_STRESS, math.log(5) + self.rng.gauss(0, 0.2))
            return Seen(rate_rps=rate_rps, stress=stress, sd=0.15, seconds=1.5 * seconds)
        sd = self.noise * (0.5 + load) / math.sqrt(seconds / 20)
        p95_s = self.base_s + self.wait_s * load / (1 - load)
        stress = math.log(p95_s / self.limit_s) + self.rng.gauss(0, sd)
        kept = max(-MOST_STRESS, min(MOST_STRESS, stress))
        return Seen(rate_rps=rate_rps, stress=kept, sd=max(0.03, sd), seconds=seconds)


def search(server: Server, budget: Budget, first_rps: float | None = None) -> tuple[Goodput, list[Seen]]:
    seen = [server.level(first_rps or server.capacity_rps * server.rng.uniform(0.5, 1.1), 20.0)]
    hint = server.capacity_rps * server.rng.uniform(0.85, 1.05)
    while isinstance(step := next_step(seen, budget, capacity_rps=hint), Step):
        seen.append(server.level(step.rate_rps, step.seconds))
    return goodput_of(seen, step, SLO, 100.0), seen


@pytest.mark.no_cover
def test_the_true_rate_is_found_within_eight_percent_in_few_levels() -> None:
    found = [(server, *search(server, Budget.of(20.0))) for server in map(Server, range(150))]
    errors = sorted(abs(g.rate_rps.value / s.true_rps - 1) for s, g, _ in found if g.rate_rps and not g.is_open)
    assert len(errors) >= 147
    assert errors[len(errors) // 2] < 0.025
    assert errors[int(0.95 * len(errors))] < 0.08
    assert sum(g.levels for _, g, _ in found) / len(found) < 5
    known = [(s.true_rps, g.rate_rps.low or 0.0, g.rate_rps.high) for s, g, _ in found if g.rate_rps]
    held = [low <= true <= high for true, low, high in known if high is not None]
    assert sum(held) / len(held) > 0.82


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**6), st.floats(0.02, 3.0), st.integers(1, 9))
def test_it_ends_within_its_budget_and_never_asks_for_nonsense(seed: int, first: float, levels: int) -> None:
    server = Server(seed)
    budget = Budget(level_s=20.0, levels=levels, seconds=300.0)
    found, seen = search(server, budget, first * server.capacity_rps)
    assert found.levels == len(seen) - 1 <= levels
    # A level is begun while seconds are left, and lasts twice the usual time at most, half of it again to drain.
    assert found.seconds < 300.0 + 60.0
    assert all(0 < one.rate_rps < math.inf for one in seen)
    assert min(one.rate_rps for one in seen) >= FLOOR * seen[0].rate_rps * 0.999
    if found.rate_rps is None:
        assert all(one.stress >= 0 for one in seen)
    elif found.rate_rps.low is not None and found.rate_rps.high is not None:
        assert found.rate_rps.low <= found.rate_rps.value <= found.rate_rps.high


def seen(rate: float, stress: float, sd: float = 0.05, seconds: float = 20.0) -> Seen:
    return Seen(rate_rps=rate, stress=stress, sd=sd, seconds=seconds)


def test_a_config_that_is_never_within_the_limit_is_given_up_at_the_floor() -> None:
    levels = [seen(10.0, 1.0)]
    while isinstance(step := next_step(levels, Budget.of(20.0)), Step):
        levels.append(seen(step.rate_rps, 1.0))
    assert step is GoodputEnd.NEVER_MET
    assert min(one.rate_rps for one in levels) == pytest.approx(1.0)
    assert goodput_of(levels, step, SLO, 100.0).rate_rps is None


def test_a_config_that_is_always_within_the_limit_has_no_upper_bound() -> None:
    levels = [seen(10.0, -2.0)]
    while isinstance(step := next_step(levels, Budget.of(20.0)), Step):
        levels.append(seen(step.rate_rps, -2.0))
    found = goodput_of(levels, step, SLO, 100.0)
    assert step is GoodputEnd.LEVELS
    assert len(levels) == 1 + LEVELS
    assert found.is_open
    assert found.rate_rps == Estimate(value=max(one.rate_rps for one in levels))


def test_the_first_step_up_stops_a_little_beyond_the_capacity() -> None:
    step = next_step([seen(10.0, -2.0)], Budget.of(20.0), capacity_rps=12.0)
    assert isinstance(step, Step)
    assert step.rate_rps == pytest.approx(13.2)


def test_near_an_unsure_level_the_next_one_is_twice_as_long() -> None:
    levels = [seen(8.0, -0.8), seen(12.0, 0.8), seen(10.0, 0.0, sd=0.3)]
    step = next_step(levels, Budget(level_s=20.0, tolerance=0.001))
    assert isinstance(step, Step)
    assert step.seconds == 40.0


def test_seconds_end_it_too() -> None:
    levels = [seen(8.0, -0.8), seen(20.0, 0.8, seconds=500.0)]
    assert next_step(levels, Budget.of(20.0)) is GoodputEnd.SECONDS


def test_the_curve_crosses_where_a_straight_line_does() -> None:
    # Between log 5 and log 20 a third of the way: 5 * 4^(1/3).
    assert crossing([seen(5.0, -0.1), seen(20.0, 0.2)]) == pytest.approx(5 * 4 ** (1 / 3))
    assert crossing([seen(5.0, -0.1), seen(20.0, -0.2)]) is None


def test_levels_that_contradict_each_other_are_pooled_by_their_weight() -> None:
    # At 10 a noisy miss, at 11 a sure hit: pooled (0.5 / 0.25 - 0.3 / 0.01) / (1 / 0.25 + 1 / 0.01) < 0.
    found = crossing([seen(10.0, 0.5, sd=0.5), seen(11.0, -0.3, sd=0.1), seen(13.0, 0.4, sd=0.1)])
    assert found is not None
    assert 11.0 < found < 13.0


@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(0.1, 100)), min_size=1, max_size=6))
def test_pooling_is_the_nearest_monotone_sequence(pairs: list[tuple[float, float]]) -> None:
    values, weights = [value for value, _ in pairs], [weight for _, weight in pairs]
    found = monotone(values, weights)
    assert all(a <= b + 1e-12 for a, b in itertools.pairwise(found))

    def cost(fitted: list[float]) -> float:
        return math.fsum(w * (f - v) ** 2 for f, v, w in zip(fitted, values, weights, strict=True))

    # The slow oracle: every way to cut the sequence into blocks, each at its weighted mean, that does not fall.
    best = math.inf
    for cuts in itertools.product((False, True), repeat=len(pairs) - 1):
        fitted: list[float] = []
        block: list[int] = []
        for place, cut in enumerate((*cuts, True)):
            block.append(place)
            if cut:
                mean = math.fsum(values[i] * weights[i] for i in block) / math.fsum(weights[i] for i in block)
                fitted += [mean] * len(block)
                block = []
        if all(a <= b + 1e-12 for a, b in itertools.pairwise(fitted)):
            best = min(best, cost(fitted))
    assert cost(found) == pytest.approx(best, abs=1e-9)


def level(
    p95: Estimate | None, *, tpot: float = 0.02, failed: int = 0, caveats: tuple[Caveat, ...] = ()
) -> Measurement:
    def latency(one: Estimate) -> Latency:
        return Latency(count=300, mean=one, p50=one, p90=one, p95=one, p99=one)

    return Measurement(
        level=LoadLevel(
            name="goodput-1", role=LevelRole.GOODPUT, arrivals=Arrivals.POISSON, requests=300, seed=0, rate_rps=10.0
        ),
        clock=ClockKind.VIRTUAL,
        duration_s=31.0,
        steady_s=30.0,
        planned=300,
        completed=300 - failed,
        failed=failed,
        errors=(("http_5xx", failed),) if failed else (),
        prompt_tokens=None,
        output_tokens=None,
        output_tok_s=None,
        total_tok_s=None,
        request_rps=None,
        goodput_rps=None,
        ttft_s=latency(p95) if p95 else None,
        ttft_from_send_s=None,
        tpot_s=latency(Estimate(value=tpot, low=tpot * 0.99, high=tpot * 1.01)),
        itl_s=None,
        e2e_s=None,
        caveats=caveats,
    )


SATURATED = Caveat(code="saturated", text="", remedy="")


def test_the_stress_of_a_level_is_that_of_its_worst_limit() -> None:
    measured = level(Estimate(value=0.25, low=0.225, high=0.275))
    one = seen_of(measured, SLO)
    assert (one.rate_rps, one.seconds) == (10.0, 31.0)
    assert one.stress == pytest.approx(math.log(0.5))
    # Half a 95 % interval is 1.96 deviations; widened by 1.5.
    assert one.sd == pytest.approx(1.5 * math.log(0.275 / 0.225) / 2 / 1.96)
    worse = seen_of(measured, Slo.of(ttft_p95=0.5, tpot_p95=0.01))
    assert worse.stress == pytest.approx(math.log(2))


@pytest.mark.parametrize(
    ("measured", "slo", "stress"),
    [
        (level(Estimate(value=0.25), caveats=(SATURATED,)), SLO, OVERLOAD_STRESS),
        (level(Estimate(value=0.25), failed=30), SLO, OVERLOAD_STRESS),
        (level(Estimate(value=0.25), failed=1), Slo.of(error_rate=0.0), MOST_STRESS),
        (level(Estimate(value=0.25), failed=0), Slo.of(error_rate=0.0), -MOST_STRESS),
        (level(None), SLO, MOST_STRESS),
        (level(Estimate(value=500.0), caveats=(SATURATED,)), SLO, MOST_STRESS),
    ],
)
def test_what_a_server_does_not_sustain_is_beyond_the_limit(measured: Measurement, slo: Slo, stress: float) -> None:
    assert seen_of(measured, slo).stress == stress


def test_a_closed_loop_has_no_rate() -> None:
    closed = replace(level(None), level=replace(level(None).level, rate_rps=None, concurrency=4))
    with pytest.raises(ValueError, match="rate"):
        seen_of(closed, SLO)


@pytest.mark.parametrize(
    ("slo", "wanted"), [(SLO, 100), (Slo.of(ttft_p99=1.0, tpot_p50=1.0), 500), (Slo.of(error_rate=0.0), 100)]
)
def test_requests_for_an_interval(slo: Slo, wanted: int) -> None:
    assert samples_wanted(slo) == wanted
