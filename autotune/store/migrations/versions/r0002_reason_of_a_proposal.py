"""One line for every trial that says why it was launched.

Revision: 0002.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Trials from before have none."""
    op.add_column("autotune_trials", sa.Column("why", sa.Text(), nullable=True))


def downgrade() -> None:
    """Back to trials without it."""
    op.drop_column("autotune_trials", "why")
