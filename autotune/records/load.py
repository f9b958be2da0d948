"""Load levels, planned requests and what happened to them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Arrivals(StrEnum):
    """How requests of a level are started; `TRACE` is at a recording's own times, scaled to the level's rate."""

    CLOSED = "closed"
    CONSTANT = "constant"
    POISSON = "poisson"
    GAMMA = "gamma"
    RAMP = "ramp"
    TRACE = "trace"


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalProcess:
    """How the requests of an open loop come, whatever their rate.

    Attributes:
        cv: GAMMA only: coefficient of variation of the gaps; 1 is Poisson, above is burstier.
        ramp_from, ramp_to: RAMP only: the rate at start and end of the level; only their ratio counts, as the mean is
            the level's rate.
    """

    kind: Arrivals = Arrivals.POISSON
    cv: float | None = None
    ramp_from: float | None = None
    ramp_to: float | None = None


class LevelRole(StrEnum):
    """What a level is measured for."""

    RAMP = "ramp"
    WARMUP = "warmup"
    THROUGHPUT = "throughput"
    TTFT = "ttft"
    GOODPUT = "goodput"
    EXTRA = "extra"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadLevel:
    """One load level of a trial, already scaled to the GPUs that the config uses.

    Attributes:
        concurrency: closed loop only: requests in flight.
        rate_rps: open loop only: requests per second.
        requests: how many requests are sent.
        most_requests: open loop only: up to as many, while the p95 TTFT is not known well enough; None for `requests`.
        seed: of prompts' content and of arrival times; differs between levels and trials in content, never in shape.
        cv, ramp_from, ramp_to: of its arrivals, see ArrivalProcess.
    """

    name: str
    role: LevelRole
    arrivals: Arrivals
    requests: int
    seed: int
    concurrency: int | None = None
    rate_rps: float | None = None
    cv: float | None = None
    ramp_from: float | None = None
    ramp_to: float | None = None
    most_requests: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedSpan:
    """A piece of a prompt that other requests have as well, in the same place.

    Attributes:
        content: what the piece says: spans with equal `content` have equal text. 0 and above for content that is the
            same throughout a study (a system prompt, a document); negative, and drawn from the level and the trial,
            for what only requests of one level and trial share (the turns of one conversation).
        tokens: its length.
    """

    content: int
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRequest:
    """One request to send.

    Attributes:
        scheduled_s: when it is due, seconds after the level's start; None in a closed loop.
        prompt_tokens: whole prompt, shared spans included.
        output_tokens: exact number to generate (`ignore_eos`).
        shared: spans that the prompt opens with, in order; the rest is its own.
        content_seed: seeds the words of the prompt's own rest.
        after: index of the request (the previous turn) that must have ended before this one is sent; None for none.
            A request whose turn is late is sent as soon as the other has ended.
        text_index: which prompt of the workload's own texts is sent; None for a made-up prompt.
    """

    index: int
    prompt_tokens: int
    output_tokens: int
    content_seed: int
    scheduled_s: float | None = None
    shared: tuple[SharedSpan, ...] = ()
    after: int | None = None
    text_index: int | None = None

    @property
    def shared_tokens(self) -> int:
        """Tokens of the prompt that lie in shared spans."""
        return sum(span.tokens for span in self.shared)


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """What happened to one request. Times are seconds after the level's start on one monotonic clock.

    Attributes:
        scheduled_s: when it should have been sent: the absolute schedule, or (closed loop) when its slot came free.
        sent_s: when it was handed to the kernel.
        first_byte_s: first byte of the body, a comment included.
        first_frame_s: first frame with data, even one of a role or an empty text; None also in older files.
        first_token_s: first frame with text in any channel: content, reasoning or a tool call. TTFT ends here.
        first_content_s: first frame with text in the content; None where there was none, also in older files.
        last_token_s: last frame with text; the latency ends here.
        done_s: the response ended, well or not.
        token_times_s: arrival of every chunk that carried at least one token, first to last.
        output_tokens: from `usage`; None when the server did not say.
        counted_tokens: token-carrying chunks seen by the client, the flagged fallback.
        error: None for success, else one of `load.reading.RequestError`.
    """

    index: int
    scheduled_s: float
    sent_s: float | None
    first_byte_s: float | None
    first_token_s: float | None
    last_token_s: float | None
    done_s: float | None
    token_times_s: tuple[float, ...]
    prompt_tokens: int | None
    output_tokens: int | None
    counted_tokens: int
    wanted_output_tokens: int
    finish_reason: str | None = None
    status: int | None = None
    error: str | None = None
    message: str | None = None
    first_frame_s: float | None = None
    first_content_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrivalCheck:
    """The arrivals of an open loop as they were sent, beside what was asked; `load.arrival_check` has the definitions.

    Attributes:
        asked_rate_rps, sent_rate_rps: mean rates; equal when nothing was late, whatever luck the arrivals' seed had.
        asked_cv, cv: coefficient of variation of the gaps; None of too few requests.
        asked_dispersion, dispersion: variance over mean of counts in equal windows; None of too few requests.
        lateness_p50_s, lateness_p99_s: sent - scheduled of each request.
        waited: turns that were due before the answer they go on from had ended, which is nobody's lateness.
    """

    asked_rate_rps: float
    sent_rate_rps: float
    asked_cv: float | None
    cv: float | None
    asked_dispersion: float | None
    dispersion: float | None
    lateness_p50_s: float
    lateness_p99_s: float
    waited: int = 0
