"""The life of a trial as a table: events in, instructions out. Pure; trial_life.py and study.py perform them.

```
 proposed ──attempt──► waiting ─launch─► launching ─ready─► warming ─warm─► measuring ─stop─► stopping ─end─► ended
                          ▲                  └───────────────end (the start failed)──────────────────────────► │
                          │                                                                                    │
     attempt              ├── backing_off ◄──── spoilt, cured ─────────────────────────────────────────────────┤
     (the next one)       ├── halted      ◄──── fatal, refused: the study stops, and goes on once it is cured ─┤
                          └── interrupted ◄──── interrupted, lost (from any state of a running attempt) ───────┤
                                   └─forsaken─► done ◄──── measured, infeasible, abandoned, repeated, exhausted ┘
```

A pair of state and event that is not in `TABLE` is illegal and raises with the trial's story. How an attempt ended is
judged by `verdict`, what comes next for a trial without an end by `next_event`; both are bounded: see `most_launches`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum

from autotune.records import STUDY_FATAL_CLASSES, FailureClass, Outcome, Phase, TrialResult

FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0
"""Before a trial is launched again; doubled each time, because what spoils an attempt (a busy GPU) often passes."""

REPRODUCED = frozenset({FailureClass.CRASH, FailureClass.HANG})
"""Faults that count against the config once every attempt has repeated them."""

NEEDED_BY_SOME = frozenset({FailureClass.MISSING_DEPENDENCY})
"""Faults that stop a study unless another config has served: a package, say, that one attention backend needs."""

MOST_CURES = 1
"""Attempts of a trial that a removed cause (a damaged compile cache) may have spoilt without being counted."""

MOST_LOST = 10
"""Attempts that may end with a killed tuner. A config that takes the whole node down each time is given up at last,
or a supervisor that restarts the tuner would launch it for ever."""


class State(StrEnum):
    """Where a trial stands; those from `waiting` to `ended` are its running attempt's phases."""

    PROPOSED = "proposed"
    WAITING = "waiting"
    LAUNCHING = "launching"
    WARMING = "warming"
    MEASURING = "measuring"
    STOPPING = "stopping"
    ENDED = "ended"
    BACKING_OFF = "backing_off"
    INTERRUPTED = "interrupted"
    HALTED = "halted"
    DONE = "done"


RUNNING = (State.WAITING, State.LAUNCHING, State.WARMING, State.MEASURING, State.STOPPING, State.ENDED)
"""An attempt is open."""

BETWEEN = (State.PROPOSED, State.BACKING_OFF, State.INTERRUPTED, State.HALTED)
"""No attempt is open, and another one may begin."""


class Event(StrEnum):
    """What happens to a trial.

    The second group is how an attempt ends that ran to its end, the third how one is cut off.
    """

    ATTEMPT = "attempt"
    LAUNCH = "launch"
    READY = "ready"
    WARM = "warm"
    STOP = "stop"
    END = "end"

    MEASURED = "measured"
    INFEASIBLE = "infeasible"
    ABANDONED = "abandoned"
    SPOILT = "spoilt"
    CURED = "cured"
    REPEATED = "repeated"
    EXHAUSTED = "exhausted"
    FATAL = "fatal"

    REFUSED = "refused"
    INTERRUPTED = "interrupted"
    LOST = "lost"
    FORSAKEN = "forsaken"


class Instruction(StrEnum):
    """What the shell is to do, in the order given.

    run: begin the next attempt and perform it.
    keep_fault: store how the attempt failed; the trial stays open.
    keep_nothing: store that the attempt was cut off.
    back_off: wait `pause_s` before the next event.
    finish: store the trial's end and tell the sampler.
    stop_study: end the study with the remedy.
    """

    RUN = "run"
    KEEP_FAULT = "keep_fault"
    KEEP_NOTHING = "keep_nothing"
    BACK_OFF = "back_off"
    FINISH = "finish"
    STOP_STUDY = "stop_study"


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """A cell of the table."""

    after: State
    instructions: tuple[Instruction, ...] = ()


