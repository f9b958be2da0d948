"""Small logs and traces in the forms that are read; see tests/data/traces."""

from __future__ import annotations

import json
from pathlib import Path

TRACES = Path(__file__).parents[2] / "data" / "traces"
BURSTGPT = (TRACES / "burstgpt.csv").read_text()
AZURE = (TRACES / "azure.csv").read_text()
MOONCAKE = (TRACES / "mooncake.jsonl").read_text()
SHAREGPT = (TRACES / "sharegpt.json").read_text()


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
