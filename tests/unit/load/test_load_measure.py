from __future__ import annotations

from dataclasses import replace

import pytest
from load_records import closed_loop, failed, level, open_level, record

from autotune.load.measure import error_share, is_valid, itl_s, summarise, tpot_s, ttft_s
from autotune.load.throughput import tokens_of
from autotune.load.window import peak_in_flight, window_of
from autotune.records import ClockKind, LevelRole, Measurement, RequestRecord, ServerDelta

WALL = ClockKind.WALL


def codes(measurement: Measurement) -> set[str]:
    return {c.code for c in measurement.caveats}


class TestPerRequest:
    def test_definitions(self) -> None:
        r = record(0, 1.0, sent_s=1.02)
        assert ttft_s(r) == pytest.approx(0.1)
        assert tpot_s(r) == pytest.approx(0.1)
        assert itl_s(r) == pytest.approx([0.1] * 3)

    def test_nothing_seen_is_none(self) -> None:
        r = record(0, 1.0, first_token_s=None, last_token_s=None, token_times_s=(), counted_tokens=0)
        assert ttft_s(r) is None
        assert tpot_s(r) is None
        assert itl_s(r) == []

    def test_one_token_has_no_pace(self) -> None:
        r = record(0, 0.0, token_times_s=(0.1,), last_token_s=0.1, output_tokens=1, counted_tokens=1)
        assert tpot_s(r) is None

    def test_all_tokens_in_one_chunk_have_no_pace(self) -> None:
        # (last - first) / (tokens - 1) would be 0: the fastest server of all.
        r = record(0, 0.0, token_times_s=(0.4,), first_token_s=0.4, last_token_s=0.4, counted_tokens=1)
        assert tpot_s(r) is None
        assert itl_s(r) == []

    def test_all_chunks_in_one_read_have_no_pace(self) -> None:
        r = record(0, 0.0, token_times_s=(0.4,) * 4, first_token_s=0.4, last_token_s=0.4)
        assert tpot_s(r) is None

    def test_several_tokens_per_chunk(self) -> None:
        # 9 tokens: 1 + 4 x 2. 4 gaps of 0.2 s carry 8 tokens: 0.1 s each.
        times = (0.1, 0.3, 0.5, 0.7, 0.9)
        r = record(0, 0.0, token_times_s=times, last_token_s=0.9, output_tokens=9, counted_tokens=5)
        assert tpot_s(r) == pytest.approx(0.1)
        assert itl_s(r) == pytest.approx([0.1] * 4)

    def test_without_usage_the_client_counts(self) -> None:
        r = record(0, 0.0, output_tokens=None)
        assert tokens_of(r) == 4
        assert tpot_s(r) == pytest.approx(0.1)


class TestWindow:
    def test_ramp_and_tail_are_cut(self) -> None:
        # The first of the two slots' first requests ends at 0.4; the last start at 3.6 and 3.65, the first end after
        # that is 4.0.
        records = closed_loop(2, 10)
        window = window_of(level(), records, 4.05)
        assert (window.start_s, window.end_s, window.steady) == pytest.approx((0.4, 4.0, True))

    def test_half_of_the_first_requests_have_ended(self) -> None:
        # Five slots from 0, 0.05, .. 0.2: the third of their first requests ends at 0.5.
        window = window_of(level(concurrency=5), closed_loop(5, 10), 4.2)
        assert (window.start_s, window.end_s) == pytest.approx((0.5, 4.0))

    def test_with_few_requests_it_begins_when_the_slots_are_filled(self) -> None:
        # Ten slots are filled at 0.27, their first requests end from 0.4 to 0.67, the second ones from 0.8 on: eleven
        # ends from 0.27 to 0.8, seven from 0.52, when half of the first had ended.
        window = window_of(level(concurrency=10), closed_loop(10, 2, stagger_s=0.03), 1.07)
        assert (window.start_s, window.end_s, window.steady) == pytest.approx((0.27, 0.8, True))

    def test_concurrency_never_reached(self) -> None:
        window = window_of(level(concurrency=3), closed_loop(2, 10), 4.05)
        assert (window.start_s, window.end_s, window.steady) == (0.0, 4.05, False)

    def test_too_short(self) -> None:
        assert not window_of(level(), closed_loop(2, 3), 1.25).steady

    def test_open_loop_counts_whole(self) -> None:
        records = [record(i, 0.5 + i) for i in range(5)]
        window = window_of(open_level(1.0), records, 4.4)
        assert (window.start_s, window.end_s, window.steady) == (0.5, 4.9, True)

    def test_a_level_cut_off_ends_there(self) -> None:
        records = closed_loop(2, 10)[:-2]
        records += [failed(90, 3.6, "deadline", done_s=3.7), failed(91, 3.65, "deadline", done_s=3.7)]
        assert window_of(level(), records, 3.7).end_s == pytest.approx(3.7)

    def test_nothing(self) -> None:
        assert not window_of(level(), [], 0.0).steady

    def test_peak(self) -> None:
        assert peak_in_flight(closed_loop(3, 4)) == 3
        assert peak_in_flight([record(0, 0.0, done_s=None)]) == 0


