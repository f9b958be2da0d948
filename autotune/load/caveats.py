"""Doubts about a level's figures, typed, each with what was seen and what to do. Pure.

Codes: client_late, arrivals_off, client_busy, loop_lag, in_flight_cap, concurrency_missed, too_few_samples, no_usage,
output_drift, prefix_hits, errors, saturated, aborted, no_steady_window, unsteady, tokens_per_chunk, bunched_chunks,
unseen_tokens, preemptions, pauses, jit_compiling, clocks_slowed.

A caveat is `void` where the client, not the server, was measured: such a level is never an objective.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from autotune.load import stats
from autotune.load.arrival_check import arrivals_off
from autotune.load.reading import RequestError
from autotune.load.steadiness import MIN_FOR_GROWTH, Drift, queue_growth, wait_drift
from autotune.load.throughput import progress_drift
from autotune.load.window import Window, mean_in_flight, pauses, peak_in_flight
from autotune.records import Arrivals, Caveat, ClockKind, LevelRole, LoadLevel, Measurement, RequestRecord
from autotune.units import format_seconds, plural

MAX_ERROR_SHARE = 0.01
"""Above this share of failed requests the figures are no objective: dropped requests make the others look fast."""

LATE_FLOOR_S = 0.005
LATE_SHARE = 0.02
"""The client is late when the p99 of sent - scheduled exceeds 5 ms and 2 % of the median TTFT."""

VOID_LATE_FLOOR_S = 0.01
VOID_LATE_SHARE = 0.1
"""An open loop is void when the p95 of sent - scheduled exceeds 10 ms and 10 % of the p95 TTFT, which counts it in."""

VOID_LOST_SHARE = 0.1
"""A closed loop is void when its slots stood free for more than this share of their time: it reads lower by that."""

BUSY_CLIENT = 0.8
VOID_BUSY_CLIENT = 0.95
"""Shares of a core that the client's busiest process takes; above the second it has no time left to be right in."""

MAX_LOOP_LAG_S = 0.01
MIN_REACHED = 0.95
"""Requests in flight over those asked for."""

VOID_REACHED = 0.9
"""Rate of sending over the rate at which requests were due."""

MAX_PAUSED_SHARE = 0.02
"""Of a closed loop's window: its throughput reads lower by that."""

MAX_SLOWED_SHARE = 0.1
"""Of the samples of a GPU's clocks: one or two are an instant's heat."""

MAX_OUTPUT_DRIFT = 0.02
MAX_UNEXPECTED_HITS = 0.01
MAX_QUEUE_GROWTH = 1.1
MAX_TRENDING_GROWTH = 1.03
"""Of a queue whose TTFT also rises by the test in steadiness.py; its slope alone is known to about 5 % in 20 s."""

MAX_PREEMPTION_SHARE = 0.05
MANY_TOKENS_PER_CHUNK = 1.5
MAX_BUNCHED_SHARE = 0.1
"""Of gaps between chunks that are 0: above, client or API server had no time to pass chunks on one by one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What doubts are judged from; `measurement` is still without caveats."""

    measurement: Measurement
    records: tuple[RequestRecord, ...]
    window: Window
    shared_tokens_per_request: float | None
    in_flight_cap: int

    @property
    def level(self) -> LoadLevel:
        """The level that was driven."""
        return self.measurement.level

    @property
    def good(self) -> list[RequestRecord]:
        """The requests that succeeded."""
        return [r for r in self.records if r.error is None]

    @property
    def queue_growth(self) -> float | None:
        """Of the requests that succeeded."""
        return queue_growth([(r.scheduled_s, r.first_token_s) for r in self.good])

    @property
    def wait_drift(self) -> Drift | None:
        """Of the TTFT, over the requests in the order in which they were due."""
        seen = sorted((r.scheduled_s, r.first_token_s) for r in self.good if r.first_token_s is not None)
        return wait_drift([first - due for due, first in seen])

    @property
    def overloaded(self) -> bool:
        """Whether an open loop's queue grew all the time."""
        growth = self.queue_growth
        if growth is None or growth <= MAX_TRENDING_GROWTH:
            return False
        drift = self.wait_drift
        return growth > MAX_QUEUE_GROWTH or (drift is not None and drift.change > 0)


def caveats_of(evidence: Evidence) -> tuple[Caveat, ...]:
    """Every doubt about a level, the client's own faults first."""
    checks = (_client, _arrivals, _load_reached, _requests, _window, _tokens, _server, _pauses, _surroundings)
    return tuple(caveat for check in checks for caveat in check(evidence))


