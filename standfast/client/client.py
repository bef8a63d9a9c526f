"""The Python API: the verbs of the command line, typed and async."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Literal, overload

from standfast.client.connection import (
    TemporalEndpoint,
    UnreachableError,
    connect_temporal,
    temporal_endpoint,
)
from standfast.client.deploys import (
    QUERY_TIMEOUT,
    DeployHandle,
    Notice,
    Progress,
    attach,
    requester,
    search_attributes,
    start_deploy,
)
from standfast.client.errors import (
    NoSuchDeploymentError,
    StillRunningError,
    operation_error,
)
from standfast.client.logs import read_logs
from standfast.client.status import KEPT_UP, deployment_status, replicas_of
from standfast.client.views import DeploymentStatus, LogLine, RetryOutcome, ValidationOutcome
from standfast.contracts import (
    DEPRECATE,
    TASK_QUEUE,
    VALIDATE,
    DeployResult,
    DeprecateInput,
    DeprecateResult,
    ProofReport,
    ReplicaStatus,
    RetryRequest,
    ValidateInput,
    deprecate_id,
    retry_id,
    validate_id,
)
from standfast.home import Home
from standfast.problems import UserError
from standfast.spec import Deployment
from standfast.stack.record import running_stack

if TYPE_CHECKING:
    from temporalio.client import Client as TemporalClient
    from temporalio.client import WorkflowHandle

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
        outcomes = [
            await self._retry_replica(generation, number)
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
        from temporalio.client import WorkflowFailureError
        from temporalio.common import WorkflowIDConflictPolicy

        temporal = await self.temporal()
        deployment = await self._known(name)
        generation = await self._serving(deployment)
        assert generation.record.inference_hash is not None
        start = ValidateInput(
            generation=generation.id,
            deployment=name,
            target=deployment.target,
            inference_hash=generation.record.inference_hash,
            validation=generation.record.validation,
            replicas=tuple(range(replicas_of(generation))),
            requested_by=requester(),
        )
        handle: WorkflowHandle[object, ProofReport] = await temporal.start_workflow(
            VALIDATE,
            start,
            id=validate_id(generation.id),
            task_queue=TASK_QUEUE,
            result_type=ProofReport,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            memo={"requested_by": start.requested_by},
            static_summary=f"Prove {generation.id}",
            search_attributes=search_attributes(
                deployment=name,
                generation=generation.id,
                role="inference",
                target=deployment.target,
                phase="validating",
            ),
            rpc_timeout=QUERY_TIMEOUT,
        )
        url = self.endpoint.workflow_url(handle.id, handle.result_run_id)
        try:
            async with asyncio.timeout(timeout_s):
                return ValidationOutcome(report=await handle.result(), workflow_url=url)
        except TimeoutError:
            raise StillRunningError("validate", name, timeout_s or 0.0) from None
        except WorkflowFailureError as error:
            raise operation_error(error, operation="validate", deployment=name, workflow_url=url) from None

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
        from temporalio.client import WorkflowFailureError
        from temporalio.common import WorkflowIDConflictPolicy

        temporal = await self.temporal()
        deployment = await self._known(name)
        if generation is not None:
            generation = await self._generation_to_retire(deployment, generation)
        if await self.running_deploy(name) is not None:
            raise UserError(
                f"a deploy of {name} is running; it would bring up again what is taken down.",
                help=f"Cancel it first: `standfast deploy --cancel {name}`.",
                exit_code=1,
            )
        subject = generation or name
        start = DeprecateInput(
            deployment=name,
            generation=generation,
            target=deployment.target,
            reason=reason,
            drain_timeout_s=drain_timeout_s,
            requested_by=requester(),
        )
        handle: WorkflowHandle[object, DeprecateResult] = await temporal.start_workflow(
            DEPRECATE,
            start,
            id=deprecate_id(subject),
            task_queue=TASK_QUEUE,
            result_type=DeprecateResult,
            id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
            memo={"requested_by": start.requested_by, "reason": reason},
            static_summary=f"Retire {subject}",
            search_attributes=search_attributes(deployment=name, target=deployment.target, phase="draining"),
            rpc_timeout=QUERY_TIMEOUT,
        )
        url = self.endpoint.workflow_url(handle.id, handle.result_run_id)
        try:
            async with asyncio.timeout(timeout_s):
                return await handle.result()
        except TimeoutError:
            raise StillRunningError("deprecate", name, timeout_s or 0.0) from None
        except WorkflowFailureError as error:
            raise operation_error(error, operation="deprecate", deployment=name, workflow_url=url) from None

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

    async def _generation_to_retire(self, deployment: "StoredDeployment", given: str) -> str:
        registry = await self.registry()
        wanted = given if "@" in given else f"{deployment.name}@{given}"
        generations = [g.id for g in await registry.list_generations(deployment.name) if g.id.startswith(wanted)]
        if len(generations) != 1:
            known = ", ".join(g.id for g in await registry.list_generations(deployment.name, limit=10))
            raise UserError(
                f"{given!r} names {'no' if not generations else 'more than one'} generation of {deployment.name}.",
                help=f"The newest are: {known}.",
            )
        if generations[0] == deployment.current_generation:
            raise UserError(
                f"{generations[0]} has the traffic of {deployment.name}; it is not stopped before a successor has it.",
                help=f"Deploy another generation, or retire all of it: `standfast deprecate {deployment.name}`.",
            )
        return generations[0]

    async def _retry_replica(self, generation: "StoredGeneration", replica: int) -> RetryOutcome | None:
        """None when the replica has no workflow."""
        from temporalio.client import WorkflowUpdateFailedError
        from temporalio.exceptions import ApplicationError
        from temporalio.service import RPCError, RPCStatusCode

        temporal = await self.temporal()
        handle = temporal.get_workflow_handle(retry_id(generation.id, "inference", replica))
        request = RetryRequest(requested_by=requester())
        try:
            async with asyncio.timeout(UPDATE_TIMEOUT.total_seconds()):
                status = await handle.execute_update("retry", request, result_type=ReplicaStatus)
        except WorkflowUpdateFailedError as error:
            cause = error.cause
            message = cause.message if isinstance(cause, ApplicationError) else str(cause)
            return RetryOutcome(
                generation=generation.id, role="inference", replica=replica, outcome="nothing to retry", message=message
            )
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return None
            raise
        except TimeoutError:
            raise UnreachableError(
                f"replica {replica} of {generation.deployment} did not take the retry within "
                f"{UPDATE_TIMEOUT.total_seconds():.0f} s.",
                help="Is a control worker running? `standfast doctor` tells.",
            ) from None
        return RetryOutcome(
            generation=generation.id,
            role="inference",
            replica=replica,
            outcome="retrying",
            message="the budget is full again; the next attempt starts now",
            status=status,
        )