class TestSummary:
    def test_closed_loop(self) -> None:
        # Each slot gives a token every 0.1 s without a pause: 2 slots are 20 tokens/s, whatever ramp and tail do.
        m = summarise(level(requests=20), closed_loop(2, 10), 4.05, WALL)
        assert m.output_tok_s is not None
        assert m.output_tok_s.value == pytest.approx(20, rel=0.03)
        assert m.total_tok_s is not None
        assert m.total_tok_s.value == pytest.approx(20 + 2 * 10 / 0.4, rel=0.06)
        assert m.request_rps is not None
        assert m.request_rps.value == pytest.approx(5, rel=0.06)
        assert m.steady_s == pytest.approx(3.6)
        assert (m.planned, m.completed, m.failed, m.errors) == (20, 20, 0, ())
        assert (m.prompt_tokens, m.output_tokens) == (200, 80)
        assert m.ttft_s is not None
        assert m.ttft_s.p95.value == pytest.approx(0.1)
        assert m.tpot_s is not None
        assert m.tpot_s.mean.value == pytest.approx(0.1)
        assert m.e2e_s is not None
        assert m.e2e_s.mean.value == pytest.approx(0.4)
        assert m.goodput_rps is None
        assert is_valid(m)
        assert codes(m) <= {"too_few_samples"}

    def test_packing_tokens_does_not_change_throughput(self) -> None:
        plain = closed_loop(2, 50)
        packed = [
            replace(r, token_times_s=r.token_times_s[1::2], first_token_s=r.token_times_s[1], counted_tokens=2)
            for r in plain
        ]
        a, b = summarise(level(), plain, 20.05, WALL), summarise(level(), packed, 20.05, WALL)
        assert a.output_tok_s is not None
        assert b.output_tok_s is not None
        assert b.output_tok_s.value == pytest.approx(a.output_tok_s.value, rel=0.01)
        assert a.output_tok_s.value == pytest.approx(20, rel=0.01)
        assert "tokens_per_chunk" in codes(b)
        assert "tokens_per_chunk" not in codes(a)

    def test_the_burst_of_the_start_is_not_in_the_latencies(self) -> None:
        records = closed_loop(2, 20)
        slow = [replace(r, scheduled_s=0.0, first_token_s=5.0) if r.index < 1 else r for r in records]
        m = summarise(level(), slow, 8.05, WALL)
        assert m.ttft_s is not None
        assert m.ttft_s.p99.value == pytest.approx(0.1)

    def test_failed_requests_are_apart(self) -> None:
        good = closed_loop(2, 10)
        bad = [failed(100 + i, 0.4 * i, "reset", first_token_s=0.4 * i + 1e-4) for i in range(9)]
        m = summarise(level(), [*good, *bad], 4.05, WALL)
        clean = summarise(level(), good, 4.05, WALL)
        assert m.ttft_s is not None
        assert m.ttft_s.p50.value == pytest.approx(0.1)
        assert m.output_tokens == clean.output_tokens
        assert (m.completed, m.failed, m.errors) == (20, 9, (("reset", 9),))
        assert "errors" in codes(m)
        assert not is_valid(m)
        assert error_share(m) == pytest.approx(9 / 29)

    def test_open_loop_counts_from_the_schedule(self) -> None:
        records = [record(i, float(i), sent_s=i + 0.03) for i in range(5)]
        m = summarise(open_level(1.0, requests=5), records, 4.4, WALL, slo_ttft_s=0.2)
        assert m.ttft_s is not None
        assert m.ttft_from_send_s is not None
        assert m.ttft_s.p50.value == pytest.approx(0.1)
        assert m.ttft_from_send_s.p50.value == pytest.approx(0.07)
        assert m.output_tok_s is not None
        assert m.output_tok_s.value == pytest.approx(20 / 4.4)
        assert m.goodput_rps is not None
        assert m.goodput_rps.value == pytest.approx(5 / 4.4)
        assert "client_late" in codes(m)

    def test_goodput_of_a_level_that_always_misses_is_zero(self) -> None:
        m = summarise(open_level(1.0), [record(i, float(i)) for i in range(5)], 4.4, WALL, slo_ttft_s=0.05)
        assert m.goodput_rps is not None
        assert m.goodput_rps.value == 0

    def test_goodput_counts_those_that_meet_it(self) -> None:
        records = [record(i, float(i)) for i in range(3)]
        records += [record(i, float(i), first_token_s=i + 0.35) for i in range(3, 5)]
        m = summarise(open_level(1.0), records, 4.4, WALL, slo_ttft_s=0.2)
        assert m.goodput_rps is not None
        assert m.goodput_rps.value == pytest.approx(3 / 4.4)

    def test_no_usage_leaves_totals_unknown(self) -> None:
        records = [replace(r, output_tokens=None, prompt_tokens=None) for r in closed_loop(2, 10)]
        m = summarise(level(), records, 4.05, WALL)
        assert (m.prompt_tokens, m.output_tokens, m.total_tok_s) == (None, None, None)
        assert m.output_tok_s is not None
        assert m.output_tok_s.value == pytest.approx(20, rel=0.03)
        assert "no_usage" in codes(m)

    def test_without_chunk_times_tokens_are_spread(self) -> None:
        records = [replace(r, token_times_s=()) for r in closed_loop(2, 10)]
        m = summarise(level(), records, 4.05, WALL)
        assert m.output_tok_s is not None
        assert m.output_tok_s.value == pytest.approx(20, rel=0.03)
        assert m.itl_s is None

    @pytest.mark.parametrize("records", [[], [failed(0, 0.0, "refused", sent_s=None)]])
    def test_nothing_succeeded(self, records: list[RequestRecord]) -> None:
        m = summarise(level(), records, 0.2, WALL)
        assert m.output_tok_s is None
        assert m.total_tok_s is None
        assert m.ttft_s is None
        assert m.output_tokens is None
        assert not is_valid(m)

    def test_is_deterministic(self) -> None:
        records = closed_loop(2, 60)
        assert summarise(level(), records, 24.05, WALL) == summarise(level(), records, 24.05, WALL)

    def test_server_is_kept(self) -> None:
        server = ServerDelta(preemptions=3)
        assert summarise(level(), [record(0, 0.0)], 1.0, WALL, server=server).server == server


