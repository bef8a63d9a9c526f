"""The registry itself: one object over one database."""

from types import TracebackType
from typing import Self

from standfast.registry.database import Database
from standfast.registry.queries_access import AccessQueries
from standfast.registry.queries_attempts import AttemptQueries
from standfast.registry.queries_backends import BackendQueries
from standfast.registry.queries_deployments import DeploymentQueries
from standfast.registry.queries_evidence import EvidenceQueries
from standfast.registry.queries_leases import LeaseQueries
from standfast.registry.queries_routes import RouteQueries
from standfast.registry.schema import ensure_schema


class Registry(
    DeploymentQueries, BackendQueries, RouteQueries, LeaseQueries, AttemptQueries, EvidenceQueries, AccessQueries
):
    """What is: deployments, generations, backends, routes, leases, attempts, images, proofs, keys and gateways.

    Every method is one transaction, committed when it returns. One object may be used by many tasks of one event loop;
    other processes and loops open their own::

        async with await Registry.open(Home.default().registry_url) as registry:
            await registry.list_deployments()
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    @classmethod
    async def open(cls, url: str, *, migrate: bool = True) -> Self:
        """Connect to the database at ``url`` (``sqlite+aiosqlite:///...`` or ``postgresql+psycopg://...``).

        With ``migrate`` the SQLite file is created and the schema brought up to date if need be, safely from several
        processes at once; without it an absent or outdated registry is refused. Raises `RegistryError`.
        """
        database = Database(url)
        try:
            await ensure_schema(database, migrate=migrate)
        except BaseException:
            await database.close()
            raise
        return cls(database)

    @property
    def url(self) -> str:
        """Where the registry is, without a password."""
        return self._database.shown_url

    async def close(self) -> None:
        """Close every connection."""
        await self._database.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        await self.close()
