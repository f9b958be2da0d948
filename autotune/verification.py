"""The shell of the gate: launch candidate and what runs today in ABBA order, drive both alike, have it judged.

A (what runs today), B, B, A: what drifts evenly over the verification then cancels, and the candidate's second launch
follows its first, which shows that it starts again. Lengths and arrivals come from a seed that no trial of the study
had, and are the same in every launch; made-up words differ from launch to launch, as between trials.

Where the launches so far leave the verdict open and more may decide it, it goes on in the same order, up to the most
that were asked for; the chances to be wrong are shared by all looks (`promote.gate.spending`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from datetime import datetime

from autotune.engine.base import Engine
from autotune.errors import InvalidOption
from autotune.load.arrival_windows import WindowRule
from autotune.promote.gate import Evidence, Judgement, Look, Outlook, judge, looks, outlook
from autotune.promote.gate.evidence import is_window
from autotune.records import ClockKind, GateLaunch, GateLook, GateRecord, GateSide, GateSideName
from autotune.units import format_seconds
from autotune.verification_launch import GateObserver, GateOrder, launch_of

LAUNCH_LIMIT = 100


async def verify(
    order: GateOrder,
    engine: Engine,
    *,
    clock: Callable[[], float],
    utc: Callable[[], datetime],
    observer: GateObserver,
) -> GateRecord:
    """Make the launches and judge them. Cancelled, it stops the running server and passes the cancellation on.

    It ends early where a launch of either side fails: then there is nothing to compare.

    Args:
        clock: seconds on the engine's clock.
        utc: the time of day, UTC-aware.

    Raises:
        InvalidOption: a number of launches that makes no pairs.
        StorageError: raw records cannot be written.
    """
    sides = order_of(order.launches, order.most_launches)
    going = _Verification(order, engine, sides)
    started = utc()
    for number, until in enumerate(going.at):
        await going.launch(until, clock=clock, observer=observer)
        found, ahead = going.look(number)
        if not ahead.goes_on or going.failed:
            if ahead.why:
                observer.note(ahead.why)
            break
        observer.note(f"{ahead.why}, which takes about {going.length(going.seconds_to(going.at[number + 1]))}")
    return going.record(found, started_at=started, ended_at=utc())


class _Verification:
    """What was seen so far."""

    def __init__(self, order: GateOrder, engine: Engine, sides: tuple[GateSideName, ...]) -> None:
        self.at = looks(order.launches, order.most_launches)
        self._order, self._engine, self._sides = order, engine, sides
        self._launches: list[GateLaunch] = []
        self._looks: list[GateLook] = []
        self._windows = order.windows
        self._version: str | None = None
        self._simulated = engine.clock is ClockKind.VIRTUAL
        self._seconds = 0.0

    def seconds_to(self, launches: int) -> float:
        """How long it is until so many were made, as long as they took until now; on the engine's clock."""
        made = len(self._launches)
        return self._seconds / made * (launches - made)

    def length(self, seconds: float) -> str:
        """Seconds on the engine's clock for people, who wait for one of them alone."""
        return format_seconds(seconds) + (" of virtual time" if self._engine.clock is ClockKind.VIRTUAL else "")

    def _how_long(self) -> str:
        first, most = (self.length(self._seconds * count) for count in (self.at[0], self.at[-1]))
        said = f"{self.at[0]} launches like this take about {first}"
        return said if len(self.at) == 1 else f"{said}, and {self.at[-1]}, the most, {most}"

    @property
    def failed(self) -> bool:
        """Whether the last launch came to nothing."""
        return self._launches[-1].failure is not None

    async def launch(self, until: int, *, clock: Callable[[], float], observer: GateObserver) -> None:
        """Make launches until there are so many, or one fails."""
        order = self._order
        for place, name in enumerate(self._sides[len(self._launches) : until], start=len(self._launches) + 1):
            side = order.candidate if name is GateSideName.CANDIDATE else order.against
            observer.launch_started(place, until, side)
            begun = clock()
            run, launch = await launch_of(
                order, self._engine, place, name, self._windows, clock=clock, observer=observer
            )
            self._launches.append(launch)
            self._seconds += clock() - begun
            self._version = self._version or (run.result.facts.vllm_version if run.result.facts else None)
            self._simulated = self._simulated or run.result.simulated
            if launch.failure is not None:
                observer.note(f"launch {place} ({side.label}) failed: {launch.failure}")
                return
            if place == 1:
                observer.note(self._how_long())
            if self._windows.least != self._windows.most:
                self._windows = WindowRule.fixed(sum(is_window(level.level.name) for level in launch.levels))

    def look(self, number: int) -> tuple[Judgement, Outlook]:
        """The verdict on the launches so far, and whether more may change it."""
        order = self._order
        evidence = Evidence(
            candidate=order.candidate,
            against=order.against,
            order=self._made,
            launches=tuple(self._launches),
            slo=order.slo,
            noise=order.noise,
            rate_factor=order.rate_factor,
            same_server=order.same_server,
            lossy=order.lossy,
            studied=order.studied,
            simulated=self._simulated,
            look=Look(at=self.at, number=number),
        )
        found = judge(evidence)
        ahead = outlook(evidence, found)
        self._looks.append(GateLook(launches=len(self._launches), verdict=found.verdict, outlook=ahead.why))
        return found, ahead

    def record(self, found: Judgement, *, started_at: datetime, ended_at: datetime) -> GateRecord:
        """Everything, with the last verdict."""
        order, engine = self._order, self._engine
        return GateRecord(
            verdict=found.verdict,
            reason=found.reason,
            study=order.study,
            candidate=order.candidate,
            against=order.against,
            engine=engine.kind,
            clock=engine.clock,
            simulated=self._simulated,
            started_at=started_at,
            ended_at=ended_at,
            order=self._made,
            slo=str(order.slo) if order.slo else None,
            study_seed=order.study_seed,
            gate_seed=order.gate_seed,
            vllm_version=self._version,
            node=order.node,
            throughput_sd=found.throughput_sd,
            ttft_sd=found.ttft_sd,
            launches=tuple(self._launches),
            looks=tuple(self._looks),
            criteria=found.criteria,
            doubts=order.doubts,
        )

    @property
    def _made(self) -> str:
        return "".join(launch.side for launch in self._launches)


def order_of(launches: int, most: int) -> tuple[GateSideName, ...]:
    """ABBA, as often as there are launches for it; six are ABBAAB.

    Args:
        launches: before the first look.
        most: that may be made.

    Raises:
        InvalidOption: an odd number, or one outside 2 to `LAUNCH_LIMIT`, or fewer at most than at first.
    """
    if launches % 2 or not 2 <= launches <= LAUNCH_LIMIT:
        raise InvalidOption("--gate-launches", launches, f"an even number from 2 to {LAUNCH_LIMIT}")
    if most % 2 or not launches <= most <= LAUNCH_LIMIT:
        raise InvalidOption("--gate-most-launches", most, f"an even number from {launches} to {LAUNCH_LIMIT}")
    return tuple(map(GateSideName, ("ABBA" * most)[:most]))


def gate_seed_of(study_seed: int, candidate: GateSide, against: GateSide, used: frozenset[int], again: int = 0) -> int:
    """A seed for prompts and arrivals, the same for the same question.

    Args:
        used: seeds that trials of the study had.
        again: a further verification of the same pair has other arrivals.
    """
    count = again
    while True:
        text = f"gate {study_seed} {candidate.config.hash} {against.config.hash} {count}"
        seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")
        if seed not in used:
            return seed
        count += 1_000
