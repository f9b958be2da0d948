"""The event loop of `level_run.LevelRun` and the engine loop of `replica.Replica`, over rows."""

from __future__ import annotations

from autotune.simulator import step_formula
from autotune.simulator.compiled.compiling import compiled, entry
from autotune.simulator.compiled.layout import (
    ADD,
    FINISHED,
    JOB_DONE,
    LOOK,
    MISFIT,
    NEEDS_LOOK,
    NEEDS_NOISE,
    NEEDS_PLANS,
    OPEN_SLOT,
    OUTPUT,
    SEND,
    STEP_END,
    TIME_UP,
    State,
)
from autotune.simulator.compiled.plans import drop, plan_step
from autotune.simulator.compiled.queues import pop, push
from autotune.simulator.compiled.servers import fill_slots, free_plan, job_done, output, send

_stage_seconds = compiled(step_formula.stage_seconds)
_busy_share = compiled(step_formula.busy_share)


@entry
def run(s: State) -> int:
    """Go on until every request has ended, the deadline, or something is used up; which of them."""
    whole = s.whole[0]
    steps = whole.stages * whole.depth
    while whole.events > 0 and whole.open > 0:
        if len(s.noise) - whole.noise_at < steps:
            return NEEDS_NOISE
        if whole.free_plans < steps * s.step_plans.shape[1] + 1:
            return NEEDS_PLANS
        event = s.events[0]
        at, kind, a, b = event.at, event.kind, event.a, event.b
        pop(s)
        if at > whole.deadline:
            _give_up(s)
            whole.now = whole.deadline
            return TIME_UP
        whole.now = at
        if kind == LOOK:
            whole.look = a
            return NEEDS_LOOK
        if kind == ADD and _misfits(s, a):
            whole.misfit = a
            return MISFIT
        _happen(s, kind, a, b, at)
    return FINISHED


@compiled
def _happen(s: State, kind: int, a: int, b: int, now: float) -> None:
    """What an event brings."""
    if kind == JOB_DONE:
        job_done(s, a, now)
    elif kind == STEP_END:
        _step_end(s, a, now)
    elif kind == OUTPUT:
        output(s, a, b, now)
    elif kind == ADD:
        _add(s, a, now)
    elif kind == SEND:
        send(s, a, now)
    elif kind == OPEN_SLOT:
        s.whole[0].idle_slots += 1
        fill_slots(s, now)


@compiled
def _misfits(s: State, position: int) -> bool:
    """Whether the request can never run."""
    request, whole = s.requests[position], s.whole[0]
    blocks = (request.prompt + request.output - 1 + whole.block_size - 1) // whole.block_size
    if blocks > whole.blocks:
        return True
    return not whole.chunked and request.prompt + request.output > whole.max_tokens + 1


@compiled
def _add(s: State, position: int, now: float) -> None:
    """A request reaches the rank with the fewest open ones."""
    seat = 0
    for other in range(1, len(s.seats)):
        if s.seats[other].load < s.seats[seat].load:
            seat = other
    pool, request = s.seats[seat], s.requests[position]
    replica = seat // s.replicas[0].ranks
    pool.load += 1
    request.seat = seat
    request.next_arrived = s.replicas[replica].first_arrived
    s.replicas[replica].first_arrived = position
    request.next_waiting = -1
    if pool.last_waiting < 0:
        pool.first_waiting = position
    else:
        s.requests[pool.last_waiting].next_waiting = position
    pool.last_waiting = position
    pool.waiting += 1
    _launch(s, replica, now)


@compiled
def _launch(s: State, replica: int, now: float) -> None:
    """Plan and start every step that can start now."""
    whole, row = s.whole[0], s.replicas[replica]
    _stamp_arrivals(s, replica, now)
    idle = 0  # turns in a row that had nothing to run
    while idle < whole.stages and row.flying < whole.limit:
        lane = row.turn
        row.turn = (lane + 1) % whole.stages
        idle += 1
        if s.in_flight[replica, lane] < whole.depth and _has_work(s, replica, lane) and _start(s, replica, lane, now):
            idle = 0


@compiled
def _start(s: State, replica: int, lane: int, now: float) -> bool:
    """Plan a step of this micro-batch and start it; whether anything could run."""
    whole, row = s.whole[0], s.replicas[replica]
    waiting = 0
    for seat in range(row.first_seat, row.first_seat + row.ranks):
        waiting += s.seats[seat].waiting
    row.waiting_max = max(row.waiting_max, waiting)
    step = (replica * whole.stages + lane) * whole.depth
    while s.steps[step].taken:
        step += 1
    planned, running = False, 0
    for rank in range(row.ranks):
        seat = row.first_seat + rank
        s.step_plans[step, rank] = plan_step(s, seat, lane, now)
        planned = planned or s.step_plans[step, rank] >= 0
    if not planned:
        return False
    for seat in range(row.first_seat, row.first_seat + row.ranks):
        running += s.seats[seat].running
        row.kv_usage_max = max(row.kv_usage_max, s.seats[seat].used / whole.blocks)
    row.running_max = max(row.running_max, running)
    s.in_flight[replica, lane] += 1
    row.flying += 1
    s.steps[step].taken, s.steps[step].replica, s.steps[step].lane = True, replica, lane
    push(s, _run_step(s, replica, step, now), STEP_END, step, 0)
    return True


