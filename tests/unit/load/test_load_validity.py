"""Which levels are the client's and not the server's, and what is said of the rest."""

from __future__ import annotations

from dataclasses import replace

import pytest
from load_records import closed_loop, level, open_level, record

from autotune.load.measure import is_valid, summarise, token_pace_s
from autotune.load.window import Window, mean_in_flight
from autotune.records import ClockKind, CpuUse, GpuUse, LevelUse, Measurement, RequestRecord

WALL = ClockKind.WALL


def open_loop(
    late_s: float = 0.0, *, stretch: float = 1.0, ttft_s: float = 0.1, count: int = 200
) -> list[RequestRecord]:
    """Ten requests a second that leave late, by a time of their own or more and more; TTFT counts from the schedule."""
    found = []
    for index in range(count):
        due = index / 10
        sent = due * stretch + late_s
        good = record(index, due, sent_s=sent)
        found.append(replace(good, first_token_s=sent + ttft_s, last_token_s=sent + 0.4, done_s=sent + 0.4))
    return found


def opened(records: list[RequestRecord], **changes: object) -> Measurement:
    return summarise(open_level(10.0, requests=200), records, 20.3, WALL, **changes)


def codes(measured: Measurement) -> dict[str, bool]:
    """Each caveat, and whether it voids the level."""
    return {caveat.code: caveat.void for caveat in measured.caveats}


@pytest.mark.parametrize(
    ("late_s", "ttft_s", "void"),
    [
        (0.009, 0.02, False),  # a third of the TTFT, and too little to matter
        (0.011, 0.08, True),  # 11 of 91 ms
        (0.011, 0.12, False),  # 11 of 131 ms
        (0.200, 1.70, True),  # 200 of 1,900 ms
        (0.200, 1.90, False),
    ],
)
def test_an_open_loop_is_void_when_a_tenth_of_its_ttft_is_the_clients(late_s: float, ttft_s: float, void: bool) -> None:
    measured = opened(open_loop(late_s, ttft_s=ttft_s))
    assert codes(measured)["client_late"] is void
    assert (measured.void is not None) is void
    assert is_valid(measured)


def test_an_open_loop_is_void_when_it_was_sent_at_less_than_nine_tenths_of_its_rate() -> None:
    # TTFT of 10 s, so that lateness of up to 2 s and 1 s alone would be harmless at its p95.
    slow = opened(open_loop(stretch=1.12, ttft_s=40.0))
    assert codes(slow)["client_late"] is True
    assert codes(opened(open_loop(stretch=1.08, ttft_s=40.0)))["client_late"] is False


def test_a_server_that_leaves_everything_open_is_not_the_clients_fault() -> None:
    held = open_loop(0.3)
    assert opened(held).void is not None
    capped = opened(held, in_flight_cap=4)  # 0.4 s each, ten a second
    assert capped.void is None
    assert {"client_late", "in_flight_cap"} <= codes(capped).keys()


