"""The scheduler: rules by hand, invariants by hypothesis, and equality with a scheduler that takes no shortcuts."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from slow_scheduler import SlowRequest, SlowScheduler, SlowStep

from autotune.simulator.kv_cache import BlockPool
from autotune.simulator.scheduler import Scheduler, SimRequest, StepPlan

SIZE = 4


def make(
    *, blocks: int = 100, seats: int = 8, budget: int = 64, chunked: bool = True, caching: bool = False
) -> Scheduler:
    return Scheduler(
        BlockPool(blocks, prefix_caching=caching),
        max_num_seqs=seats,
        max_num_batched_tokens=budget,
        chunked_prefill=chunked,
        block_size=SIZE,
    )


def run_step(scheduler: Scheduler) -> StepPlan:
    plan = scheduler.plan()
    assert plan is not None
    scheduler.complete(plan)
    return plan


def test_prompt_then_one_token_a_step() -> None:
    scheduler = make()
    scheduler.add(SimRequest(1, prompt_tokens=10, output_tokens=3))
    plans = [run_step(scheduler) for _ in range(3)]
    assert [(p.prefill_tokens, len(p.decoding), p.decode_context) for p in plans] == [
        (10, 0, 0),
        (0, 1, 11),
        (0, 1, 12),
    ]
    assert [len(p.finishing) for p in plans] == [0, 0, 1]
    # Causal pairs of a 10-token prompt: 1 + 2 + ... + 10.
    assert plans[0].prefill_pairs == 55
    assert scheduler.plan() is None
    assert scheduler.pool.free == 100


def test_budget_cuts_a_prompt_and_the_rest_goes_first() -> None:
    scheduler = make(budget=16)
    scheduler.add(SimRequest(1, prompt_tokens=20, output_tokens=2))
    scheduler.add(SimRequest(2, prompt_tokens=5, output_tokens=2))
    first, second, third = (run_step(scheduler) for _ in range(3))
    assert (first.prefill_tokens, first.emitting) == (16, 0)
    # 4 left of request 1, then all 5 of request 2; the second chunk sees 16 tokens before it: 4 x 16 + 10, and 15.
    assert (second.prefill_tokens, second.emitting, second.prefill_pairs) == (9, 2, 4 * 16 + 10 + 15)
    assert len(third.finishing) == 2


def test_without_chunked_prefill_a_prompt_waits_for_a_step_that_holds_it() -> None:
    scheduler = make(budget=16, chunked=False)
    scheduler.add(SimRequest(1, prompt_tokens=10, output_tokens=2))
    scheduler.add(SimRequest(2, prompt_tokens=10, output_tokens=2))
    assert run_step(scheduler).prefill_tokens == 10
    # The decoding request takes 1 of 16: the second prompt fits beside it.
    assert (lambda p: (len(p.decoding), p.prefill_tokens))(run_step(scheduler)) == (1, 10)
    with pytest.raises(ValueError, match="chunked prefill off"):
        scheduler.add(SimRequest(3, prompt_tokens=17, output_tokens=1))


def test_seats_bound_the_batch_and_are_free_only_after_completion() -> None:
    scheduler = make(seats=1)
    scheduler.add(SimRequest(1, prompt_tokens=4, output_tokens=1))
    scheduler.add(SimRequest(2, prompt_tokens=4, output_tokens=1))
    first = scheduler.plan()
    assert first is not None
    assert scheduler.plan() is None  # planned while the first step runs: its seat is not free yet
    scheduler.complete(first)
    second = scheduler.plan()
    assert second is not None
    assert second.admitted[0].serial == 2


def test_tight_cache_preempts_the_request_admitted_last() -> None:
    # 6 blocks of 4: two prompts of 8 take 4; each needs a block at once and two more after 4 tokens.
    scheduler = make(blocks=6)
    first, last = SimRequest(1, prompt_tokens=8, output_tokens=9), SimRequest(2, prompt_tokens=8, output_tokens=9)
    scheduler.add(first)
    scheduler.add(last)
    preempted = []
    finished = []
    for _ in range(40):
        plan = scheduler.plan()
        if plan is None:
            break
        scheduler.complete(plan)
        preempted += [r.serial for r in plan.preempted]
        finished += [r.serial for r in plan.finishing]
    assert preempted == [2]
    assert finished == [1, 2]
    assert scheduler.pool.free == 6


def test_shared_prefix_is_hit_by_whole_blocks_and_the_last_token_is_always_computed() -> None:
    scheduler = make(caching=True)
    scheduler.add(SimRequest(1, prompt_tokens=8, output_tokens=1, keys=[11, 12]))
    run_step(scheduler)
    scheduler.add(SimRequest(2, prompt_tokens=8, output_tokens=1, keys=[11, 12]))
    scheduler.add(SimRequest(3, prompt_tokens=9, output_tokens=1, keys=[11, 12]))
    plan = run_step(scheduler)
    # Request 2 may reuse one block (its last token must be computed), request 3 both: 4 + 1 tokens remain.
    assert plan.prefill_tokens == 4 + 1
    assert (scheduler.prefix_queries, scheduler.prefix_hits) == (8 + 8 + 9, 4 + 8)


def test_caching_off_never_hits() -> None:
    scheduler = make(caching=False)
    for serial in (1, 2):
        scheduler.add(SimRequest(serial, prompt_tokens=9, output_tokens=1, keys=[11, 12]))
        assert run_step(scheduler).prefill_tokens == 9


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(ValueError, match="needs 101 KV blocks"):
        make().add(SimRequest(1, prompt_tokens=400, output_tokens=5))
    with pytest.raises(ValueError, match="at least 1"):
        SimRequest(1, prompt_tokens=0, output_tokens=1)
    with pytest.raises(ValueError, match="at least max_num_seqs"):
        make(seats=65)


def test_aborting_gives_everything_back() -> None:
    scheduler = make()
    requests = [SimRequest(n, prompt_tokens=6, output_tokens=20) for n in range(3)]
    for request in requests:
        scheduler.add(request)
    for _ in range(7):
        run_step(scheduler)
    scheduler.abort(requests[1])
    # 2 left, both having emitted 7: the next step reads 2 x (6 + 7) tokens.
    assert run_step(scheduler).decode_context == 26
    scheduler.abort(requests[0])
    scheduler.abort(requests[2])
    scheduler.abort(requests[2])
    assert scheduler.plan() is None
    assert scheduler.pool.free == 100


@dataclass(frozen=True)
class Case:
    blocks: int
    seats: int
    budget: int
    chunked: bool
    caching: bool
    depth: int
    requests: tuple[tuple[int, int, int, int], ...]  # arrival step, prompt, output, prefix


@st.composite
def cases(draw: st.DrawFn) -> Case:
    seats = draw(st.integers(1, 6))
    budget = draw(st.integers(max(seats, 8), 40))
    chunked = draw(st.booleans())
    blocks = draw(st.integers(12, 40))
    count = draw(st.integers(1, 12))
    requests = []
    for _ in range(count):
        output = draw(st.integers(1, 14))
        most = min(30, blocks * SIZE - output, budget + 1 - output if not chunked else 99)
        if most < 1:
            output, most = 1, min(30, budget)
        requests.append((draw(st.integers(0, 12)), draw(st.integers(1, most)), output, draw(st.integers(0, 2))))
    return Case(blocks, seats, budget, chunked, draw(st.booleans()), draw(st.integers(1, 2)), tuple(sorted(requests)))


def keys_of(serial: int, prompt: int, prefix: int) -> list[int]:
    """Prefix 0 is private; the others share their first two blocks."""
    own = [serial * 1000 + i for i in range(prompt // SIZE)]
    return own if prefix == 0 else [prefix * 100_000 + i if i < 2 else k for i, k in enumerate(own)]


@pytest.mark.no_cover
@given(case=cases())
@settings(max_examples=300, deadline=None)
def test_equals_the_scheduler_without_shortcuts_and_keeps_the_invariants(case: Case) -> None:
    fast = make(blocks=case.blocks, seats=case.seats, budget=case.budget, chunked=case.chunked, caching=case.caching)
    slow = SlowScheduler(case.blocks, SIZE, case.seats, case.budget, chunked=case.chunked, caching=case.caching)
    tokens: dict[int, int] = {}
    wanted: dict[int, int] = {}
    flying: deque[tuple[StepPlan, SlowStep]] = deque()
    pending = deque(enumerate(case.requests, start=1))
    for step in range(600):
        while pending and pending[0][1][0] <= step:
            serial, (_, prompt, output, prefix) = pending.popleft()
            keys = keys_of(serial, prompt, prefix)
            fast.add(SimRequest(serial, prompt, output, keys))
            slow.waiting.append(SlowRequest(serial, prompt, output, keys, goal=prompt))
            wanted[serial] = output
        while len(flying) >= case.depth:
            done, slow_done = flying.popleft()
            fast.complete(done)
            slow.complete(slow_done.finishing)
        plan, expected = fast.plan(), slow.plan()
        assert (plan is None) == (expected is None)
        if plan is None or expected is None:
            if not flying and not pending:
                break
            if flying:
                done, slow_done = flying.popleft()
                fast.complete(done)
                slow.complete(slow_done.finishing)
            continue
        flying.append((plan, expected))
        assert tuple(sorted(r.serial for r in plan.decoding)) == expected.decoding
        assert plan.decode_context == expected.context
        assert plan.prefill_tokens == sum(n for _, _, n in expected.chunks)
        assert plan.prefill_pairs == sum(n * at + n * (n + 1) // 2 for _, at, n in expected.chunks)
        assert plan.prefill_chunks == len(expected.chunks)
        assert tuple(sorted(r.serial for r in plan.finishing)) == expected.finishing
        assert tuple(r.serial for r in plan.preempted) == expected.preempted
        assert fast.pool.free == len(slow.free())
        assert plan.tokens <= case.budget
        assert len(fast.running) <= case.seats
        for request in (*plan.decoding, *plan.finished_prefill):
            tokens[request.serial] = tokens.get(request.serial, 0) + 1
    else:
        pytest.fail("the requests never end")
    assert tokens == wanted
    assert fast.pool.free == case.blocks


def test_the_comparison_reaches_preemptions_hits_and_cut_prompts() -> None:
    """What the property above would be blind without: cases like its own hold all three."""
    fast = make(blocks=12, seats=4, budget=10, caching=True)
    hits = cut = preempted = 0
    for serial in range(1, 9):
        fast.add(SimRequest(serial, 14, 14, keys_of(serial, 14, 1)))
    for _ in range(400):
        plan = fast.plan()
        if plan is None:
            break
        fast.complete(plan)
        preempted += len(plan.preempted)
        cut += plan.prefill_chunks - len(plan.finished_prefill)
        hits = fast.prefix_hits
    assert preempted
    assert cut
    assert hits
