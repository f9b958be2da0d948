from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.chunks import Channel, Chunk, MalformedChunk, Usage, interpret


def chat(**delta: object) -> str:
    return json.dumps({"choices": [{"delta": delta, "finish_reason": None}]})


@pytest.mark.parametrize(
    ("data", "channel"),
    [
        (chat(role="assistant", content=""), None),
        (chat(role="assistant"), None),
        (chat(content=None), None),
        (chat(content=" "), Channel.CONTENT),
        (chat(reasoning="x"), Channel.REASONING),
        (chat(reasoning_content="x", content=""), Channel.REASONING),
        (chat(content="y", reasoning="x"), Channel.CONTENT),
        (chat(tool_calls=[{"id": "1", "function": {"name": "", "arguments": ""}}]), None),
        (chat(tool_calls=[{"function": {"name": "f"}}]), Channel.TOOL_CALL),
        (chat(tool_calls=[{"function": {"arguments": "{"}}]), Channel.TOOL_CALL),
        (chat(tool_calls=[None, "x"]), None),
        ('{"choices": [{"text": "a"}]}', Channel.CONTENT),
        ('{"choices": [{"text": ""}]}', None),
        ('{"choices": []}', None),
        ('{"choices": null}', None),
        ('{"choices": [7]}', None),
        ("{}", None),
    ],
)
def test_channel(data: str, channel: Channel | None) -> None:
    assert interpret(data).channel is channel


def test_usage() -> None:
    # completion_tokens already holds the reasoning tokens.
    body = {
        "choices": [],
        "usage": {
            "prompt_tokens": 7,
            "completion_tokens": 20,
            "completion_tokens_details": {"reasoning_tokens": 15},
        },
    }
    assert interpret(json.dumps(body)).usage == Usage(7, 20)
    assert interpret('{"usage": null}').usage is None
    assert interpret('{"usage": {"prompt_tokens": "7", "completion_tokens": -1}}').usage == Usage(None, None)
    assert interpret(f'{{"usage": {{"prompt_tokens": 7, "completion_tokens": 1{"0" * 30}}}}}').usage == Usage(7, None)


def test_finish() -> None:
    assert interpret('{"choices": [{"text": "a", "finish_reason": "length"}]}').finish_reason == "length"
    assert interpret('{"choices": [{"text": "a", "finish_reason": ""}]}').finish_reason is None


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            '{"error": {"message": "EngineCore encountered an issue", "code": 500}}',
            "EngineCore encountered an issue (code 500)",
        ),
        ('{"error": {"type": "Bad"}}', "Bad"),
        ('{"error": "boom"}', "boom"),
        ('{"object": "error", "message": "old style"}', "old style"),
        ('{"error": {}}', "error without a message"),
    ],
)
def test_error(data: str, message: str) -> None:
    chunk = interpret(data)
    assert chunk.error == message
    assert chunk.channel is None


def test_a_null_error_is_none() -> None:
    assert interpret('{"error": null, "choices": [{"text": "a"}]}').error is None


def test_done() -> None:
    assert interpret("[DONE]") == interpret(" [DONE] ") == Chunk(done=True)


@pytest.mark.parametrize("data", ["", "x", "[1]", "7", "null", '{"a":', "[" * 100_000])
def test_malformed(data: str) -> None:
    with pytest.raises(MalformedChunk):
        interpret(data)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda children: (
        st.lists(children, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["choices", "delta", "text", "content", "tool_calls", "function", "usage", "error", "name"]
            ),
            children,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["choices", "usage", "error", "object"]), json_values, max_size=4))
def test_any_object_is_survived(body: dict[str, object]) -> None:
    interpret(json.dumps(body))
