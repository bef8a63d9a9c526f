"""The connection to the database: what differs between SQLite and PostgreSQL is here and in
`standfast.registry.schema`.

Reads and writes are explicit transactions. On SQLite a write begins with ``BEGIN IMMEDIATE``: it waits for the one
write lock before it reads anything, so that two writers can never deadlock or fail with a stale snapshot.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from standfast.registry import tables
from standfast.registry.errors import RegistryError, RegistryUnavailable

#: How long a SQLite writer waits for the write lock of another process, in seconds.
BUSY_TIMEOUT_S = 10.0

_BEGIN = "standfast_begin"
_DRIVERS = {
    "sqlite": "sqlite+aiosqlite",
    "sqlite+aiosqlite": "sqlite+aiosqlite",
    "postgres": "postgresql+psycopg",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_REVISION = sa.text("SELECT number FROM revision WHERE id = 1")


def parse_url(url: str) -> sa.URL:
    """The database URL with our driver filled in (``postgresql://...`` and ``sqlite:///...`` are welcome). Raises
    `RegistryError`.
    """
    help = "Write sqlite+aiosqlite:///path/registry.db or postgresql+psycopg://user:password@host/database."
    try:
        parsed = sa.make_url(url)
    except ArgumentError:
        raise RegistryError("The registry URL cannot be read as a database URL.", help=help, exit_code=2) from None
    driver = _DRIVERS.get(parsed.drivername)
    if driver is None:
        raise RegistryError(f"The registry cannot use {parsed.drivername!r} databases.", help=help, exit_code=2)
    if driver.startswith("sqlite") and parsed.database in (None, "", ":memory:"):
        raise RegistryError("The registry needs a file: several processes share it.", help=help, exit_code=2)
    return parsed.set(drivername=driver)


class Database:
    """An engine with transactions that mean the same on both databases."""

    def __init__(self, url: str) -> None:
        self.url = parse_url(url)
        self.is_sqlite = self.url.drivername.startswith("sqlite")
        self.engine = _sqlite_engine(self.url) if self.is_sqlite else _postgresql_engine(self.url)
        # SQLite's own waiting is by polling: writers of one process queue here instead, fairly and without sleeping.
        self._writer = asyncio.Lock()
        self._poll_lock = asyncio.Lock()
        self._poll: AsyncConnection | None = None

    @property
    def shown_url(self) -> str:
        """The URL without its password."""
        return self.url.render_as_string(hide_password=True)

    @property
    def file(self) -> Path | None:
        """The database file of SQLite."""
        return Path(self.url.database) if self.is_sqlite and self.url.database else None

    async def close(self) -> None:
        """Return every connection. The object is of no use afterwards."""
        async with self._poll_lock:
            await self._drop_poll()
        await self.engine.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """A read transaction: every statement in it sees the same state of the database."""
        with self._translated():
            async with self._reader() as connection:
                yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A write transaction: committed when the block ends, rolled back when it raises."""
        with self._translated():
            async with self._write_transaction() as connection:
                yield connection

    @asynccontextmanager
    async def _reader(self) -> AsyncIterator[AsyncConnection]:
        async with self.engine.connect() as connection:
            if self.is_sqlite:
                await connection.execution_options(**{_BEGIN: "BEGIN"})
            else:
                await connection.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
            yield connection

    @asynccontextmanager
    async def _write_transaction(self) -> AsyncIterator[AsyncConnection]:
        if not self.is_sqlite:
            async with self.engine.begin() as connection:
                yield connection
            return
        async with self._writer, self.engine.connect() as connection:
            await connection.execution_options(**{_BEGIN: "BEGIN IMMEDIATE"})
            async with connection.begin():
                yield connection

    @asynccontextmanager
    async def write_routing(self) -> AsyncIterator[AsyncConnection]:
        """A write transaction on what gateways read: it takes the next revision number.

        The number is taken first: its row is the one lock that all such writers queue at, in commit order, whatever
        they touch afterwards.
        """
        async with self.write() as connection:
            await connection.execute(
                sa.update(tables.revision).where(tables.revision.c.id == 1).values(number=tables.revision.c.number + 1)
            )
            yield connection

    async def revision(self) -> int:
        """The revision number over a connection of its own, outside any transaction: well under a millisecond."""
        async with self._poll_lock:
            try:
                return await self._read_revision()
            except (OperationalError, InterfaceError):
                # The server may have been restarted since the last poll.
                await self._drop_poll()
            with self._translated():
                return await self._read_revision()

    async def _read_revision(self) -> int:
        if self._poll is not None and self._poll.invalidated:  # a poll that was cancelled
            await self._drop_poll()
        if self._poll is None:
            self._poll = await self.engine.connect()
            if not self.is_sqlite:
                await self._poll.execution_options(isolation_level="AUTOCOMMIT")
        return int((await self._poll.execute(_REVISION)).scalar_one())

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except (OperationalError, InterfaceError, PoolTimeout) as error:
            raise unavailable(self, error) from error

    async def _drop_poll(self) -> None:
        connection, self._poll = self._poll, None
        if connection is not None:
            try:
                await connection.close()
            except DBAPIError:
                await connection.invalidate()


def _sqlite_engine(url: sa.URL) -> AsyncEngine:
    # isolation_level None: the driver begins no transactions on its own; the "begin" event below does, as asked.
    engine = create_async_engine(url, connect_args={"timeout": BUSY_TIMEOUT_S, "isolation_level": None})

    @sa.event.listens_for(engine.sync_engine, "connect")
    def _configure(connection: Any, _record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA synchronous=NORMAL")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()

    @sa.event.listens_for(engine.sync_engine, "begin")
    def _begin(connection: sa.Connection) -> None:
        begin = connection.get_execution_options().get(_BEGIN)
        if begin is not None:
            connection.exec_driver_sql(begin)

    return engine


def _postgresql_engine(url: sa.URL) -> AsyncEngine:
    # A client that stops in the middle of a transaction must not hold the revision row for ever.
    return create_async_engine(
        url,
        pool_pre_ping=True,
        connect_args={
            "application_name": "standfast",
            "connect_timeout": 10,
            "options": "-c lock_timeout=15s -c idle_in_transaction_session_timeout=30s",
        },
    )


def unavailable(database: Database, error: Exception) -> RegistryUnavailable:
    """The refusal for a database that cannot be opened or does not answer."""
    cause = str(getattr(error, "orig", None) or error).strip().splitlines()
    return RegistryUnavailable(
        f"The registry at {database.shown_url} cannot be used: {cause[0] if cause else type(error).__name__}.",
        help="Check that the path is writable."
        if database.is_sqlite
        else "Check that the server runs and lets this user in.",
    )
