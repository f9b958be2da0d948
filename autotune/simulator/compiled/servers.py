"""API servers as `api_server.ApiServer` has them, over rows; and the clients, who send when they may."""

from __future__ import annotations

from autotune.simulator.compiled.compiling import compiled
from autotune.simulator.compiled.layout import ADD, JOB_DONE, NO_JOB, SEND, TAKE_IN, WRITE, Array, State
from autotune.simulator.compiled.queues import push, put_free, take_free


@compiled
def send(s: State, position: int, now: float) -> None:
    """A client's request arrives at its API server, unless the level has ended before it."""
    if position >= s.whole[0].planned:
        return
    request = s.requests[position]
    request.due = request.sent = now
    server = position % len(s.servers)
    request.turns = s.whole[0].turns
    _receive(s, server, position, now)
    if not s.servers[server].busy:
        start_job(s, server, now)


@compiled
def fill_slots(s: State, now: float) -> None:
    """Idle clients of a closed loop take the earliest requests that may be sent."""
    whole = s.whole[0]
    while whole.idle_slots > 0 and whole.free > 0:
        whole.idle_slots -= 1
        send(s, take_free(s), now)


@compiled
def output(s: State, server: int, plan: int, now: float) -> None:
    """A step's tokens arrive at an API server."""
    row = s.servers[server]
    s.plans[plan].at = now
    s.next_out[server, plan] = -1
    if row.last_out < 0:
        row.first_out = plan
    else:
        s.next_out[server, row.last_out] = plan
    row.last_out = plan
    if not row.busy:
        start_job(s, server, now)


@compiled
def start_job(s: State, server: int, now: float) -> None:
    """Begin the oldest work of an API server, if there is any."""
    row = s.servers[server]
    row.busy = row.first_in >= 0 or row.first_out >= 0
    if not row.busy:
        return
    if row.first_in >= 0 and (row.first_out < 0 or s.requests[row.first_in].came <= s.plans[row.first_out].at):
        until = _take_in(s, server, now)
    else:
        until = _write(s, server, now)
    push(s, until, JOB_DONE, server, 0)


@compiled
def job_done(s: State, server: int, now: float) -> None:
    """An API server has ended what it did."""
    row, whole = s.servers[server], s.whole[0]
    if row.job == TAKE_IN:
        if s.requests[row.request].too_long:
            _end(s, row.request, now)
        else:
            push(s, now + whole.in_latency, ADD, row.request, 0)
    elif row.job == WRITE:
        for at in range(row.chunks):
            _chunk(s, s.job[server, at], row.start + whole.chunk_s * (at + 1))
        for at in range(row.ended):
            _end(s, s.ended[server, at], now)
    start_job(s, server, now)


@compiled
def _receive(s: State, server: int, position: int, now: float) -> None:
    row, request = s.servers[server], s.requests[position]
    request.came = now
    request.next_in = -1
    if row.last_in < 0:
        row.first_in = position
    else:
        s.requests[row.last_in].next_in = position
    row.last_in = position


@compiled
def _take_in(s: State, server: int, now: float) -> float:
    """One turn of the oldest request; when it ends."""
    row, whole = s.servers[server], s.whole[0]
    position = row.first_in
    request = s.requests[position]
    row.first_in = request.next_in
    if row.first_in < 0:
        row.last_in = -1
    until = now + (whole.request_s + whole.prompt_token_s * request.prompt) / whole.turns
    if request.turns == 1:
        row.job, row.request = TAKE_IN, position
    else:
        request.turns -= 1
        row.job = NO_JOB
        _receive(s, server, position, until)
    return until  # type: ignore[no-any-return]  # of a row


@compiled
def _write(s: State, server: int, now: float) -> float:
    """Everything that waits leaves in one go; tokens of one request merge into one chunk. When it ends."""
    row, whole = s.servers[server], s.whole[0]
    merged = s.next_out[server, row.first_out] >= 0
    tokens = _collect(s, server)
    job = s.job[server]
    if merged:
        _sort(s, job, row.chunks)
    if whole.interval > 1:
        _keep_due(s, server)
    for at in range(row.ended):
        s.requests[s.ended[server, at]].ending = False
    row.start = now + tokens * whole.token_s
    row.job = WRITE if row.chunks > 0 else NO_JOB
    return row.start + whole.chunk_s * row.chunks  # type: ignore[no-any-return]  # of a row


