"""Names in the database, for what must not wait until the tables are mapped to classes."""

from __future__ import annotations

VERSION_TABLE = "autotune_alembic_version"
"""Our Alembic revision; `alembic_version` belongs to Optuna, and each would refuse the other's revision in it."""

TABLE_PREFIX = "autotune_"
STUDIES = "autotune_studies"
TRIALS = "autotune_trials"
