"""A workload in YAML, written from figures: of a trace, of a server's histograms, or given by hand. Pure.

What comes out holds distributions and no prompt, so it may be kept and passed on.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune.load.lengths import MAX_P95_OVER_MEAN
from autotune.load.requests import reachable_share
from autotune.load.traces import Trace, burstiness
from autotune.load.workload import Api, Workload
from autotune.records import Estimate

LEAST_SHARE = 0.02
"""Sharing below this is left out of a fitted workload."""

TALKING_SHARE = 0.2
"""With so many rows that go on from another one, conversations are fitted."""

LEVEL_REQUESTS = 1_000
"""Prefixes are as many as give a level of this many requests the trace's share; longer levels share more."""

_P95_ROOM = 0.999
"""Of the largest p95 that a log-normal has, so that rounding does not exceed it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """A length distribution in four figures, tokens; `longest` is None where nobody knows."""

    mean: float
    p95: float
    longest: int | None = None

    @classmethod
    def of(cls, tokens: Sequence[int]) -> Spread:
        """The figures of lengths; none below 1.

        Raises:
            ValueError: no length.
        """
        values = np.maximum(1, np.array(tokens, dtype=float))
        if not len(values):
            raise ValueError("no length to sum up")
        return cls(mean=float(values.mean()), p95=float(np.percentile(values, 95)), longest=int(values.max()))

    def yaml(self) -> str:
        """The figures in the form of a workload file. A p95 that no log-normal has at that mean is moved to one."""
        mean = max(1.0, round(self.mean, 1))
        if self.longest is not None and self.longest <= mean:
            return f"{{fixed: {round(mean)}}}"
        p95 = round(min(max(self.p95, mean), mean * MAX_P95_OVER_MEAN * _P95_ROOM), 1)
        most = "" if self.longest is None else f", max: {max(self.longest, math.ceil(p95))}"
        return f"{{mean: {mean:g}, p95: {p95:g}{most}}}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Shared openings of a fitted workload; see workload.SharedPrefixes."""

    count: int
    tokens: int
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitted:
    """What a workload file will say.

    Attributes:
        origin: where the figures come from, for a comment.
        turns: turns of a conversation; None for requests on their own.
        longest_tokens: of a prompt and its answer together, where there are turns.
        arrivals_cv: deviation of the gaps between arrivals over their mean; None for a Poisson stream, or not known.
        notes: further facts, for comments.
    """

    description: str
    origin: str
    prompt: Spread
    output: Spread
    api: Api = Api.CHAT
    prefixes: Prefixes | None = None
    turns: Spread | None = None
    longest_tokens: int | None = None
    start_concurrency: int = 8
    max_concurrency: int = 512
    seed: int = 0
    arrivals_cv: float | None = None
    notes: tuple[str, ...] = ()


LEAST_GAPS = 100
"""Fewer say nothing of how requests come."""

CV_BOUNDS = (0.01, 10.0)
"""What a workload file takes."""


def cv_of_times(times_s: Sequence[float]) -> float | None:
    """The coefficient of variation of the gaps, where it is surely not that of a Poisson stream."""
    cv = burstiness(times_s)
    if cv is None or len(times_s) <= LEAST_GAPS or abs(cv - 1.0) <= 3.0 / math.sqrt(len(times_s)):
        return None
    return min(max(cv, CV_BOUNDS[0]), CV_BOUNDS[1])


def cv_of_dispersion(dispersion: Estimate | None) -> float | None:
    """The same from counts: over long bins the variance of a renewal stream's counts is cv^2 times their mean."""
    if dispersion is None or dispersion.low is None or dispersion.high is None:
        return None
    if dispersion.low <= 1.0 <= dispersion.high:
        return None
    return min(max(math.sqrt(dispersion.value), CV_BOUNDS[0]), CV_BOUNDS[1])