class TestCaveats:
    def test_a_clean_level_has_none(self) -> None:
        m = summarise(level(requests=200), closed_loop(2, 100), 40.05, WALL)
        assert m.caveats == ()
        records = [record(i, i / 10) for i in range(200)]
        assert summarise(open_level(10.0, requests=200), records, 20.3, WALL).caveats == ()

    def test_lateness_below_two_percent_of_ttft_is_harmless(self) -> None:
        records = [record(i, i / 10, sent_s=i / 10 + 0.004) for i in range(200)]
        assert "client_late" not in codes(summarise(open_level(10.0), records, 20.3, WALL))
        # 8 ms late: above 5 ms, but 2 % of a TTFT of 0.5 s is 10 ms.
        slow = [record(i, i / 10, sent_s=i / 10 + 0.008, first_token_s=i / 10 + 0.5) for i in range(200)]
        assert "client_late" not in codes(summarise(open_level(10.0), slow, 20.3, WALL))
        late = [record(i, i / 10, sent_s=i / 10 + 0.008) for i in range(200)]
        assert "client_late" in codes(summarise(open_level(10.0), late, 20.3, WALL))

    def test_too_few(self) -> None:
        few = [record(i, i / 10) for i in range(99)]
        assert "too_few_samples" in codes(summarise(open_level(10.0), few, 10.2, WALL))
        ramp = level(role=LevelRole.RAMP)
        assert "too_few_samples" not in codes(summarise(ramp, closed_loop(2, 10), 4.05, WALL))

    @pytest.mark.parametrize(("tokens", "flagged"), [(98, False), (97, True), (102, False), (103, True), (100, False)])
    def test_output_drift(self, tokens: int, flagged: bool) -> None:
        records = [record(i, i / 10, output_tokens=tokens, wanted_output_tokens=100) for i in range(200)]
        assert ("output_drift" in codes(summarise(open_level(10.0), records, 20.3, WALL))) is flagged

    @pytest.mark.parametrize(
        ("hits", "shared", "flagged"),
        [(19, 0.0, False), (20, 0.0, True), (20, None, False), (1000, 5.0, False), (1020, 5.0, True)],
    )
    def test_prefix_hits(self, hits: int, shared: float | None, flagged: bool) -> None:
        # 200 requests of 10 prompt tokens: 1 % of the 2,000 queried tokens are 20.
        records = [record(i, i / 10) for i in range(200)]
        server = ServerDelta(prefix_queries=2000, prefix_hits=hits)
        m = summarise(open_level(10.0), records, 20.3, WALL, server=server, shared_tokens_per_request=shared)
        assert ("prefix_hits" in codes(m)) is flagged

    def test_one_percent_of_errors_is_allowed(self) -> None:
        records = [record(i, i / 10) for i in range(198)]
        two = [failed(198, 1.0, "reset"), failed(199, 2.0, "reset")]
        assert is_valid(summarise(open_level(10.0), [*records, *two], 20.3, WALL))
        three = [*two, failed(200, 3.0, "http_5xx")]
        m = summarise(open_level(10.0), [*records, *three], 20.3, WALL)
        assert not is_valid(m)
        assert m.errors == (("http_5xx", 1), ("reset", 2))

    @pytest.mark.parametrize(("service_s", "served"), [(0.1, ""), (0.102, ""), (0.105, "9.52"), (0.12, "8.33")])
    def test_saturation(self, service_s: float, served: str) -> None:
        # Offered 10/s to a server that gives a first token every `service_s`: the queue grows when that is over 0.1.
        records = [record(i, i / 10, first_token_s=(i + 1) * service_s) for i in range(200)]
        m = summarise(open_level(10.0), records, 25.0, WALL)
        found = [c.text for c in m.caveats if c.code == "saturated"]
        assert bool(found) is bool(served)
        assert served in "".join(found)

    def test_long_outputs_are_no_saturation(self) -> None:
        records = [record(i, i / 10, last_token_s=i / 10 + 30, done_s=i / 10 + 30) for i in range(200)]
        assert "saturated" not in codes(summarise(open_level(10.0), records, 50.0, WALL))

    @pytest.mark.parametrize(("kind", "said"), [("aborted", "the server was gone"), ("deadline", "time was over")])
    def test_cut_off(self, kind: str, said: str) -> None:
        m = summarise(level(), [*closed_loop(2, 10), failed(50, 3.0, kind)], 4.05, WALL)
        assert said in next(c.text for c in m.caveats if c.code == "aborted")

    def test_window(self) -> None:
        assert "no_steady_window" in codes(summarise(level(), closed_loop(2, 2), 0.85, WALL))

    def test_unseen_tokens(self) -> None:
        silent = record(9, 1.0, first_token_s=None, last_token_s=None, token_times_s=(), counted_tokens=0)
        assert "unseen_tokens" in codes(summarise(level(), [*closed_loop(2, 10), silent], 4.05, WALL))

    @pytest.mark.parametrize(("bunched", "flagged"), [(60, False), (61, True)])
    def test_bunched_chunks(self, bunched: int, flagged: bool) -> None:
        # 200 requests have 600 gaps; in `bunched` requests one of them is 0.
        records = [record(i, i / 10) for i in range(200)]
        for i in range(bunched):
            a, b, _, d = records[i].token_times_s
            records[i] = replace(records[i], token_times_s=(a, b, b, d))
        assert ("bunched_chunks" in codes(summarise(open_level(10.0), records, 20.3, WALL))) is flagged

    def test_preemptions(self) -> None:
        records = [record(i, i / 10) for i in range(200)]
        few = summarise(open_level(10.0), records, 20.3, WALL, server=ServerDelta(preemptions=10))
        many = summarise(open_level(10.0), records, 20.3, WALL, server=ServerDelta(preemptions=11))
        assert "preemptions" not in codes(few)
        assert "preemptions" in codes(many)

    def test_every_caveat_says_what_to_do(self) -> None:
        m = summarise(level(), [*closed_loop(2, 2), failed(50, 3.0, "aborted")], 4.05, WALL)
        assert m.caveats
        assert all(c.text and c.remedy for c in m.caveats)
