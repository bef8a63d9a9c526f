"""Deployments and their generations."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from standfast.plans.records import Generation
from standfast.plans.stored import read_generation
from standfast.registry.database import Database
from standfast.registry.errors import NotFound, RegistryError, ServedNameTaken
from standfast.registry.rows import GenerationPhase, StoredDeployment, StoredGeneration
from standfast.registry.statements import from_json, insert_if_absent, one_or_none, to_json, utc_now
from standfast.registry.tables import deployments, generations, routes


def deployment_of(row: sa.Row[Any]) -> StoredDeployment:
    return StoredDeployment(**row._mapping)


def generation_of(row: sa.Row[Any]) -> StoredGeneration:
    fields = dict(row._mapping)
    fields["record"] = read_generation(fields["record"])
    fields["failure"] = from_json(fields["failure"])
    return StoredGeneration(**fields)


class DeploymentQueries:
    """Methods of `standfast.registry.Registry` on deployments and generations."""

    _database: Database

    async def put_deployment(
        self, name: str, *, served_name: str, target: str, visible: bool = True
    ) -> StoredDeployment:
        """Record that a deployment is wanted; a retired one stands again. Raises `ServedNameTaken`."""
        now = utc_now()
        async with self._database.write_routing() as connection:
            holder = (
                await connection.execute(
                    sa.select(deployments.c.name).where(
                        deployments.c.served_name == served_name,
                        deployments.c.retired_at.is_(None),
                        deployments.c.name != name,
                    )
                )
            ).scalar_one_or_none()
            if holder is not None:
                raise ServedNameTaken(
                    f"The served name {served_name!r} belongs to the deployment {holder!r}.",
                    help=f"Give {name!r} another served_name, or deprecate {holder!r} first.",
                )
            values = {"served_name": served_name, "target": target, "visible": visible, "updated_at": now}
            if await _deployment(connection, name) is None:
                await connection.execute(sa.insert(deployments).values(name=name, created_at=now, **values))
            else:
                await connection.execute(
                    sa.update(deployments).where(deployments.c.name == name).values(retired_at=None, **values)
                )
            stored = await _deployment(connection, name)
            assert stored is not None
            return stored

    async def get_deployment(self, name: str) -> StoredDeployment | None:
        """The deployment, or None."""
        async with self._database.read() as connection:
            return await _deployment(connection, name)

    async def list_deployments(self, *, retired: bool = False) -> list[StoredDeployment]:
        """The standing deployments by name; with ``retired`` also those that were deprecated."""
        query = sa.select(deployments).order_by(deployments.c.name)
        if not retired:
            query = query.where(deployments.c.retired_at.is_(None))
        async with self._database.read() as connection:
            return [deployment_of(row) for row in await connection.execute(query)]

    async def retire_deployment(self, name: str) -> None:
        """Record that a deployment is no longer wanted: its routes go, its served name is free again. Raises
        `NotFound`.
        """
        now = utc_now()
        async with self._database.write_routing() as connection:
            changed = await connection.execute(
                sa.update(deployments)
                .where(deployments.c.name == name)
                .values(
                    current_generation=None,
                    updated_at=now,
                    retired_at=sa.func.coalesce(
                        deployments.c.retired_at, sa.literal(now, deployments.c.retired_at.type)
                    ),
                )
            )
            if changed.rowcount == 0:
                raise NotFound(f"There is no deployment {name!r}.", help="`standfast status` lists them.")
            await connection.execute(sa.delete(routes).where(routes.c.deployment == name))

    async def put_generation(self, generation: Generation, phase: GenerationPhase = "preparing") -> StoredGeneration:
        """Keep a generation. Its deployment must be recorded.

        One that is known already keeps its phase (a repeated call changes nothing), except that a retired or failed one
        starts again with ``phase``. Raises `RegistryError`.
        """
        now = utc_now()
        async with self._database.write() as connection:
            if await _deployment(connection, generation.deployment) is None:
                raise NotFound(f"There is no deployment {generation.deployment!r} to keep {generation.id} for.")
            await insert_if_absent(
                connection,
                generations,
                {
                    "id": generation.id,
                    "deployment": generation.deployment,
                    "digest": generation.digest,
                    "record": generation.model_dump_json(),
                    "phase": phase,
                    "created_at": now,
                    "updated_at": now,
                },
            )
            known = await get_generation(connection, generation.id)
            assert known is not None
            if known.digest != generation.digest:
                raise RegistryError(
                    f"{generation.id} is another generation already: {known.digest}, not {generation.digest}.",
                    help="Change anything in the deployment, its description for example.",
                )
            if known.phase not in ("retired", "failed") or known.phase == phase:
                return known
            await connection.execute(
                sa.update(generations)
                .where(generations.c.id == generation.id)
                .values(phase=phase, failure=None, updated_at=now)
            )
            again = await get_generation(connection, generation.id)
            assert again is not None
            return again

    async def get_generation(self, id: str) -> StoredGeneration | None:
        """The generation, or None."""
        async with self._database.read() as connection:
            return await get_generation(connection, id)

    async def list_generations(
        self, deployment: str | None = None, *, limit: int | None = None
    ) -> list[StoredGeneration]:
        """Generations, newest first."""
        query = sa.select(generations).order_by(generations.c.created_at.desc(), generations.c.id).limit(limit)
        if deployment is not None:
            query = query.where(generations.c.deployment == deployment)
        async with self._database.read() as connection:
            return [generation_of(row) for row in await connection.execute(query)]

    async def set_generation_phase(
        self, id: str, phase: GenerationPhase, failure: Mapping[str, Any] | None = None
    ) -> None:
        """Move a generation to another phase, with the failure that caused it, if any. Raises `NotFound`."""
        async with self._database.write() as connection:
            await write_phase(connection, id, phase, failure)


async def write_phase(
    connection: AsyncConnection, id: str, phase: GenerationPhase, failure: Mapping[str, Any] | None = None
) -> None:
    """Set the phase of a generation within a transaction. Raises `NotFound`."""
    changed = await connection.execute(
        sa.update(generations)
        .where(generations.c.id == id)
        .values(phase=phase, failure=to_json(failure), updated_at=utc_now())
    )
    if changed.rowcount == 0:
        raise NotFound(f"There is no generation {id!r}.")


async def _deployment(connection: AsyncConnection, name: str) -> StoredDeployment | None:
    row = await one_or_none(connection, deployments, deployments.c.name == name)
    return None if row is None else deployment_of(row)


async def get_generation(connection: AsyncConnection, id: str) -> StoredGeneration | None:
    """The generation within a transaction, or None."""
    row = await one_or_none(connection, generations, generations.c.id == id)
    return None if row is None else generation_of(row)
