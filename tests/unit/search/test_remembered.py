from __future__ import annotations

from autotune.search.remembered import remembered


def test_the_same_trials_are_worked_out_once_and_equal_ones_are_others() -> None:
    asked = []

    @remembered
    def count(trials):
        asked.append(trials)
        return len(trials)

    one, other, *more = tuple(range(2)), tuple(range(2)), (3,), (4,), (5,)
    assert one is not other
    assert [count(t) for t in (one, one, other, one, *more, more[-1], one)] == [2, 2, 2, 2, 1, 1, 1, 1, 2]
    assert [id(trials) for trials in asked] == [id(trials) for trials in (one, other, *more, one)]


def test_a_list_may_change_and_is_never_remembered() -> None:
    @remembered
    def count(trials):
        return len(trials)

    trials = [1]
    assert count(trials) == 1
    trials.append(2)
    assert count(trials) == 2


def test_what_else_it_is_asked_with_is_compared() -> None:
    asked = []

    @remembered
    def count(trials, weight):
        asked.append(weight)
        return len(trials) * weight

    trials = (1, 2)
    assert [count(trials, weight) for weight in (1, 3, 1, 3)] == [2, 6, 2, 6]
    assert asked == [1, 3]
