"""Throughput and p95 TTFT of many settings at once, without playing a load through. Pure.

The step time is the simulator's own roofline (`step_time`) on arrays; the schedule is solved for its steady state:

* closed loop: as many requests run as clients, seats and KV blocks allow. Each of them needs its prompt once in as many
  steps as it has output tokens, so a share of the steps holds a piece of a prompt and the rest only decode;
* open loop: the batch that Little's law gives for the rate, found by repetition. A request waits for the step in
  flight, for prompts ahead of it (Pollaczek and Khinchine), for a seat (Sakasegawa 1977) and, near capacity and beyond,
  for the backlog that a run of its length builds up.

It is a prior for a search, good for ranks; the event simulator is for figures.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from autotune.node.defaults import ResolvedSettings
from autotune.records import ModelShape, Node
from autotune.simulator.coefficients import Coefficients
from autotune.simulator.step_formula import StepNumbers
from autotune.simulator.step_time import StepTimer
from autotune.simulator.wiring import wire_of

Floats = NDArray[np.float64]

ROUNDS = 16
_WHOLE = 1e12
"""Tokens that attention without a window looks back at most; infinite times nothing would be no number."""
_SCALARS = tuple(
    name
    for name in StepNumbers._fields
    if name not in ("windows", "pair_flops", "context_flops", "kv_token_s", "busiest", "padding")
)
_BUBBLES = 0.6
"""What pipeline stages lose to micro-batches of uneven length, per share of stages beyond the first: half of them hold
a prompt while the others only decode. Read off the event simulator."""
_P95_OF_MEAN = 3.0
"""95th percentile of an exponential wait over its mean."""
_SOFT = 0.04
"""Relative distance from capacity at which a run begins to build a backlog."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offered:
    """The load per GPU used, in means.

    Attributes:
        cached_share: of prompt tokens that a prefix cache serves, 0..1.
        concurrency: requests in flight of the closed loop.
        rate_rps: of the open loop, with `requests` requests.
    """

    prompt_tokens: float
    output_tokens: float
    concurrency: float
    rate_rps: float
    requests: float = 300.0
    cached_share: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Factors:
    """What the physical coefficients are multiplied with: the few that a study's own trials can tell.

    Attributes:
        compute, memory: time of arithmetic and of reading. Each factor is one for all settings, or one for each.
        overhead: launches, planning, sampling, the API server.
        wire: collectives.
        wait: everything of TTFT that is waiting.
    """

    compute: float | Floats = 1.0
    memory: float | Floats = 1.0
    overhead: float | Floats = 1.0
    wire: float | Floats = 1.0
    wait: float | Floats = 1.0

    @classmethod
    def of(cls, logs: Sequence[float]) -> Factors:
        """From logarithms, in the order of the fields."""
        return cls(**{one.name: math.exp(log) for one, log in zip(fields(cls), logs, strict=True)})

    @classmethod
    def several(cls, logs: Floats, count: int) -> Factors:
        """For `Columns.repeated`: each row of `logs`, shape (times, factors), for `count` settings."""
        return cls(
            **{one.name: np.repeat(np.exp(column), count) for one, column in zip(fields(cls), logs.T, strict=True)}
        )


@dataclass(frozen=True, slots=True)
class Columns:
    """Numbers of n settings; every array has shape (n,), those of attention (kinds, n).

    Attributes:
        of: the scalars of `StepNumbers` by name, and the settings' own.
        busiest: experts on the busiest GPU by number of hit ones, a row for each layout; `busiest_row` -1 for slices.
    """

    of: dict[str, Floats]
    windows: Floats
    pair_flops: Floats
    context_flops: Floats
    kv_token_s: Floats
    busiest: Floats
    busiest_row: NDArray[np.intp]

    def repeated(self, times: int) -> Columns:
        """All settings, one such row of them after the other: many small calls cost more than a large one."""
        kinds = (1, times)
        return Columns(
            {name: np.tile(one, times) for name, one in self.of.items()},
            np.tile(self.windows, kinds),
            np.tile(self.pair_flops, kinds),
            np.tile(self.context_flops, kinds),
            np.tile(self.kv_token_s, kinds),
            self.busiest,
            np.tile(self.busiest_row, times),
        )


