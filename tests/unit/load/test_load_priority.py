"""The load client runs before ordinary threads while a level runs, and is one of them again afterwards."""

from __future__ import annotations

import os
import sys
import threading

import pytest

from autotune.load.priority import ahead_of_others

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the scheduler of Linux")


def _policy() -> int:
    return os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK


def _allowed() -> bool:
    """Asked by doing it, in a thread that ends with it."""
    found = []

    def ask() -> None:
        try:
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        except OSError:
            found.append(False)
        else:
            found.append(True)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return found[0]


def _in_a_thread(what: list[int]) -> None:
    thread = threading.Thread(target=lambda: what.append(os.sched_getscheduler(0)))
    thread.start()
    thread.join()


def test_it_goes_first_where_that_is_allowed_and_what_it_starts_does_not() -> None:
    child: list[int] = []
    before = _policy()
    with ahead_of_others() as first:
        inside = _policy()
        _in_a_thread(child)
    assert first == _allowed()
    assert inside == (os.SCHED_RR if first else before)
    assert _policy() == before == os.SCHED_OTHER
    assert child[0] & ~os.SCHED_RESET_ON_FORK == os.SCHED_OTHER


def test_a_second_level_goes_first_again() -> None:
    for _ in range(2):
        with ahead_of_others() as first:
            assert first == _allowed()


def test_it_ends_with_an_error_of_the_level() -> None:
    with pytest.raises(RuntimeError), ahead_of_others():
        raise RuntimeError
    assert _policy() == os.SCHED_OTHER


def test_where_it_is_not_allowed_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with ahead_of_others() as first:
        assert first is False
        assert _policy() == os.SCHED_OTHER


def test_a_class_that_somebody_chose_stays() -> None:
    if not _allowed():
        pytest.skip("this system does not let us")
    seen: list[object] = []

    def run() -> None:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(7))
        with ahead_of_others() as first:
            seen.extend((first, os.sched_getscheduler(0)))
        seen.append(os.sched_getparam(0).sched_priority)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [False, os.SCHED_FIFO, 7]
