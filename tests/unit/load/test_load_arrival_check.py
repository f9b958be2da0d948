from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_records import level, record

from autotune.load.arrival_check import arrival_check, arrivals_off
from autotune.load.arrivals import open_level, schedule
from autotune.load.measure import summarise
from autotune.records import ArrivalCheck, ArrivalProcess, Arrivals, ClockKind, LevelRole, LoadLevel, RequestRecord

PROCESSES = (
    ArrivalProcess(kind=Arrivals.CONSTANT),
    ArrivalProcess(kind=Arrivals.POISSON),
    ArrivalProcess(kind=Arrivals.GAMMA, cv=2.0),
    ArrivalProcess(kind=Arrivals.RAMP, ramp_from=1.0, ramp_to=3.0),
)


def asked(process: ArrivalProcess, rate_rps: float = 20.0, requests: int = 400) -> LoadLevel:
    return open_level("ttft", LevelRole.TTFT, process, rate_rps=rate_rps, requests=requests, seed=4)


def sent(load: LoadLevel, late_s: float = 0.0, stretch: float = 1.0) -> list[RequestRecord]:
    due = schedule(load) or ()
    return [record(i, at, sent_s=at * stretch + late_s) for i, at in enumerate(due)]


def checked(load: LoadLevel, records: list[RequestRecord]) -> ArrivalCheck:
    found = arrival_check(load, records)
    assert found is not None
    return found


@pytest.mark.parametrize("process", PROCESSES, ids=lambda one: str(one.kind))
@pytest.mark.parametrize("late_s", [0.0, 0.0002, 0.5])
def test_what_was_sent_as_asked_is_as_asked(process: ArrivalProcess, late_s: float) -> None:
    """Equal lateness moves all and changes nothing; it is seen as lateness."""
    found = checked(asked(process), sent(asked(process), late_s))
    assert found.sent_rate_rps == pytest.approx(20.0)
    assert found.cv == pytest.approx(found.asked_cv, abs=1e-6)
    assert found.lateness_p50_s == pytest.approx(late_s)
    assert found.lateness_p99_s == pytest.approx(late_s)
    assert found.waited == 0
    assert late_s > 0.1 or arrivals_off(found) == ()


def test_the_figures_of_processes_are_those_of_the_books() -> None:
    constant, poisson, gamma = (checked(asked(p, requests=8000), sent(asked(p, requests=8000))) for p in PROCESSES[:3])
    assert (constant.cv, constant.dispersion) == (pytest.approx(0, abs=1e-9), pytest.approx(0, abs=1e-9))
    assert (poisson.cv, poisson.dispersion) == (pytest.approx(1, abs=0.05), pytest.approx(1, abs=0.2))
    assert gamma.cv == pytest.approx(2, rel=0.1)
    # Below cv^2 = 4, as windows of ten gaps are not long yet.
    assert 2.5 < (gamma.dispersion or 0) < 4.5


def test_cv_and_dispersion_by_hand() -> None:
    """Pairs: gaps of 0 and 0.2 s have mean 0.1 and deviation 0.1; windows of 1 s hold 10 each."""
    load = level(arrivals=Arrivals.TRACE, role=LevelRole.TTFT, concurrency=None, rate_rps=10.0, requests=200)
    found = checked(load, [record(i, i // 2 * 0.2) for i in range(200)])
    assert found.cv == pytest.approx(1.0, abs=0.01)
    assert found.dispersion == pytest.approx(0.0, abs=1e-9)
    assert arrivals_off(found) == ()


@pytest.mark.parametrize("process", PROCESSES, ids=lambda one: str(one.kind))
def test_a_client_that_falls_behind(process: ArrivalProcess) -> None:
    """Every gap 5 % longer: the rate is 1/1.05 of the asked one."""
    load = asked(process)
    found = checked(load, sent(load, stretch=1.05))
    assert found.sent_rate_rps == pytest.approx(20.0 / 1.05)
    assert any("requests/s were sent, 20 asked for" in text for text in arrivals_off(found))
    assert arrivals_off(checked(load, sent(load, stretch=1.005))) == ()


def test_a_client_that_sends_in_clumps() -> None:
    """Whatever came due in half a second is sent at its end: the rate holds, the shape does not."""
    load = asked(PROCESSES[0])
    clumped = [replace(one, sent_s=(int(one.scheduled_s / 0.5) + 1) * 0.5) for one in sent(load)]
    found = checked(load, clumped)
    assert found.cv is not None
    assert found.cv > 2
    assert any(text.startswith("the coefficient of variation") for text in arrivals_off(found))


def test_requests_that_were_never_sent() -> None:
    load = asked(PROCESSES[1])
    records = [replace(one, sent_s=None) if one.index % 4 == 0 else one for one in sent(load)]
    assert checked(load, records).sent_rate_rps == pytest.approx(15.0, rel=0.01)


def test_turns_that_waited_are_counted_and_are_not_late() -> None:
    load = asked(PROCESSES[1])
    moved = [
        replace(one, scheduled_s=one.scheduled_s + 3.0, sent_s=one.scheduled_s + 3.0) if one.index >= 390 else one
        for one in sent(load)
    ]
    found = checked(load, moved)
    assert (found.waited, found.lateness_p99_s) == (10, 0.0)
    assert found.sent_rate_rps < 18.5
    noted = summarise(load, moved, 23.0, ClockKind.WALL).caveats
    assert any(one.code == "arrivals_off" and "10 turns waited" in one.text for one in noted)


def test_nothing_to_check() -> None:
    assert arrival_check(level(), [record(0, 0.0), record(1, 1.0)]) is None
    load = asked(PROCESSES[1])
    assert arrival_check(load, []) is None
    assert arrival_check(load, sent(load)[:1]) is None
    few = checked(load, sent(load)[:5])
    assert (few.cv, few.dispersion, few.asked_cv) == (None, None, None)


def test_summarise_keeps_the_check() -> None:
    load = asked(PROCESSES[0])
    measured = summarise(load, sent(load), 20.3, ClockKind.WALL)
    assert measured.arrivals == arrival_check(load, sent(load))
    assert "arrivals_off" not in {caveat.code for caveat in measured.caveats}


@given(
    st.sampled_from(PROCESSES), st.floats(0.1, 2000), st.integers(2, 120), st.floats(0, 0.0005), st.integers(0, 2**32)
)
def test_never_a_wrong_rate(process: ArrivalProcess, rate: float, requests: int, jitter_s: float, seed: int) -> None:
    load = asked(process, rate, requests)
    draw = random.Random(seed)
    records = [replace(one, sent_s=one.scheduled_s + draw.random() * jitter_s) for one in sent(load)]
    found = arrival_check(load, records)
    assert found is None or found.sent_rate_rps == pytest.approx(rate, rel=0.02) or requests / rate < 0.1
