"""What is dealt to a round: a fault for each attempt, and kills of the tuner. And what must come of it. Pure.

The expectations are written down here by hand, from what each fault does, and by an oracle of its own for attempts: the
program's tables are what is tested, so nothing of them is asked.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

TRIALS = 2
ATTEMPTS = 2
"""Launches that the environment may spoil, as the round's study file says."""


class End(StrEnum):
    """What one attempt with a fault comes to, as the store names it."""

    MEASURED = "measured"
    CRASH = "crash"
    HANG = "hang"
    PORT = "port_in_use"
    BUSY = "gpu_busy"
    NCCL = "nccl"
    SHM = "shared_memory"
    LOAD = "oom_at_load"
    WARMUP = "oom_at_warmup"
    UNDER_LOAD = "oom_under_load"
    DRIVER = "driver"
    ACCESS = "model_access"


SPOILT = frozenset({End.CRASH, End.HANG, End.PORT, End.BUSY, End.NCCL, End.SHM})
OWN = frozenset({End.LOAD, End.WARMUP, End.UNDER_LOAD})
FATAL = frozenset({End.DRIVER, End.ACCESS})


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One kind of misbehaviour.

    Attributes:
        faults: for AUTOTUNE_SIM_FAULT; `{socket}` is the thief's.
        ends: what an attempt may come to; more than one where the moment decides.
        tight: it is only ended by a deadline, so the round's are short.
    """

    name: str
    faults: tuple[str, ...]
    ends: frozenset[End]
    tight: bool = False


def _fault(name: str, faults: str, *ends: End, tight: bool = False) -> Fault:
    return Fault(name=name, faults=tuple(faults.split()), ends=frozenset(ends), tight=tight)


MILESTONES = ("banner", "engine", "weights", "kv", "graphs", "ready")
HEALTHY = _fault("healthy", "", End.MEASURED)

FAULTS = (
    *(_fault(f"exit-at-{at}", f"exit-at:{at}", End.CRASH) for at in MILESTONES),
    *(_fault(f"hang-at-{at}", f"hang-at:{at}", End.HANG, tight=True) for at in ("banner", "weights", "ready")),
    _fault("waiting-for-ever", "waiting-at:engine", End.HANG, tight=True),
    _fault("ignores-term", "ignore-term", End.MEASURED),
    _fault("worker-same-session", "worker", End.MEASURED),
    _fault("worker-new-session", "worker-session orphan", End.MEASURED),
    _fault("dies-leaving-orphans", "worker worker-session crash-at:kv", End.CRASH),
    _fault("dies-under-load-leaving-orphans", "worker-session crash-under-load:9", End.CRASH),
    _fault("oom-at-load", "oom-at-load", End.LOAD),
    _fault("oom-at-warmup", "oom-at-warmup worker-session", End.WARMUP),
    _fault("oom-under-load", "oom-under-load:9", End.UNDER_LOAD),
    _fault("http-500", "http-500", End.CRASH),
    _fault("http-503", "http-503", End.CRASH),
    _fault("stalls-mid-stream", "stall:2", End.HANG, tight=True),
    _fault("closes-connections", "close:2", End.CRASH),
    _fault("corrupt-log", "garbage-log", End.MEASURED),
    _fault("log-of-100-MB", "flood-log:100", End.MEASURED),
    _fault("listens-late", "late-port:1", End.MEASURED),
    _fault("listens-never", "late-port:900", End.HANG, tight=True),
    _fault("loses-its-port", "port-lost:{socket}", End.PORT),
    _fault("gpu-busy", "gpu-busy", End.BUSY),
    _fault("nccl", "nccl worker", End.NCCL),
    _fault("shared-memory", "shared-memory", End.SHM),
    _fault("driver", "driver", End.DRIVER),
    _fault("gated-model", "gated", End.ACCESS),
)

KILLED_IN = ("start", "waiting", "launching", "warming", "measuring", "stopping", "ended", "backing_off", "any")
"""Phases of a trial that a tuner is killed in; `start` before it does anything, `any` after a random time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kill:
    """One kill -9 of the tuner.

    Attributes:
        phase: of KILLED_IN.
        after_s: from there on.
        keeper_too: the keeper is killed first, with the tuner stopped, so that nothing clears up by itself.
        pause_s: before the next tuner: none, so that it meets what the keeper is still stopping, or enough.
    """

    phase: str
    after_s: float
    keeper_too: bool
    pause_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Deal:
    """One round: `faults[trial][attempt - 1]`; later attempts are healthy.

    Attributes:
        stranger: starts of a server that somebody else computes on the first GPU, from the round's begin; 0 for nobody.
    """

    number: int
    faults: tuple[tuple[Fault, ...], ...]
    kills: tuple[Kill, ...]
    stranger: float = 0.0

    @property
    def tight(self) -> bool:
        """Whether some attempt ends by a deadline only."""
        return any(fault.tight for trial in self.faults for fault in trial)

    def fault(self, trial: int, attempt: int) -> Fault:
        """Of an attempt, 1-based."""
        dealt = self.faults[trial] if trial < len(self.faults) else ()
        return dealt[attempt - 1] if attempt <= len(dealt) else HEALTHY


