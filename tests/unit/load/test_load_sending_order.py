"""Turns wait for the one before them, and come before what was planned later."""

from __future__ import annotations

import pytest

from autotune.load.sending_order import SendingOrder
from autotune.records import PlannedRequest


def planned(*after: int | None) -> list[PlannedRequest]:
    return [
        PlannedRequest(index=at, prompt_tokens=1, output_tokens=1, content_seed=0, after=before)
        for at, before in enumerate(after)
    ]


def test_without_turns_the_order_is_the_plans() -> None:
    order = SendingOrder(planned(None, None, None))
    assert [order.take() for _ in range(4)] == [(0, None), (1, None), (2, None), None]
    assert not order.left


def test_a_turn_comes_when_the_one_before_it_has_ended() -> None:
    order = SendingOrder(planned(None, 0, 0, None, None))
    assert [order.take(), order.take()] == [(0, None), (3, None)]
    assert order.ended(3, 1.0) == 0
    assert order.ended(0, 2.5) == 2
    assert [order.take() for _ in range(3)] == [(1, 2.5), (2, 2.5), (4, None)]
    assert not order.left


def test_something_is_left_while_a_turn_waits() -> None:
    order = SendingOrder(planned(None, 0))
    assert order.take() == (0, None)
    assert order.take() is None
    assert order.left
    assert order.ended(0, 1.0) == 1
    assert order.take() == (1, 1.0)


@pytest.mark.parametrize("after", [(None, 1), (1, None), (None, 7)])
def test_a_turn_before_its_predecessor_is_a_broken_plan(after: tuple[int | None, ...]) -> None:
    with pytest.raises(ValueError, match="not planned before it"):
        SendingOrder(planned(*after))
