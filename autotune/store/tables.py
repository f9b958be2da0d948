"""Our tables. Names start with `autotune_`, because Optuna's `studies` and `trials` live in the same database.

JSON columns hold full frozen records (codec.py); the figures that people sort and filter by are real columns beside
them, written in the same transaction and never read back by us.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    MetaData,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, relationship

from autotune.store.table_names import STUDIES, TRIALS


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, always UTC; SQLite drops time zones, so they are put back on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """To UTC; naive for SQLite, which would otherwise store an offset that comparisons ignore."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError(f"{value!r} has no time zone; the store holds UTC")
        utc = value.astimezone(UTC)
        return utc.replace(tzinfo=None) if dialect.name == "sqlite" else utc

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:  # noqa: ARG002 - SQLAlchemy's signature
        """Aware, in UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Base(DeclarativeBase):
    """Constraint names are fixed, so that a later migration can name what it alters."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_N_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: JSON(none_as_null=True),
        list[Any]: JSON(none_as_null=True),
        datetime: UtcDateTime(),
        float: Double(),
    }


class StudyRow(Base):
    """A study: the question, and where it stands."""

    __tablename__ = STUDIES

    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(200), unique=True)
    created_at: Mapped[datetime]
    seed: Mapped[int] = mapped_column(BigInteger)
    engine: Mapped[str] = mapped_column(String(20))
    simulated: Mapped[bool]
    clock: Mapped[str] = mapped_column(String(20))
    state: Mapped[str] = mapped_column(String(20))
    target_trials: Mapped[int]
    identity: Mapped[dict[str, Any]]
    choices: Mapped[list[Any]]
    spec: Mapped[dict[str, Any]]
    load_plan: Mapped[dict[str, Any] | None]


class TrialRow(Base):
    """A trial; `result` (without its measurements, which are rows) is NULL while it runs."""

    __tablename__ = TRIALS
    __table_args__ = (UniqueConstraint("study_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_studies.id", ondelete="CASCADE"))
    number: Mapped[int]
    config_hash: Mapped[str] = mapped_column(String(12), index=True)
    config: Mapped[dict[str, Any]]
    origin: Mapped[str] = mapped_column(String(20))
    gpus: Mapped[int]
    repeat_of: Mapped[int | None]
    why: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime]
    finished_at: Mapped[datetime | None]
    outcome: Mapped[str | None] = mapped_column(String(20))
    failure_class: Mapped[str | None] = mapped_column(String(40))
    output_tok_s: Mapped[float | None]
    output_tok_s_per_gpu: Mapped[float | None]
    ttft_p95_s: Mapped[float | None]
    result: Mapped[dict[str, Any] | None]

    attempts: Mapped[list[AttemptRow]] = relationship(order_by="AttemptRow.number", back_populates="trial")
    measurements: Mapped[list[MeasurementRow]] = relationship(order_by="MeasurementRow.position")


class AttemptRow(Base):
    """One launch of a trial. A row in state `open` whose tuner is dead is what a kill -9 leaves."""

    __tablename__ = "autotune_attempts"
    __table_args__ = (UniqueConstraint("trial_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("autotune_trials.id", ondelete="CASCADE"))
    number: Mapped[int]
    state: Mapped[str] = mapped_column(String(20), index=True)
    started_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    directory: Mapped[str] = mapped_column(Text)
    argv: Mapped[list[Any]]
    identity: Mapped[dict[str, Any] | None]
    result: Mapped[dict[str, Any] | None]

    trial: Mapped[TrialRow] = relationship(back_populates="attempts")
    transitions: Mapped[list[TransitionRow]] = relationship(order_by="TransitionRow.id")


class TransitionRow(Base):
    """A move of the trial's life (`life.py`) that belongs to this attempt; `elapsed_s` only where a phase began."""

    __tablename__ = "autotune_transitions"

    id: Mapped[int] = mapped_column(primary_key=True)
    attempt_id: Mapped[int] = mapped_column(ForeignKey("autotune_attempts.id", ondelete="CASCADE"), index=True)
    before: Mapped[str] = mapped_column(String(20))
    event: Mapped[str] = mapped_column(String(20))
    after: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str | None] = mapped_column(String(40))
    at_utc: Mapped[datetime]
    elapsed_s: Mapped[float | None]
    clock: Mapped[str | None] = mapped_column(String(20))


class MeasurementRow(Base):
    """One load level of a trial; `record` is the full Measurement."""

    __tablename__ = "autotune_measurements"
    __table_args__ = (UniqueConstraint("trial_id", "position"),)

    id: Mapped[int] = mapped_column(primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("autotune_trials.id", ondelete="CASCADE"))
    position: Mapped[int]
    level: Mapped[str] = mapped_column(String(100))
    role: Mapped[str] = mapped_column(String(20))
    clock: Mapped[str] = mapped_column(String(20))
    completed: Mapped[int]
    failed: Mapped[int]
    output_tok_s: Mapped[float | None]
    request_rps: Mapped[float | None]
    ttft_p95_s: Mapped[float | None]
    tpot_p95_s: Mapped[float | None]
    record: Mapped[dict[str, Any]]


class PromotionRow(Base):
    """A pick rendered for production."""

    __tablename__ = "autotune_promotions"

    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_studies.id", ondelete="CASCADE"), index=True)
    trial_number: Mapped[int]
    created_at: Mapped[datetime]
    targets: Mapped[list[Any]]
    directory: Mapped[str] = mapped_column(Text)
    simulated: Mapped[bool]
    details: Mapped[dict[str, Any]]
