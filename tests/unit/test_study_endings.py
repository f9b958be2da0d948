"""Asked once, a study finishes what it measures; asked twice, it ends now."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from autotune.endings import Endings
from autotune.records import Phase


async def attempt(endings: Endings, *phases: Phase) -> str:
    """An attempt that stays in its last phase for ever; how it was ended."""
    for phase in phases:
        endings.entered(3, phase)
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        this = asyncio.current_task()
        return f"cancelled {this.cancelling() if this else 0}"
    return "went on"


async def started(endings: Endings, *phases: Phase) -> asyncio.Task[str]:
    async def study() -> str:
        with endings.listening():
            return await attempt(endings, *phases)

    task = asyncio.create_task(study())
    await asyncio.sleep(0)
    return task


@pytest.mark.parametrize("phase", [Phase.LAUNCHING, Phase.WARMING])
async def test_what_measures_nothing_is_ended_at_once(phase: Phase) -> None:
    said: list[str] = []
    endings = Endings(said.append)
    task = await started(endings, phase)
    endings.ask()
    assert await task == "cancelled 1"
    assert (endings.asked, said) == (1, [])


async def test_a_measurement_is_finished_and_a_second_time_is_not() -> None:
    said: list[str] = []
    endings = Endings(said.append)
    task = await started(endings, Phase.LAUNCHING, Phase.MEASURING)
    endings.ask()
    await asyncio.sleep(0)
    assert not task.done()
    assert "when trial 3 has been measured" in said[0]
    endings.ask()
    assert await task == "cancelled 1"


async def test_a_stop_is_let_go_on_once_and_then_hurried() -> None:
    endings = Endings()
    task = await started(endings, Phase.STOPPING)
    endings.ask()
    await asyncio.sleep(0)
    assert not task.done()
    endings.ask()
    assert await task == "cancelled 2"  # what hurries a stop (trial.py)


async def test_between_attempts_there_is_nothing_to_finish() -> None:
    endings = Endings()
    task = await started(endings, Phase.MEASURING, Phase.ENDED)
    endings.ask()
    assert await task == "cancelled 1"


async def test_beside_one_that_measures_the_others_are_ended() -> None:
    endings = Endings()

    async def one(trial: int, phase: Phase) -> str:
        endings.entered(trial, phase)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "cancelled"
        return "went on"

    async def study() -> list[str]:
        with endings.listening():
            return await asyncio.gather(one(1, Phase.MEASURING), one(2, Phase.LAUNCHING))

    task = asyncio.create_task(study())
    await asyncio.sleep(0.01)
    endings.ask()
    await asyncio.sleep(0.01)
    assert not task.done()
    endings.ask()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.fixture
def heard() -> Iterator[None]:
    """Hang-ups are, though `nohup` may have these tests ignore them."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_every_signal_asks_and_is_given_back(number: signal.Signals, heard: None) -> None:
    before, endings = signal.getsignal(number), Endings()
    task = await started(endings, Phase.LAUNCHING)
    os.kill(os.getpid(), number)
    assert await asyncio.wait_for(task, 120) == "cancelled 1"
    assert signal.getsignal(number) is before


async def test_what_was_told_to_survive_a_hangup_does() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        endings = Endings()
        task = await started(endings, Phase.LAUNCHING)
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0.01)
        assert endings.asked == 0
        endings.ask()
        await task
    finally:
        signal.signal(signal.SIGHUP, before)