def fit_trace(workload: Workload) -> Fitted:
    """The distributions of a recorded workload.

    Raises:
        ValueError: nothing was recorded.
    """
    trace = workload.trace
    if trace is None:
        raise ValueError(f"workload {workload.name} has no trace")
    rows = trace.rows
    talks = trace.conversations
    talking = sum(1 for row in rows if row.after is not None) >= TALKING_SHARE * len(rows)
    openings = _openings(trace, talks)
    prefixes = _talk_prefixes(openings) if talking else _row_prefixes(trace)
    if talking:
        asked = [
            size for talk, opening in zip(talks, openings, strict=True) for size in _asked(trace, talk, opening[1])
        ]
    else:
        asked = [row.prompt_tokens - sum(span.tokens for span in row.shared) * bool(prefixes) for row in rows]
    fitted = Spread.of(asked)
    if prefixes is not None and not talking:
        # The part that is shared has one length for all: what it is short of the mean, the other part makes up for.
        own = sum(row.prompt_tokens for row in rows) / len(rows) - prefixes.share * prefixes.tokens
        fitted = Spread(mean=max(1.0, own), p95=fitted.p95, longest=fitted.longest)
    turns = Spread.of([len(talk) for talk in talks if len(talk) > 1]) if talking else None
    return Fitted(
        description=f"Fitted to {len(rows):,} requests of {trace.source}.",
        origin=f"{len(rows):,} requests of {trace.source}",
        prompt=fitted,
        output=Spread.of([row.output_tokens for row in rows]),
        api=workload.api,
        prefixes=prefixes,
        turns=turns,
        longest_tokens=max(row.prompt_tokens + row.output_tokens for row in rows) if talking else None,
        arrivals_cv=cv_of_times([row.at_s or 0.0 for row in rows]) if trace.timed and not talking else None,
    )


def fit_metrics(
    *,
    requests: int,
    prompt: tuple[float, float, int | None],
    output: tuple[float, float, int | None],
    hit_share: float | None,
) -> Fitted:
    """What a server's own histograms tell.

    A share of prefix hits becomes one prefix of every request: the histograms do not tell whose prompts were shared.

    Args:
        prompt, output: mean, p95 and a bound of the longest, tokens.
        hit_share: of prompt tokens that its prefix cache served, 0..1.
    """
    mean, p95, longest = prompt
    shared = round(mean * hit_share) if hit_share is not None and hit_share >= LEAST_SHARE else 0
    prefixes = Prefixes(count=1, tokens=shared, share=1.0) if shared else None
    origin = f"the /metrics of a server that had served {requests:,} requests"
    return Fitted(
        description=f"Fitted to {origin}.",
        origin=origin,
        prompt=Spread(
            mean=max(1.0, mean - shared),
            p95=max(1.0, p95 - shared),
            longest=None if longest is None else max(1, longest - shared),
        ),
        output=Spread(mean=output[0], p95=output[1], longest=output[2]),
        prefixes=prefixes,
    )


def fit_numbers(workload: Workload, *, prompt: tuple[float, float], output: tuple[float, float]) -> Fitted:
    """Mean and p95 of prompts and outputs as they were given for `workload`."""
    return Fitted(
        description=workload.description,
        origin="four numbers",
        prompt=Spread(mean=prompt[0], p95=prompt[1]),
        output=Spread(mean=output[0], p95=output[1]),
        api=workload.api,
        start_concurrency=workload.start_concurrency,
        max_concurrency=workload.max_concurrency,
    )


