"""Trials beside each other in shared virtual time: when each begins, who waits, and how all end when one breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import pytest

from autotune.engine.virtual_time import RANK, VirtualTime
from autotune.node.gpus import parse_node_name
from autotune.scheduling.beside import Beside, Company, Jobs
from autotune.scheduling.packing import Demand
from autotune.scheduling.seats import Seat, Seats

NODE = parse_node_name("8xH200-141GB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    name: str
    gpus: int = 1
    steps: tuple[float, ...] = (10.0,)
    breaks: bool = False


@dataclass
class Log:
    """What happened, in virtual seconds."""

    time: VirtualTime = field(default_factory=VirtualTime)
    began: dict[str, float] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)
    places: dict[str, tuple[int, ...]] = field(default_factory=dict)
    company: dict[str, int] = field(default_factory=dict)
    stopped: dict[str, float] = field(default_factory=dict)

    def perform(self, work: Work, seat: Seat, company: Company) -> Awaitable[None]:
        self.began[work.name], self.places[work.name] = self.time.now(), seat.places

        async def rest() -> None:
            try:
                for step in work.steps:
                    await asyncio.to_thread(lambda: None)  # what is computed takes no virtual time
                    await self.time.sleep(step)
                if work.breaks:
                    raise RuntimeError(work.name)
                self.ended[work.name], self.company[work.name] = self.time.now(), company.most
            except asyncio.CancelledError:
                await self.time.sleep(0.6)  # a server is stopped first
                self.stopped[work.name] = self.time.now()
                raise

        return rest()


def scheduler(log: Log, *works: Work, most: int = 8) -> Beside[Work]:
    queue = list(works)

    def ask(fits: Callable[[Work], bool]) -> Work | None:
        found = next((work for work in queue if fits(work)), None)
        if found is not None:
            queue.remove(found)
        return found

    jobs = Jobs(demand=lambda work: Demand(group=work.gpus), ask=ask, begin=log.perform)
    return Beside(jobs, Seats(NODE), most, log.time)


async def test_as_many_as_there_are_gpus_and_the_next_when_one_ends() -> None:
    log = Log()
    works = [Work(name=f"{number:02d}", steps=(10.0 + number, 5.0)) for number in range(10)]
    await scheduler(log, *works).run()
    assert [log.began[work.name] for work in works] == [0.0] * 8 + [15.0, 16.0]
    assert log.ended["00"] == 15.0
    assert log.ended["09"] == 16.0 + 19.0 + 5.0
    assert log.company["00"] == 7
    assert log.company["09"] == 7
    assert log.places["08"] == log.places["00"]


async def test_no_more_at_once_than_asked_for() -> None:
    log = Log()
    await scheduler(log, *(Work(name=str(number)) for number in range(6)), most=2).run()
    assert [log.began[str(number)] for number in range(6)] == [0.0, 0.0, 10.0, 10.0, 20.0, 20.0]
    assert max(log.company.values()) == 1


async def test_four_pairs_at_once() -> None:
    log = Log()
    await scheduler(log, *(Work(name=str(number), gpus=2) for number in range(8))).run()
    assert sorted(log.began.values()) == [0.0] * 4 + [10.0] * 4


async def test_a_large_one_waits_for_those_that_run_and_for_nobody_who_came_later() -> None:
    log = Log()
    small = [Work(name=f"s{number}", steps=(10.0 * (number + 1),)) for number in range(6)]
    later = [Work(name=f"l{number}", steps=(100.0,)) for number in range(4)]
    await scheduler(log, *small, Work(name="large", gpus=4), *later).run()
    # GPUs 6 and 7 are free at once, and with two more it can begin: at 20 s, when the second one ends.
    assert log.began["large"] == 20.0
    assert log.began["l0"] >= 20.0
    assert log.ended["large"] == 30.0


async def test_what_the_large_one_has_no_use_for_is_used() -> None:
    log = Log()
    first = [Work(name="a", gpus=4, steps=(10.0,)), Work(name="b", gpus=2, steps=(30.0,))]
    await scheduler(log, *first, Work(name="c", gpus=4), Work(name="d", gpus=1), Work(name="e", gpus=2)).run()
    # c is to have the first half when a ends. d takes one of the two that are free, e finds no pair until d ends.
    assert log.began == {"a": 0.0, "b": 0.0, "d": 0.0, "c": 10.0, "e": 10.0}
    assert log.places["c"] == (0, 1, 2, 3)
    whole = Log()
    await scheduler(whole, Work(name="a", gpus=2, steps=(5.0,)), Work(name="b", gpus=8), Work(name="c")).run()
    assert whole.began == {"a": 0.0, "b": 5.0, "c": 15.0}


async def test_the_same_every_time_whatever_the_threads_do() -> None:
    works = [Work(name=str(n), gpus=1 + n % 3, steps=(3.0 + n % 4, 2.0, 7.0 - n % 5)) for n in range(24)]
    logs = []
    for _ in range(3):
        log = Log()
        await scheduler(log, *works).run()
        logs.append((list(log.ended), log.ended, log.places, log.company))
    assert logs[0] == logs[1] == logs[2]


async def test_one_that_breaks_ends_all_and_each_stops_its_server_first() -> None:
    log = Log()
    works = [Work(name="a", steps=(5.0,), breaks=True), Work(name="b", steps=(100.0,)), Work(name="c", steps=(50.0,))]
    with pytest.raises(RuntimeError, match="a"):
        await scheduler(log, *works).run()
    assert log.stopped == {"b": 5.6, "c": 5.6}
    assert log.ended == {}


async def test_ctrl_c_ends_all() -> None:
    log = Log()

    async def never() -> None:
        await asyncio.Event().wait()

    class Held(Log):
        def perform(self, work: Work, seat: Seat, company: Company) -> Awaitable[None]:
            async def rest() -> None:
                try:
                    await never()
                finally:
                    await self.time.sleep(0.6)
                    self.stopped[work.name] = self.time.now()

            return rest()

    log = Held()
    running = asyncio.ensure_future(scheduler(log, Work(name="a"), Work(name="b")).run())
    for _ in range(5):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert set(log.stopped) == {"a", "b"}


async def test_a_second_ctrl_c_is_passed_on() -> None:
    hurried: list[str] = []
    release = asyncio.Event()

    class Stubborn(Log):
        def perform(self, work: Work, seat: Seat, company: Company) -> Awaitable[None]:
            async def rest() -> None:
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    try:
                        await release.wait()
                    except asyncio.CancelledError:
                        hurried.append(work.name)
                        raise

            return rest()

    running = asyncio.ensure_future(scheduler(Stubborn(), Work(name="a"), Work(name="b")).run())
    for _ in range(5):
        await asyncio.sleep(0)
    running.cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not running.done()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert sorted(hurried) == ["a", "b"]


async def test_nothing_to_do_is_done() -> None:
    await scheduler(Log()).run()


# --- the shared clock ---------------------------------------------------------------------------------------------


async def test_alone_virtual_time_passes_at_once() -> None:
    time = VirtualTime()
    await time.sleep(5.0)
    await time.sleep(0.0)
    await time.sleep(-1.0)
    assert time.now() == 5.0


async def test_shared_time_waits_for_all_and_moves_to_the_first() -> None:
    time, seen = VirtualTime(), []

    async def sharer(name: str, rank: int, *naps: float) -> None:
        RANK.set(rank)
        for nap in naps:
            await time.sleep(nap)
            seen.append((time.now(), name))
        time.leave()

    time.join()
    time.join()
    slow = asyncio.create_task(sharer("slow", 0, 3.0, 3.0))
    for _ in range(5):
        await asyncio.sleep(0)
    assert (time.now(), seen) == (0.0, [])  # the other one has not said yet how long it waits
    await asyncio.gather(slow, asyncio.create_task(sharer("quick", 1, 1.0, 2.0, 3.0)))
    assert seen == [(1.0, "quick"), (3.0, "slow"), (3.0, "quick"), (6.0, "slow"), (6.0, "quick")]


async def test_who_is_cancelled_in_its_sleep_holds_nobody_up() -> None:
    time = VirtualTime()
    time.join()
    time.join()
    first = asyncio.create_task(time.sleep(1.0))
    await asyncio.sleep(0)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    time.leave()
    await time.sleep(2.0)
    assert time.now() == 2.0