@compiled
def _collect(s: State, server: int) -> int:
    """Empty the outbox into the job, each request once; how many tokens that were."""
    row, whole, servers = s.servers[server], s.whole[0], len(s.servers)
    whole.mark += 1
    tokens = row.chunks = row.ended = 0
    slot = row.first_out
    while slot >= 0:
        plan = s.plans[slot]
        for at in range(plan.decoding + plan.finished_prefill):
            code = s.emitting[slot, at]
            position = code >> 1
            if servers > 1 and position % servers != server:
                continue
            request = s.requests[position]
            tokens += 1
            request.unsent += 1
            if request.mark != whole.mark:
                request.mark = whole.mark
                s.job[server, row.chunks] = position
                row.chunks += 1
            if code & 1 == 1:
                request.ending = True
                s.ended[server, row.ended] = position
                row.ended += 1
        following = s.next_out[server, slot]
        plan.readers -= 1
        if plan.readers == 0:
            free_plan(s, slot)
        slot = following
    row.first_out = row.last_out = -1
    return tokens


@compiled
def free_plan(s: State, slot: int) -> None:
    """Everybody has read this plan."""
    whole = s.whole[0]
    s.plans[slot].next_free = whole.first_free_plan
    whole.first_free_plan = slot
    whole.free_plans += 1


@compiled
def _sort(s: State, job: Array, count: int) -> None:
    """Ascending positions. They are marked, so a walk over their range does it where the range is short."""
    low, high = job[0], job[0]
    for at in range(1, count):
        low, high = min(low, job[at]), max(high, job[at])
    if high - low >= 16 * count:
        _sort_far_apart(job, count)
        return
    mark, at = s.whole[0].mark, 0
    for position in range(low, high + 1):
        if s.requests[position].mark == mark:
            job[at] = position
            at += 1


@compiled
def _sort_far_apart(job: Array, count: int) -> None:
    """Shell's sort with gaps of 3 x + 1 (Knuth, The Art of Computer Programming, volume 3, 5.2.1)."""
    gap = 1
    while gap < count // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for at in range(gap, count):
            moved, place = job[at], at
            while place >= gap and job[place - gap] > moved:
                job[place] = job[place - gap]
                place -= gap
            job[place] = moved
        gap //= 3


@compiled
def _keep_due(s: State, server: int) -> None:
    """Of the job's requests those that get a chunk now; the others' tokens stay for a later one."""
    row, interval = s.servers[server], s.whole[0].interval
    kept = 0
    for at in range(row.chunks):
        position = s.job[server, at]
        request = s.requests[position]
        if request.ending or not request.begun or request.unsent >= interval:
            request.unsent = 0
            s.job[server, kept] = position
            kept += 1
        request.begun = True
    row.chunks = kept


@compiled
def _chunk(s: State, position: int, at: float) -> None:
    request = s.requests[position]
    if request.chunks == 0:
        request.first = at
    if s.whole[0].stamping:
        s.stamps[request.stamps_from + request.chunks] = at
    request.chunks += 1
    request.last = at


@compiled
def _end(s: State, position: int, now: float) -> None:
    """A client has its whole answer: it or one that waited for it sends the next."""
    whole = s.whole[0]
    s.requests[position].done = now
    whole.open -= 1
    child = s.requests[position].first_child
    while child >= 0:
        s.requests[child].since = now
        put_free(s, child)
        child = s.requests[child].next_child
    if whole.closed:
        whole.idle_slots += 1
        fill_slots(s, now)
        return
    while whole.free > 0:
        freed = take_free(s)
        push(s, max(s.requests[freed].due, s.requests[freed].since), SEND, freed, 0)
