from __future__ import annotations

from autotune.search.remembered import remembered


def test_the_same_trials_are_worked_out_once_and_equal_ones_are_others() -> None:
    asked = []

    @remembered
    def count(trials):
        asked.append(trials)
        return len(trials)

    one, other, third = tuple(range(2)), tuple(range(2)), (3,)
    assert one is not other
    assert [count(t) for t in (one, one, other, one, third, third, one)] == [2, 2, 2, 2, 1, 1, 2]
    assert [id(trials) for trials in asked] == [id(one), id(other), id(third), id(one)]


def test_a_list_may_change_and_is_never_remembered() -> None:
    @remembered
    def count(trials):
        return len(trials)

    trials = [1]
    assert count(trials) == 1
    trials.append(2)
    assert count(trials) == 2
