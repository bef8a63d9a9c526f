"""Bringing a database to the schema of this release.

The usual case costs one query: the recorded revision is read with plain SQL, and Alembic is imported only when it
differs from `HEAD`.
"""

import asyncio
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, OperationalError

from standfast.registry.database import Database, unavailable
from standfast.registry.errors import RegistryError

#: The newest migration. A test holds it equal to what the migrations say.
HEAD = "0001"

MIGRATIONS = Path(__file__).parent / "migrations"
_VERSION_TABLE = "alembic_version"
#: Any constant will do: it names the lock under which PostgreSQL databases are migrated.
_ADVISORY_LOCK = 0x5354_414E_4446_5354
_WAL_DEADLINE_S = 15.0


async def ensure_schema(database: Database, *, migrate: bool) -> None:
    """Make the database ready to use.

    With ``migrate`` a missing SQLite file is created and old tables are migrated, once, however many processes open at
    a time; without it an absent or outdated schema is refused. Raises `RegistryError`.
    """
    file = database.file
    if file is not None and not file.exists():
        if not migrate:
            raise unavailable(database, FileNotFoundError("there is no such file"))
        try:
            await asyncio.to_thread(file.parent.mkdir, parents=True, exist_ok=True)
        except OSError as error:
            raise unavailable(database, error) from error
    try:
        if database.is_sqlite and migrate:
            await _use_write_ahead_log(database)
        current = await _current_revision(database)
        if current == HEAD:
            return
        _refuse_newer(database, current)
        if not migrate:
            raise RegistryError(
                f"The registry at {database.shown_url} has schema {current or '(none)'}; this release needs {HEAD}.",
                help="Start the stack once (standfast up): it migrates the registry.",
            )
        await _migrate(database)
    except (DBAPIError, OSError) as error:
        raise unavailable(database, error) from error


async def _current_revision(database: Database) -> str | None:
    async with database.engine.connect() as connection:
        return await connection.run_sync(_read_revision)


def _read_revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(_VERSION_TABLE):
        return None
    found = connection.execute(sa.text(f"SELECT version_num FROM {_VERSION_TABLE}")).scalars().all()
    return str(found[0]) if found else None


def _refuse_newer(database: Database, current: str | None) -> None:
    if current is not None and current > HEAD:
        raise RegistryError(
            f"The registry at {database.shown_url} was written by a newer Standfast: its schema is {current}, "
            f"and this release knows {HEAD}.",
            help="Use the newer release, or point STANDFAST_REGISTRY_URL at another database.",
        )


async def _use_write_ahead_log(database: Database) -> None:
    """Switch a new SQLite file to WAL. The switch does not wait for other openers by itself, so it is tried until one
    of us has done it.
    """
    deadline = asyncio.get_running_loop().time() + _WAL_DEADLINE_S
    while True:
        try:
            async with database.engine.connect() as connection:
                mode = (await connection.exec_driver_sql("PRAGMA journal_mode")).scalar_one()
                if mode != "wal":
                    await connection.exec_driver_sql("PRAGMA journal_mode=WAL")
            return
        except OperationalError as error:
            if "locked" not in str(error) or asyncio.get_running_loop().time() > deadline:
                raise
            await asyncio.sleep(0.02)


async def _migrate(database: Database) -> None:
    async with database.write() as connection:
        if not database.is_sqlite:
            # SQLite's write lock is held already; PostgreSQL needs one that exists before any table does.
            await connection.execute(sa.text("SET LOCAL lock_timeout = '120s'"))
            await connection.execute(sa.text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK})
        current = await connection.run_sync(_read_revision)
        _refuse_newer(database, current)
        if current != HEAD:
            await connection.run_sync(_upgrade)


def _upgrade(connection: sa.Connection) -> None:
    from alembic import command

    command.upgrade(alembic_config(connection), "head")


def alembic_config(connection: sa.Connection) -> Any:
    """An ``alembic.config.Config`` that migrates over ``connection``, inside its transaction."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config
