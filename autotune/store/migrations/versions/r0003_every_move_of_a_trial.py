"""Every move of a trial's life is stored, not only the phases of its attempts.

Databases from before tell enough to write the moves down: phases, how each attempt ended, and how the trial did.

Revision: 0003.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_ENTERED = {"launching": "launch", "warming": "ready", "measuring": "warm", "stopping": "stop", "ended": "end"}
_FATAL = frozenset({"driver", "model_access", "model_unknown", "missing_dependency"})
_OWN_WHEN_REPEATED = frozenset({"crash", "hang"})

_MOVES = sa.table(
    "autotune_transitions",
    *(sa.column(name) for name in ("attempt_id", "before", "event", "after", "reason", "elapsed_s", "clock")),
    sa.column("at_utc", sa.DateTime(timezone=True)),
)
_PHASES = sa.table(
    "autotune_phase_changes",
    *(sa.column(name) for name in ("id", "attempt_id", "phase", "elapsed_s", "clock")),
    sa.column("at_utc", sa.DateTime(timezone=True)),
)
_ATTEMPTS = sa.table(
    "autotune_attempts",
    *(sa.column(name) for name in ("id", "trial_id", "number", "state")),
    sa.column("started_at", sa.DateTime(timezone=True)),
    sa.column("ended_at", sa.DateTime(timezone=True)),
    sa.column("result", sa.JSON(none_as_null=True)),
)
_TRIALS = sa.table("autotune_trials", *(sa.column(name) for name in ("id", "outcome", "failure_class")))


def upgrade() -> None:
    """To this revision; phases become moves."""
    op.create_table(
        "autotune_transitions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("before", sa.String(length=20), nullable=False),
        sa.Column("event", sa.String(length=20), nullable=False),
        sa.Column("after", sa.String(length=20), nullable=False),
        sa.Column("reason", sa.String(length=40), nullable=True),
        sa.Column("at_utc", sa.DateTime(timezone=True), nullable=False),
        sa.Column("elapsed_s", sa.Double(), nullable=True),
        sa.Column("clock", sa.String(length=20), nullable=True),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["autotune_attempts.id"],
            name=op.f("fk_autotune_transitions_attempt_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_transitions")),
    )
    op.create_index(op.f("ix_autotune_transitions_attempt_id"), "autotune_transitions", ["attempt_id"], unique=False)
    _tell()
    op.drop_index(op.f("ix_autotune_phase_changes_attempt_id"), table_name="autotune_phase_changes")
    op.drop_table("autotune_phase_changes")


def downgrade() -> None:
    """Back to phases alone."""
    op.create_table(
        "autotune_phase_changes",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("attempt_id", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(length=20), nullable=False),
        sa.Column("at_utc", sa.DateTime(timezone=True), nullable=False),
        sa.Column("elapsed_s", sa.Double(), nullable=False),
        sa.Column("clock", sa.String(length=20), nullable=False),
        sa.ForeignKeyConstraint(
            ["attempt_id"],
            ["autotune_attempts.id"],
            name=op.f("fk_autotune_phase_changes_attempt_id"),
            ondelete="CASCADE",
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_phase_changes")),
    )
    op.create_index(
        op.f("ix_autotune_phase_changes_attempt_id"), "autotune_phase_changes", ["attempt_id"], unique=False
    )
    op.execute(
        "INSERT INTO autotune_phase_changes (attempt_id, phase, at_utc, elapsed_s, clock) "
        "SELECT attempt_id, after, at_utc, elapsed_s, clock FROM autotune_transitions "
        "WHERE elapsed_s IS NOT NULL AND clock IS NOT NULL ORDER BY id"
    )
    op.drop_index(op.f("ix_autotune_transitions_attempt_id"), table_name="autotune_transitions")
    op.drop_table("autotune_transitions")


def _tell() -> None:
    connection = op.get_bind()
    phases: dict[int, list[Any]] = {}
    for phase in connection.execute(sa.select(_PHASES).order_by(_PHASES.c.id)):
        phases.setdefault(phase.attempt_id, []).append(phase)
    trials = {trial.id: trial for trial in connection.execute(sa.select(_TRIALS))}
    state: dict[int, str] = {}
    for attempt in connection.execute(sa.select(_ATTEMPTS).order_by(_ATTEMPTS.c.trial_id, _ATTEMPTS.c.number)):
        for move in _moves_of(attempt, phases.get(attempt.id, []), trials[attempt.trial_id]):
            before = state.get(attempt.trial_id, "proposed")
            connection.execute(sa.insert(_MOVES).values(attempt_id=attempt.id, before=before, **move))
            state[attempt.trial_id] = move["after"]


def _moves_of(attempt: Any, phases: list[Any], trial: Any) -> Iterator[dict[str, Any]]:
    """What happened while this attempt was the latest, but for where each move began."""
    yield {"event": "attempt", "after": "waiting", "at_utc": attempt.started_at}
    for phase in phases:
        if phase.phase in _ENTERED:
            yield {
                "event": _ENTERED[phase.phase],
                "after": phase.phase,
                "at_utc": phase.at_utc,
                "elapsed_s": phase.elapsed_s,
                "clock": phase.clock,
            }
    found = _end_of(attempt, trial)
    if found is not None:
        event, after, reason = found
        yield {"event": event, "after": after, "reason": reason, "at_utc": attempt.ended_at or attempt.started_at}


def _end_of(attempt: Any, trial: Any) -> tuple[str, str, str | None] | None:
    if attempt.state == "interrupted":
        return "interrupted", "interrupted", None
    if attempt.state == "faulted":
        failure = (attempt.result or {}).get("failure") or {}
        reason = failure.get("kind")
        if reason in _FATAL:
            return "fatal", "halted", reason
        replaced = any(fact[0] == "compile_cache_replaced" for fact in failure.get("facts") or ())
        return "cured" if replaced else "spoilt", "backing_off", reason
    if attempt.state == "ended":
        event = str(trial.outcome)
        if event == "faulted":
            event = "exhausted"
        elif event == "infeasible" and trial.failure_class in _OWN_WHEN_REPEATED:
            event = "repeated"
        return event, "done", trial.failure_class
    return None
