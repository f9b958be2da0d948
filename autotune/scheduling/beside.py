"""Trials of one node beside each other: who is launched next, where, and who has to wait. The asyncio shell.

Who asks for configs, and what performing one means, is the study's (`Jobs`). Decided here is only the order:

1. The best config goes first wherever it fits.
2. One that does not fit waits, and the GPUs it will get first are kept free for it (`packing.reserve`).
3. Meanwhile others are asked for that fit into what is left.

So a node is full as long as there are configs that fit, and a large config waits for those that run, never for later
ones.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from autotune.engine.virtual_time import RANK
from autotune.scheduling.packing import Demand
from autotune.scheduling.seats import Seat, Seating

Job = TypeVar("Job")


class Turns(Protocol):
    """A clock that several trials share (`engine/virtual_time.py`); real time needs none of it."""

    def join(self) -> None:
        """One more trial runs."""
        ...

    def leave(self) -> None:
        """One less does."""
        ...


class RealTime:
    """The fake of the seam, and the real thing: real time moves whoever waits."""

    def join(self) -> None:
        """Nothing to do."""

    def leave(self) -> None:
        """Nothing to do."""


@dataclass(slots=True)
class Company:
    """Who ran beside a trial on its node.

    Attributes:
        now: other trials that run at this moment.
        most: most of them at any moment since it began.
    """

    now: int = 0
    most: int = 0

    def count(self, others: int) -> None:
        """So many others run now."""
        self.now, self.most = others, max(self.most, others)


@dataclass(frozen=True, slots=True, kw_only=True)
class Jobs(Generic[Job]):
    """What the study does for the scheduler.

    Attributes:
        demand: what a job needs.
        ask: the best job that `fits` and is not one that runs or waits; None for none. It may be asked again later.
        begin: puts a job on record at once, so that the next `ask` knows of it, and returns what does it to its end;
            that raises what ends the study.
    """

    demand: Callable[[Job], Demand]
    ask: Callable[[Callable[[Job], bool]], Job | None]
    begin: Callable[[Job, Seat, Company], Awaitable[None]]


@dataclass(slots=True, kw_only=True)
class _Running:
    seat: Seat
    company: Company
    rank: int


@dataclass(slots=True)
class Beside(Generic[Job]):
    """Runs jobs beside each other until there are no more.

    Attributes:
        most: jobs at once.
        turns: the clock that they share.
    """

    jobs: Jobs[Job]
    seats: Seating
    most: int
    turns: Turns = field(default_factory=RealTime)
    _waiting: Job | None = None
    _running: dict[asyncio.Task[None], _Running] = field(default_factory=dict)
    _started: int = 0
    _owed: int = 0
    _ending: bool = False

    async def run(self) -> None:
        """Return when nothing runs and nothing more is asked for.

        Whatever a job raises ends the others, each as a cancelled trial ends, and is raised when all have ended. The
        same holds for a cancellation of the whole, and a second one is passed on, for them to hurry. A job that alone
        was cancelled, or says so when it is done, ends with the others left to go on, and nothing new is begun.

        Raises:
            asyncio.CancelledError: the whole was cancelled, or a job was.
        """
        try:
            self._fill()
            while self._running:
                done, _ = await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                self._over(done)
                for task in sorted(done, key=lambda one: one.get_name()):
                    self._ending = self._ending or task.cancelled()
                    if not task.cancelled():
                        task.result()
                if not self._ending:
                    self._fill()
                self._let_time_pass()
            if self._ending:
                raise asyncio.CancelledError
        except BaseException:
            await self._end_all()
            raise

    def _fill(self) -> None:
        """Seat as many as there are places for."""
        while len(self._running) < self.most:
            if self._waiting is None:
                self._waiting = self.jobs.ask(lambda _: True)
            if self._waiting is None:
                return
            if self._seat(self._waiting):
                self._waiting = None
                continue
            if not self._seat_smaller(self._waiting):
                return

    def _seat_smaller(self, waiting: Job) -> bool:
        """Seat a job that keeps the waiting one waiting no longer; whether there was one."""
        # The oldest are taken to end first: trials of one study take about as long as each other.
        running = [one.seat.places for one in sorted(self._running.values(), key=lambda one: one.rank)]
        kept = self.seats.kept_for(self.jobs.demand(waiting), running)
        if not self.seats.free - kept:
            return False
        smaller = self.jobs.ask(lambda job: self.seats.fits(self.jobs.demand(job), without=kept))
        return smaller is not None and self._seat(smaller, kept)

    def _seat(self, job: Job, kept: frozenset[int] = frozenset()) -> bool:
        seat = self.seats.take(self.jobs.demand(job), without=kept)
        if seat is None:
            return False
        rank, company = self._started, Company()
        self._started += 1
        self.turns.join()
        task = asyncio.create_task(_ranked(self.jobs.begin(job, seat, company), rank), name=f"{rank:09d}")
        self._running[task] = _Running(seat=seat, company=company, rank=rank)
        self._count()
        return True

    def _over(self, done: set[asyncio.Task[None]]) -> None:
        for task in done:
            self.seats.leave(self._running.pop(task).seat)
        self._owed += len(done)
        self._count()

    def _let_time_pass(self) -> None:
        """Whoever was seated began at the very moment at which another ended: a shared time moves on only now."""
        while self._owed:
            self._owed -= 1
            self.turns.leave()

    def _count(self) -> None:
        for one in self._running.values():
            others = (other for other in self._running.values() if other is not one)
            one.company.count(sum(self.seats.beside(one.seat, other.seat) for other in others))

    async def _end_all(self) -> None:
        """Cancel what runs and wait for its end, whoever cancels meanwhile."""
        tasks = set(self._running)
        for task in tasks:
            task.add_done_callback(lambda _: self.turns.leave())
            task.cancel()
        self._let_time_pass()
        while pending := {task for task in tasks if not task.done()}:
            try:
                await asyncio.wait(pending)
            except asyncio.CancelledError:
                for task in pending:
                    task.cancel()
        for task in tasks:
            self.seats.leave(self._running.pop(task).seat)


async def _ranked(work: Awaitable[None], rank: int) -> None:
    RANK.set(rank)
    await work
