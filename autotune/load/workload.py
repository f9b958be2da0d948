"""The record of a workload: which requests arrive, whatever the config that serves them. Pure.

Read from YAML by workload_yaml.py, from logs and traces by trace_files.py, found by name or path by workloads.py.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from autotune.load.lengths import Lengths
from autotune.load.prompts import Conversation
from autotune.load.traces import Trace
from autotune.records import ArrivalProcess, Arrivals, Slo

TEMPLATE_TOKENS = 64
"""Room for what a chat template adds around a prompt: a few dozen tokens for Llama 3.1, which states two dates."""

PROMPT_MARGIN = 1.02
"""A made-up prompt is within 2 % of the length asked for (prompts.render_prompt)."""


class Api(StrEnum):
    """Which OpenAI endpoint the requests go to."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefixes:
    """Openings that several requests share (a system prompt, a document), on top of their own prompt.

    Attributes:
        count: different prefixes.
        tokens: length of each.
        share: of the requests that open with one, 0..1; of the conversations where there are turns.
    """

    count: int
    tokens: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Conversations: each request's prompt repeats all that was said before in its own.

    Attributes:
        count: turns of one conversation.
        think_s: open loop: seconds from one turn's due time to the next one's, the answer's time included.
        longest_tokens: a conversation ends before a prompt and its answer would exceed this together.
    """

    count: Lengths
    think_s: float
    longest_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCounts:
    """How many requests make a level, per GPU; ramp.load_plan turns them into numbers.

    Attributes:
        per_slot: the throughput level sends at least this many per concurrent slot.
        ttft: the Poisson level sends at least this many (a p95 with an interval needs 100).
        level_s: levels are lengthened to about this many seconds at the baseline's capacity.
        most: no level is lengthened beyond this.
        ttft_most_s: the Poisson level grows to at most about this many seconds while its p95 is not known well enough
            (growing.py); 0 for a level that never grows.
        warmup_per_slot: warm-up requests per concurrent slot.
    """

    per_slot: int = 4
    ttft: int = 300
    level_s: float = 20.0
    most: int = 4096
    ttft_most_s: float = 40.0
    warmup_per_slot: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """Which requests arrive, whatever the config that serves them.

    Attributes:
        prompt_tokens: length of the part of the prompt that no other request shares; with `turns` what one turn adds;
            with a trace only a summary of whole prompts.
        output_tokens: generated tokens.
        seed: of lengths, prefixes and their order: the same in every trial and level of one size.
        start_concurrency, max_concurrency: where the baseline's ramp begins and ends, per GPU.
        longest_request_tokens: what the operator must admit beyond what is sent here; None for what is sent.
        arrivals: of open loops; None for what is usual, a Poisson stream.
        trace: recorded requests that are sent in place of drawn ones.
        texts: real prompts, in memory only: never stored, printed or copied. A request's `text_index` points here.
    """

    name: str
    description: str
    api: Api
    prompt_tokens: Lengths
    output_tokens: Lengths
    prefixes: SharedPrefixes | None
    requests: RequestCounts
    start_concurrency: int
    max_concurrency: int
    seed: int = 0
    longest_request_tokens: int | None = None
    slo: Slo | None = None
    turns: Turns | None = None
    arrivals: ArrivalProcess | None = None
    trace: Trace | None = field(default=None, repr=False)
    texts: tuple[str | Conversation, ...] = field(default=(), repr=False, compare=False)

    @property
    def longest_sent(self) -> tuple[int, int]:
        """Prompt and output tokens of the longest request that can be sent, chat template and margin left out.

        With a trace of the one row that is longest together, otherwise of the bounds of both distributions.
        """
        if self.trace is not None:
            longest = max(self.trace.rows, key=lambda row: row.prompt_tokens + row.output_tokens)
            return longest.prompt_tokens, longest.output_tokens
        if self.turns is not None:
            return self.turns.longest_tokens - self.output_tokens.low, self.output_tokens.low
        return self.prompt_tokens.high + (self.prefixes.tokens if self.prefixes else 0), self.output_tokens.high

    @property
    def max_model_len_needed(self) -> int:
        """Tokens that one sequence must be able to hold: longest prompt (2 % over, see prompts.render_prompt), its
        chat template and its output, or `longest_request_tokens` where that is more."""
        prompt, output = self.longest_sent
        template = TEMPLATE_TOKENS if self.api is Api.CHAT else 0
        sent = math.ceil(prompt * PROMPT_MARGIN) + template + output
        return max(sent, self.longest_request_tokens or 0)

    @property
    def shared_tokens_per_request(self) -> float | None:
        """Prompt tokens per request that the prefix cache may rightly serve when the workload shares nothing.

        The chat template's opening, which every prompt has in common; None where prompts are shared on purpose or are
        somebody's own, and cache hits say nothing about the client.
        """
        recorded = self.trace is not None and (bool(self.texts) or any(row.shared for row in self.trace.rows))
        if self.prefixes is not None or self.turns is not None or recorded:
            return None
        return float(TEMPLATE_TOKENS) if self.api is Api.CHAT else 0.0

    @property
    def open_arrivals(self) -> ArrivalProcess:
        """How requests of an open loop come: as asked, at the trace's own times where it has some, else Poisson."""
        if self.arrivals is not None:
            return self.arrivals
        timed = self.trace is not None and self.trace.timed
        return ArrivalProcess(kind=Arrivals.TRACE if timed else Arrivals.POISSON)


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthProblem:
    """A `max-model-len` that does not admit the workload's longest request."""

    max_model_len: int
    needed: int
    text: str


def check_lengths(workload: Workload, max_model_lens: Iterable[int]) -> tuple[LengthProblem, ...]:
    """The candidates that are too short for the longest request, each with the request and what would be enough."""
    needed = workload.max_model_len_needed
    prompt, output = workload.longest_sent
    if needed == workload.longest_request_tokens:
        longest = f"longest_request_tokens asks for {needed:,} tokens"
    else:
        room = needed - prompt - output
        longest = (
            f"its longest request has {prompt:,} prompt and {output:,} output tokens, {needed:,} with {room:,} for "
            "chat template and margin"
        )
    return tuple(
        LengthProblem(
            max_model_len=length,
            needed=needed,
            text=f"max-model-len {length:,} does not admit workload {workload.name}: {longest}",
        )
        for length in sorted(set(max_model_lens))
        if length < needed
    )


def workload_fingerprint(workload: Workload) -> str:
    """Twelve hex digits that change when the offered requests change; name, description and SLO do not count.

    Of a trace and its texts only a hash goes in. How far a level may grow is not in it: that is how long one looks, not
    what is offered. A workload without turns, arrivals and trace hashes as before those
    existed, so that stored studies go on.
    """
    unset = {name for name in ("turns", "arrivals") if getattr(workload, name) is None}
    left_out = {"name", "description", "slo", "trace", "texts"} | unset
    plain = {key: value for key, value in _fields(workload).items() if key not in left_out}
    plain["requests"] = {name: value for name, value in asdict(workload.requests).items() if name != "ttft_most_s"}
    if workload.trace is not None:
        plain["trace"] = workload.trace.digest
    return hashlib.sha256(json.dumps(plain, sort_keys=True, default=str).encode()).hexdigest()[:12]


def _fields(workload: Workload) -> dict[str, object]:
    """As `asdict`, without copying a trace of 100,000 rows."""
    names = [name for name in Workload.__dataclass_fields__ if name not in {"trace", "texts"}]
    values = ((name, getattr(workload, name)) for name in names)
    return {n: asdict(v) if hasattr(v, "__dataclass_fields__") else v for n, v in values}
