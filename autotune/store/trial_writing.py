"""Trials as they happen: the verbs that `trial_life.py` and the shell of a study write with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from sqlalchemy import func, select

from autotune.engine.base import ServerIdentity
from autotune.errors import StudyBusy
from autotune.life import Transition
from autotune.records import ClockKind, Config, Origin, Trial, TrialResult
from autotune.store import rows
from autotune.store.database import Database
from autotune.store.study_record import AttemptState
from autotune.store.tables import AttemptRow, TrialRow


class TrialWriting(Database):
    """From a trial's begin to its end; a finished one never changes."""

    def begin_trial(
        self,
        study: str,
        *,
        config: Config,
        origin: Origin,
        gpus: int,
        number: int | None = None,
        repeat_of: int | None = None,
        why: str = "",
    ) -> Trial:
        """A new trial. Numbers are 0-based and without gaps, because Optuna's numbers must equal ours.

        Args:
            number: what the caller takes for the next number; None takes whichever it is.
            why: one line that says why it is launched.

        Raises:
            StudyBusy: `number` is not the next one: another tuner is adding trials to this study.
        """
        with self._write() as session:
            # PostgreSQL has no writers' lock as SQLite has: the study's row is it, or two would take one number.
            parent = self._study(session, study, locked=True)
            count = session.scalar(select(func.count()).where(TrialRow.study_id == parent.id)) or 0
            if number not in (None, count):
                raise StudyBusy(
                    f"study {study!r} has {count} trials, so the next one is not number {number}",
                    hint="Another tuner is running this study; let it finish or end it with `autotune stop`.",
                )
            row = TrialRow(
                study_id=parent.id,
                number=count,
                config_hash=config.hash,
                config=rows.encoded(config),
                origin=origin.value,
                gpus=gpus,
                repeat_of=repeat_of,
                why=why or None,
                created_at=self._now(),
                attempts=[],
            )
            session.add(row)
            session.flush()
            return rows.trial_record(row)

    def begin_attempt(
        self,
        study: str,
        trial: int,
        *,
        directory: str | Path,
        argv: Sequence[str] = (),
        identity: ServerIdentity | None = None,
        move: Transition | None = None,
    ) -> int:
        """A launch of a trial begins; its 1-based number. `argv` must hold no secret.

        Args:
            move: of the trial's life, stored with it; the same of all verbs that take one.
        """
        with self._write() as session:
            row = self._trial(session, study, trial)
            self._refuse_finished(study, row)
            number = len(row.attempts) + 1
            attempt = AttemptRow(
                trial_id=row.id,
                number=number,
                state=AttemptState.OPEN.value,
                started_at=self._now(),
                directory=str(directory),
                argv=list(argv),
                identity=rows.encoded(identity),
                transitions=self._moves(move),
            )
            session.add(attempt)
            return number

    def record_argv(self, study: str, trial: int, attempt: int, argv: Sequence[str]) -> None:
        """The server command line, once it is known; without secrets."""
        with self._write() as session:
            self._attempt(session, study, trial, attempt).argv = list(argv)

    def record_identity(self, study: str, trial: int, attempt: int, identity: ServerIdentity) -> None:
        """How to find and reap what the attempt started; on disk before the server can hold a GPU."""
        with self._write() as session:
            self._attempt(session, study, trial, attempt).identity = rows.encoded(identity)

    def record_phase(
        self,
        study: str,
        trial: int,
        attempt: int,
        move: Transition,
        *,
        at_utc: datetime,
        elapsed_s: float,
        clock: ClockKind,
    ) -> None:
        """The attempt entered another phase, `elapsed_s` after its start on `clock`."""
        with self._write() as session:
            change = rows.transition_row(move, at_utc, elapsed_s, clock)
            change.attempt_id = self._attempt(session, study, trial, attempt).id
            session.add(change)

    def finish_trial(self, study: str, trial: int, result: TrialResult, *, move: Transition | None = None) -> Trial:
        """The trial's outcome with all its evidence, in one transaction; its open attempt ends with it.

        Raises:
            StudyBusy: the trial is finished already; a finished trial never changes, a repeat is a trial of its own.
        """
        with self._write() as session:
            row = self._trial(session, study, trial)
            self._refuse_finished(study, row)
            now = self._now()
            for attempt in row.attempts:
                if attempt.state == AttemptState.OPEN.value:
                    attempt.state, attempt.ended_at = AttemptState.ENDED.value, now
            if row.attempts:
                row.attempts[-1].transitions += self._moves(move)
            finished = replace(rows.trial_record(row), result=result)
            rows.fill_result(row, finished, result, now)
            return finished

    def fault_attempt(
        self, study: str, trial: int, attempt: int, result: TrialResult, *, move: Transition | None = None
    ) -> None:
        """The environment spoilt this attempt: keep its evidence, the trial stays to be tried again."""
        self._end(study, trial, attempt, AttemptState.FAULTED, result, move)

    def interrupt_attempt(self, study: str, trial: int, attempt: int, *, move: Transition | None = None) -> None:
        """Ctrl-C or a dead tuner ended this attempt: the trial is run again, and no retry is used up."""
        self._end(study, trial, attempt, AttemptState.INTERRUPTED, None, move)

    def _end(
        self,
        study: str,
        trial: int,
        attempt: int,
        state: AttemptState,
        result: TrialResult | None,
        move: Transition | None,
    ) -> None:
        with self._write() as session:
            row = self._attempt(session, study, trial, attempt)
            if row.state != AttemptState.OPEN.value:
                raise StudyBusy(
                    f"attempt {attempt} of trial {trial} of study {study!r} has ended already ({row.state})"
                )
            row.state, row.ended_at = state.value, self._now()
            row.result = rows.encoded(result)
            row.transitions += self._moves(move)

    def _refuse_finished(self, study: str, row: TrialRow) -> None:
        if row.result is not None:
            raise StudyBusy(
                f"trial {row.number} of study {study!r} is finished already ({row.outcome})",
                hint="Another tuner is running this study; let it finish or end it with `autotune stop`.",
            )