def deal(seed: int, number: int) -> Deal:
    """The round of this number: every fault comes by turns, and so does every phase for a kill."""
    chance = random.Random(f"{seed}/{number}")
    order = list(FAULTS)
    random.Random(f"{seed}/order/{number // len(FAULTS)}").shuffle(order)
    first = order[number % len(FAULTS)]
    second = chance.choice([first, HEALTHY, HEALTHY])  # the same again: what each attempt repeats
    # A second deadline in one round, or a second kill beside one, would take it too long.
    other = HEALTHY if first.tight or chance.random() < 0.5 else chance.choice([f for f in FAULTS if not f.tight])
    if first.tight:
        second = HEALTHY
    trials = [(first, second), (other,)]
    chance.shuffle(trials)
    kills = [
        Kill(
            phase=KILLED_IN[(number + place * 4) % len(KILLED_IN)],
            after_s=chance.choice([0.0, chance.uniform(0.0, 0.3)]),
            keeper_too=chance.random() < 0.3,
            pause_s=chance.choice([0.0, 0.0, chance.uniform(0.0, 0.4)]),
        )
        for place in range(2 if number % 3 == 0 and not first.tight else 1)
    ]
    # What waits for a stranger has time for nothing else that takes long.
    stranger = chance.uniform(0.5, 2.0) if number % 4 == 1 and len(kills) == 1 and not first.tight else 0.0
    return Deal(number=number, faults=tuple(trials), kills=tuple(kills), stranger=stranger)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An attempt as it is stored: `state` of its row, and the class of its failure; None for none."""

    state: str
    reason: str | None


def wrong(deal: Deal, trial: int, attempts: Sequence[Seen], outcome: str | None, reason: str | None) -> list[str]:
    """What of a trial's end contradicts what was dealt to it; empty where all is right.

    Args:
        outcome: of the trial; None when it has none.
        reason: class of the failure that it ended with.
    """
    found, faults = [], []
    for number, attempt in enumerate(attempts, start=1):
        dealt = deal.fault(trial, number)
        told = f"trial {trial} attempt {number} ({dealt.name})"
        if attempt.state == "interrupted":  # by a kill, whatever was dealt to it
            continue
        last = number == len(attempts)
        if last is not (attempt.state == "ended"):
            found.append(f"{told}: is {attempt.state}")
        end = (reason or "measured") if attempt.state == "ended" else attempt.reason
        if end not in dealt.ends:
            found.append(f"{told}: came to {end}, not {', '.join(sorted(dealt.ends))}")
        if end in SPOILT:
            faults.append(end)
        if (attempt.state == "faulted") is not (end in FATAL or (end in SPOILT and len(faults) < ATTEMPTS)):
            found.append(f"{told}: ended with {end}, is {attempt.state}")
    own = len(faults) == ATTEMPTS and len(set(faults)) == 1 and faults[0] in (End.CRASH, End.HANG)
    wanted = "infeasible" if reason in OWN or own else "measured" if reason is None else "faulted"
    if outcome != wanted:
        found.append(f"trial {trial}: is {outcome} with {reason} after {faults}, not {wanted}")
    return found
