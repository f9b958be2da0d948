"""Levels that end because another config is better: never otherwise than the whole level would say, and how soon."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.arrivals import open_level
from autotune.load.early_end import Bar, Bars, LevelLooks, is_beyond, judge, looks_of, needed
from autotune.load.growing import growth_of
from autotune.records import ArrivalProcess, Arrivals, EarlyReason, LevelRole, LoadLevel

BAR = Bar(rival=4, ttft_s=1.0)
BARS = Bars(dominated=BAR, saturated=BAR)


def level(requests: int = 300, most: int | None = None) -> LoadLevel:
    return open_level(
        "ttft", LevelRole.TTFT, ArrivalProcess(), rate_rps=10.0, requests=requests, seed=0, most_requests=most
    )


def waits(ttfts: Sequence[float]) -> list[tuple[float, float | None]]:
    """Ten requests a second; a first token counts from when it comes."""
    now = (len(ttfts) - 1) / 10
    return [(at / 10, at / 10 + ttft if at / 10 + ttft <= now else None) for at, ttft in enumerate(ttfts)]


def driven(looks: LevelLooks, ttfts: Sequence[float]) -> int:
    """Requests sent until the level has enough."""
    return next((count for count in looks.looks if looks.enough(waits(ttfts[:count]))), len(ttfts))


@given(
    st.lists(st.floats(0.01, 20.0), min_size=8, max_size=200),
    st.floats(0.01, 20.0),
)
def test_a_look_says_nothing_that_the_whole_level_would_not_say(ttfts: list[float], bar_s: float) -> None:
    bar = Bar(rival=0, ttft_s=bar_s)
    looks = looks_of(level(len(ttfts)), Bars(dominated=bar, saturated=None))
    assert looks is not None
    driven(looks, ttfts)
    whole = float(np.percentile(ttfts, 95))
    if looks.found is not None:
        assert whole > bar_s * (1 - 1e-9)  # times are sums
    elif whole <= bar_s:
        assert not is_beyond(waits(ttfts), bar_s, len(ttfts))


@pytest.mark.parametrize("requests", [1, 2, 20, 21, 100, 300, 951])
def test_so_many_are_needed_and_one_less_is_not_enough(requests: int) -> None:
    enough = needed(requests)
    beyond = [2.0] * enough + [0.5] * (requests - enough)
    assert np.percentile(beyond, 95) > 1.999
    less = [2.0] * (enough - 1) + [0.5] * (requests - enough + 1)
    assert np.percentile(less, 95) < 2.0


def test_a_request_without_a_token_counts_once_it_has_waited_so_long() -> None:
    # All due within the last second: nothing is known of them yet.
    assert judge([(at / 100, None) for at in range(60)], BARS, 300) is None
    late = judge([(at / 10, None) for at in range(60)], BARS, 300)  # those of the first five seconds
    assert late is not None
    assert (late.reason, late.bar.rival, late.requests) == (EarlyReason.SATURATED, 4, 60)


def test_looks_are_at_eighths_and_where_the_level_may_end_anyway() -> None:
    looks = looks_of(level(300, 600), BARS)
    assert looks is not None
    assert looks.looks == (38, 75, 113, 150, 188, 225, 263, 300, 450)
    few = looks_of(level(10), BARS)
    assert few is not None
    assert few.looks == (2, 3, 4, 5, 7, 8, 9)


def test_nothing_looks_where_nothing_could_end_it() -> None:
    assert looks_of(level(), None) is None
    assert looks_of(level(), Bars(dominated=None, saturated=None)) is None
    assert looks_of(replace(level(), arrivals=Arrivals.CLOSED), BARS) is None


def test_a_dominated_level_ends_at_the_first_look_that_shows_it() -> None:
    looks = looks_of(level(), BARS)
    assert looks is not None
    # 16 of 300 are needed, and every fourth is slow: 16 have waited for a second when 71 were sent.
    assert driven(looks, [1.5 if at % 4 == 0 else 0.1 for at in range(300)]) == 75
    assert looks.found is not None
    assert looks.found.reason is EarlyReason.DOMINATED


def test_a_queue_that_grows_is_called_so_and_needs_the_lower_bar_only() -> None:
    growing = [0.02 * at for at in range(300)]  # a fifth more comes than is served
    looks = looks_of(level(), Bars(dominated=None, saturated=BAR))
    assert looks is not None
    assert driven(looks, growing) < 150
    assert looks.found is not None
    assert looks.found.reason is EarlyReason.SATURATED
    steady = looks_of(level(), Bars(dominated=None, saturated=BAR))
    assert steady is not None
    assert driven(steady, [1.5] * 300) == 300
    assert steady.found is None


def test_one_request_at_a_time_is_called_a_queue_at_the_first_look() -> None:
    behind = judge([(at / 10, None if at > 5 else 0.3 * at) for at in range(38)], BARS, 300)
    assert behind is not None
    assert behind.reason is EarlyReason.SATURATED


def test_a_level_that_grows_goes_on_as_without_bars() -> None:
    load = level(300, 600)
    plain, looks = growth_of(load), looks_of(load, BARS)
    assert plain is not None
    assert looks is not None
    assert driven(looks, [0.1] * 600) == 300  # its interval is narrow: nothing to do with the bars
    assert looks.found is None
    # 15 of 300 are beyond, one too few; of all that were sent until then it stays a twentieth.
    wide = [2.0 if at % 20 == 0 else 0.1 for at in range(600)]
    assert plain.enough(waits(wide[:300])) is False
    again = looks_of(load, BARS)
    assert again is not None
    assert driven(again, wide) > 300
    assert again.found is None