def _client(e: Evidence) -> Iterator[Caveat]:
    lateness = [r.sent_s - r.scheduled_s for r in e.records if r.sent_s is not None]
    p99 = stats.percentile(lateness, 99)
    ttft = e.measurement.ttft_s
    bound = max(LATE_FLOOR_S, LATE_SHARE * ttft.p50.value if ttft and ttft.p50 else 0.0)
    if p99 is not None and p99 > bound:
        yield Caveat(
            code="client_late",
            text=f"requests left up to {format_seconds(p99)} (p99) after they were due; "
            f"{format_seconds(bound)} would be harmless",
            remedy="Give the load client free CPU cores or real-time priority (ulimit -r 1), or lower the rate or "
            "concurrency.",
            void=_too_late(e, lateness),
        )
    if _capped(e):
        yield Caveat(
            code="in_flight_cap",
            text=f"{e.in_flight_cap} requests were open at once, the most that are kept; later ones were held back",
            remedy="Lower the rate: the server is far beyond its capacity.",
        )
    cpu = e.measurement.use.cpu if e.measurement.use else None
    if cpu is None:
        return
    if cpu.client_share is not None and cpu.client_share > BUSY_CLIENT:
        yield Caveat(
            code="client_busy",
            text=f"the load client took {cpu.client_share:.0%} of a core; above {VOID_BUSY_CLIENT:.0%} it is the limit",
            remedy="Lower the rate or concurrency, or give the client more or faster cores.",
            void=cpu.client_share > VOID_BUSY_CLIENT,
        )
    if cpu.loop_lag_p99_s is not None and cpu.loop_lag_p99_s > MAX_LOOP_LAG_S:
        yield Caveat(
            code="loop_lag",
            text=f"the load client woke up {format_seconds(cpu.loop_lag_p99_s)} (p99) later than asked, and stamps may "
            "be late by that",
            remedy="Give the load client free CPU cores or real-time priority (ulimit -r 1); other programs or the "
            "server itself take them.",
        )


def _arrivals(e: Evidence) -> Iterator[Caveat]:
    check = e.measurement.arrivals
    off = arrivals_off(check) if check is not None else ()
    if check is not None and off:
        turns = f"; {check.waited} turns waited for the answers before them" if check.waited else ""
        yield Caveat(
            code="arrivals_off",
            text="; ".join(off) + turns,
            remedy="Give the load client free CPU cores or lower the rate; turns wait less with a longer think_s.",
        )


def _too_late(e: Evidence, lateness: list[float]) -> bool:
    """Whether the client's lateness is a large part of the figure itself."""
    if _capped(e):
        return False  # the server's doing: it left so many requests open
    if e.level.arrivals is Arrivals.CLOSED:
        taken = sum(r.done_s - r.scheduled_s for r in e.records if r.done_s is not None)
        return taken > 0 and sum(lateness) > VOID_LOST_SHARE * taken
    reached = _sending_share(e.records)
    if reached is not None and reached < VOID_REACHED:
        return True
    p95, ttft = stats.percentile(lateness, 95), e.measurement.ttft_s
    return p95 is not None and p95 > max(VOID_LATE_FLOOR_S, VOID_LATE_SHARE * ttft.p95.value if ttft else 0.0)


def _capped(e: Evidence) -> bool:
    return e.level.arrivals is not Arrivals.CLOSED and peak_in_flight(e.records) >= e.in_flight_cap


def _load_reached(e: Evidence) -> Iterator[Caveat]:
    """Whether a closed loop held as many requests open as were asked for."""
    if e.level.arrivals is not Arrivals.CLOSED:
        return  # whose arrivals are checked one by one
    asked, length = e.level.concurrency, e.window.end_s - e.window.start_s
    if not e.window.steady or asked is None or length <= 0:
        return
    held = mean_in_flight(e.records, e.window)
    if held < MIN_REACHED * asked:
        yield Caveat(
            code="concurrency_missed",
            text=f"{held:.1f} requests were in flight on average, and {asked} were asked for",
            remedy="Give the load client free CPU cores; in a workload of conversations, have more of them than slots.",
        )


