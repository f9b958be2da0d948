"""When a warm-up is over, and what is left to doubt."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from load_records import record

from autotune.load.warming import MOST_PASSES, Warming
from autotune.records import RequestRecord


def paced(token_s: float) -> list[RequestRecord]:
    """Three requests of four tokens."""
    return [record(i, 0.0, last_token_s=4 * token_s) for i in range(3)]


def warmed(*passes: tuple[float, int | None], duration_s: float = 1.0) -> Warming:
    """After passes of (time per token, kernels compiled); each must have been asked for."""
    warming = Warming(concurrency=8, first_requests=20)
    for token_s, compiled in passes:
        assert not warming.over
        warming.see(paced(token_s), duration_s, compiled)
    return warming


def test_passes_of_the_workload_first_long_then_one_request_a_slot() -> None:
    warming = Warming(concurrency=8, first_requests=20)
    first = warming.level(3)
    warming.see(paced(0.1), 1.0, 0)
    second = warming.level(4)
    assert [(one.name, one.requests, one.concurrency, one.seed) for one in (first, second)] == [
        ("warmup", 20, 8, 3),
        ("warmup-2", 8, 8, 4),
    ]
    assert Warming(concurrency=8, first_requests=0).level(1).requests == 8


@pytest.mark.parametrize(
    ("passes", "over"),
    [
        ([(0.1, 0)], False),  # nothing to compare it with
        ([(0.1, 0), (0.1, 0)], True),
        ([(0.1, None), (0.12, None)], True),  # nobody tells of kernels, and it does not get faster
        ([(0.1, 0), (0.096, 0)], True),
        ([(0.1, 0), (0.094, 0)], False),
        ([(0.1, 0), (0.1, 1)], False),
        ([(0.3, 4), (0.1, 1), (0.1, 0)], True),
        ([(0.3, 4), (0.1, 0)], False),
        ([(0.3, 4), (0.1, 0), (0.1, 0)], True),
    ],
)
def test_quiet_is_nothing_compiled_and_nothing_gained(passes: list[tuple[float, int | None]], over: bool) -> None:
    warming = warmed(*passes)
    assert warming.over is over
    if over:
        assert warming.caveat is None


def test_what_is_still_going_on_at_the_end_is_said() -> None:
    compiling = warmed(*[(0.1, 1)] * MOST_PASSES)
    assert compiling.over
    assert compiling.caveat is not None
    assert compiling.caveat.text == "8 in flight: the server compiled 1 kernel in the last of 6 warm-up passes (6 s)"
    falling = warmed((0.2, 0), (0.1, 0), duration_s=61.0)
    assert falling.over  # a third would end after 183 s
    assert falling.caveat is not None
    assert "requests were still getting faster in the last of 2" in falling.caveat.text
    once = warmed((0.2, 0), duration_s=91.0)
    assert once.over
    assert once.caveat is None


def test_passes_without_a_token_end_as_well() -> None:
    warming = Warming(concurrency=1, first_requests=1)
    for _ in range(2):
        warming.see([record(0, 0.0, error="reset")], 0.1, 0)
    assert warming.over


@given(
    st.lists(
        st.tuples(st.floats(1e-4, 10), st.none() | st.integers(0, 9), st.floats(0, 100)),
        min_size=MOST_PASSES,
        max_size=MOST_PASSES,
    )
)
def test_it_always_ends_within_its_passes_and_its_time(passes: list[tuple[float, int | None, float]]) -> None:
    warming = Warming(concurrency=2, first_requests=2)
    taken: list[float] = []
    for token_s, compiled, duration_s in passes:
        if warming.over:
            break
        assert sum(taken) + (taken[-1] if taken else 0.0) <= warming.longest_s
        warming.see(paced(token_s), duration_s, compiled)
        taken.append(duration_s)
    assert warming.over