def test_a_closed_loop_is_void_when_its_slots_stood_free_for_a_tenth_of_the_time() -> None:
    def late_by(late_s: float) -> list[RequestRecord]:
        """Two slots; each request stays 0.4 s after it was sent."""
        found = []
        for index in range(200):
            due = (index // 2) * (0.4 + late_s)
            found.append(replace(record(index, due + late_s), scheduled_s=due))
        return found

    void = summarise(level(requests=200), late_by(0.050), 45.0, WALL)  # 50 of 450 ms
    assert codes(void)["client_late"] is True
    harmless = summarise(level(requests=200), late_by(0.040), 44.0, WALL)  # 40 of 440 ms
    assert codes(harmless)["client_late"] is False


@pytest.mark.parametrize(("share", "said", "void"), [(0.79, False, False), (0.81, True, False), (0.96, True, True)])
def test_a_client_without_cpu_time(share: float, said: bool, void: bool) -> None:
    measured = opened(open_loop(), use=LevelUse(cpu=CpuUse(client_share=share)))
    assert ("client_busy" in codes(measured)) is said
    assert (measured.void is not None) is void


def test_surroundings_that_speak_against_the_figures_do_not_void_them() -> None:
    hot = GpuUse(index=5, samples=40, slowed_share=0.25)
    use = LevelUse(gpus=(GpuUse(index=4, samples=40), hot), cpu=CpuUse(loop_lag_p99_s=0.02), jit_compiles=3)
    measured = opened(open_loop(), use=use)
    assert codes(measured) == {"loop_lag": False, "jit_compiling": False, "clocks_slowed": False}
    said = {caveat.code: caveat.text for caveat in measured.caveats}
    assert said["clocks_slowed"] == "heat or a power brake held the clocks of GPU 5 down in 25% of the samples"
    assert said["jit_compiling"].startswith("the server compiled 3 kernels")
    quiet = LevelUse(
        gpus=(replace(hot, slowed_share=0.1),),
        cpu=CpuUse(client_share=0.3, loop_lag_p99_s=0.01, api_server_share=0.99),
        jit_compiles=0,
    )
    assert codes(opened(open_loop(), use=quiet)) == {}
    assert opened(open_loop(), use=quiet).use == quiet


def test_fewer_in_flight_than_asked_is_said() -> None:
    records = closed_loop(2, 100)
    assert codes(summarise(level(requests=200), records, 40.05, WALL)) == {}
    # Of the second slot every request leaves 0.2 s after its place came free, as turns that wait do.
    idle = [
        replace(one, scheduled_s=one.scheduled_s + 0.2, sent_s=one.sent_s + 0.2)
        if one.index % 2 and one.sent_s
        else one
        for one in records
    ]
    assert "concurrency_missed" in codes(summarise(level(requests=200), idle, 40.05, WALL))


def test_mean_in_flight() -> None:
    window = Window(start_s=1.0, end_s=3.0, steady=True)
    # 0.4 s each: one before the window, one that ends in it, one whole, one that begins in it, one never sent.
    records = [record(i, at) for i, at in enumerate((0.1, 0.8, 2.0, 2.9))]
    records.append(record(4, 2.0, sent_s=None))
    assert mean_in_flight(records, window) == pytest.approx((0.2 + 0.4 + 0.1) / 2)


def test_pace_is_per_token_and_of_good_requests() -> None:
    quick, slow = record(0, 0.0), record(1, 1.0, last_token_s=3.0)
    assert token_pace_s([quick]) == pytest.approx(0.1)
    assert token_pace_s([quick, slow, record(2, 0.0, error="reset")]) == pytest.approx((0.1 + 0.5) / 2)
    assert token_pace_s([]) is None


def stalled(*stalls: tuple[float, float]) -> list[RequestRecord]:
    """Two slots, 100 requests each of 0.4 s; everything after the start of a stall comes later by its length."""

    def moved(at: float) -> float:
        return at + sum(length for start, length in stalls if at > start)

    return [
        replace(
            one,
            scheduled_s=moved(one.scheduled_s),
            sent_s=moved(one.scheduled_s),
            first_token_s=moved(one.token_times_s[0]),
            last_token_s=moved(one.token_times_s[-1]),
            done_s=moved(one.token_times_s[-1]),
            token_times_s=tuple(moved(at) for at in one.token_times_s),
        )
        for one in closed_loop(2, 100)
    ]


def test_pauses_of_everybody_are_said() -> None:
    def caveat(*stalls: tuple[float, float], clock: ClockKind = WALL) -> str:
        length = 40.05 + sum(length for _, length in stalls)
        found = summarise(level(requests=200), stalled(*stalls), length, clock)
        return next((one.text for one in found.caveats if one.code == "pauses"), "")

    assert caveat() == ""
    # Ordinary gaps here are 50 ms, so 1.1 s and 3.1 s of silence are none.
    assert "in 2 pauses of up to 3.1 s, no request got anything" in caveat((10.02, 3.0), (20.02, 1.0))
    assert caveat((10.02, 0.7)) == ""  # under 2 %
    assert caveat((10.02, 3.0), clock=ClockKind.VIRTUAL) == ""
