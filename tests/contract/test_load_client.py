"""The load client at the wire, against a server whose truth is known from its script.

Lower bounds on times are exact (a server that pauses 60 ms cannot be faster); upper bounds are those of what hangs.
"""

from __future__ import annotations

import asyncio
import itertools
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from held_up import again_when_held_up
from scripted_server import DONE, Hang, Pause, Reset, Script, Send, Step, delta, frame, serving, text, usage
from tokenizers import Tokenizer, models, pre_tokenizers

from autotune.errors import InvalidOption
from autotune.load.calibrating import calibrate
from autotune.load.client import DriveOptions, Timeouts, TransportKind, check_url, drive
from autotune.load.measure import itl_s, summarise, tpot_s, ttft_s
from autotune.load.preparing import PreparedPrompts, PromptSource, prepare_prompts
from autotune.load.prompts import ChatMessage, Conversation, TokenIds, render_prompt
from autotune.load.requests import plan_requests
from autotune.load.tokenizing import TextTokenizer
from autotune.load.window import peak_in_flight
from autotune.load.words import COMMON_WORDS
from autotune.load.workloads import Api, load_workload
from autotune.records import Arrivals, ClockKind, LevelRole, LoadLevel, PlannedRequest, RequestRecord

SLACK_S = 30.0
PATIENCE_S = 600.0


class Carrier:
    """What `options` asks for; None is the choice of the client."""

    kind: TransportKind | None = None


@pytest.fixture(params=TransportKind)
def _carried(request: pytest.FixtureRequest) -> Iterator[None]:
    """Everything that `drive` promises holds whichever transport carries it."""
    Carrier.kind = request.param
    yield
    Carrier.kind = None


either_transport = pytest.mark.usefixtures("_carried")


def options(api: Api = Api.CHAT, **changes: Any) -> DriveOptions:
    base = DriveOptions(
        api=api,
        model="m",
        render=lambda request: f"prompt {request.content_seed}",
        timeouts=Timeouts(request_s=PATIENCE_S, stall_s=PATIENCE_S, connect_s=PATIENCE_S),
        deadline_s=PATIENCE_S,
        stagger_s=0.0,
        transport=Carrier.kind,
    )
    return replace(base, **changes)


def level(requests: int, **changes: Any) -> LoadLevel:
    base = LoadLevel(name="l", role=LevelRole.EXTRA, arrivals=Arrivals.CLOSED, requests=requests, seed=0, concurrency=1)
    return replace(base, **changes)


def planned(count: int, due: list[float] | None = None, output_tokens: int = 3) -> list[PlannedRequest]:
    return [
        PlannedRequest(
            index=i,
            prompt_tokens=10,
            output_tokens=output_tokens,
            content_seed=i,
            scheduled_s=due[i] if due else None,
        )
        for i in range(count)
    ]


async def one(*steps: Step, opts: DriveOptions | None = None, script: Script | None = None) -> RequestRecord:
    """The record of a single request that is answered by these steps."""
    async with serving(lambda _n, _body: script or Script(steps=steps)) as (url, _seen):
        records, duration_s = await drive(url, level(1), planned(1), options=opts or options())
    assert len(records) == 1
    assert duration_s > 0
    return records[0]


