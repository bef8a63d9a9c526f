"""Leases: who holds which GPUs, ports and memory of a host."""

from collections.abc import Callable, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from standfast.registry.database import Database
from standfast.registry.errors import RegistryError
from standfast.registry.placement import LeaseRequest, answers, place, reservation_of
from standfast.registry.rows import Reservation, StoredLease
from standfast.registry.statements import utc_now
from standfast.registry.tables import leases


def _lease_of(row: sa.Row[Any]) -> StoredLease:
    return StoredLease(**row._mapping)


class LeaseQueries:
    """Methods of `standfast.registry.Registry` on leases."""

    _database: Database

    async def reserve(
        self,
        *,
        host: str,
        owner: str,
        generation: str,
        gpus: int = 0,
        gpu_candidates: Sequence[int] = (),
        memory_bytes: int = 0,
        memory_total: int | None = None,
        port_spans: Sequence[int] = (),
        port_free: Callable[[int, int], bool] | None = None,
    ) -> Reservation:
        """Reserve all of it for ``owner`` (an attempt's name), or nothing.

        ``gpus`` of the ``gpu_candidates`` (indices, best first); ``memory_bytes`` so that the host's owners together
        stay within ``memory_total``; one span of consecutive ports per number in ``port_spans``, each where
        ``port_free(base, count)`` agrees (it is called inside the transaction: keep it short). An owner that holds a
        reservation gets the same one again. Raises `CapacityError`, and `RegistryError` where the owner holds something
        else than it asks for now.
        """
        request = LeaseRequest(
            host=host,
            owner=owner,
            generation=generation,
            gpus=gpus,
            gpu_candidates=tuple(gpu_candidates),
            memory_bytes=memory_bytes,
            memory_total=memory_total,
            port_spans=tuple(port_spans),
            port_free=port_free,
        )
        async with self._database.write() as connection:
            if not self._database.is_sqlite:
                # Reservations decide over all leases of a host: one at a time. Reads and releases go on meanwhile.
                await connection.execute(sa.text("LOCK TABLE leases IN SHARE ROW EXCLUSIVE MODE"))
            own = await _leases(connection, leases.c.owner == owner)
            if own:
                if not answers(request, own):
                    raise RegistryError(
                        f"{owner} already holds another reservation than the one it asks for.",
                        help="An attempt reserves once; release it first, or start a new attempt.",
                    )
                return reservation_of(owner, own)
            held = await _leases(connection, leases.c.host == host)
            now = utc_now()
            await connection.execute(
                sa.insert(leases),
                [
                    {
                        "host": host,
                        "kind": lease.kind,
                        "resource": lease.resource,
                        "count": lease.count,
                        "position": lease.position,
                        "owner": owner,
                        "generation": generation,
                        "created_at": now,
                    }
                    for lease in place(request, held, salt=self._database.shown_url)
                ],
            )
            return reservation_of(owner, await _leases(connection, leases.c.owner == owner))

    async def release(self, owner: str) -> bool:
        """Give back all that ``owner`` holds. Returns whether it held anything."""
        async with self._database.write() as connection:
            return (await connection.execute(sa.delete(leases).where(leases.c.owner == owner))).rowcount > 0

    async def get_reservation(self, owner: str) -> Reservation | None:
        """What ``owner`` holds, or None."""
        async with self._database.read() as connection:
            own = await _leases(connection, leases.c.owner == owner)
        return reservation_of(owner, own) if own else None

    async def list_leases(self, host: str | None = None) -> list[StoredLease]:
        """Leases by host, kind and resource."""
        async with self._database.read() as connection:
            return await _leases(connection, *([] if host is None else [leases.c.host == host]))


async def _leases(connection: AsyncConnection, *where: sa.ColumnElement[bool]) -> list[StoredLease]:
    query = sa.select(leases).where(*where).order_by(leases.c.host, leases.c.kind, leases.c.resource, leases.c.owner)
    return [_lease_of(row) for row in await connection.execute(query)]
