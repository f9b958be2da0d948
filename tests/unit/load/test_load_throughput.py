"""Rates of closed loops whose truth is known by construction, in short windows and in convoys."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from load_records import level, open_level, record

from autotune.load.throughput import Throughput, progress_drift, throughput_of
from autotune.load.window import Window, window_of
from autotune.records import RequestRecord

PROMPT, OUTPUT = 200, 50


def request(
    index: int, sent_s: float, first_s: float, end_s: float, *, prompt: int = PROMPT, output: int = OUTPUT
) -> RequestRecord:
    """Output tokens evenly from the first to the last."""
    times = tuple(np.linspace(first_s, end_s, output).tolist())
    return record(
        index,
        sent_s,
        sent_s=sent_s,
        first_token_s=first_s,
        last_token_s=end_s,
        done_s=end_s,
        token_times_s=times,
        prompt_tokens=prompt,
        output_tokens=output,
        counted_tokens=output,
        wanted_output_tokens=output,
    )


def convoy(slots: int, waves: int) -> tuple[list[RequestRecord], float]:
    """All slots' prompts are computed first, one after the other, then all decode and end one after the other.

    A wave takes 1 s: 0.4 s of prompts, 0.6 s of tokens, of which the last 0.3 s see one slot after the other end; its
    next request waits for the next wave. Requests/s: `slots`.
    """
    found = []
    for wave in range(waves):
        for slot in range(slots):
            end = 0.7 + 0.3 * (slot + 1) / slots
            sent = 0.001 * slot if wave == 0 else wave - 1 + end
            found.append(request(len(found), sent, wave + 0.4 * (slot + 1) / slots, wave + end))
    return found, float(slots)


def loose(slots: int, rounds: int, seed: int = 0) -> tuple[list[RequestRecord], float]:
    """Slots that know nothing of each other: 0.1 s of prompt, 20 ms a token, 25 to 75 tokens, started over one stay."""
    rng = np.random.default_rng(seed)
    stay_s = 0.1 + 0.02 * (OUTPUT - 1)
    free = [slot * stay_s / slots for slot in range(slots)]
    found: list[RequestRecord] = []
    for index in range(slots * rounds):
        slot = int(np.argmin(free))
        output = int(rng.integers(25, 76))
        sent, first = free[slot], free[slot] + 0.1
        free[slot] = first + 0.02 * (output - 1)
        found.append(request(index, sent, first, free[slot], output=output))
    return found, slots / stay_s


def prefill_bound(slots: int, rounds: int) -> tuple[list[RequestRecord], float]:
    """One prompt at a time, 50 ms each, in the order sent; then 50 tokens in 0.5 s. Requests/s: 20, whoever waits."""
    found: list[RequestRecord] = []
    free = [0.001 * slot for slot in range(slots)]
    busy_s = 0.0
    for index in range(slots * rounds):
        slot = int(np.argmin(free))
        sent = free[slot]
        busy_s = max(busy_s, sent) + 0.05
        free[slot] = busy_s + 0.5
        found.append(request(index, sent, busy_s, free[slot]))
    return found, 20.0


def measured(records: list[RequestRecord], slots: int) -> tuple[Throughput, Window]:
    load = level(requests=len(records), concurrency=slots)
    window = window_of(load, records, max(r.done_s or 0.0 for r in records))
    assert window.steady
    return throughput_of(records, window), window


def values(done: Throughput) -> tuple[float, float, float]:
    assert done.request_rps is not None
    assert done.output_tok_s is not None
    assert done.total_tok_s is not None
    return done.request_rps.value, done.output_tok_s.value, done.total_tok_s.value


@pytest.mark.parametrize("loop", [convoy, loose, prefill_bound])
@pytest.mark.parametrize("rounds", [3, 4, 8])
def test_rates_are_the_servers(loop: Callable[[int, int], tuple[list[RequestRecord], float]], rounds: int) -> None:
    records, truth_rps = loop(32, rounds)
    rps, output, total = values(measured(records, 32)[0])
    assert rps == pytest.approx(truth_rps, rel=0.06)
    assert output == pytest.approx(truth_rps * OUTPUT, rel=0.06)
    assert total == pytest.approx(truth_rps * (PROMPT + OUTPUT), rel=0.06)


@pytest.mark.parametrize("loop", [convoy, loose, prefill_bound])
def test_rates_agree_with_each_other(loop: Callable[[int, int], tuple[list[RequestRecord], float]]) -> None:
    records, _ = loop(32, 4)
    rps, output, total = values(measured(records, 32)[0])
    mean_output = sum(one.output_tokens or 0 for one in records) / len(records)
    assert output / rps == pytest.approx(mean_output)
    assert total / rps == pytest.approx(PROMPT + mean_output)


def test_ends_alone_would_be_far_off() -> None:
    # What the rule is for: of a convoy's last wave the window holds the first end, and all first tokens.
    records, truth_rps = convoy(32, 3)
    _, window = measured(records, 32)
    length = window.end_s - window.start_s
    ends = sum(window.start_s <= (one.done_s or 0.0) <= window.end_s for one in records) / length
    firsts = sum(window.start_s <= (one.first_token_s or 0.0) <= window.end_s for one in records) / length
    assert ends < 0.87 * truth_rps
    assert firsts > 1.05 * truth_rps


def test_total_is_the_tokens_that_came() -> None:
    records, _ = loose(32, 4)
    done, window = measured(records, 32)

    def inside(at: float | None) -> bool:
        return at is not None and window.start_s <= at <= window.end_s

    tokens = sum(PROMPT * inside(one.first_token_s) + sum(map(inside, one.token_times_s)) for one in records)
    assert values(done)[2] == pytest.approx(tokens / (window.end_s - window.start_s))


def test_an_open_loop_counts_every_request_once() -> None:
    records = [request(at, at / 10, at / 10 + 0.1, at / 10 + 2.0, output=10 + at % 7) for at in range(100)]
    window = window_of(open_level(10.0, requests=100), records, 11.9)
    rps, output, total = values(throughput_of(records, window))
    assert rps == pytest.approx(100 / 11.9)
    assert output == pytest.approx(sum(10 + at % 7 for at in range(100)) / 11.9)
    assert total == pytest.approx(output + 100 * PROMPT / 11.9)


def test_goodput_is_a_part_of_the_requests() -> None:
    records, truth_rps = prefill_bound(32, 6)  # TTFT is 50 ms for the first and rises to 1.1 s
    window = window_of(level(requests=len(records), concurrency=32), records, 12.0)
    every, none = (throughput_of(records, window, slo_ttft_s=slo).goodput_rps for slo in (5.0, 0.001))
    assert every is not None
    assert none is not None
    assert every.value == pytest.approx(truth_rps, rel=0.05)
    assert none.value == 0


def test_nothing_known() -> None:
    window = Window(start_s=0.0, end_s=1.0, steady=True)
    assert throughput_of([], window) == Throughput(
        request_rps=None, output_tok_s=None, total_tok_s=None, goodput_rps=None
    )
    silent = record(0, 0.0, output_tokens=0, prompt_tokens=None, counted_tokens=0, token_times_s=(), first_token_s=None)
    done = throughput_of([silent], window)
    assert done.request_rps is not None
    assert done.request_rps.value == pytest.approx(1.0)
    assert (done.output_tok_s, done.total_tok_s) == (None, None)


class TestDrift:
    def test_a_steady_loop_has_none(self) -> None:
        drifts = []
        for seed in range(40):
            records, _ = loose(16, 8, seed)
            window = window_of(level(requests=len(records), concurrency=16), records, 100.0)
            drifts.append(progress_drift(records, window))
        assert sum(drift is not None for drift in drifts) <= 1

    @pytest.mark.parametrize("factor", [0.6, 1.6])
    def test_a_loop_that_changes_speed_has(self, factor: float) -> None:
        records, _ = loose(16, 40)
        last = max(one.done_s or 0.0 for one in records)

        def moved(at: float) -> float:
            """Time runs ever slower or faster: the speed at the end is 1 / factor of that at the start."""
            return at + (factor - 1) * at * at / (2 * last)

        slowed = [
            request(
                one.index,
                moved(one.scheduled_s),
                moved(one.first_token_s or 0.0),
                moved(one.last_token_s or 0.0),
                output=one.output_tokens or 0,
            )
            for one in records
        ]
        window = window_of(level(requests=len(slowed), concurrency=16), slowed, 100.0)
        drift = progress_drift(slowed, window)
        assert drift is not None
        assert (drift.change > 0) is (factor < 1)
