"""What the gateway needs of the registry, and nothing else of it."""

from collections.abc import Collection, Mapping
from typing import Protocol

from standfast.registry.rows import RoutingTable


class RouteSource(Protocol):
    """Routes and keys in, heartbeats out. Every method may raise when the registry is out of reach; the gateway
    serves on with what it knows.
    """

    async def revision(self) -> int:
        """The number that changes with every change of a deployment, route, backend or key."""
        ...

    async def routing_table(self) -> RoutingTable:
        """All routes as of one revision."""
        ...

    async def active_key_hashes(self) -> Collection[str]:
        """SHA-256 of each key that is not revoked, as hexadecimal digits."""
        ...

    async def gateway_beat(self, id: str, *, url: str, revision_seen: int, inflight: Mapping[str, int]) -> object:
        """This gateway lives; it routes by ``revision_seen``, and has ``inflight`` open requests per backend id."""
        ...

    async def forget_gateway(self, id: str) -> object:
        """This gateway is gone for good."""
        ...
