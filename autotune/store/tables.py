"""Our tables. Names start with `autotune_`, because Optuna's `studies` and `trials` live in the same database.

JSON columns hold full frozen records (codec.py); the figures that people sort and filter by are real columns beside
them, written in the same transaction and never read back by us.

Each column's `doc` stands in docs/database.md. It is not SQLAlchemy's `comment`, which PostgreSQL stores: there a
better word would be a migration.
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

    id: Mapped[int] = mapped_column(primary_key=True, doc="what other tables refer to")
    name: Mapped[str] = mapped_column(String(200), unique=True, doc="of the study and of its folder")
    created_at: Mapped[datetime] = mapped_column(doc="when it was begun")
    seed: Mapped[int] = mapped_column(BigInteger, doc="of prompts, arrivals and proposals")
    engine: Mapped[str] = mapped_column(String(20), doc="`process` or `simulated`")
    simulated: Mapped[bool] = mapped_column(doc="its figures are a simulation's")
    clock: Mapped[str] = mapped_column(String(20), doc="what its durations were taken with: `wall` or `virtual`")
    state: Mapped[str] = mapped_column(
        String(20), doc="`running` (also what a killed tuner leaves), `finished`, `stopped`, `failed`"
    )
    target_trials: Mapped[int] = mapped_column(doc="trials to reach, the baseline included")
    identity: Mapped[dict[str, Any]] = mapped_column(
        doc="what makes figures comparable, each a short text (model, workload, node, ...); where it differs is refused"
    )
    choices: Mapped[list[Any]] = mapped_column(
        doc="parameters with the values they may have, in order; fixed for the study's life"
    )
    spec: Mapped[dict[str, Any]] = mapped_column(
        doc="all else that a later command reads back: node, workload, plan. Never compared"
    )
    load_plan: Mapped[dict[str, Any] | None] = mapped_column(
        doc="the two levels, per GPU used; NULL until the baseline has found them"
    )


class TrialRow(Base):
    """A trial; `result` (without its measurements, which are rows) is NULL while it runs."""

    __tablename__ = TRIALS
    __table_args__ = (UniqueConstraint("study_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True, doc="what other tables refer to")
    study_id: Mapped[int] = mapped_column(ForeignKey("autotune_studies.id", ondelete="CASCADE"), doc="its study")
    number: Mapped[int] = mapped_column(doc="as shown; 0 is the baseline")
    config_hash: Mapped[str] = mapped_column(
        String(12), index=True, doc="of `config`; launches of one config have the same"
    )
    config: Mapped[dict[str, Any]] = mapped_column(doc="flags and their values; what is left out is vLLM's own default")
    origin: Mapped[str] = mapped_column(
        String(20), doc="`baseline`, `enqueued`, `sampler`, `repeat`, `validation` or `probe`"
    )
    gpus: Mapped[int] = mapped_column(doc="GPUs that the config uses")
    repeat_of: Mapped[int | None] = mapped_column(doc="number of the trial whose config this launches again")
    why: Mapped[str | None] = mapped_column(Text, doc="the line that was shown when it was proposed")
    created_at: Mapped[datetime] = mapped_column(doc="when it was proposed")
    finished_at: Mapped[datetime | None] = mapped_column(doc="when it ended; NULL while it runs")
    outcome: Mapped[str | None] = mapped_column(
        String(20), doc="`measured`, `infeasible`, `faulted` or `abandoned`; NULL while it runs"
    )
    failure_class: Mapped[str | None] = mapped_column(String(40), doc="root cause, in the words of `autotune diagnose`")
    output_tok_s: Mapped[float | None] = mapped_column(doc="output tokens/s of the throughput level, all GPUs")
    output_tok_s_per_gpu: Mapped[float | None] = mapped_column(doc="the same over the GPUs used: the first objective")
    ttft_p95_s: Mapped[float | None] = mapped_column(doc="p95 TTFT of the ttft level in seconds: the second objective")
    result: Mapped[dict[str, Any] | None] = mapped_column(doc="the whole TrialResult but for its measurements")

    attempts: Mapped[list[AttemptRow]] = relationship(order_by="AttemptRow.number", back_populates="trial")
    measurements: Mapped[list[MeasurementRow]] = relationship(order_by="MeasurementRow.position")


class AttemptRow(Base):
    """One launch of a trial. A row in state `open` whose tuner is dead is what a kill -9 leaves."""

    __tablename__ = "autotune_attempts"
    __table_args__ = (UniqueConstraint("trial_id", "number"),)

    id: Mapped[int] = mapped_column(primary_key=True, doc="what other tables refer to")
    trial_id: Mapped[int] = mapped_column(ForeignKey("autotune_trials.id", ondelete="CASCADE"), doc="its trial")
    number: Mapped[int] = mapped_column(doc="1 for the first launch")
    state: Mapped[str] = mapped_column(
        String(20),
        index=True,
        doc="`open`, `ended`, `faulted` (counts against the retries) or `interrupted` (does not)",
    )
    started_at: Mapped[datetime] = mapped_column(doc="when it began")
    ended_at: Mapped[datetime | None] = mapped_column(doc="when it ended; NULL while it is open")
    directory: Mapped[str] = mapped_column(Text, doc="where its log and request records lie")
    argv: Mapped[list[Any]] = mapped_column(doc="the server's command line, word by word; secrets are not in it")
    identity: Mapped[dict[str, Any] | None] = mapped_column(
        doc="pid, start time, process group and marker, to find the server again"
    )
    result: Mapped[dict[str, Any] | None] = mapped_column(
        doc="how an attempt ended that was not the trial's last; else NULL"
    )

    trial: Mapped[TrialRow] = relationship(back_populates="attempts")
    transitions: Mapped[list[TransitionRow]] = relationship(order_by="TransitionRow.id")


class TransitionRow(Base):
    """A move of the trial's life (`life.py`) that belongs to this attempt; `elapsed_s` only where a phase began."""

    __tablename__ = "autotune_transitions"

    id: Mapped[int] = mapped_column(primary_key=True, doc="in the order of the moves")
    attempt_id: Mapped[int] = mapped_column(
        ForeignKey("autotune_attempts.id", ondelete="CASCADE"), index=True, doc="its attempt"
    )
    before: Mapped[str] = mapped_column(String(20), doc="state that was left")
    event: Mapped[str] = mapped_column(String(20), doc="what happened")
    after: Mapped[str] = mapped_column(String(20), doc="state that was entered")
    reason: Mapped[str | None] = mapped_column(String(40), doc="class of failure, where there was one")
    at_utc: Mapped[datetime] = mapped_column(doc="when")
    elapsed_s: Mapped[float | None] = mapped_column(doc="seconds since the attempt began, on `clock`")
    clock: Mapped[str | None] = mapped_column(String(20), doc="`wall` or `virtual`")


