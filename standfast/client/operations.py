"""The operations on a deployment that stands: retry, validate, deprecate."""

import asyncio
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.client.connection import TemporalEndpoint, UnreachableError
from standfast.client.deploys import QUERY_TIMEOUT, requester, search_attributes
from standfast.client.errors import StillRunningError, operation_error
from standfast.client.status import replicas_of
from standfast.client.views import RetryOutcome, ValidationOutcome
from standfast.contracts import (
    DEPRECATE,
    TASK_QUEUE,
    VALIDATE,
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
from standfast.problems import UserError, redact

if TYPE_CHECKING:
    from temporalio.client import Client as TemporalClient
    from temporalio.client import WorkflowHandle

    from standfast.registry import Registry, StoredDeployment, StoredGeneration

_T = TypeVar("_T")

UPDATE_TIMEOUT = timedelta(seconds=30)


async def retry_replica(
    temporal: "TemporalClient", generation: "StoredGeneration", replica: int
) -> RetryOutcome | None:
    """Refill a replica's budget and wake it; None when no workflow keeps it up. Raises `UnreachableError`."""
    from temporalio.client import WorkflowUpdateFailedError
    from temporalio.exceptions import ApplicationError
    from temporalio.service import RPCError, RPCStatusCode

    handle = temporal.get_workflow_handle(retry_id(generation.id, "inference", replica))
    try:
        async with asyncio.timeout(UPDATE_TIMEOUT.total_seconds()):
            status = await handle.execute_update(
                "retry", RetryRequest(requested_by=requester()), result_type=ReplicaStatus
            )
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


async def validate(
    temporal: "TemporalClient",
    endpoint: TemporalEndpoint,
    generation: "StoredGeneration",
    *,
    timeout_s: float | None,
) -> ValidationOutcome:
    """Prove a generation; one proof of it runs at a time, and later callers get its report."""
    from temporalio.common import WorkflowIDConflictPolicy

    record = generation.record
    assert record.inference_hash is not None
    start = ValidateInput(
        generation=generation.id,
        deployment=generation.deployment,
        target=record.target,
        inference_hash=record.inference_hash,
        validation=record.validation,
        replicas=tuple(range(replicas_of(generation))),
        requested_by=requester(),
    )
    handle: WorkflowHandle[Any, ProofReport] = await temporal.start_workflow(
        VALIDATE,
        start,
        id=validate_id(generation.id),
        task_queue=TASK_QUEUE,
        result_type=ProofReport,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        memo={"requested_by": start.requested_by},
        static_summary=f"Prove {generation.id}",
        search_attributes=search_attributes(
            deployment=generation.deployment,
            generation=generation.id,
            role="inference",
            target=record.target,
            phase="validating",
        ),
        rpc_timeout=QUERY_TIMEOUT,
    )
    url = endpoint.workflow_url(handle.id, handle.result_run_id)
    report = await _result(handle, "validate", generation.deployment, timeout_s, url)
    return ValidationOutcome(report=report, workflow_url=url)


async def deprecate(
    temporal: "TemporalClient",
    endpoint: TemporalEndpoint,
    deployment: "StoredDeployment",
    generation: str | None,
    *,
    reason: str,
    drain_timeout_s: float,
    timeout_s: float | None,
) -> DeprecateResult:
    """Retire a deployment, or one generation of it; a retirement that runs already is joined. What looks like a
    credential in ``reason`` is left out: it is kept.
    """
    from temporalio.common import WorkflowIDConflictPolicy

    subject = generation or deployment.name
    start = DeprecateInput(
        deployment=deployment.name,
        generation=generation,
        target=deployment.target,
        reason=redact(reason),
        drain_timeout_s=drain_timeout_s,
        requested_by=requester(),
    )
    handle: WorkflowHandle[Any, DeprecateResult] = await temporal.start_workflow(
        DEPRECATE,
        start,
        id=deprecate_id(subject),
        task_queue=TASK_QUEUE,
        result_type=DeprecateResult,
        id_conflict_policy=WorkflowIDConflictPolicy.USE_EXISTING,
        memo={"requested_by": start.requested_by, "reason": start.reason},
        static_summary=f"Retire {subject}",
        search_attributes=search_attributes(deployment=deployment.name, target=deployment.target, phase="draining"),
        rpc_timeout=QUERY_TIMEOUT,
    )
    url = endpoint.workflow_url(handle.id, handle.result_run_id)
    return await _result(handle, "deprecate", deployment.name, timeout_s, url)


async def generation_to_retire(registry: "Registry", deployment: "StoredDeployment", given: str) -> str:
    """The full id of the generation that ``given`` begins (with or without the name). Raises `UserError` unless exactly
    one is meant and it does not have the traffic.
    """
    generations = await registry.list_generations(deployment.name)
    wanted = given if "@" in given else f"{deployment.name}@{given}"
    meant = [generation.id for generation in generations if generation.id.startswith(wanted)]
    if len(meant) != 1:
        known = ", ".join(generation.id for generation in generations[:10])
        raise UserError(
            f"{given!r} names {'no' if not meant else 'more than one'} generation of {deployment.name}.",
            help=f"The newest are: {known}.",
        )
    if meant[0] == deployment.current_generation:
        raise UserError(
            f"{meant[0]} has the traffic of {deployment.name}; it is not stopped before a successor has it.",
            help=f"Deploy another generation, or retire all of it: `standfast deprecate {deployment.name}`.",
        )
    return meant[0]


async def _result(
    handle: "WorkflowHandle[Any, _T]", operation: str, deployment: str, timeout_s: float | None, url: str | None
) -> _T:
    from temporalio.client import WorkflowFailureError

    try:
        async with asyncio.timeout(timeout_s):
            return await handle.result()
    except TimeoutError:
        raise StillRunningError(operation, deployment, timeout_s or 0.0) from None
    except WorkflowFailureError as error:
        raise operation_error(error, operation=operation, deployment=deployment, workflow_url=url) from None
