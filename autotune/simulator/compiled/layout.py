"""The arrays that the compiled level works on: what a class's attributes are in the plain twin, rows are here.

Requests are known by their position in the level, blocks by a number that stands for their content on one rank, ranks
by their seat: numbered through all replicas. -1 is none. Times are seconds from the level's start.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from autotune.simulator.step_formula import StepNumbers

Array = Any
"""A numpy array, of rows or of numbers: mypy cannot type fields of rows."""

REQUEST = np.dtype(
    [
        # Given. `keys` is how many of the prompt's blocks have a content key: those from `segment` on say which;
        # `own_blocks` numbers the blocks behind them, `held_from` and `stamps_from` are its places in `held`, `stamps`.
        ("prompt", "i4"), ("output", "i4"), ("keys", "i4"), ("segment", "i4"),
        ("own_blocks", "i8"), ("held_from", "i8"), ("stamps_from", "i8"),
        ("too_long", "?"), ("first_child", "i4"), ("next_child", "i4"),
        # The client's side.
        ("due", "f8"), ("since", "f8"), ("sent", "f8"), ("done", "f8"), ("first", "f8"), ("last", "f8"),
        ("chunks", "i4"),
        # The API server's.
        ("came", "f8"), ("turns", "i4"), ("next_in", "i4"), ("mark", "i8"),
        ("unsent", "i4"), ("begun", "?"), ("ending", "?"),
        # The scheduler's, as in `SimRequest`; `grow_tick` is when it needs its next block.
        ("seat", "i4"), ("running", "?"), ("prefilled", "?"), ("next_waiting", "i4"), ("next_arrived", "i4"),
        ("queued", "f8"), ("target", "i4"), ("computed", "i4"), ("emitted", "i4"), ("preemptions", "i4"),
        ("joined_tick", "i8"), ("last_tick", "i8"), ("grow_tick", "i8"), ("unkeyed", "i4"), ("filled", "i4"),
    ],
    align=True,
)  # fmt: skip
"""`own_blocks`: number of the first block behind the keyed ones."""

SEGMENT = np.dtype([("until", "i4"), ("base", "i8"), ("stride", "i8")], align=True)
"""Blocks of a prompt up to index `until` have the numbers `base` + index + `stride` x seat."""

SEAT = np.dtype(
    [
        ("used", "i8"), ("oldest", "i8"), ("newest", "i8"), ("evictable", "i8"),
        ("running", "i4"), ("waiting", "i4"), ("first_waiting", "i4"), ("last_waiting", "i4"), ("load", "i4"),
        ("preemptions", "i8"), ("prefix_queries", "i8"), ("prefix_hits", "i8"),
    ],
    align=True,
)  # fmt: skip

LANE = np.dtype([("tick", "i8"), ("count", "i4"), ("partial", "i4"), ("context", "i8"), ("free_at", "f8")], align=True)
"""`free_at`: when its last step leaves the last stage."""

REPLICA = np.dtype(
    [
        ("first_seat", "i4"), ("ranks", "i4"), ("first_arrived", "i4"), ("flying", "i4"), ("turn", "i4"),
        ("heat", "f8"),
        ("kv_usage_max", "f8"), ("running_max", "i8"), ("waiting_max", "i8"),
    ],
    align=True,
)  # fmt: skip

SERVER = np.dtype(
    [
        ("busy", "?"), ("first_in", "i4"), ("last_in", "i4"), ("first_out", "i4"), ("last_out", "i4"),
        ("job", "i4"), ("request", "i4"), ("start", "f8"), ("chunks", "i4"), ("ended", "i4"),
    ],
    align=True,
)  # fmt: skip

PLAN = np.dtype(
    [
        ("decoding", "i8"), ("decode_context", "i8"), ("finished_prefill", "i8"),
        ("tokens", "i8"), ("chunks", "i8"), ("pairs", "i8"), ("context", "i8"),
        ("finishing", "i4"), ("readers", "i4"), ("at", "f8"), ("next_free", "i4"),
    ],
    align=True,
)  # fmt: skip
"""`readers`: API servers that have not read it yet."""

STEP = np.dtype([("taken", "?"), ("replica", "i4"), ("lane", "i4")], align=True)
BLOCK = np.dtype([("holders", "i4"), ("before", "i4"), ("after", "i4")], align=True)
"""`holders`: -1 not cached, 0 evictable and linked by age."""
EVENT = np.dtype([("at", "f8"), ("seq", "i8"), ("kind", "i4"), ("a", "i4"), ("b", "i4")], align=True)

WHOLE = np.dtype(
    [
        # Given.
        ("closed", "?"), ("caching", "?"), ("chunked", "?"), ("stamping", "?"), ("blocks", "i8"), ("block_size", "i4"),
        ("max_num_seqs", "i4"), ("max_tokens", "i4"), ("stages", "i4"), ("depth", "i4"), ("limit", "i4"),
        ("interval", "i4"),
        ("deadline", "f8"), ("planning", "f8"), ("heat_tau", "f8"), ("request_s", "f8"), ("prompt_token_s", "f8"),
        ("token_s", "f8"), ("chunk_s", "f8"), ("in_latency", "f8"), ("out_latency", "f8"), ("turns", "i4"),
        # State.
        ("now", "f8"), ("open", "i8"), ("idle_slots", "i8"), ("seq", "i8"), ("events", "i8"), ("free", "i8"),
        ("planned", "i8"), ("look", "i4"), ("noise_at", "i8"),
        ("free_plans", "i8"), ("first_free_plan", "i4"), ("mark", "i8"), ("misfit", "i4"),
        ("prompt_tokens", "i8"), ("generation_tokens", "i8"), ("queue_sum", "f8"), ("queue_count", "i8"),
    ],
    align=True,
)  # fmt: skip
"""`misfit`: the request that can never run, once one has come. `planned`: requests that are sent at all; `look`: how
many a growing level looks back at."""


class State(NamedTuple):
    """Everything of one level.

    Attributes:
        whole: one row.
        batch: by seat and lane, decoding requests in order of admission.
        emitting: by plan, its decoding requests and then those whose prompt it ends, as position x 2 + (1 if this is
            the last token).
        next_out: by API server and plan, what stands behind it in the outbox.
        job, ended: by API server, requests that get a chunk, and those of them that end.
        free: heap of positions that may be sent.
    """

    whole: Array
    requests: Array
    segments: Array
    seats: Array
    lanes: Array
    batch: Array
    replicas: Array
    in_flight: Array
    stage_free: Array
    servers: Array
    plans: Array
    emitting: Array
    next_out: Array
    steps: Array
    step_plans: Array
    blocks: Array
    held: Array
    events: Array
    job: Array
    ended: Array
    free: Array
    noise: Array
    stamps: Array
    numbers: StepNumbers


OPEN_SLOT, SEND, JOB_DONE, ADD, STEP_END, OUTPUT, LOOK = range(7)
"""Kinds of events; `a` is the position, server, step or number of requests, `b` an output's plan."""

NO_JOB, TAKE_IN, WRITE = range(3)
FINISHED, TIME_UP, MISFIT, NEEDS_NOISE, NEEDS_PLANS, NEEDS_LOOK = range(6)
"""Why the loop returned; after the last three it goes on: with more noise, more plans, or `planned` decided upon."""
