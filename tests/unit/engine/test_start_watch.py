"""Deadlines of a start, with arithmetic by hand."""

from __future__ import annotations

from autotune.engine.start_watch import Overdue, StartWatch


def test_standing_still_and_the_whole() -> None:
    watch = StartWatch(begun_s=100.0, start_deadline_s=50.0, stall_deadline_s=20.0)
    assert watch.overdue(120.0) is None
    assert watch.overdue(120.5) is Overdue.STALLED
    watch.advance(119.0)
    assert watch.overdue(139.0) is None
    assert watch.still_for_s(139.0) == 20.0
    watch.advance(139.0)
    assert watch.overdue(150.0) is None
    assert watch.overdue(150.1) is Overdue.DEADLINE  # although the last step is 11 s old


def test_the_whole_counts_first_when_both_are_over() -> None:
    watch = StartWatch(begun_s=0.0, start_deadline_s=10.0, stall_deadline_s=5.0)
    assert watch.overdue(11.0) is Overdue.DEADLINE
