"""Alembic environment of our tables; the connection, and its transaction, come from `store/schema.py`."""

from __future__ import annotations

from alembic import context

from autotune.store.schema import ours
from autotune.store.table_names import VERSION_TABLE
from autotune.store.tables import Base

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Base.metadata,
    version_table=VERSION_TABLE,
    include_name=ours,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