def _sending_share(records: tuple[RequestRecord, ...]) -> float | None:
    """The rate of sending over the rate of the schedule, from the first to the last that was sent; 1 when on time."""
    sent = [(r.sent_s, r.scheduled_s) for r in records if r.sent_s is not None]
    if len(sent) < MIN_FOR_GROWTH:
        return None
    took = max(at for at, _ in sent) - min(at for at, _ in sent)
    due = max(at for _, at in sent) - min(at for _, at in sent)
    return due / took if took > 0 and due > 0 else None


def _requests(e: Evidence) -> Iterator[Caveat]:
    m = e.measurement
    ended = m.completed + m.failed
    if m.failed and m.failed / ended > MAX_ERROR_SHARE:
        kinds = ", ".join(f"{count} {kind}" for kind, count in m.errors)
        yield Caveat(
            code="errors",
            text=f"{m.failed} of {ended} requests failed ({kinds})",
            remedy="Read the server's log; figures with more than 1 % errors are not compared.",
        )
    cut = {str(RequestError.DEADLINE): "its time was over", str(RequestError.ABORTED): "the server was gone"}
    for kind, count in m.errors:
        if kind in cut:
            yield Caveat(
                code="aborted",
                text=f"the level was ended because {cut[kind]}, with {count} requests open",
                remedy="Give the level more time or send fewer requests, unless the config is simply too slow.",
            )
    few = _too_few(m)
    if few:
        yield Caveat(code="too_few_samples", text=few, remedy="Send more requests per level.")
    if e.level.arrivals is not Arrivals.CLOSED:
        growth, rate = e.queue_growth, e.level.rate_rps
        if e.overloaded and growth is not None and rate:
            yield Caveat(
                code="saturated",
                text=f"{rate:.3g} requests/s were offered and about {rate / growth:.3g} served: the queue grew all "
                "the time, and its TTFT depends on how long the level lasted",
                remedy="Lower the rate to measure a latency; this config cannot carry it.",
            )


def _too_few(m: Measurement) -> str:
    needed = stats.samples_for(95)
    if m.level.role in {LevelRole.TTFT, LevelRole.EXTRA} and (m.ttft_s is None or m.ttft_s.count < needed):
        return f"p95 TTFT from {m.ttft_s.count if m.ttft_s else 0} requests has no interval; {needed} give one"
    if m.level.role is LevelRole.THROUGHPUT and (m.output_tok_s is None or m.output_tok_s.low is None):
        return "too little arrived in the window for an interval of the throughput"
    return ""


def _window(e: Evidence) -> Iterator[Caveat]:
    if not e.window.steady and e.records:
        yield Caveat(
            code="no_steady_window",
            text=f"{e.level.concurrency} requests at once were not held long enough to cut ramp and tail off; "
            "the whole level is counted, which reads too low",
            remedy="Send at least four requests per concurrent slot.",
        )
    elif e.level.role is not LevelRole.WARMUP:
        yield from _unsteady(e)


def _unsteady(e: Evidence) -> Iterator[Caveat]:
    if e.level.arrivals is Arrivals.CLOSED:
        drift, what = progress_drift(e.good, e.window), "throughput"
    elif e.level.arrivals is Arrivals.RAMP or e.overloaded:
        return  # a load that rises is meant to show; that of a queue is said as such
    else:
        drift, what = e.wait_drift, "median TTFT"
    if drift is not None:
        yield Caveat(
            code="unsteady",
            text=f"{what} went one way all through the window: its last third had {1 + drift.change:.2f} times that of "
            "its first",
            remedy="Send more requests per level or warm up longer; if it stays, look at clocks, cache and queue.",
        )