_AGAIN = Move(after=State.BACKING_OFF, instructions=(Instruction.KEEP_FAULT, Instruction.BACK_OFF))
_DONE = Move(after=State.DONE, instructions=(Instruction.FINISH,))
_CUT_OFF = Move(after=State.INTERRUPTED, instructions=(Instruction.KEEP_NOTHING,))
_REFUSED = Move(after=State.HALTED, instructions=(Instruction.KEEP_NOTHING, Instruction.STOP_STUDY))

TABLE: dict[tuple[State, Event], Move] = {
    **{(state, Event.ATTEMPT): Move(after=State.WAITING, instructions=(Instruction.RUN,)) for state in BETWEEN},
    (State.WAITING, Event.LAUNCH): Move(after=State.LAUNCHING),
    (State.WAITING, Event.END): Move(after=State.ENDED),
    (State.LAUNCHING, Event.READY): Move(after=State.WARMING),
    (State.LAUNCHING, Event.END): Move(after=State.ENDED),
    (State.WARMING, Event.WARM): Move(after=State.MEASURING),
    (State.WARMING, Event.STOP): Move(after=State.STOPPING),
    (State.MEASURING, Event.STOP): Move(after=State.STOPPING),
    (State.STOPPING, Event.END): Move(after=State.ENDED),
    (State.ENDED, Event.MEASURED): _DONE,
    (State.ENDED, Event.INFEASIBLE): _DONE,
    (State.ENDED, Event.ABANDONED): _DONE,
    (State.ENDED, Event.REPEATED): _DONE,
    (State.ENDED, Event.EXHAUSTED): _DONE,
    (State.ENDED, Event.SPOILT): _AGAIN,
    (State.ENDED, Event.CURED): _AGAIN,
    (State.ENDED, Event.FATAL): Move(after=State.HALTED, instructions=(Instruction.KEEP_FAULT, Instruction.STOP_STUDY)),
    **{(state, Event.REFUSED): _REFUSED for state in RUNNING},
    **{(state, Event.INTERRUPTED): _CUT_OFF for state in RUNNING},
    **{(state, Event.LOST): _CUT_OFF for state in RUNNING},
    (State.INTERRUPTED, Event.FORSAKEN): _DONE,
}
"""Every legal move; any other pair of state and event is refused."""

OUTCOMES: dict[Event, Outcome] = {
    Event.MEASURED: Outcome.MEASURED,
    Event.INFEASIBLE: Outcome.INFEASIBLE,
    Event.REPEATED: Outcome.INFEASIBLE,
    Event.ABANDONED: Outcome.ABANDONED,
    Event.EXHAUSTED: Outcome.FAULTED,
    Event.FORSAKEN: Outcome.FAULTED,
}
"""What a trial's outcome is when this event ends it: infeasible teaches the sampler, faulted does not."""

COUNTED = frozenset({Event.SPOILT, Event.REPEATED, Event.EXHAUSTED})
"""Faults that use up one of a trial's attempts. A fatal one does not: it was cured, or no tuner would go on."""

ENTERED: dict[Phase, Event] = {
    Phase.LAUNCHING: Event.LAUNCH,
    Phase.WARMING: Event.READY,
    Phase.MEASURING: Event.WARM,
    Phase.STOPPING: Event.STOP,
    Phase.ENDED: Event.END,
}
"""The event that a phase of an attempt begins with; `waiting` begins with the attempt itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """A move that was made; `reason` is the class of the failure, where one was the event's cause."""

    before: State
    event: Event
    after: State
    reason: FailureClass | None = None

    def __str__(self) -> str:
        why = "" if self.reason is None else f" ({self.reason})"
        return f"{self.before} -{self.event}{why}-> {self.after}"


class IllegalMove(Exception):
    """A bug of ours: an event that cannot happen where the trial stands. Carries the trial's story."""

    def __init__(self, life: Life, event: Event) -> None:
        told = "; ".join(map(str, life.story)) or "nothing"
        super().__init__(f"{event} cannot happen to a trial that is {life.state}; so far: {told}")
        self.life, self.event = life, event


