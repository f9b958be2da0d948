"""Whether another launch fits; a study that keeps to its time; durations as people write them."""

from __future__ import annotations

import pytest

from autotune.errors import InvalidOption
from autotune.recipe import parse_time
from autotune.time_limit import TimeLimit


def test_the_first_launch_may_begin_while_there_is_time() -> None:
    limit = TimeLimit(limit_s=100.0)
    assert limit.fits(0.0, launches=3)
    assert not limit.fits(100.0, launches=1)


def test_launches_are_judged_by_the_median_of_those_after_the_first() -> None:
    limit = TimeLimit(limit_s=1000.0)
    limit.took(300.0)  # found the load
    assert limit.fits(300.0, launches=2)  # only the first is known: 300 + 2 x 300
    assert not limit.fits(300.0, launches=3)
    for took in (100.0, 90.0, 400.0):
        limit.took(took)
    assert limit.fits(800.0, launches=2)  # 800 + 2 x 100
    assert not limit.fits(801.0, launches=2)


def test_without_a_limit_everything_fits() -> None:
    assert TimeLimit(limit_s=None).fits(1e9, launches=1000)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("18m", 1080), ("1.5h", 5400), ("1h30m", 5400), ("2d", 172800), (" 1h1s ", 3601), ("90d", 7776000)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_time(text, "--max-time") == seconds


@pytest.mark.parametrize("text", ["", "18", "18 m", "m", "0s", "-1m", "1m1h", "91d", "nan", "1e3s", "٣m", "1,5h"])
def test_what_is_no_duration_is_refused_with_the_option(text: str) -> None:
    with pytest.raises(InvalidOption, match=r"--max-time.*18m"):
        parse_time(text, "--max-time")
