"""Backends, routes, and the table that gateways serve from. Every write here takes a new revision number."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from standfast.registry.database import Database
from standfast.registry.errors import NotFound, RouteConflict, ServedNameTaken
from standfast.registry.queries_deployments import write_phase
from standfast.registry.rows import Backend, BackendState, Route, RoutingTable, StoredBackend, StoredRoute
from standfast.registry.statements import KEEP, Keep, utc_now
from standfast.registry.tables import backends, deployments, generations, revision, routes

#: The queue limit and Retry-After of a served name before its deployment has said its own.
_FIRST_POLICY = {"max_waiting": 1, "retry_after_s": 5.0}


def backend_id(generation: str, replica: int) -> str:
    """The id of a replica's backend: ``<generation id>/inference/<replica>``."""
    return f"{generation}/inference/{replica}"


def _backend_of(row: sa.Row[Any]) -> StoredBackend:
    return StoredBackend(**row._mapping)


def _route_of(row: sa.Row[Any]) -> StoredRoute:
    return StoredRoute(**row._mapping)


class RouteQueries:
    """Methods of `standfast.registry.Registry` on backends and routes."""

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
                if await _missing_generation(connection, generation):
                    raise NotFound(f"There is no generation {generation!r} for the backend {id!r}.")
                await connection.execute(sa.insert(backends).values(id=id, **values))
            return _backend_of((await connection.execute(sa.select(backends).where(backends.c.id == id))).one())

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
            if not changed:
                known = await connection.execute(sa.select(backends.c.id).where(backends.c.id == id))
                if known.one_or_none() is None:
                    raise NotFound(f"There is no backend {id!r}.")
            return changed

    async def get_backend(self, id: str) -> StoredBackend | None:
        """The backend, or None."""
        async with self._database.read() as connection:
            row = (await connection.execute(sa.select(backends).where(backends.c.id == id))).one_or_none()
            return None if row is None else _backend_of(row)

    async def list_backends(self, generation: str | None = None) -> list[StoredBackend]:
        """Backends by generation and replica."""
        query = sa.select(backends).order_by(backends.c.generation, backends.c.replica)
        if generation is not None:
            query = query.where(backends.c.generation == generation)
        async with self._database.read() as connection:
            return [_backend_of(row) for row in await connection.execute(query)]

    async def delete_backends(self, generation: str) -> None:
        """Forget every backend of a generation."""
        async with self._database.write_routing() as connection:
            await connection.execute(sa.delete(backends).where(backends.c.generation == generation))

    async def ensure_route(
        self, served_name: str, *, deployment: str, visible: bool, max_waiting: int, retry_after_s: float
    ) -> StoredRoute:
        """Make a served name known while nothing serves it yet; a route that is there already stays as it is. Raises
        `ServedNameTaken`.
        """
        async with self._database.write_routing() as connection:
            route = await _route(connection, served_name)
            if route is not None:
                _refuse_foreign(route, deployment)
                return route
            await _write_route(connection, served_name, deployment, None, visible, max_waiting, retry_after_s)
            route = await _route(connection, served_name)
            assert route is not None
            return route

    async def set_route(
        self,
        served_name: str,
        *,
        deployment: str,
        generation: str | None,
        visible: bool,
        max_waiting: int,
        retry_after_s: float,
    ) -> StoredRoute:
        """Write a route as given, wherever it pointed before (see `switch_route` for the careful way). Raises
        `ServedNameTaken`.
        """
        async with self._database.write_routing() as connection:
            route = await _route(connection, served_name)
            if route is not None:
                _refuse_foreign(route, deployment)
            await _write_route(connection, served_name, deployment, generation, visible, max_waiting, retry_after_s)
            route = await _route(connection, served_name)
            assert route is not None
            return route

    async def switch_route(
        self,
        served_name: str,
        to_generation: str,
        expect_generation: str | None,
        *,
        visible: bool | None = None,
        max_waiting: int | None = None,
        retry_after_s: float | None = None,
    ) -> int:
        """Move a deployment's traffic to another generation, if it still goes to ``expect_generation`` (None: nowhere).

        One transaction does it all: the route moves (with the policy given; None keeps what is stored), routes of the
        deployment under other served names go, ``to_generation`` is serving, the previous generation is draining, and
        the deployment names its new generation. Where the traffic already goes to ``to_generation``, nothing but the
        policy changes: a repeated call succeeds. Returns the revision at which gateways see it. Raises `NotFound`,
        `ServedNameTaken` and `RouteConflict`.
        """
        now = utc_now()
        async with self._database.write_routing() as connection:
            deployment = (
                await connection.execute(sa.select(generations.c.deployment).where(generations.c.id == to_generation))
            ).scalar_one_or_none()
            if deployment is None:
                raise NotFound(f"There is no generation {to_generation!r}.")
            held = await _route(connection, served_name)
            if held is not None:
                _refuse_foreign(held, deployment)
            own = [
                _route_of(row)
                for row in await connection.execute(sa.select(routes).where(routes.c.deployment == deployment))
            ]
            current = next((route.generation for route in own if route.generation is not None), None)
            if current not in (expect_generation, to_generation):
                raise RouteConflict(
                    f"The traffic of {served_name!r} goes to {current or 'no generation'}, "
                    f"not to {expect_generation or 'none'} as expected.",
                    current=current,
                    help="Another operation moved it meanwhile; look at `standfast status` and deploy again.",
                )
            policy = held or next(iter(own), None)
            shown = (
                await connection.execute(sa.select(deployments.c.visible).where(deployments.c.name == deployment))
            ).scalar_one()
            await _write_route(
                connection,
                served_name,
                deployment,
                to_generation,
                visible if visible is not None else policy.visible if policy else shown,
                max_waiting or (policy.max_waiting if policy else int(_FIRST_POLICY["max_waiting"])),
                retry_after_s
                if retry_after_s is not None
                else policy.retry_after_s
                if policy
                else _FIRST_POLICY["retry_after_s"],
            )
            await connection.execute(
                sa.delete(routes).where(routes.c.deployment == deployment, routes.c.served_name != served_name)
            )
            if current is not None and current != to_generation:
                await write_phase(connection, current, "draining")
            await write_phase(connection, to_generation, "serving")
            await connection.execute(
                sa.update(deployments)
                .where(deployments.c.name == deployment)
                .values(current_generation=to_generation, updated_at=now)
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

        A standing deployment without a route is listed too, with ``generation`` None: its name is known, and starting.
        """
        async with self._database.read() as connection:
            number = await _revision(connection)
            stored = [_route_of(row) for row in await connection.execute(sa.select(routes))]
            standing = (
                await connection.execute(sa.select(deployments).where(deployments.c.retired_at.is_(None)))
            ).all()
            found = [
                _backend_of(row)
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
        routed = {route.deployment for route in stored}
        for row in standing:
            if row.name not in routed and row.served_name not in table:
                table[row.served_name] = Route(
                    served_name=row.served_name,
                    deployment=row.name,
                    generation=None,
                    visible=row.visible,
                    max_waiting=int(_FIRST_POLICY["max_waiting"]),
                    retry_after_s=_FIRST_POLICY["retry_after_s"],
                    backends=(),
                )
        return RoutingTable(revision=number, routes=tuple(table[name] for name in sorted(table)))


def _refuse_foreign(route: StoredRoute, deployment: str) -> None:
    if route.deployment != deployment:
        raise ServedNameTaken(
            f"The served name {route.served_name!r} is routed to the deployment {route.deployment!r}.",
            help=f"Give {deployment!r} another served_name, or deprecate {route.deployment!r} first.",
        )


async def _missing_generation(connection: AsyncConnection, id: str) -> bool:
    return (await connection.execute(sa.select(generations.c.id).where(generations.c.id == id))).one_or_none() is None


async def _revision(connection: AsyncConnection) -> int:
    return int((await connection.execute(sa.select(revision.c.number).where(revision.c.id == 1))).scalar_one())


async def _route(connection: AsyncConnection, served_name: str) -> StoredRoute | None:
    row = (await connection.execute(sa.select(routes).where(routes.c.served_name == served_name))).one_or_none()
    return None if row is None else _route_of(row)


async def _write_route(
    connection: AsyncConnection,
    served_name: str,
    deployment: str,
    generation: str | None,
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
    if generation is not None and await _missing_generation(connection, generation):
        raise NotFound(f"There is no generation {generation!r} to route {served_name!r} to.")
    changed = await connection.execute(sa.update(routes).where(routes.c.served_name == served_name).values(**values))
    if changed.rowcount == 0:
        known = await connection.execute(sa.select(deployments.c.name).where(deployments.c.name == deployment))
        if known.one_or_none() is None:
            raise NotFound(f"There is no deployment {deployment!r} to route {served_name!r} to.")
        await connection.execute(sa.insert(routes).values(served_name=served_name, **values))