class MeasurementRow(Base):
    """One load level of a trial; `record` is the full Measurement."""

    __tablename__ = "autotune_measurements"
    __table_args__ = (UniqueConstraint("trial_id", "position"),)

    id: Mapped[int] = mapped_column(primary_key=True, doc="internal")
    trial_id: Mapped[int] = mapped_column(ForeignKey("autotune_trials.id", ondelete="CASCADE"), doc="its trial")
    position: Mapped[int] = mapped_column(doc="0 for the level that was driven first")
    level: Mapped[str] = mapped_column(
        String(100), doc="name of the level, as in the name of its file `level-NAME.jsonl.gz`"
    )
    role: Mapped[str] = mapped_column(String(20), doc="`ramp`, `warmup`, `throughput`, `ttft`, `goodput` or `extra`")
    clock: Mapped[str] = mapped_column(String(20), doc="`wall` or `virtual`")
    completed: Mapped[int] = mapped_column(doc="requests that succeeded")
    failed: Mapped[int] = mapped_column(doc="requests that did not")
    output_tok_s: Mapped[float | None] = mapped_column(doc="output tokens/s in the steady part")
    request_rps: Mapped[float | None] = mapped_column(doc="requests/s in the steady part")
    ttft_p95_s: Mapped[float | None] = mapped_column(doc="p95 time to the first token, seconds")
    tpot_p95_s: Mapped[float | None] = mapped_column(doc="p95 time per output token after the first, seconds")
    record: Mapped[dict[str, Any]] = mapped_column(
        doc="the whole Measurement: quantiles, intervals, caveats, what the server counted"
    )


class PromotionRow(Base):
    """A pick rendered for production."""

    __tablename__ = "autotune_promotions"

    id: Mapped[int] = mapped_column(primary_key=True, doc="in the order of promotions")
    study_id: Mapped[int] = mapped_column(
        ForeignKey("autotune_studies.id", ondelete="CASCADE"), index=True, doc="the study that it came from"
    )
    trial_number: Mapped[int] = mapped_column(doc="the trial that was promoted")
    created_at: Mapped[datetime] = mapped_column(doc="when")
    targets: Mapped[list[Any]] = mapped_column(doc="what was rendered, e.g. `kubernetes`")
    directory: Mapped[str] = mapped_column(Text, doc="where the files were written")
    simulated: Mapped[bool] = mapped_column(doc="rendered from simulated figures")
    details: Mapped[dict[str, Any]] = mapped_column(
        doc="name, version, author, reason, flags, figures, the gate's record, and the files whole"
    )