@either_transport
class TestTokens:
    @again_when_held_up
    async def test_role_only_chunk_is_no_token(self) -> None:
        record = await one(
            delta(role="assistant", content=""),
            Pause(0.06),
            delta(content="a"),
            delta(content="b"),
            delta("length", content="c"),
            usage(11, 3),
            DONE,
        )
        assert record.error is None
        assert record.first_token_s is not None
        assert record.first_byte_s is not None
        assert record.sent_s is not None
        assert record.first_token_s - record.first_byte_s >= 0.05
        assert record.sent_s <= record.first_byte_s
        assert 0.06 <= record.first_token_s - record.sent_s < SLACK_S
        assert (record.prompt_tokens, record.output_tokens, record.counted_tokens) == (11, 3, 3)
        assert record.finish_reason == "length"
        assert record.status == 200

    async def test_empty_text_is_no_token(self) -> None:
        record = await one(
            text(""), Pause(0.06), text("a"), text("b"), usage(5, 4), DONE, opts=options(Api.COMPLETIONS)
        )
        assert record.counted_tokens == 2
        assert (ttft_s(record) or 0) >= 0.06

    @pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
    @again_when_held_up
    async def test_reasoning_is_the_first_token(self, name: str) -> None:
        record = await one(
            delta(role="assistant", content=""),
            delta(**{name: "hm", "content": None}),
            Pause(0.3),
            delta(content="a"),
            usage(5, 2),
            DONE,
        )
        assert len(record.token_times_s) == 2
        assert record.token_times_s[1] - record.token_times_s[0] >= 0.25

    async def test_tool_call_arguments_are_tokens_and_the_id_is_not(self) -> None:
        record = await one(
            delta(tool_calls=[{"index": 0, "id": "x", "type": "function", "function": {"arguments": ""}}]),
            delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]),
            delta(tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]),
            usage(5, 2),
            DONE,
        )
        assert record.error is None
        assert record.counted_tokens == 2

    @again_when_held_up
    async def test_several_tokens_per_chunk_do_not_change_tpot(self) -> None:
        # Nine tokens: one, then four chunks of two, 40 ms apart: 160 ms for 8 tokens is 20 ms each.
        steps: list[Step] = [delta(content="a")]
        for _ in range(4):
            steps += [Pause(0.04), delta(content="b c")]
        record = await one(*steps, usage(5, 9), DONE)
        tpot = tpot_s(record)
        assert tpot is not None
        assert 0.019 <= tpot < 0.019 + SLACK_S / 8
        gaps = itl_s(record)
        assert len(gaps) == 4
        assert sum(gaps) / 4 == pytest.approx(tpot, rel=1e-6)

    async def test_no_usage_is_none_and_flagged(self) -> None:
        record = await one(delta(content="a"), delta("stop", content="b"), DONE)
        assert (record.error, record.prompt_tokens, record.output_tokens, record.counted_tokens) == (
            None,
            None,
            None,
            2,
        )
        m = summarise(level(1), [record], 1.0, ClockKind.WALL)
        assert m.output_tokens is None
        assert m.total_tok_s is None
        assert "no_usage" in {c.code for c in m.caveats}

    @again_when_held_up
    async def test_latency_ends_at_the_last_token(self) -> None:
        record = await one(delta(content="a"), delta("stop", content="b"), Pause(0.3), usage(5, 2), DONE)
        assert record.last_token_s is not None
        assert record.done_s is not None
        assert record.done_s - record.last_token_s >= 0.25

    async def test_frames_split_at_every_byte(self) -> None:
        stream = b"".join(s.data for s in (delta(content="é😀"), delta("stop", content="b"), usage(5, 2), DONE))
        record = await one(*[Send(bytes([b])) for b in stream])
        assert (record.error, record.counted_tokens, record.output_tokens) == (None, 2, 2)

    async def test_crlf_and_comments(self) -> None:
        stream = b"".join(s.data for s in (delta(content="a"), usage(5, 1), DONE)).replace(b"\n", b"\r\n")
        record = await one(Send(b": ping\r\n\r\n"), Send(stream))
        assert (record.error, record.counted_tokens) == (None, 1)

    async def test_slow_first_byte_counts(self) -> None:
        record = await one(script=Script(before_head_s=0.2, steps=(delta(content="a"), usage(5, 1), DONE)))
        assert 0.2 <= (ttft_s(record) or 0) < 0.2 + SLACK_S


