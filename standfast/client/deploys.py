"""Starting a deploy, finding one that runs, and waiting for it."""

import asyncio
import contextlib
import getpass
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from standfast.client.connection import TemporalEndpoint, UnreachableError
from standfast.client.errors import DeployInProgressError, StillRunningError, operation_error
from standfast.contracts import DEPLOY, TASK_QUEUE, DeployInput, DeployResult, DeployStatus, deploy_id
from standfast.plans import check
from standfast.plans.record import digest_of
from standfast.problems import ProblemsError
from standfast.spec import Deployment

if TYPE_CHECKING:
    from temporalio.client import Client as TemporalClient
    from temporalio.client import WorkflowHandle
    from temporalio.common import TypedSearchAttributes

Progress = Callable[[DeployStatus], None]
Notice = Callable[[str], None]

POLL_S = 0.4
QUERY_TIMEOUT = timedelta(seconds=5)
OUTAGE_LIMIT_S = 180.0
"""How long Temporal may be away before a waiting client gives up; the deploy itself does not."""


TOLD_BY_HEARTBEAT = ("resolve", "image", "plan", "weights", "traffic")
"""Steps whose activities belong to the deploy itself; the others wait for workflows of their own."""


def settings_of(deployment: Deployment) -> dict[str, Any]:
    """A deployment as the JSON object that travels to the workflow; secrets are names in it."""
    settings: dict[str, Any] = TypeAdapter(Deployment).dump_python(deployment, mode="json")
    return settings


