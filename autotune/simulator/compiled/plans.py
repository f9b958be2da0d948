"""Which tokens run in which step, as `scheduler.Scheduler` plans them, over rows.

A lane's decoding requests stand in order of admission, so the one that needs a block, the victim of a preemption and
the one that ends are all found by walking over them. The twin notes by tick who is next instead: machine code walks
over a thousand in a microsecond.
"""

from __future__ import annotations

from autotune.simulator.compiled.blocks import admit, cached_blocks, fill, release, take
from autotune.simulator.compiled.compiling import compiled
from autotune.simulator.compiled.layout import State


@compiled
def plan_step(s: State, seat: int, lane: int, now: float) -> int:
    """The lane's next step as a row of `plans`; -1 when nothing can run."""
    whole = s.whole[0]
    row = seat * whole.stages + lane
    state = s.lanes[row]
    state.tick += 1
    preempted = _grow(s, seat, row)
    slot = whole.first_free_plan
    plan = s.plans[slot]
    plan.decoding = state.count
    state.context += state.count
    plan.decode_context = state.context
    plan.finished_prefill = plan.tokens = plan.chunks = plan.pairs = plan.context = 0
    if state.partial >= 0:
        _continue(s, row, slot)
    if preempted == 0:
        _admit(s, seat, row, slot, now)
    _leave(s, row, slot)
    if plan.decoding == 0 and plan.tokens == 0:
        return -1
    whole.first_free_plan = plan.next_free
    whole.free_plans -= 1
    return slot  # type: ignore[no-any-return]  # of a row


@compiled
def drop(s: State, position: int) -> None:
    """Take a request out of the running ones and give back its blocks."""
    request = s.requests[position]
    request.running = False
    s.seats[request.seat].running -= 1
    release(s, position)


@compiled
def _grow(s: State, seat: int, row: int) -> int:
    """Blocks for requests whose last one is full; how many were preempted to make room."""
    state, pool, whole = s.lanes[row], s.seats[seat], s.whole[0]
    preempted = 0
    at = 0
    while at < state.count:
        position = s.batch[row, at]
        request = s.requests[position]
        at += 1
        if request.grow_tick != state.tick:
            continue
        while request.running and pool.used >= whole.blocks:
            _preempt(s, seat, row)
            preempted += 1
        if not request.running:
            break  # it was the last one itself
        take(s, seat, 1)
        if (request.filled + 1) * whole.block_size <= request.target + state.tick - 1 - request.joined_tick:
            fill(s, position)
        request.unkeyed += 1
        following = state.tick + whole.block_size
        request.grow_tick = following if following <= request.last_tick else -1
    return preempted


@compiled
def _preempt(s: State, seat: int, row: int) -> None:
    """Send the lane's last admitted request back to the head of the queue."""
    state, pool = s.lanes[row], s.seats[seat]
    if state.partial >= 0:
        victim = state.partial
        state.partial = -1
    else:
        state.count -= 1
        victim = s.batch[row, state.count]
        left = s.requests[victim]
        left.emitted += state.tick - 1 - left.joined_tick
        state.context -= left.target + state.tick - 1 - left.joined_tick
    drop(s, victim)
    request = s.requests[victim]
    request.target = request.prompt + request.emitted
    request.computed = 0
    request.preemptions += 1
    pool.preemptions += 1
    request.next_waiting = pool.first_waiting
    pool.first_waiting = victim
    if pool.last_waiting < 0:
        pool.last_waiting = victim
    pool.waiting += 1


@compiled
def _continue(s: State, row: int, slot: int) -> None:
    """Go on with the prompt that the last step cut."""
    state, plan = s.lanes[row], s.plans[slot]
    position = state.partial
    request = s.requests[position]
    chunk = min(request.target - request.computed, s.whole[0].max_tokens - plan.decoding)
    if chunk <= 0:
        return
    _compute(s, slot, position, chunk)
    if request.computed == request.target:
        state.partial = -1
        _join(s, row, slot, position)


@compiled
def _admit(s: State, seat: int, row: int, slot: int, now: float) -> None:
    """Take waiting requests in, in order, while tokens, seats and blocks last."""
    whole, pool, state, plan = s.whole[0], s.seats[seat], s.lanes[row], s.plans[slot]
    size = whole.block_size
    while pool.waiting > 0 and state.partial < 0 and pool.running < whole.max_num_seqs:
        budget = whole.max_tokens - plan.decoding - plan.tokens
        if budget <= 0:
            return
        position = pool.first_waiting
        request = s.requests[position]
        hits = cached_blocks(s, position, (request.target - 1) // size) if whole.caching else 0
        if request.preemptions == 0:
            pool.prefix_queries += request.target
        new_tokens = request.target - hits * size
        new_blocks = (request.target + size - 1) // size - hits
        if not whole.chunked and new_tokens > budget:
            return
        if not admit(s, seat, position, hits, new_blocks):
            return
        pool.first_waiting = request.next_waiting
        if pool.first_waiting < 0:
            pool.last_waiting = -1
        pool.waiting -= 1
        if request.preemptions == 0:
            pool.prefix_hits += hits * size
            whole.queue_sum += now - request.queued
            whole.queue_count += 1
        request.running = True
        pool.running += 1
        request.unkeyed = new_blocks
        request.computed, request.filled = hits * size, hits
        _compute(s, slot, position, min(new_tokens, budget))
        if request.computed == request.target:
            _join(s, row, slot, position)
        else:
            state.partial = position


@compiled
def _compute(s: State, slot: int, position: int, tokens: int) -> None:
    """A chunk of a prompt is part of the step."""
    plan, request, size = s.plans[slot], s.requests[position], s.whole[0].block_size
    start = request.computed
    plan.tokens += tokens
    plan.chunks += 1
    plan.pairs += tokens * start + tokens * (tokens + 1) // 2
    plan.context += start + tokens
    request.computed += tokens
    while (request.filled + 1) * size <= request.computed:
        fill(s, position)


@compiled
def _join(s: State, row: int, slot: int, position: int) -> None:
    """The prompt is done: one token comes out of this step, one more out of each that follows."""
    state, request, size = s.lanes[row], s.requests[position], s.whole[0].block_size
    request.emitted += 1
    request.joined_tick = state.tick
    request.last_tick = state.tick + request.output - request.emitted
    first = state.tick + (size - request.target % size) % size + 1
    request.grow_tick = first if first <= request.last_tick else -1
    s.batch[row, state.count] = position
    state.count += 1
    state.context += request.target
    s.plans[slot].finished_prefill += 1


@compiled
def _leave(s: State, row: int, slot: int) -> None:
    """Write down who gets a token; those who get their last one leave the batch."""
    state, plan = s.lanes[row], s.plans[slot]
    stay = 0
    for at in range(state.count):
        position = s.batch[row, at]
        request = s.requests[position]
        if request.last_tick == state.tick:
            s.emitting[slot, at] = 2 * position + 1
            state.context -= request.target + state.tick - request.joined_tick
            request.emitted = request.output
        else:
            s.emitting[slot, at] = 2 * position
            s.batch[row, stay] = position
            stay += 1
    plan.finishing = state.count - stay
    state.count = stay