@either_transport
class TestFailures:
    async def failed(self, kind: str, *steps: Step, **kwargs: Any) -> RequestRecord:
        record = await one(*steps, **kwargs)
        assert record.error == kind
        measurement = summarise(level(1), [record], 1.0, ClockKind.WALL)
        assert (measurement.completed, measurement.failed, measurement.errors) == (0, 1, ((kind, 1),))
        assert measurement.output_tok_s is None
        assert measurement.ttft_s is None
        return record

    async def test_error_object_then_done(self) -> None:
        message = {"error": {"message": "EngineCore encountered an issue", "code": 500}}
        record = await self.failed("error_frame", delta(content="a"), frame(message), DONE)
        assert "EngineCore" in (record.message or "")
        assert record.status == 200

    async def test_error_event(self) -> None:
        await self.failed("error_frame", delta(content="a"), Send(b"event: error\ndata: overloaded\n\n"), DONE)

    async def test_error_object_instead_of_a_stream(self) -> None:
        body = Script(content_type="application/json", steps=(Send(b'{"error": {"message": "no"}}'),))
        record = await self.failed("error_frame", script=body)
        assert record.message == "no"

    async def test_answer_that_does_not_stream(self) -> None:
        body = Script(content_type="application/json", steps=(Send(b'{"choices": [{"text": "a"}]}'),))
        await self.failed("protocol", script=body)

    async def test_garbage(self) -> None:
        await self.failed("protocol", Send(b"data: <html>\n\n"))

    @pytest.mark.parametrize(
        ("status", "kind"),
        [
            (429, "http_429"),
            (503, "http_5xx"),
            (500, "http_5xx"),
            (401, "http_auth"),
            (403, "http_auth"),
            (404, "http_4xx"),
            (400, "http_4xx"),
            (302, "protocol"),
        ],
    )
    async def test_status(self, status: int, kind: str) -> None:
        body = Script(status=status, content_type="application/json", steps=(Send(b'{"error": {"message": "why"}}'),))
        record = await self.failed(kind, script=body)
        assert (record.status, record.message) == (status, "why")

    async def test_any_2xx_is_a_success(self) -> None:
        record = await one(script=Script(status=201, steps=(delta(content="a"), usage(5, 1), DONE)))
        assert record.error is None

    async def test_reset_in_mid_stream(self) -> None:
        record = await self.failed("reset", delta(content="a"), Pause(0.05), Reset())
        assert record.counted_tokens == 1

    async def test_reset_before_the_head(self) -> None:
        await self.failed("reset", Reset())

    async def test_stall(self) -> None:
        quick = options(timeouts=Timeouts(request_s=PATIENCE_S, stall_s=0.3, connect_s=PATIENCE_S))
        await self.failed("stalled", delta(content="a"), Hang(), opts=quick)

    async def test_request_timeout(self) -> None:
        quick = options(timeouts=Timeouts(request_s=0.3, stall_s=PATIENCE_S, connect_s=PATIENCE_S))
        await self.failed("stalled", delta(content="a"), Hang(), opts=quick)

    async def test_stream_that_just_ends(self) -> None:
        await self.failed("truncated", delta(content="a"), delta(content="b"))

    async def test_stream_with_usage_and_without_done_is_whole(self) -> None:
        record = await one(delta(content="a"), delta("stop", content="b"), usage(5, 2))
        assert record.error is None

    async def test_entirely_empty_completion(self) -> None:
        record = await self.failed(
            "no_tokens", delta(role="assistant", content=""), delta("stop", content=""), usage(5, 0), DONE
        )
        assert record.first_token_s is None

    async def test_nothing_but_the_end(self) -> None:
        await self.failed("truncated")

    async def test_aborted_by_the_server(self) -> None:
        await self.failed("error_frame", delta(content="a"), delta("abort", content=""), usage(5, 1), DONE)

    async def test_refused(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            port = taken.getsockname()[1]
            records, _ = await drive(f"http://127.0.0.1:{port}", level(2), planned(2), options=options())
        assert [r.error for r in records] == ["refused", "refused"]
        assert all(r.sent_s is None for r in records)

    async def test_hang_after_done_is_a_success_and_frees_the_slot(self) -> None:
        steps = (delta(content="a"), usage(5, 1), DONE, Hang())
        async with serving(lambda _n, _b: Script(steps=steps)) as (url, _seen):
            records, duration_s = await drive(url, level(2), planned(2), options=options())
        assert [r.error for r in records] == [None, None]
        assert duration_s < PATIENCE_S / 5

    async def test_a_failed_request_is_not_repeated(self) -> None:
        async with serving(lambda _n, _b: Script(status=503)) as (url, seen):
            records, _ = await drive(url, level(5), planned(5), options=options())
        assert len(seen.requests) == len(records) == 5


GOOD = (delta(role="assistant", content=""), delta(content="a"), delta("length", content="b"), usage(5, 2), DONE)


@either_transport
class TestClosedLoop:
    @again_when_held_up
    async def test_holds_its_concurrency(self) -> None:
        script = Script(steps=(Pause(0.03), *GOOD))
        async with serving(lambda _n, _b: script) as (url, seen):
            records, _ = await drive(url, level(24, concurrency=4), planned(24), options=options())
        assert [r.index for r in records] == list(range(24))
        assert peak_in_flight(records) == 4
        assert seen.most_open in {4, 5}  # the server notices an end a moment after the client
        assert {r.error for r in records} == {None}

    async def test_a_slots_next_request_is_due_when_it_came_free(self) -> None:
        async with serving(lambda _n, _b: Script(steps=(Pause(0.02), *GOOD))) as (url, _seen):
            records, _ = await drive(url, level(4), planned(4), options=options())
        assert records[0].scheduled_s == 0
        for before, after in itertools.pairwise(records):
            assert after.scheduled_s == before.done_s

    async def test_start_is_staggered(self) -> None:
        async with serving(lambda _n, _b: Script(steps=(Pause(0.3), *GOOD))) as (url, _seen):
            records, _ = await drive(url, level(4, concurrency=4), planned(4), options=options(stagger_s=0.2))
        assert [r.scheduled_s for r in records] == pytest.approx([0.0, 0.05, 0.1, 0.15])
        assert all(r.sent_s is not None and r.sent_s >= r.scheduled_s for r in records)

    async def test_what_is_written(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOAD_TEST_KEY", "s3cret")
        async with serving(lambda _n, _b: Script(steps=GOOD)) as (url, seen):
            await drive(url, level(1), planned(1), options=options(api_key_env="LOAD_TEST_KEY"))
            await drive(url, level(1), planned(1), options=options(Api.COMPLETIONS, ignore_eos=False))
        (chat_path, chat, chat_headers), (path, completion, headers) = seen.requests
        assert (chat_path, path) == ("/v1/chat/completions", "/v1/completions")
        assert chat == {
            "model": "m",
            "max_tokens": 3,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            "ignore_eos": True,
            "messages": [{"role": "user", "content": "prompt 0"}],
        }
        assert completion["prompt"] == "prompt 0"
        assert "ignore_eos" not in completion
        assert chat_headers["Authorization"] == "Bearer s3cret"
        assert "Authorization" not in headers

    async def test_a_key_echoed_by_the_server_is_not_kept(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOAD_TEST_KEY", "s3cret")
        body = Script(status=401, content_type="application/json", steps=(Send(b'{"error": "bad key s3cret"}'),))
        record = await one(script=body, opts=options(api_key_env="LOAD_TEST_KEY"))
        assert record.message == "bad key ***"
        assert "s3cret" not in repr(record)

    async def test_records_are_told_as_they_come(self) -> None:
        told: list[int] = []
        async with serving(lambda _n, _b: Script(steps=GOOD)) as (url, _seen):
            await drive(url, level(3), planned(3), options=options(on_record=lambda r: told.append(r.index)))
        assert told == [0, 1, 2]


@either_transport
class TestOpenLoop:
    @again_when_held_up
    async def test_a_slow_server_shifts_nothing_and_shows_in_ttft(self) -> None:
        """Coordinated omission: a server that serves 20/s under 50/s must show a queue, not a slower client."""
        count = 30
        due = [i * 0.02 for i in range(count)]
        # One at a time: the n-th answer comes no earlier than (n + 1) x 50 ms, by scripts that wait for their turn.
        answers = (Script(before_head_s=(n + 1) * 0.05 - n * 0.02, steps=GOOD) for n in range(count))
        async with serving(lambda _n, _b: next(answers)) as (url, seen):
            records, _ = await drive(
                url,
                level(count, arrivals=Arrivals.CONSTANT, concurrency=None, rate_rps=50.0),
                planned(count, due),
                options=options(),
            )
        assert [r.scheduled_s for r in records] == pytest.approx(due, abs=1e-6)
        assert seen.most_open > 10
        waits = [ttft_s(r) or 0 for r in records]
        # Request n is due at 20n ms and answered 50(n+1) ms after the start: it waits 50 + 30n ms.
        assert all(wait >= 0.05 + 0.03 * n - 0.001 for n, wait in enumerate(waits))
        m = summarise(
            level(count, arrivals=Arrivals.CONSTANT, concurrency=None, rate_rps=50.0), records, 1.6, ClockKind.WALL
        )
        saturated = [c for c in m.caveats if c.code == "saturated"]
        assert saturated
        assert "50 requests/s" in saturated[0].text

    async def test_late_sends_are_recorded_against_the_schedule(self) -> None:
        due = [0.0, 0.01, 0.02]
        async with serving(lambda _n, _b: Script(steps=(Pause(0.1), *GOOD))) as (url, _seen):
            records, _ = await drive(
                url,
                level(3, arrivals=Arrivals.POISSON, concurrency=None, rate_rps=100.0),
                planned(3, due),
                options=options(max_in_flight=1),
            )
        assert peak_in_flight(records) == 1
        assert [r.scheduled_s for r in records] == pytest.approx(due)
        last = records[2]
        assert last.sent_s is not None
        assert last.first_token_s is not None
        assert last.sent_s - last.scheduled_s >= 0.17
        assert (ttft_s(last) or 0) >= 0.27
        assert 0.1 <= last.first_token_s - last.sent_s < 0.1 + SLACK_S
        m = summarise(
            level(3, arrivals=Arrivals.POISSON, concurrency=None, rate_rps=100.0),
            records,
            0.3,
            ClockKind.WALL,
            in_flight_cap=1,
        )
        assert {"client_late", "in_flight_cap"} <= {c.code for c in m.caveats}

    async def test_nothing_is_sent_early(self) -> None:
        due = [0.0, 0.013, 0.05, 0.051]
        async with serving(lambda _n, _b: Script(steps=GOOD)) as (url, _seen):
            records, _ = await drive(
                url,
                level(4, arrivals=Arrivals.POISSON, concurrency=None, rate_rps=80.0),
                planned(4, due),
                options=options(Api.COMPLETIONS),
            )
        assert all(r.sent_s is not None and r.sent_s >= r.scheduled_s for r in records)


@either_transport
class TestEnds:
    @again_when_held_up
    async def test_deadline_ends_open_requests(self) -> None:
        scripts = [Script(steps=GOOD), Script(steps=(delta(content="a"), Hang())), Script(steps=(Hang(),))]
        async with serving(lambda n, _b: scripts[n]) as (url, seen):
            records, duration_s = await drive(url, level(9, concurrency=1), planned(9), options=options(deadline_s=0.5))
            assert len(seen.requests) == 2
        assert [r.error for r in records] == [None, "deadline"]
        assert 0.45 <= duration_s < 0.5 + SLACK_S

    @again_when_held_up
    async def test_deadline_tells_of_requests_due_but_not_sent(self) -> None:
        async with serving(lambda _n, _b: Script(steps=(Hang(),))) as (url, _seen):
            records, _ = await drive(
                url,
                level(3, arrivals=Arrivals.CONSTANT, concurrency=None, rate_rps=10.0),
                planned(3, [0.0, 0.1, 900.0]),
                options=options(deadline_s=0.5, max_in_flight=1),
            )
        assert [(r.index, r.error, r.sent_s is None) for r in records] == [
            (0, "deadline", False),
            (1, "deadline", True),
        ]

    async def test_a_dead_server_ends_the_level_at_once(self) -> None:
        gone = asyncio.Event()
        async with serving(lambda _n, _b: Script(steps=(delta(content="a"), Hang()))) as (url, seen):
            driving = asyncio.create_task(
                drive(url, level(50, concurrency=3), planned(50), options=options(abort=gone))
            )
            while len(seen.requests) < 3:
                await asyncio.sleep(0.01)
            gone.set()
            records, duration_s = await driving
        assert [r.error for r in records] == ["aborted"] * 3
        assert duration_s < PATIENCE_S / 5

    async def test_cancelling_leaves_nothing_running(self) -> None:
        async with serving(lambda _n, _b: Script(steps=(Hang(),))) as (url, seen):
            driving = asyncio.create_task(drive(url, level(4, concurrency=2), planned(4), options=options()))
            while len(seen.requests) < 2:
                await asyncio.sleep(0.01)
            driving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await driving
            mine = {asyncio.current_task()}
            names = [t.get_coro().__qualname__ for t in asyncio.all_tasks() - mine if t.get_coro() is not None]
            assert not [name for name in names if "_Level" in name]


class TestPrompts:
    async def test_token_ids_and_conversations(self) -> None:
        ids, talk = TokenIds(ids=(5, 6, 7)), Conversation(messages=(said("system", "be brief"), said("user", "hello")))
        async with serving(lambda _n, _b: Script(steps=GOOD)) as (url, seen):
            await drive(
                url,
                level(1),
                planned(1),
                options=options(Api.COMPLETIONS, render=lambda _r: ids, return_token_ids=True),
            )
            await drive(url, level(1), planned(1), options=options(render=lambda _r: talk))
            await drive(url, level(1), planned(1), options=options(Api.COMPLETIONS, render=lambda _r: talk))
        (_, of_ids, _), (_, chat, _), (_, joined, _) = seen.requests
        assert (of_ids["prompt"], of_ids["return_token_ids"]) == ([5, 6, 7], True)
        assert chat["messages"] == [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": "hello"},
        ]
        assert "return_token_ids" not in chat
        assert joined["prompt"] == "be brief\nhello"

    async def test_the_chat_api_takes_no_ids(self) -> None:
        with pytest.raises(ValueError, match="no token ids"):
            await drive(
                "http://127.0.0.1:1", level(1), planned(1), options=options(render=lambda _r: TokenIds(ids=(1,)))
            )

    async def test_tokens_that_show_only_as_ids(self) -> None:
        """A vLLM without a detokenizer (--skip-tokenizer-init) that was asked to return ids."""

        def chunk(ids: list[int], finish: str | None = None) -> Send:
            return frame({"choices": [{"index": 0, "text": "", "token_ids": ids, "finish_reason": finish}]})

        record = await one(chunk([]), chunk([9]), chunk([8, 7], "length"), usage(3, 3), DONE)
        assert (record.error, record.counted_tokens, record.output_tokens) == (None, 2, 3)

    async def test_everything_is_rendered_before_the_start(self) -> None:
        order: list[str] = []

        async def start() -> None:
            order.append("start")

        def render(request: PlannedRequest) -> str:
            order.append("render")
            return "x"

        async with serving(lambda _n, _b: Script(steps=GOOD)) as (url, _seen):
            await drive(url, level(3), planned(3), options=options(render=render, before_start=start))
        assert order == ["render", "render", "render", "start"]


def said(role: str, content: str) -> ChatMessage:
    return ChatMessage(role=role, content=content)


def talking(*after: int | None, due: list[float] | None = None) -> list[PlannedRequest]:
    return [replace(request, after=before) for request, before in zip(planned(len(after), due), after, strict=True)]


class TestTurns:
    async def test_closed_loop_sends_no_turn_before_the_one_it_follows_has_ended(self) -> None:
        # Two slots: 0 and 2 begin; 1 goes on from 0 and is due when 0 ended, 3 takes the other slot's next turn.
        async with serving(lambda _n, _b: Script(steps=(Pause(0.05), *GOOD))) as (url, _seen):
            records, _ = await drive(url, level(5, concurrency=2), talking(None, 0, None, 1, None), options=options())
        assert [r.error for r in records] == [None] * 5
        for later, earlier in ((1, 0), (3, 1)):
            assert records[later].scheduled_s >= (records[earlier].done_s or 9)
            assert (records[later].sent_s or 0) >= (records[earlier].done_s or 9)
        assert records[2].scheduled_s == 0

    async def test_a_slot_waits_for_a_turn_and_its_wait_is_not_counted(self) -> None:
        async with serving(lambda _n, _b: Script(steps=(Pause(0.1), *GOOD))) as (url, _seen):
            records, _ = await drive(url, level(3, concurrency=2), talking(None, 0, 1), options=options())
        # One conversation keeps one slot busy; the other has nothing to do, and nobody has waited for it.
        assert peak_in_flight(records) == 1
        assert [records[n].scheduled_s for n in (1, 2)] == [records[0].done_s, records[1].done_s]
        assert all(0.1 <= (ttft_s(r) or 0) < 0.1 + SLACK_S for r in records)

    @again_when_held_up
    async def test_open_loop_sends_a_late_turn_as_soon_as_it_can(self) -> None:
        due = [0.0, 0.02, 0.03, 0.5]
        answers = {0: 0.2, 1: 0.0, 2: 0.0, 3: 0.0}
        async with serving(lambda n, _b: Script(steps=(Pause(answers[n]), *GOOD))) as (url, _seen):
            records, _ = await drive(
                url,
                level(4, arrivals=Arrivals.POISSON, concurrency=None, rate_rps=8.0),
                talking(None, 0, None, 0, due=due),
                options=options(),
            )
        first, late, free, punctual = records
        assert late.scheduled_s == first.done_s  # later than its due time
        assert (late.sent_s or 0) >= late.scheduled_s
        assert free.scheduled_s == pytest.approx(0.03)  # holds nobody else up
        assert (free.sent_s or 9) < (first.done_s or 0)
        assert punctual.scheduled_s == pytest.approx(0.5)

    async def test_a_failed_turn_has_ended_too(self) -> None:
        async with serving(lambda n, _b: Script(steps=GOOD) if n else Script(status=500)) as (url, _seen):
            records, _ = await drive(url, level(2), talking(None, 0), options=options())
        assert [r.error for r in records] == ["http_5xx", None]

    @again_when_held_up
    async def test_a_turn_that_could_never_be_sent_has_no_record(self) -> None:
        async with serving(lambda _n, _b: Script(steps=(delta(content="a"), Hang()))) as (url, _seen):
            for arrivals, due in ((Arrivals.CLOSED, None), (Arrivals.POISSON, [0.0, 0.01, 0.02])):
                made = level(3, arrivals=arrivals, concurrency=3, rate_rps=100.0)
                records, _ = await drive(url, made, talking(None, 0, None, due=due), options=options(deadline_s=0.3))
                assert [(r.index, r.error) for r in records] == [(0, "deadline"), (2, "deadline")]


class TestPreparing:
    """How prompts are written, by what the server tells."""

    def tokens(self, content: str) -> int:
        """One token per word; what is longer than ten letters is two."""
        return sum(1 if len(word) <= 10 else 2 for word in content.split())

    def usage_of(self, body: dict[str, Any]) -> int:
        """A server that counts as `tokens`, with 7 of template, and takes ids as they are."""
        if "messages" in body:
            return 7 + sum(self.tokens(one["content"]) for one in body["messages"])
        return len(body["prompt"]) if isinstance(body["prompt"], list) else self.tokens(body["prompt"])

    async def counted(self, prompts: PreparedPrompts, url: str) -> list[tuple[int, int | None]]:
        """Tokens asked for and tokens by usage, of prompts of 40 tokens and more."""
        asked = [replace(request, prompt_tokens=40 + 13 * request.index) for request in planned(10)]
        records, _ = await drive(url, level(10), asked, options=prompts.over(options()))
        return [(a.prompt_tokens, r.prompt_tokens) for a, r in zip(asked, records, strict=True)]

    def answering(self) -> Callable[[int, dict[str, Any]], Script]:
        return lambda _n, body: Script(
            steps=(delta(content="a"), text("a"), delta("length", content="b"), usage(self.usage_of(body), 2), DONE)
        )

    async def test_by_tokenize(self) -> None:
        async with serving(self.answering(), tokens_of=self.tokens) as (url, seen):
            prompts = await prepare_prompts(url, PromptSource(api=Api.CHAT), options())
            assert seen.requests == []  # asking costs no request
            assert (prompts.exact, prompts.api, prompts.caveats) == (True, Api.CHAT, ())
            assert all(asked == counted for asked, counted in await self.counted(prompts, url))

    async def test_ids_where_the_server_has_no_tokenizer(self) -> None:
        async with serving(self.answering()) as (url, seen):
            source = PromptSource(api=Api.CHAT, vocab_size=32_000)
            prompts = await prepare_prompts(url, source, options())
            assert len(seen.requests) == 1  # tried once
            assert (prompts.exact, prompts.api) == (True, Api.COMPLETIONS)
            assert [caveat.code for caveat in prompts.caveats] == ["completions_instead"]
            assert not prompts.return_token_ids
            assert all(asked == counted for asked, counted in await self.counted(prompts, url))
        assert {path for path, _, _ in seen.requests} == {"/v1/completions"}

    async def test_a_completions_workload_has_no_doubt_about_ids(self) -> None:
        async with serving(self.answering()) as (url, _seen):
            prompts = await prepare_prompts(url, PromptSource(api=Api.COMPLETIONS, vocab_size=32_000), options())
        assert (prompts.exact, prompts.caveats) == (True, ())

    async def test_a_server_that_shows_tokens_only_as_ids(self) -> None:
        script = Script(steps=(frame({"choices": [{"index": 0, "text": ""}]}), usage(17, 2), DONE))
        async with serving(lambda _n, _b: script) as (url, _seen):
            prompts = await prepare_prompts(url, PromptSource(api=Api.CHAT, vocab_size=1024), options())
        assert (prompts.exact, prompts.return_token_ids) == (True, True)

    async def test_a_smaller_vocabulary_than_guessed(self) -> None:
        def answer(_n: int, body: dict[str, Any]) -> Script:
            if "messages" in body or max(body["prompt"]) >= 32_000:
                return Script(status=400, content_type="application/json")
            return Script(steps=(text("a"), usage(len(body["prompt"]), 1), DONE))

        async with serving(answer) as (url, seen):
            prompts = await prepare_prompts(url, PromptSource(api=Api.CHAT), options(), may_request=True)
        assert (prompts.exact, prompts.api) == (True, Api.COMPLETIONS)
        assert len(seen.requests) == 2

    async def test_a_server_that_takes_words_only_is_calibrated_by_its_usage(self) -> None:
        def answer(_n: int, body: dict[str, Any]) -> Script:
            if "messages" not in body:
                return Script(status=400, content_type="application/json")
            return self.answering()(_n, body)

        async with serving(answer) as (url, _seen):
            prompts = await prepare_prompts(url, PromptSource(api=Api.CHAT), options(), may_request=True)
            assert (prompts.exact, prompts.api, prompts.caveats) == (False, Api.CHAT, ())
            assert all(abs((got or 0) / want - 1) < 0.03 for want, got in await self.counted(prompts, url))

    async def test_nothing_is_known(self) -> None:
        async with serving(lambda _n, _b: Script(status=404)) as (url, seen):
            prompts = await prepare_prompts(url, PromptSource(api=Api.CHAT), options())
            assert seen.requests == []  # a study's server gets no request that is not asked for
        assert not prompts.exact
        assert [caveat.code for caveat in prompts.caveats] == ["uncalibrated"]

    async def test_a_server_that_does_not_answer_is_asked_for_a_bounded_time(self) -> None:
        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(4096):
                pass
            writer.close()

        async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            source = PromptSource(api=Api.CHAT, vocab_size=32_000, tokenizer=word_tokenizer())
            async with asyncio.timeout(120):
                prompts = await prepare_prompts(url, source, options(), deadline_s=0.3, may_request=True)
        assert [caveat.code for caveat in prompts.caveats] == ["uncalibrated"]

    async def test_texts_of_the_workload_are_sent_as_they_are(self) -> None:
        talk = Conversation(messages=(said("user", "hi"),))
        source = PromptSource(api=Api.CHAT, vocab_size=32_000, texts=("my own words", talk))
        async with serving(lambda _n, _b: Script(steps=GOOD)) as (url, seen):
            prompts = await prepare_prompts(url, source, options())
            assert prompts.api is Api.CHAT
            assert prompts.caveats == ()
            asked = [replace(request, text_index=1 - request.index) for request in planned(2)]
            await drive(url, level(2), asked, options=prompts.over(options()))
        assert [body["messages"][0]["content"] for _, body, _ in seen.requests] == ["hi", "my own words"]

    @pytest.mark.parametrize("has_tokenize", [True, False])
    @pytest.mark.parametrize("api", Api)
    async def test_the_models_tokenizer(self, api: Api, has_tokenize: bool) -> None:
        source = PromptSource(api=api, tokenizer=word_tokenizer())
        async with serving(self.answering(), tokens_of=self.tokens if has_tokenize else None) as (url, seen):
            prompts = await prepare_prompts(url, source, options())
            assert (prompts.exact, prompts.api, prompts.caveats) == (True, api, ())
            assert len(seen.requests) == (0 if has_tokenize else 3)
            assert all(asked == counted for asked, counted in await self.counted(prompts, url))

    async def test_a_tokenizer_of_another_model_is_not_believed(self) -> None:
        def in_pieces(content: str) -> int:
            return sum(1 + len(word) // 3 for word in content.split())

        source = PromptSource(api=Api.CHAT, tokenizer=word_tokenizer())
        async with serving(self.answering(), tokens_of=in_pieces) as (url, _seen):
            prompts = await prepare_prompts(url, source, options())
            rendered = [prompts.render(replace(r, prompt_tokens=400)) for r in planned(5)]
        assert all(isinstance(text, str) and abs(in_pieces(text) + 7 - 400) < 40 for text in rendered)


def word_tokenizer() -> TextTokenizer:
    """One token per word of ours."""
    words = Tokenizer(models.WordLevel({word: at for at, word in enumerate(COMMON_WORDS)}, unk_token="a"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return TextTokenizer(words, "made up")


class TestAddress:
    @pytest.mark.parametrize("url", ["http://10.0.0.1:8000", "http://example.com", "https://[2001:db8::1]:1"])
    def test_other_machines_must_be_allowed(self, url: str) -> None:
        with pytest.raises(InvalidOption, match="this machine"):
            check_url(url, allow_remote=False)
        assert check_url(url, allow_remote=True) == url

    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:8000/", "http://localhost:1", "http://[::1]:1", "http://127.9.9.9"]
    )
    def test_this_machine_is(self, url: str) -> None:
        assert check_url(url, allow_remote=False) == url.rstrip("/")

    @pytest.mark.parametrize(
        "url", ["localhost:8000", "ftp://localhost", "http://", "", "http://[::1", "http://h:99999", "http://h:0"]
    )
    def test_not_a_url(self, url: str) -> None:
        with pytest.raises(InvalidOption):
            check_url(url, allow_remote=True)

    async def test_drive_asks(self) -> None:
        with pytest.raises(InvalidOption):
            await drive("http://192.0.2.1:8000", level(1), planned(1), options=options())


class TestCalibration:
    def tokens(self, content: str) -> int:
        """A tokenizer that cuts words longer than five letters in two, and opens with a mark."""
        return 1 + sum(1 if len(word) <= 5 else 2 for word in content.split())

    @pytest.mark.parametrize("api", [Api.CHAT, Api.COMPLETIONS])
    async def test_prompts_come_out_as_planned(self, api: Api) -> None:
        async with serving(lambda _n, _b: Script(), tokens_of=self.tokens) as (url, _seen):
            line = await calibrate(url, options(api))
        assert line is not None
        overhead = 8 if api is Api.CHAT else 1
        assert line.overhead_tokens == pytest.approx(overhead)
        workload = load_workload("chat")
        requests = plan_requests(workload, level(200), 1)
        sent = [self.tokens(render_prompt(r, COMMON_WORDS, calibration=line)) + overhead - 1 for r in requests]
        asked = [r.prompt_tokens for r in requests]
        assert sum(sent) / sum(asked) == pytest.approx(1, abs=0.02)
        assert max(abs(s / a - 1) for s, a in zip(sent, asked, strict=True)) < 0.06

    async def test_a_server_that_does_not_answer_is_not_waited_for_long(self) -> None:
        gone = asyncio.Event()

        async def say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while await reader.read(4096):
                pass
            writer.close()
            await writer.wait_closed()
            gone.set()

        async with await asyncio.start_server(say_nothing, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            async with asyncio.timeout(120):
                assert await calibrate(url, options(), deadline_s=0.2) is None
                await gone.wait()

    async def test_no_tokenizer(self) -> None:
        async with serving(lambda _n, _b: Script()) as (url, _seen):
            assert await calibrate(url, options()) is None


class TestSockets:
    async def test_the_limit_of_open_files_is_raised_as_far_as_needed(self) -> None:
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, hard))
        try:
            async with serving(lambda _n, _b: Script(steps=GOOD)) as (url, _seen):
                await drive(url, level(1, concurrency=100), planned(1), options=options())
            assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 228
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))

    async def test_more_than_the_machine_allows_is_refused(self) -> None:
        _soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        with pytest.raises(InvalidOption, match="open files"):
            await drive("http://127.0.0.1:1", level(1, concurrency=hard), planned(1), options=options())
