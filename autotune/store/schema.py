"""Brings a database to this version's tables, and refuses one from a newer version."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config as AlembicConfig
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine

from autotune.errors import SchemaMismatch
from autotune.store.connection import WRITE, Location, translated
from autotune.store.tables import TABLE_PREFIX, VERSION_TABLE

MIGRATIONS = Path(__file__).parent / "migrations"

_MIGRATION_LOCK = 0x61757475
"""PostgreSQL has no lock on a whole database; programs that migrate meet at this number instead."""


def ours(name: str | None, kind: str, _parents: object) -> bool:
    """Whether Alembic should look at a thing of the database; Optuna's tables are none of our business."""
    return kind != "table" or (name is not None and name.startswith(TABLE_PREFIX) and name != VERSION_TABLE)


def alembic_config(connection: Connection | None = None) -> AlembicConfig:
    """Alembic's settings, without an ini file: the environment is part of the package."""
    config = AlembicConfig()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def current_revision(connection: Connection) -> str | None:
    """Our revision of a database; None when it has none of our tables."""
    return MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE}).get_current_revision()


def head_revision() -> str | None:
    """The revision of this version of the program."""
    return ScriptDirectory.from_config(alembic_config()).get_current_head()


def upgrade(engine: Engine, location: Location) -> None:
    """Create or migrate our tables, in one transaction under the write lock; cheap when nothing is to do.

    Raises:
        SchemaMismatch: the database was written by a newer version of the program.
    """
    script = ScriptDirectory.from_config(alembic_config())
    with translated(location):
        with engine.connect() as connection:
            current = current_revision(connection)
        if current == script.get_current_head():
            return
        known = {revision.revision for revision in script.walk_revisions()}
        if current is not None and current not in known:
            raise SchemaMismatch(
                f"{location.label}: was written by a newer autotune (its tables are at revision {current!r}, "
                f"this version knows up to {script.get_current_head()!r})",
                hint="Upgrade with `pip install -U vllm-autotune`, or use another database.",
            )
        # Several programs may open a new database at once: the lock makes the others wait, and Alembic reads the
        # revision again once it holds the lock.
        with engine.connect().execution_options(**WRITE) as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
            command.upgrade(alembic_config(connection), "head")
