"""Attempts: every try to bring a replica up, kept after it ended."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

from standfast.registry.database import Database
from standfast.registry.errors import NotFound
from standfast.registry.rows import AttemptPhase, StoredAttempt
from standfast.registry.statements import KEEP, Keep, from_json, insert_if_absent, one_or_none, to_json, utc_now
from standfast.registry.tables import attempts


def _attempt_of(row: sa.Row[Any]) -> StoredAttempt:
    fields = dict(row._mapping)
    fields["failure"] = from_json(fields["failure"])
    return StoredAttempt(**fields)


class AttemptQueries:
    """Methods of `standfast.registry.Registry` on attempts."""

    _database: Database

    async def put_attempt(
        self,
        name: str,
        *,
        deployment: str,
        generation: str,
        replica: int,
        number: int,
        directory: str,
        role: str = "inference",
        phase: AttemptPhase = "launching",
    ) -> StoredAttempt:
        """Record an attempt when it begins. One that is known already is returned as it is."""
        values = {
            "name": name,
            "deployment": deployment,
            "generation": generation,
            "role": role,
            "replica": replica,
            "number": number,
            "phase": phase,
            "started_at": utc_now(),
            "directory": directory,
        }
        async with self._database.write() as connection:
            await insert_if_absent(connection, attempts, values)
            row = await one_or_none(connection, attempts, attempts.c.name == name)
            assert row is not None
            return _attempt_of(row)

    async def set_attempt(
        self, name: str, phase: AttemptPhase, *, failure: Mapping[str, Any] | Keep | None = KEEP
    ) -> StoredAttempt:
        """Move an attempt to another phase, and keep when it first became ready and when it ended.

        An attempt that ended stays so: a late word that it is ready changes nothing. Raises `NotFound`.
        """
        now = sa.literal(utc_now(), attempts.c.ended_at.type)
        values: dict[str, Any] = {"phase": phase}
        if phase == "ready":
            values["ready_at"] = sa.func.coalesce(attempts.c.ready_at, now)
        if phase == "ended":
            values["ended_at"] = sa.func.coalesce(attempts.c.ended_at, now)
        if failure is not KEEP:
            values["failure"] = to_json(failure)
        change = sa.update(attempts).where(attempts.c.name == name).values(**values)
        if phase != "ended":
            change = change.where(attempts.c.phase != "ended")
        async with self._database.write() as connection:
            await connection.execute(change)
            row = await one_or_none(connection, attempts, attempts.c.name == name)
            if row is None:
                raise NotFound(f"There is no attempt {name!r}.")
            return _attempt_of(row)

    async def get_attempt(self, name: str) -> StoredAttempt | None:
        """The attempt, or None."""
        async with self._database.read() as connection:
            row = await one_or_none(connection, attempts, attempts.c.name == name)
            return None if row is None else _attempt_of(row)

    async def list_attempts(
        self,
        *,
        deployment: str | None = None,
        generation: str | None = None,
        replica: int | None = None,
        limit: int | None = None,
    ) -> list[StoredAttempt]:
        """Attempts, newest first."""
        query = (
            sa.select(attempts)
            .order_by(attempts.c.started_at.desc(), attempts.c.number.desc(), attempts.c.name)
            .limit(limit)
        )
        if deployment is not None:
            query = query.where(attempts.c.deployment == deployment)
        if generation is not None:
            query = query.where(attempts.c.generation == generation)
        if replica is not None:
            query = query.where(attempts.c.replica == replica)
        async with self._database.read() as connection:
            return [_attempt_of(row) for row in await connection.execute(query)]
