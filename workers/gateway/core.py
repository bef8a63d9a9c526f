"""What all connections of one gateway process share."""

import asyncio
import os
import random
from collections.abc import Callable
from typing import Protocol

import structlog

from workers.gateway.access import AccessLog
from workers.gateway.keys import KeyRing
from workers.gateway.metrics import Metrics
from workers.gateway.request import Budget
from workers.gateway.routing import Table, Target
from workers.gateway.settings import Settings
from workers.gateway.upstream import Pool

log = structlog.get_logger()


class Connection(Protocol):
    """A client connection, as the process sees it."""

    def check(self, now: float) -> None:
        """Enforce the time limits."""
        ...

    def finish(self) -> None:
        """Close as soon as nothing is open on it."""
        ...

    def drop(self) -> None:
        """Close now."""
        ...


class Core:
    """Table, keys, pools and counts. Used from one event loop only, so that a routing decision and its count are one
    step.
    """

    def __init__(self, settings: Settings, keys: KeyRing, access: AccessLog, *, gateway_id: str) -> None:
        self.settings = settings
        self.keys = keys
        self.access = access
        self.gateway_id = gateway_id
        self.metrics = Metrics()
        self.budget = Budget(settings.buffered_bytes)
        self.table = Table()
        self.confirmed_at: float | None = None
        """When the registry last confirmed the table (loop time)."""
        self.first_seen: dict[str, int] = {}
        """Generation id -> when this process first saw it ready (unix seconds)."""
        self.inflight: dict[str, int] = {}
        """Open requests per backend id, counted from the routing decision on; backends without any are absent."""
        self.held: dict[str, float] = {}
        """Backend id -> until when it is passed over, after a failed connect (loop time)."""
        self.connections: set[Connection] = set()
        self.deserted = asyncio.Event()
        """Set when the last client connection ends."""
        self.draining = False
        self.on_drained: Callable[[], None] = lambda: None
        """Called when the last request of a backend that is no longer routed to has ended."""
        self.pick = random.randrange
        self._pools: dict[str, Pool] = {}
        self._ids = 0
        self._id_prefix = f"req-{os.urandom(6).hex()}-".encode()

    def install(self, table: Table) -> None:
        """Route by ``table`` from now on. Open requests stay where they are."""
        self.table = table
        routed = {target.id: target for target in table.targets}
        for id in [id for id, pool in self._pools.items() if routed.get(id) != pool.target]:
            self._pools.pop(id).close()
        self.held = {id: until for id, until in self.held.items() if id in self._pools}

    def confirm(self, now: float) -> None:
        self.confirmed_at = now

    def table_age(self, now: float) -> float:
        """Seconds since the registry last confirmed the table; infinite before the first time."""
        return float("inf") if self.confirmed_at is None else now - self.confirmed_at

    def pool(self, target: Target) -> Pool:
        """The pool of ``target``, which the table routes to; :class:`ValueError` when its URL is of no use."""
        found = self._pools.get(target.id)
        if found is None:
            found = self._pools[target.id] = Pool(target, self.settings)
        return found

    def leave(self, connection: Connection) -> None:
        """A client connection ended."""
        self.connections.discard(connection)
        if not self.connections:
            self.deserted.set()

    def acquire(self, target: Target) -> None:
        self.inflight[target.id] = self.inflight.get(target.id, 0) + 1

    def release(self, target: Target) -> None:
        left = self.inflight[target.id] - 1
        if left:
            self.inflight[target.id] = left
            return
        del self.inflight[target.id]
        if target.id not in self._pools:
            self.on_drained()

    def hold(self, target: Target, now: float) -> bool:
        """Pass over ``target`` for a while: it could not be connected to. Returns whether this is news."""
        news = target.id not in self.held_at(now)
        self.held[target.id] = now + self.settings.hold_s
        return news

    def held_at(self, now: float) -> dict[str, float]:
        """The backends that are passed over at ``now``."""
        if self.held and min(self.held.values()) <= now:
            self.held = {id: until for id, until in self.held.items() if until > now}
        return self.held

    def new_request_id(self) -> bytes:
        self._ids += 1
        return b"%b%x" % (self._id_prefix, self._ids)

    def sweep(self, now: float) -> None:
        """Enforce time limits as of ``now`` (loop time); called about twice a second."""
        for pool in self._pools.values():
            pool.sweep(now)
        for connection in list(self.connections):
            connection.check(now)

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._pools.clear()