def _tokens(e: Evidence) -> Iterator[Caveat]:
    good = e.good
    silent = sum(1 for r in good if r.output_tokens is None)
    if silent:
        yield Caveat(
            code="no_usage",
            text=f"{silent} of {len(good)} responses came without usage; their chunks were counted as tokens",
            remedy="Use a server that honours stream_options.include_usage.",
        )
    said = [(r.output_tokens, r.wanted_output_tokens) for r in good if r.output_tokens is not None]
    wanted = sum(want for _, want in said)
    off = sum(got for got, _ in said) - wanted
    if abs(off) > MAX_OUTPUT_DRIFT * wanted:
        yield Caveat(
            code="output_drift",
            text=f"outputs were {off / wanted:+.1%} off the tokens asked for",
            remedy="Check that the server honours ignore_eos and that max-model-len admits the longest request.",
        )
    unseen = sum(1 for r in good if r.first_token_s is None)
    if unseen:
        yield Caveat(
            code="unseen_tokens",
            text=f"{unseen} responses had tokens by usage and no text; they have no TTFT",
            remedy="Expected of random weights; otherwise look at the model's output.",
        )
    beyond = sum(1 for r in good if r.output_tokens is not None and r.counted_tokens > r.output_tokens)
    if beyond:
        yield Caveat(
            code="chunks_beyond_usage",
            text=f"{beyond} of {len(good)} responses had more chunks with text than tokens by usage: some of these "
            "were no tokens, and the first may be one of them",
            remedy="Look at what the server streams before its first token; TTFT may be too low.",
        )
    gaps = sum(max(0, len(r.token_times_s) - 1) for r in good)
    bunched = sum(a == b for r in good for a, b in pairwise(r.token_times_s))
    if bunched > MAX_BUNCHED_SHARE * gaps:
        yield Caveat(
            code="bunched_chunks",
            text=f"{bunched / gaps:.0%} of the chunks arrived together with the one before: ITL and TPOT of single "
            "requests are blurred, throughput is not",
            remedy="Give the load client and the API server free CPU cores, or raise --api-server-count.",
        )
    chunks = sum(r.counted_tokens for r in good if r.output_tokens is not None)
    per_chunk = sum(got for got, _ in said) / chunks if chunks else 1.0
    if per_chunk > MANY_TOKENS_PER_CHUNK:
        yield Caveat(
            code="tokens_per_chunk",
            text=f"{per_chunk:.1f} tokens came per chunk (speculative decoding or --stream-interval): ITL is per "
            "token, the pauses a user sees are longer",
            remedy="Compare TPOT and throughput; compare ITL only at equal packing.",
        )


def _server(e: Evidence) -> Iterator[Caveat]:
    server = e.measurement.server
    if server is None:
        return
    if e.shared_tokens_per_request is not None and server.prefix_queries and server.prefix_hits is not None:
        sent = sum(1 for r in e.records if r.sent_s is not None)
        unexpected = server.prefix_hits - sent * e.shared_tokens_per_request
        share = unexpected / server.prefix_queries
        if share >= MAX_UNEXPECTED_HITS:
            yield Caveat(
                code="prefix_hits",
                text=f"{share:.1%} of the prompt tokens came from the prefix cache, and the workload shares none",
                remedy="Prompts were repeated (or recomputed after preemption); measure on a fresh server.",
            )
    if server.preemptions and server.preemptions > MAX_PREEMPTION_SHARE * max(1, e.measurement.completed):
        yield Caveat(
            code="preemptions",
            text=f"{server.preemptions} preemptions in {e.measurement.completed} requests: KV memory is short",
            remedy="Lower max-num-seqs or max-model-len, or give the KV cache more memory.",
        )


def _pauses(e: Evidence) -> Iterator[Caveat]:
    m = e.measurement
    # A simulated server pauses only where its model says so.
    if not e.window.steady or e.level.arrivals is not Arrivals.CLOSED or m.clock is ClockKind.VIRTUAL:
        return
    usual = m.ttft_from_send_s.p50 if m.ttft_from_send_s else None
    found = pauses(e.good, e.window, usual.value if usual else 0.0)
    if sum(found) > MAX_PAUSED_SHARE * m.steady_s:
        yield Caveat(
            code="pauses",
            text=f"for {format_seconds(sum(found))} of {format_seconds(m.steady_s)}, in {len(found)} pauses of up to "
            f"{format_seconds(max(found))}, no request got anything",
            remedy="Measure again: a kernel was compiled (vLLM tells of each only once), or the machine hung.",
        )


def _surroundings(e: Evidence) -> Iterator[Caveat]:
    """What the server's log and the GPUs' clocks say against the figures."""
    use = e.measurement.use
    if use is None:
        return
    if use.jit_compiles:
        yield Caveat(
            code="jit_compiling",
            text=f"the server compiled {plural(use.jit_compiles, 'kernel')} during the "
            "level, and requests waited for that",
            remedy="Measure again on the same server, or keep its compile cache: the next start finds them there.",
        )
    slowed = [(gpu.slowed_share, gpu.index) for gpu in use.gpus if (gpu.slowed_share or 0.0) > MAX_SLOWED_SHARE]
    if slowed:
        share, index = max(slowed)
        yield Caveat(
            code="clocks_slowed",
            text=f"heat or a power brake held the clocks of GPU {index} down in {share:.0%} of the samples",
            remedy="Cool the machine or wait, and measure again: `nvidia-smi -q -d PERFORMANCE` names the reason.",
        )
