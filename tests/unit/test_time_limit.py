"""Whether another launch fits; a study that keeps to its time; durations as people write them."""

from __future__ import annotations

import pytest

from autotune.errors import InvalidOption
from autotune.recipe import parse_time
from autotune.records import (
    Arrivals,
    ClockKind,
    Config,
    LevelRole,
    LoadLevel,
    Measurement,
    Origin,
    Outcome,
    Phase,
    Trial,
    TrialResult,
)
from autotune.time_limit import fits, kept_again, launch_s


def ended(seconds: float, *, ramp_s: float = 0.0, outcome: Outcome = Outcome.MEASURED) -> Trial:
    measurements = (measured(level("ramp", LevelRole.RAMP), duration_s=ramp_s),) if ramp_s else ()
    result = TrialResult(
        outcome=outcome,
        clock=ClockKind.WALL,
        simulated=False,
        measurements=measurements,
        phase_seconds=((Phase.LAUNCHING, 0.25 * seconds), (Phase.MEASURING, 0.75 * seconds)),
    )
    return Trial(number=0, config=Config.of({}), origin=Origin.SAMPLER, gpus=1, attempts=1, result=result)


def level(name: str, role: LevelRole) -> LoadLevel:
    return LoadLevel(name=name, role=role, arrivals=Arrivals.CLOSED, requests=8, seed=0, concurrency=2)


def measured(of: LoadLevel, *, duration_s: float) -> Measurement:
    return Measurement(
        level=of,
        clock=ClockKind.WALL,
        planned=8,
        completed=8,
        failed=0,
        errors=(),
        duration_s=duration_s,
        steady_s=duration_s,
        prompt_tokens=80,
        output_tokens=80,
        output_tok_s=None,
        total_tok_s=None,
        request_rps=None,
        goodput_rps=None,
        ttft_s=None,
        ttft_from_send_s=None,
        tpot_s=None,
        itl_s=None,
        e2e_s=None,
    )


def test_the_next_launch_takes_what_the_last_measured_ones_took_without_the_ramp() -> None:
    first = ended(291.0, ramp_s=120.0)
    assert launch_s([first]) == pytest.approx(171.0)
    failed = ended(20.0, outcome=Outcome.INFEASIBLE)
    assert launch_s([first, failed, ended(140.0), ended(150.0)]) == pytest.approx(150.0)
    assert launch_s([first, *(ended(100.0 + n) for n in range(5))]) == pytest.approx(102.0)
    assert launch_s([failed]) is None
    assert launch_s([]) is None


def test_after_a_first_trial_that_found_the_load_others_still_fit() -> None:
    # 18 minutes, of which the first took 4:51 with two minutes of ramp: four further ones fit, five do not.
    each_s = launch_s([ended(291.0, ramp_s=120.0)])
    assert fits(1080.0, 291.0, 4, each_s)
    assert not fits(1080.0, 291.0, 5, each_s)


def test_while_nothing_is_known_a_launch_may_begin_as_long_as_there_is_time() -> None:
    assert fits(100.0, 99.0, 3, None)
    assert not fits(100.0, 100.0, 1, None)


@pytest.mark.parametrize(
    ("limit_s", "asked", "each_s", "kept"),
    [
        (None, 8, 140.0, 8),
        (1080.0, 8, None, 8),
        (1080.0, 8, 140.0, 2),
        (7200.0, 8, 140.0, 8),
        (7200.0, 40, 144.0, 16),
        (1080.0, 1, 140.0, 1),
        (1080.0, 0, 140.0, 0),
    ],
)
def test_launches_again_leave_two_thirds_of_a_limit_to_configs(
    limit_s: float | None, asked: int, each_s: float | None, kept: int
) -> None:
    assert kept_again(limit_s, asked, each_s) == kept


def test_what_is_to_follow_may_take_longer() -> None:
    """The H200 study of 18 minutes: after 610 s a config was launched, took 174 s, and left no room for the second of
    two launches again of 154 s."""
    assert 610 + 174 + 2 * 154 > 1080
    assert not fits(1080.0, 610.0, 3, 150.0)
    assert fits(1080.0, 610.0, 2, 150.0)
    assert fits(1080.0, 930.0, 1, 150.0)


def test_without_a_limit_everything_fits() -> None:
    assert fits(None, 1e9, 1000, 50.0)


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
