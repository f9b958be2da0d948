"""Levels that end because another config is better: how often wrongly, how soon rightly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from autotune.load.arrivals import open_level
from autotune.load.early_end import LEAST, SLOW, Bar, Bars, LevelLooks, error_probability, judge, looks_of
from autotune.load.growing import growth_of
from autotune.records import ArrivalProcess, Arrivals, EarlyReason, LevelRole, LoadLevel

BAR = Bar(rival=4, ttft_s=1.0)
BARS = Bars(dominated=BAR, saturated=BAR, alpha=0.01)


def level(requests: int = 300, most: int | None = None) -> LoadLevel:
    return open_level(
        "ttft", LevelRole.TTFT, ArrivalProcess(), rate_rps=10.0, requests=requests, seed=0, most_requests=most
    )


def waits(ttfts: Sequence[float | None], rate: float = 10.0) -> list[tuple[float, float | None]]:
    return [(at / rate, None if ttft is None else at / rate + ttft) for at, ttft in enumerate(ttfts)]


def driven(looks: LevelLooks, ttfts: Sequence[float]) -> int:
    """Requests sent until the level has enough; a first token counts from when it comes."""
    for count in looks.looks:
        now = (count - 1) / 10.0
        seen = [(due, first if first is not None and first <= now else None) for due, first in waits(ttfts[:count])]
        if looks.enough(seen):
            return count
    return len(ttfts)


def test_a_share_beyond_the_bar_has_the_chernoff_bound_of_its_probability() -> None:
    # 30 of 60 requests beyond, two by two, worth 48: exp(-48 KL(1/2 || 1/20)) = (4 x 0.05 x 0.95)^24.
    mixed = [1.5, 0.5] * 30
    assert error_probability(mixed, 1.0) == pytest.approx((4 * 0.05 * 0.95) ** (30 / SLOW), rel=1e-6)
    # The binomial tail itself is smaller, as a bound must have it.
    tail = sum(math.comb(48, k) * 0.05**k * 0.95 ** (48 - k) for k in range(24, 49))
    assert tail < error_probability(mixed, 1.0)


@pytest.mark.parametrize("beyond", [0, 2, 5])
def test_up_to_a_twentieth_beyond_shows_nothing(beyond: int) -> None:
    assert error_probability([2.0] * beyond + [0.5] * (100 - beyond), 1.0) == 1.0


def test_neighbours_that_wait_for_one_reason_count_less() -> None:
    together, apart = [2.0] * 20 + [0.5] * 80, ([2.0] + [0.5] * 4) * 20
    assert error_probability(together, 1.0) > 1e4 * error_probability(apart, 1.0)
    assert error_probability(together, 1.0) > 1e-3


def test_a_request_without_a_token_is_beyond_once_it_has_waited_so_long() -> None:
    # All due within the last second: nothing is known of them yet.
    assert judge([(at / 100, None) for at in range(60)], BARS, 0.01) is None
    late = judge([(at / 10, None) for at in range(60)], BARS, 0.01)
    assert late is not None
    assert (late.bar.rival, late.requests) == (4, 60)


def test_looks_are_at_quarters_and_where_the_level_may_end_anyway() -> None:
    looks = looks_of(level(300, 600), BARS)
    assert looks is not None
    assert looks.looks == (75, 150, 225, 300, 450)
    few = looks_of(level(100), BARS)
    assert few is not None
    assert few.looks == (50, 75)
    assert min(few.looks) >= LEAST


def test_nothing_looks_where_nothing_could_end_it() -> None:
    assert looks_of(level(), None) is None
    assert looks_of(level(), Bars(dominated=None, saturated=None, alpha=0.01)) is None
    assert looks_of(level(40), BARS) is None
    assert looks_of(replace(level(), arrivals=Arrivals.CLOSED), BARS) is None


def test_a_dominated_level_ends_at_its_first_look() -> None:
    rng = np.random.default_rng(1)
    looks = looks_of(level(), BARS)
    assert looks is not None
    assert driven(looks, rng.exponential(1.0, 300).tolist()) == 75  # 37 % are beyond 1 s
    assert looks.found is not None
    assert looks.found.reason is EarlyReason.DOMINATED


def test_a_queue_that_grows_is_called_so_and_needs_the_lower_bar_only() -> None:
    growing = [0.02 * at for at in range(300)]  # a fifth more comes than is served
    looks = looks_of(level(), Bars(dominated=None, saturated=BAR, alpha=0.01))
    assert looks is not None
    assert driven(looks, growing) < 300
    assert looks.found is not None
    assert looks.found.reason is EarlyReason.SATURATED
    steady = looks_of(level(), Bars(dominated=None, saturated=BAR, alpha=0.01))
    assert steady is not None
    assert driven(steady, [1.5] * 300) == 300
    assert steady.found is None


def test_a_level_that_grows_goes_on_as_without_bars() -> None:
    load, quick = level(300, 600), [0.1] * 600
    plain, looks = growth_of(load), looks_of(load, BARS)
    assert plain is not None
    assert looks is not None
    assert driven(looks, quick) == 300  # its interval is narrow: nothing to do with the bars
    assert looks.found is None
    wide = [2.0 if at % 19 == 0 else 0.1 for at in range(600)]  # 5.3 % beyond: neither bar nor p95 can tell
    assert plain.enough(waits(wide[:300])) is False
    again = looks_of(load, BARS)
    assert again is not None
    assert driven(again, wide) > 300
    assert again.found is None


def in_a_queue(rng: np.random.Generator, count: int, load: float) -> np.ndarray:
    """Waits of an M/M/1 queue that begins empty (Lindley, 1952)."""
    steps = rng.exponential(load, count) - rng.exponential(1.0, count)
    total = np.cumsum(steps)
    return np.asarray(total - np.minimum.accumulate(np.minimum(total, 0.0)))


@pytest.mark.parametrize("load", [0.0, 0.6, 0.85])
def test_at_the_bar_levels_end_early_no_more_often_than_stated(load: float) -> None:
    rng = np.random.default_rng(7)
    # P(wait > w) is load x exp(-(1 / load - 1) w) where services take `load` on average; without a queue exp(-w).
    bar = math.log(load / 0.05) / (1 / load - 1) if load else -math.log(0.05)
    ended = 0
    for _ in range(400):
        ttfts = in_a_queue(rng, 300, load) if load else rng.exponential(1.0, 300)
        found = looks_of(level(), Bars(dominated=Bar(rival=0, ttft_s=bar), saturated=None, alpha=0.01))
        assert found is not None
        driven_at(found, ttfts.tolist())
        ended += found.found is not None
    assert ended <= 8  # of 400: at 1 % more would come once in fifty times


def driven_at(looks: LevelLooks, ttfts: Sequence[float]) -> None:
    """As `driven`, where every first token has come when it is looked."""
    for count in looks.looks:
        if looks.enough([(float(at), at + ttft) for at, ttft in enumerate(ttfts[:count])]):
            return