def requester() -> str:
    """Who asks: ``user@host``."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = "unknown"
    return f"{user}@{socket.gethostname()}"


def search_attributes(**values: str) -> "TypedSearchAttributes":
    """Search attributes by their short names: ``deployment``, ``generation``, ``role``, ``target``, ``phase``."""
    from temporalio.common import SearchAttributeKey, SearchAttributePair, TypedSearchAttributes

    return TypedSearchAttributes(
        [
            SearchAttributePair(SearchAttributeKey.for_keyword(f"Standfast{name.capitalize()}"), value)
            for name, value in values.items()
        ]
    )


@dataclass(frozen=True, kw_only=True)
class DeployHandle:
    """One deploy: started now, or found running (``attached``)."""

    deployment: str
    workflow_id: str
    run_id: str | None
    url: str | None
    attached: bool
    _handle: "WorkflowHandle[Any, DeployResult]"

    async def status(self) -> DeployStatus:
        """Where the deploy is; the running step's detail includes what its activity said last.

        Raises ``temporalio.service.RPCError`` when no worker answers.
        """
        answer = await self._handle.query("status", result_type=DeployStatus, rpc_timeout=QUERY_TIMEOUT)
        assert isinstance(answer, DeployStatus)
        running = next((step for step in answer.steps if step.state == "running"), None)
        if running is None or running.name not in TOLD_BY_HEARTBEAT:
            return answer
        said = await last_words(self._handle)
        if not said:
            return answer
        told = running.model_copy(update={"detail": f"{running.detail}: {said}" if running.detail else said})
        return answer.model_copy(update={"steps": tuple(told if step is running else step for step in answer.steps)})

    async def cancel(self) -> None:
        """Ask the deploy to end; it takes down what it started and leaves the serving generation alone."""
        await self._handle.cancel(rpc_timeout=QUERY_TIMEOUT)

    async def result(
        self,
        *,
        timeout_s: float | None = None,
        on_progress: Progress | None = None,
        on_notice: Notice | None = None,
    ) -> DeployResult:
        """Wait for the end.

        ``on_progress`` is called with every new status, ``on_notice`` with a sentence when nothing can be seen at the
        moment. Raises `OperationFailedError`, `ProblemsError`, `StillRunningError` (after ``timeout_s``) or
        `UnreachableError`. Cancelling the wait leaves the deploy alone.
        """
        watching = asyncio.create_task(self._watch(on_progress, on_notice)) if on_progress is not None else None
        try:
            async with asyncio.timeout(timeout_s):
                return await self._await_result(on_notice)
        except TimeoutError:
            raise StillRunningError("deploy", self.deployment, timeout_s or 0.0) from None
        finally:
            if watching is not None:
                watching.cancel()
                await asyncio.gather(watching, return_exceptions=True)
                with contextlib.suppress(Exception):  # a last look, so that the picture ends as the deploy did
                    assert on_progress is not None
                    on_progress(await self.status())

    async def _await_result(self, on_notice: Notice | None) -> DeployResult:
        from temporalio.client import WorkflowFailureError
        from temporalio.service import RPCError, RPCStatusCode

        away_since: float | None = None
        while True:
            try:
                return await self._handle.result()
            except WorkflowFailureError as error:
                raise operation_error(
                    error, operation="deploy", deployment=self.deployment, workflow_url=self.url
                ) from None
            except RPCError as error:
                if error.status == RPCStatusCode.NOT_FOUND:
                    raise UnreachableError(
                        f"Temporal does not know the workflow {self.workflow_id} any more: {error.message}"
                    ) from None
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > OUTAGE_LIMIT_S:
                    raise UnreachableError(
                        f"Temporal did not answer for {OUTAGE_LIMIT_S:.0f} s: {error.message}",
                        help=f"The deploy goes on when it is back: `standfast status {self.deployment} --watch`.",
                    ) from None
                if on_notice is not None:
                    on_notice("Temporal does not answer; waiting for it to come back")
                await asyncio.sleep(1.0)

    async def _watch(self, on_progress: Progress | None, on_notice: Notice | None) -> None:
        from temporalio.client import WorkflowQueryFailedError
        from temporalio.service import RPCError

        assert on_progress is not None
        last: DeployStatus | None = None
        silent_since = time.monotonic()
        while True:
            try:
                status = await self.status()
            except (RPCError, WorkflowQueryFailedError):
                if on_notice is not None and time.monotonic() - silent_since > 2.0:
                    on_notice("no control worker answers; waiting for one")
            else:
                silent_since = time.monotonic()
                if status != last:
                    last = status
                    on_progress(status)
            await asyncio.sleep(POLL_S)


async def last_words(handle: "WorkflowHandle[Any, Any]") -> str:
    """What a running activity of the workflow said last in a heartbeat, or why it is being tried again; else empty."""
    from temporalio.service import RPCError

    try:
        found = await handle.describe(rpc_timeout=QUERY_TIMEOUT)
    except RPCError:
        return ""
    for activity in found.raw_description.pending_activities:
        if activity.heartbeat_details.payloads:
            said = await found.data_converter.decode(activity.heartbeat_details.payloads)
            if said and isinstance(said[0], str) and said[0]:
                return said[0].splitlines()[0]
        if activity.attempt > 1:
            failure = activity.last_failure
            cause = failure.message or failure.application_failure_info.type or "it failed"
            return f"try {activity.attempt}, before: {cause.splitlines()[0]}"
    return ""


async def start_deploy(
    temporal: "TemporalClient",
    endpoint: TemporalEndpoint,
    deployment: Deployment,
    *,
    target: str,
    config_file: Path | None,
    requested_by: str,
) -> DeployHandle:
    """Start a deploy, or attach to the one that runs with the same settings.

    What the config alone shows to be wrong is refused before anything travels: a secret written out never gets into a
    workflow's history. Raises `ProblemsError`, `DeployInProgressError`.
    """
    from temporalio.common import WorkflowIDConflictPolicy
    from temporalio.exceptions import WorkflowAlreadyStartedError

    problems = check(deployment)
    if problems:
        raise ProblemsError(problems)
    settings = settings_of(deployment)
    digest = digest_of({"settings": settings, "target": target})
    start = DeployInput(
        deployment=deployment.name,
        settings=settings,
        target=target,
        config_file=str(config_file) if config_file is not None else None,
        requested_by=requested_by,
    )
    while True:
        try:
            handle = await temporal.start_workflow(
                DEPLOY,
                start,
                id=deploy_id(deployment.name),
                task_queue=TASK_QUEUE,
                result_type=DeployResult,
                id_conflict_policy=WorkflowIDConflictPolicy.FAIL,
                memo={"settings_digest": digest, "requested_by": requested_by, "config_file": start.config_file or ""},
                static_summary=f"Deploy **{deployment.name}** ({deployment.model.id}) to {target}",
                static_details=_details(deployment, start),
                search_attributes=search_attributes(deployment=deployment.name, target=target, phase="resolving"),
                rpc_timeout=QUERY_TIMEOUT,
            )
        except WorkflowAlreadyStartedError:
            found = await attach(temporal, endpoint, deployment.name, expect_digest=digest)
            if found is not None:
                return found
        else:
            return _handle(endpoint, deployment.name, handle, attached=False)


async def attach(
    temporal: "TemporalClient", endpoint: TemporalEndpoint, name: str, *, expect_digest: str | None = None
) -> DeployHandle | None:
    """The deploy of that name that runs now, or None.

    With ``expect_digest`` a deploy of other settings raises `DeployInProgressError`.
    """
    from temporalio.client import WorkflowExecutionStatus
    from temporalio.service import RPCError, RPCStatusCode

    try:
        found = await temporal.get_workflow_handle(deploy_id(name)).describe(rpc_timeout=QUERY_TIMEOUT)
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise
    if found.status != WorkflowExecutionStatus.RUNNING:
        return None
    if expect_digest is not None and await found.memo_value("settings_digest", None) != expect_digest:
        raise DeployInProgressError(
            name,
            requested_by=str(await found.memo_value("requested_by", "")),
            workflow_url=endpoint.workflow_url(found.id, found.run_id),
        )
    handle = temporal.get_workflow_handle(found.id, run_id=found.run_id, result_type=DeployResult)
    return _handle(endpoint, name, handle, attached=True)


def _handle(
    endpoint: TemporalEndpoint, name: str, handle: "WorkflowHandle[Any, Any]", *, attached: bool
) -> DeployHandle:
    run_id = handle.result_run_id or handle.first_execution_run_id or handle.run_id
    return DeployHandle(
        deployment=name,
        workflow_id=handle.id,
        run_id=run_id,
        url=endpoint.workflow_url(handle.id, run_id),
        attached=attached,
        _handle=handle,
    )


def _details(deployment: Deployment, start: DeployInput) -> str:
    lines = [
        f"- model `{deployment.model.id}`, served as `{deployment.resolved_served_name}`",
        f"- config `{start.config_file or 'given by a program'}`",
        f"- asked for by {start.requested_by or 'unknown'}",
    ]
    if deployment.description:
        lines.insert(0, deployment.description + "\n")
    return "\n".join(lines)