def workload_yaml(fitted: Fitted) -> str:
    """The text of a workload file; `workloads.parse_workload` reads it."""
    lines = [
        f"# Made by `autotune workload` from {_one_line(fitted.origin)}.",
        "# Lengths are log-normals through a mean and a 95th percentile; docs/workloads.md explains the keys.",
        *(f"# {_one_line(note)}" for note in fitted.notes),
        f"description: {json.dumps(_one_line(fitted.description), ensure_ascii=False)}",
        f"api: {fitted.api}",
        f"prompt_tokens: {fitted.prompt.yaml()}",
        f"output_tokens: {fitted.output.yaml()}",
    ]
    if fitted.prefixes is not None:
        p = fitted.prefixes
        lines.append(f"shared_prefixes: {{count: {p.count}, tokens: {p.tokens}, share: {p.share:.3g}}}")
    if fitted.turns is not None:
        room = _first_turn(fitted)
        lines += [
            "turns:",
            f"  count: {_turn_count(fitted.turns)}",
            f"  longest_tokens: {max(fitted.longest_tokens or 0, room)}",
        ]
    if fitted.arrivals_cv is not None:
        lines.append(f"arrivals: {{process: gamma, cv: {fitted.arrivals_cv:.3g}}}")
    lines += [
        f"concurrency: {{start: {fitted.start_concurrency}, max: {fitted.max_concurrency}}}",
        f"seed: {fitted.seed}",
    ]
    return "\n".join(lines) + "\n"


def _openings(trace: Trace, talks: Sequence[Sequence[int]]) -> list[tuple[int | None, int]]:
    """Content and tokens of what each conversation opens with and another one, too; (None, 0) for nothing."""
    users = Counter(span.content for talk in talks for span in trace.rows[talk[0]].shared)
    found: list[tuple[int | None, int]] = []
    for talk in talks:
        content, tokens = None, 0
        for span in trace.rows[talk[0]].shared:
            if users[span.content] < 2:
                break
            content, tokens = span.content, tokens + span.tokens
        found.append((content, tokens))
    return found


def _talk_prefixes(openings: Sequence[tuple[int | None, int]]) -> Prefixes | None:
    sharing = [(content, tokens) for content, tokens in openings if content is not None]
    if len(sharing) < LEAST_SHARE * len(openings) or not sharing:
        return None
    return Prefixes(
        count=len({content for content, _ in sharing}),
        tokens=max(1, round(sum(tokens for _, tokens in sharing) / len(sharing))),
        share=len(sharing) / len(openings),
    )


def _row_prefixes(trace: Trace) -> Prefixes | None:
    """Prefixes by which a level of LEVEL_REQUESTS requests reaches the cache hits of the trace.

    All sharers but the first of each prefix hit its tokens: hits = tokens x (sharers - count).
    """
    sharers = [sum(span.tokens for span in row.shared) for row in trace.rows if row.shared]
    reached = reachable_share(trace.rows)
    if reached < LEAST_SHARE or not sharers:
        return None
    tokens = sum(sharers) / len(sharers)
    hits = reached * sum(row.prompt_tokens for row in trace.rows)
    missed = 1 - hits / (tokens * len(sharers))
    share = len(sharers) / len(trace.rows)
    return Prefixes(
        count=max(1, round(missed * share * min(LEVEL_REQUESTS, len(trace.rows)))),
        tokens=max(1, round(tokens)),
        share=share,
    )


def _asked(trace: Trace, talk: Sequence[int], opening: int) -> list[int]:
    """What each turn of a conversation adds to what was said before."""
    sizes, before = [], opening
    for place in talk:
        row = trace.rows[place]
        sizes.append(max(1, row.prompt_tokens - before))
        before = row.prompt_tokens + row.output_tokens
    return sizes


def _turn_count(turns: Spread) -> str:
    longest = min(200, turns.longest or 1)
    return Spread(mean=min(turns.mean, longest), p95=min(turns.p95, longest), longest=longest).yaml()


def _first_turn(fitted: Fitted) -> int:
    """The longest first turn that the fitted bounds allow: a conversation must have room for it."""
    prefix = fitted.prefixes.tokens if fitted.prefixes else 0
    return prefix + sum(
        max(s.longest or 0, math.ceil(s.p95), math.ceil(s.mean)) for s in (fitted.prompt, fitted.output)
    )


def _one_line(text: str) -> str:
    return "".join(sign if sign.isprintable() else " " for sign in text)
