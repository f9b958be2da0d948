"""How much a level got done per second, in figures that agree with each other. Pure.

```
total_tok_s   tokens that came in the window / window: output tokens when they arrive, a request's prompt with its first
request_rps   total_tok_s / mean tokens of a request
output_tok_s  total_tok_s x output's share of all tokens
goodput_rps   request_rps, of the tokens of requests whose TTFT met the SLO alone
```

Means and shares are those of all requests that succeeded, whose lengths are the workload's mixture. Each rate counted
by itself depends on where in their lives requests are cut by the window's edges: at its start many may have just begun,
at its end some are half done, and of long ones more than of short ones. In a short window first tokens, output tokens
and ends of requests then tell rates that differ by tens of percent, most of all where requests run in convoys; all
tokens together tell the server's work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.load import stats
from autotune.load.steadiness import Drift, rate_drift
from autotune.load.window import Window
from autotune.records import Estimate, RequestRecord

_Places = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Throughput:
    """Rates over a window; None where nothing was seen in it, and a total also where a prompt's length is unknown."""

    request_rps: Estimate | None
    output_tok_s: Estimate | None
    total_tok_s: Estimate | None
    goodput_rps: Estimate | None


def throughput_of(
    good: Sequence[RequestRecord], window: Window, *, seed: int = 0, slo_ttft_s: float | None = None
) -> Throughput:
    """The rates of requests that succeeded, by the formulas above.

    Where the length of any prompt is unknown, output tokens alone tell what was done.

    Args:
        slo_ttft_s: bound for goodput, TTFT from the scheduled time; None leaves goodput None.
    """
    prompts_known = all(record.prompt_tokens is not None for record in good)
    times_s, owner, tokens = _arrivals(good, with_prompts=prompts_known)
    output = float(sum(tokens_of(record) for record in good))
    total = output + sum(record.prompt_tokens or 0 for record in good) if prompts_known else output

    def rate(of_each_token: float, amounts: stats.Floats = tokens) -> Estimate | None:
        return stats.rate(times_s, amounts * of_each_token, window.start_s, window.end_s, seed=seed)

    met = np.array([_met(record, slo_ttft_s) for record in good], dtype=float)
    per_token = len(good) / (total or len(good) or 1)
    return Throughput(
        request_rps=rate(per_token),
        output_tok_s=rate(output / total) if output else None,
        total_tok_s=rate(1.0) if prompts_known and total else None,
        goodput_rps=None if slo_ttft_s is None else rate(per_token, tokens * met[owner]),
    )


def progress_drift(good: Sequence[RequestRecord], window: Window) -> Drift | None:
    """Whether ever more, or ever less, was done over the window; None where it was steady."""
    prompts_known = all(record.prompt_tokens is not None for record in good)
    times_s, _owner, tokens = _arrivals(good, with_prompts=prompts_known)
    inside = (times_s >= window.start_s) & (times_s <= window.end_s)
    return rate_drift(times_s[inside], tokens[inside], window.start_s, window.end_s)


def tokens_of(record: RequestRecord) -> int:
    """Output tokens by the server's usage, else the chunks counted here (too few when a chunk holds several)."""
    return record.counted_tokens if record.output_tokens is None else record.output_tokens


def _arrivals(good: Sequence[RequestRecord], *, with_prompts: bool) -> tuple[stats.Floats, _Places, stats.Floats]:
    """When tokens came, of which request (its place in `good`), and how many.

    A request's output tokens are spread evenly over its chunks, or from its first token to its last where the times of
    its chunks were not kept. A level whose requests have no tokens at all counts one for each that ended.
    """
    events = [_events(record, with_prompts=with_prompts) for record in good]
    owner = np.repeat(np.arange(len(good)), [len(at) for at, _ in events])
    if not events:
        return np.empty(0), owner, np.empty(0)
    times_s, tokens = (np.concatenate(column) for column in zip(*events, strict=True))
    return times_s, owner, tokens if tokens.any() else np.ones(len(tokens))


def _events(record: RequestRecord, *, with_prompts: bool) -> tuple[stats.Floats, stats.Floats]:
    """Of one request; nothing of one whose end is unknown."""
    output, prompt = tokens_of(record), record.prompt_tokens or 0 if with_prompts else 0
    at = np.asarray(record.token_times_s, dtype=float)
    if not len(at):
        end = record.last_token_s if record.last_token_s is not None else record.done_s
        if end is None:
            return np.empty(0), np.empty(0)
        first = record.first_token_s if record.first_token_s is not None else end
        at = np.linspace(first, end, max(1, output))
    amounts = np.full(len(at), output / len(at))
    amounts[0] += prompt
    return at, amounts


def _met(record: RequestRecord, slo_ttft_s: float | None) -> bool:
    if slo_ttft_s is None or record.first_token_s is None:
        return False
    return record.first_token_s - record.scheduled_s <= slo_ttft_s
