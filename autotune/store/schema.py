"""Brings a database to this version's tables, and refuses one from a newer version."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, Engine, inspect, text

from autotune.errors import SchemaMismatch
from autotune.store.connection import WRITE, Location, translated
from autotune.store.table_names import TABLE_PREFIX, VERSION_TABLE

if TYPE_CHECKING:
    from alembic.config import Config as AlembicConfig

MIGRATIONS = Path(__file__).parent / "migrations"

HEAD = "0003"
"""The revision of this version of the program. Alembic could tell, but takes a fifth of a second to be imported and to
read the migrations, so it is asked only where there is something to migrate."""

_MIGRATION_LOCK = 0x61757475
"""PostgreSQL has no lock on a whole database; programs that migrate meet at this number instead."""


def ours(name: str | None, kind: str, _parents: object) -> bool:
    """Whether Alembic should look at a thing of the database; Optuna's tables are none of our business."""
    return kind != "table" or (name is not None and name.startswith(TABLE_PREFIX) and name != VERSION_TABLE)


def alembic_config(connection: Connection | None = None) -> AlembicConfig:
    """Alembic's settings, without an ini file: the environment is part of the package."""
    from alembic.config import Config as AlembicConfig

    config = AlembicConfig()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def current_revision(connection: Connection) -> str | None:
    """Our revision of a database; None when it has none of our tables."""
    if not inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.scalar(text(f"SELECT version_num FROM {VERSION_TABLE}"))  # noqa: S608 - a name of our own
    return None if found is None else str(found)


def upgrade(engine: Engine, location: Location, *, migrate: bool = True) -> None:
    """Create or migrate our tables, in one transaction under the write lock; cheap when nothing is to do.

    Args:
        migrate: without it nothing is created or migrated.

    Raises:
        SchemaMismatch: a newer version of the program wrote the database, or an older one, without `migrate`.
    """
    with translated(location):
        with engine.connect() as connection:
            current = current_revision(connection)
        if current == HEAD:
            return
        _migrate(engine, location, current, migrate=migrate)


def _migrate(engine: Engine, location: Location, current: str | None, *, migrate: bool) -> None:
    from alembic import command
    from alembic.script import ScriptDirectory

    script = ScriptDirectory.from_config(alembic_config())
    known = {revision.revision for revision in script.walk_revisions()}
    if current is not None and current not in known:
        raise SchemaMismatch(
            f"{location.label}: was written by a newer autotune (its tables are at revision {current!r}, "
            f"this version knows up to {HEAD!r})",
            hint="Upgrade with `pip install -U vllm-autotune`, or use another database.",
        )
    if not migrate:
        found = "has none of our tables" if current is None else f"has tables at revision {current!r}"
        raise SchemaMismatch(
            f"{location.label}: {found}, this version needs {HEAD!r}, and nothing may be written here",
            hint="`autotune list`, by whoever may write there, brings them to this version's.",
        )
    # Several programs may open a new database at once: the lock makes the others wait, and Alembic reads the revision
    # again once it holds the lock.
    with engine.connect().execution_options(**WRITE) as connection, connection.begin():
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_MIGRATION_LOCK})")
        command.upgrade(alembic_config(connection), "head")
