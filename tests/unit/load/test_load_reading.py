from __future__ import annotations

from autotune.load.reading import MAX_MESSAGE, Reading, RequestError
from autotune.records import PlannedRequest

REQUEST = PlannedRequest(index=3, prompt_tokens=10, output_tokens=2, content_seed=1)
TOKEN = b'data: {"choices": [{"text": "a"}]}\n\n'
USAGE = b'data: {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 2}}\n\n'
DONE = b"data: [DONE]\n\n"


def reading() -> Reading:
    made = Reading(REQUEST, 0.5)
    made.sent(1.0)
    made.answered(200)
    return made


def test_stamps() -> None:
    r = reading()
    r.feed(b": ping\n\n", 1.5)
    r.feed(TOKEN[:10], 1.75)
    r.feed(TOKEN[10:], 2.0)
    r.feed(TOKEN + USAGE, 2.5)
    r.feed(DONE, 3.0)
    record = r.record()
    assert (record.index, record.scheduled_s, record.sent_s, record.first_byte_s) == (3, 0.5, 1.0, 1.5)
    assert (record.first_token_s, record.last_token_s, record.done_s) == (2.0, 2.5, 3.0)
    assert record.token_times_s == (2.0, 2.5)
    assert (record.prompt_tokens, record.output_tokens, record.wanted_output_tokens) == (9, 2, 2)
    assert record.error is None


def test_what_follows_the_end_changes_nothing() -> None:
    r = reading()
    r.feed(TOKEN + USAGE + DONE + TOKEN, 2.0)
    r.feed(TOKEN, 3.0)
    r.fail(RequestError.RESET, "late", 4.0)
    r.close(5.0)
    record = r.record()
    assert (record.error, record.counted_tokens, record.done_s) == (None, 1, 2.0)


def test_the_first_error_stays() -> None:
    r = reading()
    r.feed(b'data: {"error": "engine"}\n\n', 2.0)
    assert not r.over
    r.feed(TOKEN, 2.5)
    r.fail(RequestError.STALLED, "silence", 9.0)
    record = r.record()
    assert (record.error, record.message, record.counted_tokens, record.done_s) == ("error_frame", "engine", 0, 9.0)


def test_tokens_by_usage_without_text_are_a_success_without_ttft() -> None:
    r = reading()
    r.feed(USAGE + DONE, 2.0)
    record = r.record()
    assert (record.error, record.first_token_s, record.output_tokens) == (None, None, 2)


def test_an_open_reading_has_no_end() -> None:
    r = reading()
    r.feed(TOKEN, 2.0)
    assert r.done_s is None
    assert r.record().done_s is None


def test_messages_are_bounded() -> None:
    r = reading()
    r.fail(RequestError.HTTP_5XX, "x" * 10_000, 2.0)
    assert len(r.record().message or "") == MAX_MESSAGE


def test_an_oversized_frame_is_a_protocol_error() -> None:
    r = reading()
    r.feed(b"x" * (1 << 20), 2.0)
    r.feed(b"x", 2.5)
    assert r.record().error == "protocol"


def test_a_server_that_never_stops_is_a_protocol_error() -> None:
    r = reading()
    r.feed(TOKEN * 10_008, 2.0)
    assert not r.over
    r.feed(TOKEN, 2.5)
    assert (r.record().error, r.record().message) == ("protocol", "10009 chunks for 2 tokens asked for")
    assert r.over
