"""Routes, and the table that gateways serve from. Every write here takes a new revision number."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from standfast.registry.database import Database
from standfast.registry.errors import NotFound, RouteConflict, ServedNameTaken
from standfast.registry.queries_backends import backend_of
from standfast.registry.queries_deployments import get_generation, write_phase
from standfast.registry.rows import Backend, Route, RoutingTable, StoredRoute
from standfast.registry.statements import one_or_none, utc_now
from standfast.registry.tables import backends, deployments, revision, routes

#: The queue limit and Retry-After of a served name before its deployment has said its own.
_FIRST_MAX_WAITING = 1
_FIRST_RETRY_AFTER_S = 5.0


def _route_of(row: sa.Row[Any]) -> StoredRoute:
    return StoredRoute(**row._mapping)


class RouteQueries:
    """Methods of `standfast.registry.Registry` on routes."""

    _database: Database

    async def switch_route(self, served_name: str, to_generation: str, expect_generation: str | None) -> int:
        """Move a deployment's traffic to another generation, if it still goes to ``expect_generation`` (None: nowhere).

        One transaction does it all: the route moves and takes the policy of the generation's endpoint plan, routes of
        the deployment under other served names go, ``to_generation`` is serving, the previous generation is draining,
        and the deployment names its new generation. Where the traffic already goes to ``to_generation``, a repeated
        call succeeds and changes nothing. Returns the revision at which gateways see it. Raises `NotFound`,
        `ServedNameTaken` and `RouteConflict`.
        """
        async with self._database.write_routing() as connection:
            generation = await get_generation(connection, to_generation)
            if generation is None or generation.record.inference is None:
                raise NotFound(f"There is no generation {to_generation!r} with an inference role.")
            deployment, endpoint = generation.deployment, generation.record.inference.endpoint
            await _refuse_retired(connection, deployment)
            held = await _route(connection, served_name)
            if held is not None:
                _refuse_foreign(held, deployment)
            current = await _routed_generation(connection, deployment)
            if current not in (expect_generation, to_generation):
                raise RouteConflict(
                    f"The traffic of {served_name!r} goes to {current or 'no generation'}, "
                    f"not to {expect_generation or 'none'} as expected.",
                    current=current,
                    help="Another operation moved it meanwhile; look at `standfast status` and deploy again.",
                )
            await connection.execute(
                sa.delete(routes).where(routes.c.deployment == deployment, routes.c.served_name != served_name)
            )
            await _write_route(
                connection,
                served_name,
                deployment,
                to_generation,
                endpoint.visible,
                endpoint.max_waiting,
                endpoint.retry_after_s,
            )
            if current is not None and current != to_generation:
                await write_phase(connection, current, "draining")
            await write_phase(connection, to_generation, "serving")
            await connection.execute(
                sa.update(deployments)
                .where(deployments.c.name == deployment)
                .values(current_generation=to_generation, updated_at=utc_now())
            )
            return await _revision(connection)

    async def delete_route(self, served_name: str) -> int:
        """Make a served name unknown to gateways, unless its deployment still stands. Returns the revision at which
        they see it.
        """
        async with self._database.write_routing() as connection:
            await connection.execute(sa.delete(routes).where(routes.c.served_name == served_name))
            return await _revision(connection)

    async def list_routes(self) -> list[StoredRoute]:
        """Routes by served name."""
        async with self._database.read() as connection:
            return [
                _route_of(row) for row in await connection.execute(sa.select(routes).order_by(routes.c.served_name))
            ]

    async def revision(self) -> int:
        """The number that grows with every change of what gateways read. Costs well under a millisecond."""
        return await self._database.revision()

    async def routing_table(self) -> RoutingTable:
        """Everything that a gateway routes by, as of one revision.

        A standing deployment whose served name has no route is listed too, with ``generation`` None: it is starting.
        """
        async with self._database.read() as connection:
            number = await _revision(connection)
            stored = [_route_of(row) for row in await connection.execute(sa.select(routes))]
            standing = (
                await connection.execute(sa.select(deployments).where(deployments.c.retired_at.is_(None)))
            ).all()
            found = [
                backend_of(row)
                for row in await connection.execute(
                    sa.select(backends)
                    .where(backends.c.generation.in_(sa.select(routes.c.generation)))
                    .order_by(backends.c.replica)
                )
            ]
        members: dict[str | None, list[Backend]] = {}
        for one in found:
            member = Backend(id=one.id, url=one.url, state=one.state, attempt=one.attempt)
            members.setdefault(one.generation, []).append(member)
        table = {
            route.served_name: Route(
                served_name=route.served_name,
                deployment=route.deployment,
                generation=route.generation,
                visible=route.visible,
                max_waiting=route.max_waiting,
                retry_after_s=route.retry_after_s,
                backends=tuple(members.get(route.generation, ())),
            )
            for route in stored
        }
        for row in standing:
            if row.served_name not in table:
                table[row.served_name] = Route(
                    served_name=row.served_name,
                    deployment=row.name,
                    generation=None,
                    visible=row.visible,
                    max_waiting=_FIRST_MAX_WAITING,
                    retry_after_s=_FIRST_RETRY_AFTER_S,
                    backends=(),
                )
        return RoutingTable(revision=number, routes=tuple(table[name] for name in sorted(table)))


def _refuse_foreign(route: StoredRoute, deployment: str) -> None:
    if route.deployment != deployment:
        raise ServedNameTaken(
            f"The served name {route.served_name!r} is routed to the deployment {route.deployment!r}.",
            help=f"Give {deployment!r} another served_name, or deprecate {route.deployment!r} first.",
        )


async def _refuse_retired(connection: AsyncConnection, deployment: str) -> None:
    """A route must not come back to life after its deployment was deprecated."""
    row = await one_or_none(connection, deployments, deployments.c.name == deployment)
    if row is None or row.retired_at is not None:
        raise NotFound(
            f"The deployment {deployment!r} {'is not recorded' if row is None else 'was deprecated'}: no route to it.",
            help="Deploy it again.",
        )


async def _revision(connection: AsyncConnection) -> int:
    return int((await connection.execute(sa.select(revision.c.number).where(revision.c.id == 1))).scalar_one())


async def _routed_generation(connection: AsyncConnection, deployment: str) -> str | None:
    """Where the traffic of a deployment goes, under whichever served name."""
    query = sa.select(routes.c.generation).where(routes.c.deployment == deployment, routes.c.generation.is_not(None))
    return (await connection.execute(query)).scalars().first()


async def _route(connection: AsyncConnection, served_name: str) -> StoredRoute | None:
    row = await one_or_none(connection, routes, routes.c.served_name == served_name)
    return None if row is None else _route_of(row)


async def _write_route(
    connection: AsyncConnection,
    served_name: str,
    deployment: str,
    generation: str,
    visible: bool,
    max_waiting: int,
    retry_after_s: float,
) -> None:
    values = {
        "deployment": deployment,
        "generation": generation,
        "visible": visible,
        "max_waiting": max_waiting,
        "retry_after_s": retry_after_s,
        "updated_at": utc_now(),
    }
    changed = await connection.execute(sa.update(routes).where(routes.c.served_name == served_name).values(**values))
    if changed.rowcount == 0:
        await connection.execute(sa.insert(routes).values(served_name=served_name, **values))
