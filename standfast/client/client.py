"""The Python API: the verbs of the command line, typed and async."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from standfast.client import operations
from standfast.client.connection import (
    TemporalEndpoint,
    connect_temporal,
    temporal_endpoint,
)
from standfast.client.deploys import (
    DeployHandle,
    Notice,
    Progress,
    attach,
    requester,
    start_deploy,
)
from standfast.client.errors import (
    NoSuchDeploymentError,
)
from standfast.client.logs import read_logs
from standfast.client.status import KEPT_UP, deployment_status, replicas_of
from standfast.client.views import DeploymentStatus, LogLine, RetryOutcome, ValidationOutcome
from standfast.contracts import (
    DeployResult,
    DeprecateResult,
)
from standfast.home import Home
from standfast.problems import UserError
from standfast.spec import Deployment
from standfast.stack.record import running_stack

if TYPE_CHECKING:
    from temporalio.client import Client as TemporalClient

    from standfast.client.preview import PlanComparison
    from standfast.registry import Registry, StoredDeployment, StoredGeneration

QUERIES_AT_ONCE = 16
UPDATE_TIMEOUT = timedelta(seconds=30)


class Client:
    """Deployments as a program sees them::

        async with Client.connect() as client:
            result = await client.deploy(QWEN)
            for status in await client.status():
                print(status.name, status.phase)

    Connections are made on first use: `UnreachableError` comes from the first method that needs what is not there.
    """

    def __init__(self, home: Home) -> None:
        self.home = home
        self._endpoint: TemporalEndpoint | None = None
        self._temporal: TemporalClient | None = None
        self._registry: Registry | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(cls, home: Home | Path | None = None) -> "AsyncIterator[Client]":
        """A client of the stack in ``home`` (default: ``$STANDFAST_HOME``, else ``~/.standfast``), or of the Temporal
        and registry that ``TEMPORAL_*`` and ``STANDFAST_REGISTRY_URL`` name.
        """
        chosen = Home(root=home.expanduser().absolute()) if isinstance(home, Path) else home or Home.default()
        client = cls(chosen)
        try:
            yield client
        finally:
            if client._registry is not None:
                await client._registry.close()

    # -- connections

    @property
    def endpoint(self) -> TemporalEndpoint:
        """Which Temporal this client uses. Raises `UnreachableError` when there is none."""
        if self._endpoint is None:
            self._endpoint = temporal_endpoint(self.home)
        return self._endpoint

    async def temporal(self) -> "TemporalClient":
        """The Temporal client underneath. Raises `UnreachableError`."""
        if self._temporal is None:
            self._temporal = await connect_temporal(self.endpoint, identity=requester())
        return self._temporal

    async def registry(self) -> "Registry":
        """The registry underneath. Raises `RegistryError`."""
        if self._registry is None:
            from standfast.registry import Registry

            self._registry = await Registry.open(self.home.registry_url, migrate=False)
        return self._registry

    # -- verbs

    @overload
    async def deploy(
        self,
        deployment: Deployment,
        *,
        target: str = ...,
        wait: Literal[True] = ...,
        on_progress: Progress | None = ...,
        on_notice: Notice | None = ...,
        timeout_s: float | None = ...,
        config_file: Path | None = ...,
    ) -> DeployResult: ...

    @overload
    async def deploy(
        self,
        deployment: Deployment,
        *,
        target: str = ...,
        wait: Literal[False],
        on_progress: Progress | None = ...,
        on_notice: Notice | None = ...,
        timeout_s: float | None = ...,
        config_file: Path | None = ...,
    ) -> DeployHandle: ...

    async def deploy(
        self,
        deployment: Deployment,
        *,
        target: str = "local",
        wait: bool = True,
        on_progress: Progress | None = None,
        on_notice: Notice | None = None,
        timeout_s: float | None = None,
        config_file: Path | None = None,
    ) -> DeployResult | DeployHandle:
        """Bring a deployment to what its config says; a running deploy of the same settings is joined.

        With ``wait`` returns the result, else a handle. Cancelling the wait leaves the deploy running. Raises
        `ProblemsError` (refused settings), `OperationFailedError` (a verdict), `DeployInProgressError`,
        `StillRunningError` (after ``timeout_s``), `UnreachableError`.
        """
        handle = await start_deploy(
            await self.temporal(),
            self.endpoint,
            deployment,
            target=target,
            config_file=config_file.absolute() if config_file is not None else None,
            requested_by=requester(),
        )
        if not wait:
            return handle
        return await handle.result(timeout_s=timeout_s, on_progress=on_progress, on_notice=on_notice)

    async def running_deploy(self, name: str) -> DeployHandle | None:
        """The deploy of that name that runs now."""
        return await attach(await self.temporal(), self.endpoint, name)

    async def cancel_deploy(self, name: str) -> DeployHandle:
        """Ask the running deploy to end; it takes down what it started. Raises `UserError` when none runs."""
        handle = await self.running_deploy(name)
        if handle is None:
            raise UserError(f"no deploy of {name} is running.", help=f"`standfast status {name}` shows where it is.")
        await handle.cancel()
        return handle

    async def compare(self, deployment: Deployment, *, target: str = "local") -> "PlanComparison":
        """What a deploy would change of what serves, field by field. Raises `ProblemsError`, `UnreachableError`."""
        from standfast.client.preview import compare

        # Without a stack nothing serves, whatever a registry file says.
        _ = self.endpoint
        registry = await self.registry()
        known = await registry.get_deployment(deployment.name)
        current = known.current_generation if known is not None else None
        stored = await registry.get_generation(current) if current is not None else None
        serving = stored.record if stored is not None else None
        return compare(deployment, serving, target=target, home=self.home)

    async def status(self, name: str | None = None, *, retired: bool = False) -> tuple[DeploymentStatus, ...]:
        """Where every standing deployment is, or one by name (a retired one too). Raises `NoSuchDeploymentError`."""
        temporal, registry = await self.temporal(), await self.registry()
        if name is not None:
            wanted = [await self._known(name)]
        else:
            wanted = await registry.list_deployments(retired=retired)
        stack = running_stack(self.home)
        limit = asyncio.Semaphore(QUERIES_AT_ONCE)

        async def one(deployment: "StoredDeployment") -> DeploymentStatus:
            return await deployment_status(
                registry,
                temporal,
                deployment,
                deploy=await attach(temporal, self.endpoint, deployment.name),
                gateway=stack.gateway if stack is not None else None,
                limit=limit,
            )

        return tuple(await asyncio.gather(*(one(deployment) for deployment in wanted)))

    async def retry(self, name: str, *, replica: int | None = None) -> tuple[RetryOutcome, ...]:
        """Refill the retry budget of a deployment's replicas (or of one) and try again at once. Raises `UserError` when
        none of them is being kept up.
        """
        registry = await self.registry()
        await self._known(name)
        temporal = await self.temporal()
        outcomes = [
            await operations.retry_replica(temporal, generation, number)
            for generation in await registry.list_generations(name, limit=20)
            if generation.phase in KEPT_UP
            for number in range(replicas_of(generation))
            if replica is None or number == replica
        ]
        found = tuple(outcome for outcome in outcomes if outcome is not None)
        if not found:
            which = f"replica {replica} of {name}" if replica is not None else f"no replica of {name}"
            raise UserError(
                f"{which} is {'not ' if replica is not None else ''}being kept up, so there is nothing to retry.",
                help="Deploy it again: `standfast deploy FILE`.",
                exit_code=1,
            )
        return found

    async def validate(self, name: str, *, timeout_s: float | None = None) -> ValidationOutcome:
        """Prove again that the serving generation answers. A failed proof is a report with ``passed`` False."""
        generation = await self._serving(await self._known(name))
        return await operations.validate(await self.temporal(), self.endpoint, generation, timeout_s=timeout_s)

    async def deprecate(
        self,
        name: str,
        *,
        generation: str | None = None,
        reason: str = "",
        drain_timeout_s: float = 300.0,
        timeout_s: float | None = None,
    ) -> DeprecateResult:
        """Retire a deployment (or one generation that does not serve): stop admissions, drain, stop, clean up."""
        deployment = await self._known(name)
        if generation is not None:
            generation = await operations.generation_to_retire(await self.registry(), deployment, generation)
        if await self.running_deploy(name) is not None:
            raise UserError(
                f"a deploy of {name} is running; it would bring up again what is taken down.",
                help=f"Cancel it first: `standfast deploy --cancel {name}`.",
                exit_code=1,
            )
        return await operations.deprecate(
            await self.temporal(),
            self.endpoint,
            deployment,
            generation,
            reason=reason,
            drain_timeout_s=drain_timeout_s,
            timeout_s=timeout_s,
        )

    async def logs(
        self,
        name: str,
        *,
        replica: int = 0,
        attempt: str | None = None,
        rank: int = 0,
        follow: bool = False,
        tail: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """The log of a replica's newest attempt, or of one by number or name; see `standfast.client.logs.read_logs`."""
        from standfast.platforms.local import LocalPlatform

        await self._known(name)
        platform = LocalPlatform(self.home.attempts, host="local")
        async for line in read_logs(
            await self.registry(),
            platform,
            name,
            replica=replica,
            attempt=attempt,
            rank=rank,
            follow=follow,
            tail=tail,
        ):
            yield line

    async def last_log_line(self, attempt: str) -> str:
        """What the engine of an attempt on this host wrote last; empty when there is nothing to see from here."""
        from standfast.platforms.local import LocalPlatform

        observation = await LocalPlatform(self.home.attempts, host="local").observe(attempt)
        lines = [line for line in observation.tail if line.strip()]
        return lines[-1] if lines else ""

    # -- helpers

    async def _known(self, name: str) -> "StoredDeployment":
        registry = await self.registry()
        found = await registry.get_deployment(name)
        if found is None:
            raise NoSuchDeploymentError(name, tuple(d.name for d in await registry.list_deployments()))
        return found

    async def _serving(self, deployment: "StoredDeployment") -> "StoredGeneration":
        registry = await self.registry()
        if deployment.current_generation is not None:
            found = await registry.get_generation(deployment.current_generation)
            if found is not None:
                return found
        raise UserError(
            f"no generation of {deployment.name} is serving, so there is nothing to prove.",
            help=f"`standfast status {deployment.name}` tells why; a deploy proves what it brings up.",
            exit_code=1,
        )