@dataclass(frozen=True, slots=True, kw_only=True)
class Life:
    """A trial so far, as much of it as decides what comes next.

    Attributes:
        attempts: that were begun.
        faults: what spoilt the attempts that count, in order.
        cures: attempts that a cause spoilt which is gone.
        lost: attempts that ended with their tuner.
        story: every move.
    """

    state: State = State.PROPOSED
    attempts: int = 0
    faults: tuple[FailureClass, ...] = ()
    cures: int = 0
    lost: int = 0
    story: tuple[Transition, ...] = ()

    @classmethod
    def of(cls, story: Iterable[Transition]) -> Life:
        """The life that these stored moves led to.

        Raises:
            IllegalMove: no life of this version has such a story.
        """
        life = cls()
        for move in story:
            life = advance(life, move.event, move.reason).life
        return life

    def pause_s(self, first_s: float = FIRST_PAUSE_S) -> float:
        """How long the back-off after the latest fault is, on the engine's clock; `first_s` after the first one."""
        return min(LONGEST_PAUSE_S, first_s * 2.0 ** min(10, max(0, len(self.faults) - 1)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What an event leads to: the life from then on, the move to store, and what to do, in order."""

    life: Life
    move: Transition
    instructions: tuple[Instruction, ...]


def advance(life: Life, event: Event, reason: FailureClass | None = None) -> Step:
    """The one way forward.

    Raises:
        IllegalMove: the table does not have the pair.
    """
    found = TABLE.get((life.state, event))
    if found is None:
        raise IllegalMove(life, event)
    move = Transition(before=life.state, event=event, after=found.after, reason=reason)
    grown = replace(
        life,
        state=found.after,
        attempts=life.attempts + (event is Event.ATTEMPT),
        faults=(*life.faults, reason or FailureClass.CRASH) if event in COUNTED else life.faults,
        cures=life.cures + (event is Event.CURED),
        lost=life.lost + (event is Event.LOST),
        story=(*life.story, move),
    )
    return Step(life=grown, move=move, instructions=found.instructions)


def verdict(life: Life, result: TrialResult, *, most_attempts: int, cured: bool, proven: bool) -> Event:
    """What the end of an attempt means for its trial.

    Args:
        life: of the trial, whose attempt has ended.
        most_attempts: launches that the environment may spoil before the trial ends as faulted, at least 1.
        cured: the cause of the failure is gone already.
        proven: a server of another config has served in this study, so what this one lacks only this config needs.
    """
    match result.outcome:
        case Outcome.MEASURED:
            return Event.MEASURED
        case Outcome.INFEASIBLE:
            return Event.INFEASIBLE
        case Outcome.ABANDONED:
            return Event.ABANDONED
        case Outcome.FAULTED:
            kind = result.failure.kind if result.failure else FailureClass.CRASH
            if proven and kind in NEEDED_BY_SOME:
                return Event.INFEASIBLE
            return _fault(life, kind, most_attempts, cured=cured)


def _fault(life: Life, kind: FailureClass, most_attempts: int, *, cured: bool) -> Event:
    if kind in STUDY_FATAL_CLASSES:
        return Event.FATAL
    if cured and life.cures < MOST_CURES:
        return Event.CURED
    faults = (*life.faults, kind)
    if len(faults) < most_attempts:
        return Event.SPOILT
    same = len(faults) > 1 and set(faults) == {kind}
    return Event.REPEATED if same and kind in REPRODUCED else Event.EXHAUSTED


def next_event(life: Life) -> Event:
    """What happens next to a trial without an end and without an open attempt."""
    forsaken = life.state is State.INTERRUPTED and life.lost >= MOST_LOST
    return Event.FORSAKEN if forsaken else Event.ATTEMPT


def most_launches(most_attempts: int) -> int:
    """Launches of one trial that nobody asked for again by hand: faults that count, one cure, and lost tuners.

    On top of them come only attempts that the operator cut off (Ctrl-C, a cured cause of a stopped study).
    """
    return most_attempts + MOST_CURES + MOST_LOST
