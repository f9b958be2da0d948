"""A trial's life as it is kept: each event moves the table of life.py, and the move is on disk before anything else."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from autotune.engine.remedies import remedies_for
from autotune.life import ENTERED, MOST_LOST, OUTCOMES, Event, Instruction, Life, State, Step, advance
from autotune.records import ClockKind, Failure, FailureClass, Outcome, Phase, Trial, TrialResult
from autotune.store.repository import Store


class TrialLife:
    """One trial of a study, as far as it has come.

    Attributes:
        life: what decides what comes next.
        attempt: 1-based number of the latest attempt; 0 before the first.
    """

    def __init__(self, store: Store, study: str, trial: int) -> None:
        """Read it from the store; a trial that was just begun has no attempt yet."""
        attempts = store.attempts(study, trial)
        self._store, self._study, self._trial = store, study, trial
        self.life = Life.of(found.move for attempt in attempts for found in attempt.transitions)
        self.attempt = len(attempts)

    @property
    def done(self) -> bool:
        """Whether the trial has its end."""
        return self.life.state is State.DONE

    def begin(self, directory: Path) -> None:
        """The next attempt begins; its files go to `directory`."""
        step = advance(self.life, Event.ATTEMPT)
        self.attempt = self._store.begin_attempt(self._study, self._trial, directory=directory, move=step.move)
        self.life = step.life

    def enter(self, phase: Phase, elapsed_s: float, clock: ClockKind) -> None:
        """The attempt enters a phase, `elapsed_s` after its start; an attempt that begins is `waiting` already."""
        event = ENTERED.get(phase)
        if event is None:
            return
        step = advance(self.life, event)
        at = datetime.now(UTC)
        self._store.record_phase(
            self._study, self._trial, self.attempt, step.move, at_utc=at, elapsed_s=elapsed_s, clock=clock
        )
        self.life = step.life

    def end(self, event: Event, result: TrialResult) -> tuple[tuple[Instruction, ...], Trial | None]:
        """The attempt has ended with `result`, which means `event`.

        Returns:
            What is left to do, in order, and the trial where it has its end.
        """
        step = advance(self.life, event, result.failure.kind if result.failure else None)
        finished = None
        for instruction in step.instructions:
            if instruction is Instruction.FINISH:
                final = replace(result, outcome=OUTCOMES[event])
                finished = self._store.finish_trial(self._study, self._trial, final, move=step.move)
            elif instruction is Instruction.KEEP_FAULT:
                self._store.fault_attempt(self._study, self._trial, self.attempt, result, move=step.move)
        return self._done(step), finished

    def cut_off(self, event: Event) -> tuple[Instruction, ...]:
        """The attempt did not come to its end: interrupted, refused or lost; what is left to do."""
        step = advance(self.life, event)
        self._store.interrupt_attempt(self._study, self._trial, self.attempt, move=step.move)
        return self._done(step)

    def _done(self, step: Step) -> tuple[Instruction, ...]:
        self.life = step.life
        kept = {Instruction.KEEP_FAULT, Instruction.KEEP_NOTHING}
        return tuple(instruction for instruction in step.instructions if instruction not in kept)


def forsaken(clock: ClockKind, *, simulated: bool) -> TrialResult:
    """The end of a trial whose tuner was killed in each of too many attempts."""
    kind = FailureClass.CRASH
    failure = Failure(
        kind=kind,
        line=f"the tuner itself was killed in {MOST_LOST} attempts of this trial, so it is launched no more",
        remedies=(
            "Look for what ends the tuner: the kernel's OOM killer (`dmesg`), a reset of the node, a job limit.",
            *remedies_for(kind, {}),
        ),
    )
    return TrialResult(outcome=Outcome.FAULTED, clock=clock, simulated=simulated, failure=failure)
