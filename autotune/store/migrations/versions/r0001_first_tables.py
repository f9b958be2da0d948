"""The first tables: studies, trials, attempts, phase changes, measurements, promotions.

Revision: 0001.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """To this revision."""
    op.create_table(
        "autotune_studies",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(length=200), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("seed", sa.BigInteger(), nullable=False),
        sa.Column("engine", sa.String(length=20), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("clock", sa.String(length=20), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("target_trials", sa.Integer(), nullable=False),
        sa.Column("identity", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("choices", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("spec", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("load_plan", sa.JSON(none_as_null=True), nullable=True),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_studies")),
        sa.UniqueConstraint("name", name=op.f("uq_autotune_studies_name")),
    )
    op.create_table(
        "autotune_promotions",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("trial_number", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("targets", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("simulated", sa.Boolean(), nullable=False),
        sa.Column("details", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["study_id"], ["autotune_studies.id"], name=op.f("fk_autotune_promotions_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_promotions")),
    )
    op.create_index(op.f("ix_autotune_promotions_study_id"), "autotune_promotions", ["study_id"], unique=False)
    op.create_table(
        "autotune_trials",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("study_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("config_hash", sa.String(length=12), nullable=False),
        sa.Column("config", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("origin", sa.String(length=20), nullable=False),
        sa.Column("gpus", sa.Integer(), nullable=False),
        sa.Column("repeat_of", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("finished_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("outcome", sa.String(length=20), nullable=True),
        sa.Column("failure_class", sa.String(length=40), nullable=True),
        sa.Column("output_tok_s", sa.Double(), nullable=True),
        sa.Column("output_tok_s_per_gpu", sa.Double(), nullable=True),
        sa.Column("ttft_p95_s", sa.Double(), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["study_id"], ["autotune_studies.id"], name=op.f("fk_autotune_trials_study_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_trials")),
        sa.UniqueConstraint("study_id", "number", name=op.f("uq_autotune_trials_study_id_number")),
    )
    op.create_index(op.f("ix_autotune_trials_config_hash"), "autotune_trials", ["config_hash"], unique=False)
    op.create_table(
        "autotune_attempts",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(length=20), nullable=False),
        sa.Column("started_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("ended_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column("directory", sa.Text(), nullable=False),
        sa.Column("argv", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("identity", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("result", sa.JSON(none_as_null=True), nullable=True),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["autotune_trials.id"], name=op.f("fk_autotune_attempts_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_attempts")),
        sa.UniqueConstraint("trial_id", "number", name=op.f("uq_autotune_attempts_trial_id_number")),
    )
    op.create_index(op.f("ix_autotune_attempts_state"), "autotune_attempts", ["state"], unique=False)
    op.create_table(
        "autotune_measurements",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("trial_id", sa.Integer(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("level", sa.String(length=100), nullable=False),
        sa.Column("role", sa.String(length=20), nullable=False),
        sa.Column("clock", sa.String(length=20), nullable=False),
        sa.Column("completed", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("output_tok_s", sa.Double(), nullable=True),
        sa.Column("request_rps", sa.Double(), nullable=True),
        sa.Column("ttft_p95_s", sa.Double(), nullable=True),
        sa.Column("tpot_p95_s", sa.Double(), nullable=True),
        sa.Column("record", sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ["trial_id"], ["autotune_trials.id"], name=op.f("fk_autotune_measurements_trial_id"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_autotune_measurements")),
        sa.UniqueConstraint("trial_id", "position", name=op.f("uq_autotune_measurements_trial_id_position")),
    )
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


def downgrade() -> None:
    """Back to an empty database."""
    op.drop_index(op.f("ix_autotune_phase_changes_attempt_id"), table_name="autotune_phase_changes")
    op.drop_table("autotune_phase_changes")
    op.drop_table("autotune_measurements")
    op.drop_index(op.f("ix_autotune_attempts_state"), table_name="autotune_attempts")
    op.drop_table("autotune_attempts")
    op.drop_index(op.f("ix_autotune_trials_config_hash"), table_name="autotune_trials")
    op.drop_table("autotune_trials")
    op.drop_index(op.f("ix_autotune_promotions_study_id"), table_name="autotune_promotions")
    op.drop_table("autotune_promotions")
    op.drop_table("autotune_studies")
