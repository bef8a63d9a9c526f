"""Backends: the replicas as the frontend sees them. Every write here takes a new revision number."""

from typing import Any

import sqlalchemy as sa

from standfast.registry.database import Database
from standfast.registry.errors import NotFound
from standfast.registry.rows import BackendState, StoredBackend
from standfast.registry.statements import KEEP, Keep, one_or_none, utc_now
from standfast.registry.tables import backends, generations


def backend_id(generation: str, replica: int) -> str:
    """The id of a replica's backend: ``<generation id>/inference/<replica>``."""
    return f"{generation}/inference/{replica}"


def backend_of(row: sa.Row[Any]) -> StoredBackend:
    return StoredBackend(**row._mapping)


class BackendQueries:
    """Methods of `standfast.registry.Registry` on backends."""

    _database: Database

    async def put_backend(
        self,
        id: str,
        *,
        generation: str,
        replica: int,
        host: str,
        state: BackendState = "down",
        attempt: str | None = None,
        url: str | None = None,
    ) -> StoredBackend:
        """Write a backend, replacing what was known under ``id`` (see `backend_id`)."""
        values = {
            "generation": generation,
            "replica": replica,
            "host": host,
            "state": state,
            "attempt": attempt,
            "url": url,
            "updated_at": utc_now(),
        }
        async with self._database.write_routing() as connection:
            changed = await connection.execute(sa.update(backends).where(backends.c.id == id).values(**values))
            if changed.rowcount == 0:
                if await one_or_none(connection, generations, generations.c.id == generation) is None:
                    raise NotFound(f"There is no generation {generation!r} for the backend {id!r}.")
                await connection.execute(sa.insert(backends).values(id=id, **values))
            row = await one_or_none(connection, backends, backends.c.id == id)
            assert row is not None
            return backend_of(row)

    async def set_backend(
        self,
        id: str,
        state: BackendState,
        *,
        attempt: str | Keep | None = KEEP,
        url: str | Keep | None = KEEP,
        expect_attempt: str | Keep | None = KEEP,
    ) -> bool:
        """Change a backend; what is left out stays.

        With ``expect_attempt`` nothing happens unless the backend still belongs to that attempt: a late word about a
        dead attempt cannot touch its successor. Returns whether the change was made. Raises `NotFound`.
        """
        values: dict[str, Any] = {"state": state, "updated_at": utc_now()}
        if attempt is not KEEP:
            values["attempt"] = attempt
        if url is not KEEP:
            values["url"] = url
        change = sa.update(backends).where(backends.c.id == id).values(**values)
        if expect_attempt is not KEEP:
            change = change.where(backends.c.attempt.is_not_distinct_from(expect_attempt))
        async with self._database.write_routing() as connection:
            changed = (await connection.execute(change)).rowcount > 0
            if not changed and await one_or_none(connection, backends, backends.c.id == id) is None:
                raise NotFound(f"There is no backend {id!r}.")
            return changed

    async def get_backend(self, id: str) -> StoredBackend | None:
        """The backend, or None."""
        async with self._database.read() as connection:
            row = await one_or_none(connection, backends, backends.c.id == id)
            return None if row is None else backend_of(row)

    async def list_backends(self, generation: str | None = None) -> list[StoredBackend]:
        """Backends by generation and replica."""
        query = sa.select(backends).order_by(backends.c.generation, backends.c.replica)
        if generation is not None:
            query = query.where(backends.c.generation == generation)
        async with self._database.read() as connection:
            return [backend_of(row) for row in await connection.execute(query)]

    async def delete_backends(self, generation: str) -> None:
        """Forget every backend of a generation."""
        async with self._database.write_routing() as connection:
            await connection.execute(sa.delete(backends).where(backends.c.generation == generation))