@compiled
def _stamp_arrivals(s: State, replica: int, now: float) -> None:
    """The engine stamps a request as queued when its loop comes round to it, not when it arrives."""
    row = s.replicas[replica]
    if row.flying >= s.whole[0].limit:
        return
    position = row.first_arrived
    while position >= 0:
        s.requests[position].queued = now
        position = s.requests[position].next_arrived
    row.first_arrived = -1


@compiled
def _has_work(s: State, replica: int, lane: int) -> bool:
    row, stages = s.replicas[replica], s.whole[0].stages
    for seat in range(row.first_seat, row.first_seat + row.ranks):
        state = s.lanes[seat * stages + lane]
        if state.count > 0 or state.partial >= 0 or s.seats[seat].waiting > 0:
            return True
    return False


@compiled
def _run_step(s: State, replica: int, step: int, now: float) -> float:
    """Pass a step through the stages; when its outputs leave the last one."""
    whole, row = s.whole[0], s.replicas[replica]
    together = 0
    for rank in range(row.ranks):
        slot = s.step_plans[step, rank]
        if slot >= 0:
            together += s.plans[slot].decoding + s.plans[slot].tokens
    slowest, slowest_s = -1, 0.0
    for rank in range(row.ranks):
        slot = s.step_plans[step, rank]
        if slot < 0:
            continue
        p = s.plans[slot]
        alone_s = _stage_seconds(
            s.numbers, p.decoding, p.decode_context, p.finished_prefill, p.tokens, p.chunks, p.pairs, p.context,
            row.heat, together,
        )  # fmt: skip
        if slowest < 0 or alone_s > slowest_s:
            slowest, slowest_s = slot, alone_s
    stage_s = slowest_s * s.noise[whole.noise_at]
    whole.noise_at += 1
    lane = row.first_seat * whole.stages + s.steps[step].lane
    at = max(now + whole.planning, s.lanes[lane].free_at)
    for stage in range(whole.stages):
        at = max(at, s.stage_free[replica, stage]) + stage_s
        s.stage_free[replica, stage] = at
    s.lanes[lane].free_at = at
    plan = s.plans[slowest]
    busy = _busy_share(s.numbers, plan.decoding + plan.tokens, plan.decoding + plan.finished_prefill, stage_s)
    row.heat += (busy - row.heat) * min(1.0, stage_s / whole.heat_tau)
    return at  # type: ignore[no-any-return]  # of a row


@compiled
def _step_end(s: State, step: int, now: float) -> None:
    """A step's outputs are out: seats and blocks are free, tokens go to the API servers, the next step is planned."""
    replica, lane = s.steps[step].replica, s.steps[step].lane
    s.steps[step].taken = False
    s.in_flight[replica, lane] -= 1
    s.replicas[replica].flying -= 1
    ranks = s.replicas[replica].ranks
    for rank in range(ranks):
        slot = s.step_plans[step, rank]
        if slot >= 0 and s.plans[slot].finishing > 0:
            for at in range(s.plans[slot].decoding + s.plans[slot].finished_prefill):
                if s.emitting[slot, at] & 1 == 1:
                    drop(s, s.emitting[slot, at] >> 1)
    for rank in range(ranks):
        if s.step_plans[step, rank] >= 0:
            _deliver(s, s.replicas[replica].first_seat + rank, s.step_plans[step, rank], now)
    _launch(s, replica, now)


@compiled
def _deliver(s: State, seat: int, slot: int, now: float) -> None:
    """Count a finished step of one rank and hand its tokens to the API servers."""
    whole, plan, servers = s.whole[0], s.plans[slot], len(s.servers)
    emitting = plan.decoding + plan.finished_prefill
    s.seats[seat].load -= plan.finishing
    whole.generation_tokens += emitting
    for at in range(plan.decoding, emitting):
        request = s.requests[s.emitting[slot, at] >> 1]
        if not request.prefilled:
            request.prefilled = True
            whole.prompt_tokens += request.prompt
    plan.readers = 0
    for server in range(servers):
        for at in range(emitting):
            if servers == 1 or (s.emitting[slot, at] >> 1) % servers == server:
                plan.readers += 1
                push(s, now + whole.out_latency, OUTPUT, server, slot)
                break
    if plan.readers == 0:
        free_plan(s, slot)


@compiled
def _give_up(s: State) -> None:
    """The level's time is up: the engine forgets every request."""
    for position in range(len(s.requests)):
        if s.requests[position].running:
            drop(s, position)
    s.whole[0].open = 0