def columns_of(
    node: Node, shape: ModelShape, settings: Sequence[ResolvedSettings], kv_tokens: Sequence[int], c: Coefficients
) -> Columns:
    """Numbers of settings; the roofline is worked out once for settings that share it.

    Raises:
        ValueError: the GPU's peaks are unknown.
    """
    places: dict[tuple[object, ...], int] = {}
    numbers: list[StepNumbers] = []
    place = np.empty(len(settings), dtype=np.intp)
    for index, s in enumerate(settings):
        key = (
            s.tensor_parallel, s.pipeline_parallel, s.data_parallel, s.expert_parallel, s.kv_cache_dtype,
            s.quantization, s.enforce_eager, s.max_cudagraph_capture_size, s.performance_mode, s.speculative_tokens,
            s.dtype,
        )  # fmt: skip
        found = places.get(key)
        if found is None:
            found = places[key] = len(numbers)
            wire, around = wire_of(node, s.tensor_parallel), wire_of(node, s.gpus)
            numbers.append(StepTimer(node.gpus[0], wire, shape, s, c, around=around).numbers)
        place[index] = found
    of = {name: np.array([float(getattr(one, name)) for one in numbers])[place] for name in _SCALARS}
    own = {
        "tp": [s.tensor_parallel for s in settings],
        "pp": [s.pipeline_parallel for s in settings],
        "dp": [s.data_parallel for s in settings],
        "seats": [s.max_num_seqs for s in settings],
        "budget": [s.max_num_batched_tokens for s in settings],
        "caching": [s.prefix_caching for s in settings],
        "overlapped": [s.async_scheduling for s in settings],
        "interval": [s.stream_interval for s in settings],
        "api_servers": [s.api_server_count or s.data_parallel for s in settings],
        "kv_tokens": kv_tokens,
    }
    of |= {name: np.array(values, dtype=np.float64) for name, values in own.items()}
    tables = sorted({tuple(one.busiest) for one in numbers if len(one.busiest)})
    rows = np.array([tables.index(tuple(one.busiest)) if len(one.busiest) else -1 for one in numbers], dtype=np.intp)

    def kinds(name: str) -> Floats:
        return np.array([getattr(one, name) for one in numbers], dtype=np.float64)[place].T

    return Columns(
        of, kinds("windows"), kinds("pair_flops"), kinds("context_flops"), kinds("kv_token_s"),
        np.array(tables, dtype=np.float64) if tables else np.zeros((0, 2)), rows[place],
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class ClosedForm:
    """Settings under one load; `pace` is how many seconds pass there in a second of the coefficients."""

    k: Columns
    load: Offered
    c: Coefficients
    factors: Factors = Factors()
    pace: float = 1.0

    def predict(self) -> tuple[Floats, Floats]:
        """Output tokens/s per GPU used, and p95 TTFT in seconds; shape (n,) each."""
        of = self.k.of
        clients = self.load.concurrency * of["tp"] * of["pp"]
        rate = self._capacity(np.minimum(clients, self._seats()))
        throughput = rate * self.load.output_tokens / (of["tp"] * of["pp"])
        return throughput / self.pace, self._ttft_s(self._capacity(self._seats())) * self.pace

    def _seats(self) -> Floats:
        """Requests that one replica runs at once at most."""
        held = self.load.prompt_tokens + 0.5 * self.load.output_tokens
        return np.maximum(np.minimum(self.k.of["seats"], self.k.of["kv_tokens"] / held), 1.0)

    def _prompt(self) -> Floats:
        """Prompt tokens that are computed."""
        return np.maximum(self.load.prompt_tokens * (1.0 - self.load.cached_share * self.k.of["caching"]), 1.0)

    def _capacity(self, running: Floats) -> Floats:
        """Requests/s of one replica in which so many run at once."""
        step_s, ended = self._steady(running / self.k.of["pp"])
        api = self.k.of["api_servers"] / self.k.of["dp"] / self._api_s()
        rate: Floats = ((ended / step_s) ** -6.0 + api**-6.0) ** (-1.0 / 6.0)
        return rate

    def _api_s(self) -> Floats:
        c, load = self.c, self.load
        chunks = load.output_tokens / self.k.of["interval"]
        # Half of the chunks merge with the next one where the server is what limits.
        work = c.api_request_s + load.prompt_tokens * c.api_prompt_token_s + load.output_tokens * c.api_token_s
        return (work + 0.5 * chunks * c.api_chunk_s) * self.factors.overhead

    def _steady(self, running: Floats) -> tuple[Floats, Floats]:
        """Mean step time on one stage, and requests that end in a step, of a micro-batch of so many requests."""
        budget, output, prompt = self.k.of["budget"], self.load.output_tokens, self._prompt()
        decoding = np.minimum(running, budget / (1.0 + prompt / output))
        piece = np.minimum(np.maximum(prompt, decoding / output * prompt), np.maximum(budget - decoding, 1.0))
        # A request holds its seat while its prompt is computed, and for the step that is planned ahead.
        decoding = np.minimum(decoding, running / (1.0 + (prompt / piece + 1.0) / output))
        ended = decoding / output
        share = np.minimum(1.0, ended * prompt / piece)
        piece = np.minimum(np.maximum(prompt, ended * prompt), np.maximum(budget - decoding, 1.0))
        full = self._step_s(decoding, piece)
        mean = share * full + (1.0 - share) * self._step_s(decoding, 0.0 * piece)
        return mean * (1.0 + _BUBBLES * (1.0 - 1.0 / self.k.of["pp"])), ended

    def _step_s(self, decoding: Floats, piece: Floats) -> Floats:
        """Seconds of one step with so many decoding requests and prompt tokens, as `stage_seconds` has it."""
        of, f, k = self.k.of, self.factors, self.k
        filled = piece > 0
        prompt = self._prompt()
        ending = np.where(filled, piece / prompt, 0.0)
        emitting, tokens = decoding + ending, decoding + piece
        share = of["sustained_compute_share"]
        flops = (tokens + of["half_tokens"]) * of["flops_per_token"] + emitting * of["flops_per_output"] / of["stages"]
        compute = flops / (of["peak_flops"] * share)
        memory = of["weights_s"] + emitting * of["state_s"]
        context = decoding * (self.load.prompt_tokens + 0.5 * self.load.output_tokens)
        pairs = piece * (self.load.prompt_tokens - 0.5 * prompt)
        for window, pair, per_context, kv in zip(k.windows, k.pair_flops, k.context_flops, k.kv_token_s, strict=True):
            near = np.where(window > 0, window, _WHOLE)
            read, asked = np.minimum(context, decoding * near), np.minimum(pairs, piece * near)
            compute += (asked * pair + read * per_context) / (of["peak_flops"] * of["attention_compute_share"])
            memory += (read + np.minimum(ending * self.load.prompt_tokens, piece + near * ending)) * kv
        together = tokens * np.where(of["exchanges"] > 0, of["dp"], 1.0)
        rows, most = self._experts(together)
        compute += (rows + most * of["expert_tile"]) * of["expert_flops"] / (of["peak_flops"] * share)
        memory += most * of["expert_read_s"]
        p = of["overlap_norm"]
        total = ((f.compute * compute) ** p + (f.memory * memory) ** p) ** (1.0 / p)
        wire = of["allreduces"] * (of["allreduce_latency_s"] + tokens * of["allreduce_token_s"])
        wire += of["exchanges"] * (2 * of["exchange_latency_s"] + together * of["exchange_token_s"])
        total += f.wire * (wire + tokens * of["hop_token_s"])
        total += f.overhead * (of["step_s"] + of["sequence_s"] * emitting + of["prefill_overhead_s"] * filled)
        eager = np.maximum(total, f.overhead * of["eager_floor_s"]) + f.overhead * of["eager_overhead_s"]
        large = np.maximum(total, f.overhead * of["uncaptured_floor_s"])
        total = np.where(of["eager"] > 0, eager, np.where(tokens > of["graph_tokens"], large, total))
        total = np.where((of["drafted"] > 0) & ~filled, total / of["tokens_per_draft"], total)
        planned = np.maximum(total, f.overhead * self.c.engine_cpu_s)
        waited = total + f.overhead * self.c.unoverlapped_cpu_s
        return np.where(of["overlapped"] > 0, planned, waited)

    def _experts(self, tokens: Floats) -> tuple[Floats, Floats]:
        """Rows and hit experts on the busiest GPU."""
        of, k = self.k.of, self.k
        hit = of["expert_count"] * (1.0 - of["expert_miss"] ** tokens)
        rows, most = tokens * of["expert_per_token"] / of["expert_ranks"], hit / of["expert_ranks"]
        dealt = k.busiest_row >= 0
        if dealt.any():
            below = np.minimum(hit[dealt].astype(np.intp), k.busiest.shape[1] - 2)
            low, high = k.busiest[k.busiest_row[dealt], below], k.busiest[k.busiest_row[dealt], below + 1]
            most[dealt] = low + (hit[dealt] - below) * (high - low)
            crowd = of["expert_skew"][dealt] * most[dealt] / np.maximum(hit[dealt], 1e-9)
            rows[dealt] = tokens[dealt] * of["expert_per_token"][dealt] * crowd
        return rows, most

    def _ttft_s(self, capacity: Floats) -> Floats:
        of, load, prompt = self.k.of, self.load, self._prompt()
        rate = load.rate_rps * self.pace * of["tp"] * of["pp"]
        stages, seats = of["pp"], self._seats()
        running = np.minimum(seats, 1.0 + 0.0 * rate)
        for _ in range(ROUNDS):
            step_s, _ = self._steady(running / stages)
            stay_s = (load.output_tokens + 2.0) * step_s * stages
            running = 0.5 * running + 0.5 * np.clip(rate * stay_s, 1.0, seats)
        step_s, _ = self._steady(running / stages)
        room = np.maximum(of["budget"] - running / stages, 1.0)
        piece = np.minimum(prompt, room)
        own = self._step_s(running / stages, piece) * stages * prompt / piece
        work = self._step_s(running / stages, room) * prompt / room
        busy = np.minimum(rate * work, 0.97)
        queue = work * busy / (2.0 * (1.0 - busy))
        load_share = rate / capacity
        tight = np.minimum(load_share, 0.98)
        seat = load.output_tokens * step_s * stages / seats * tight ** (np.sqrt(2.0 * (seats + 1.0)) - 1.0)
        seat = seat / (1.0 - tight)
        run_s = load.requests / (load.rate_rps * self.pace)
        backlog = 0.95 * run_s * _SOFT * np.logaddexp(0.0, (1.0 - 1.0 / load_share) / _SOFT)
        waiting = _P95_OF_MEAN * (queue + np.minimum(seat, 0.1 * run_s)) + backlog
        # A request that comes while a step runs joins the step after the next.
        joining = 1.5 * step_s * stages
        return self.c.api_in_latency_s + self._api_s() + own + joining + self.factors.wait * waiting
