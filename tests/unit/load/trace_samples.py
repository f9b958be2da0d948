"""Small logs and traces in the forms that are read, made up for these tests."""

from __future__ import annotations

import json

BURSTGPT = """\
Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,Conversation log
122,ChatGPT,1360,0,1360,API log
"""
AZURE = """\
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
2023-11-16 18:17:05.0319600,110,27
"""
MOONCAKE = "\n".join(
    json.dumps({"timestamp": at, "input_length": length, "output_length": out, "hash_ids": ids})
    for at, length, out, ids in (
        (0, 1300, 52, [7, 8, 9]),
        (3000, 1100, 26, [7, 8, 30]),
        (3000, 700, 9, [7, 40]),
        (9000, 100, 5, [50]),
    )
)
SHAREGPT = json.dumps(
    [
        {
            "id": "a",
            "conversations": [
                {"from": "human", "value": "first question"},
                {"from": "gpt", "value": "first answer, in some words"},
                {"from": "human", "value": "second question"},
                {"from": "gpt", "value": "second answer"},
            ],
        },
        {"id": "b", "conversations": [{"from": "human", "value": "hello"}, {"from": "gpt", "value": "good day"}]},
    ]
)


def request_line(at: float | None, *said: str, tokens: tuple[int, int] | None = None, **more: object) -> str:
    """One line of a request log: a system prompt and turns by turns user and assistant."""
    roles = ["system", *(["user", "assistant"] * len(said))]
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=False)]
    record: dict[str, object] = {"request": {"model": "m", "messages": messages, "max_tokens": 100}, **more}
    if at is not None:
        record["timestamp"] = at
    if tokens is not None:
        record["response"] = {"usage": {"prompt_tokens": tokens[0], "completion_tokens": tokens[1]}}
    return json.dumps(record)
