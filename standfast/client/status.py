"""Putting a deployment's status together: what the registry holds, what the workflows say, what comes next."""

import asyncio
import json
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from standfast.client.deploys import QUERY_TIMEOUT, DeployHandle
from standfast.client.views import AttemptView, DeploymentStatus, GenerationView, ProofView
from standfast.contracts import DeployStatus, Failure, ReplicaStatus, retry_id

if TYPE_CHECKING:
    from temporalio.client import Client as TemporalClient

    from standfast.registry import (
        Registry,
        StoredAttempt,
        StoredBackend,
        StoredDeployment,
        StoredGeneration,
        StoredProof,
    )

_T = TypeVar("_T")

KEPT_UP = ("starting", "validating", "serving", "draining")
"""Phases in which a generation's replicas have their workflows."""
SHOWN_ATTEMPTS = 20
WORKER_SILENT = "no control worker answers; the states below are the registry's last ones"
WORKFLOW_STUCK = "a workflow of it does not get on; the Temporal UI shows why, and a corrected worker goes on with it"
_STUCK = "workflow task in failed state"


async def deployment_status(
    registry: "Registry",
    temporal: "TemporalClient",
    deployment: "StoredDeployment",
    *,
    deploy: DeployHandle | None,
    gateway: str | None,
    limit: asyncio.Semaphore,
) -> DeploymentStatus:
    """One deployment, with every replica asked for its state."""
    generations = await registry.list_generations(deployment.name, limit=20)
    current = next((g for g in generations if g.id == deployment.current_generation), None)
    shown = [g for g in generations if g.phase in KEPT_UP or g is current] or generations[:1]
    backends = {g.id: await registry.list_backends(g.id) for g in shown}
    asked = [(g, replica) for g in shown if g.phase in KEPT_UP for replica in range(replicas_of(g))]
    answers = await asyncio.gather(
        *(_ask_replica(temporal, g.id, replica, limit) for g, replica in asked), _ask_deploy(deploy)
    )
    *replica_answers, deploy_status = answers
    replicas = [
        answer if isinstance(answer, ReplicaStatus) else _from_backend(g, replica, backends[g.id])
        for (g, replica), answer in zip(asked, replica_answers, strict=True)
    ]
    complaints = {answer for answer in answers if answer in (WORKER_SILENT, WORKFLOW_STUCK)}
    proofs = await registry.list_proofs(deployment=deployment.name, limit=1)
    attempts = await registry.list_attempts(deployment=deployment.name, limit=SHOWN_ATTEMPTS)
    counted = current or (shown[0] if shown else None)
    ready = sum(b.state == "ready" for b in backends[counted.id]) if counted is not None else 0
    running = deploy_status if isinstance(deploy_status, DeployStatus) else None
    status = DeploymentStatus(
        name=deployment.name,
        served_name=deployment.served_name,
        target=deployment.target,
        generation=deployment.current_generation,
        phase=phase_of(deployment, current, shown, deploying=deploy is not None, ready=ready),
        replicas_ready=ready,
        replicas_wanted=replicas_of(counted) if counted is not None else 0,
        last_proof=_proof(proofs[0]) if proofs else None,
        endpoint=f"{gateway}/v1" if gateway else None,
        deploy=running,
        deploy_url=deploy.url if deploy is not None else None,
        generations=tuple(_generation(g) for g in shown),
        replicas=tuple(replicas),
        attempts=tuple(_attempt(a) for a in attempts),
        notices=tuple(sorted(complaints)),
    )
    return status.model_copy(update={"next_step": next_step(status)})


def replicas_of(generation: "StoredGeneration") -> int:
    """How many replicas a generation has."""
    plan = generation.record.inference
    return len(plan.replicas) if plan is not None else 0


def phase_of(
    deployment: "StoredDeployment",
    current: "StoredGeneration | None",
    shown: "Sequence[StoredGeneration]",
    *,
    deploying: bool,
    ready: int,
) -> str:
    """One word for the whole deployment: the phase of what serves, unless replicas of it are missing."""
    if deployment.retired_at is not None:
        return "retired"
    if deploying:
        return "deploying"
    if current is not None:
        whole = current.phase != "serving" or ready >= replicas_of(current)
        return current.phase if whole else "degraded" if ready else "recovering"
    return shown[0].phase if shown else "new"


def next_step(status: DeploymentStatus) -> str:
    """What happens next without anybody's help, or what a person would have to do."""
    name = status.name
    if status.phase == "retired":
        return "nothing: it is retired"
    by_state: dict[str, list[ReplicaStatus]] = {}
    for replica in status.replicas:
        by_state.setdefault(replica.state, []).append(replica)
    if failed := by_state.get("failed"):
        return f"replica {failed[0].replica} needs a fix: `standfast logs {name}`, then deploy again or retry"
    if spent := by_state.get("budget_spent"):
        return f"the retry budget refills{_at(spent[0])}; `standfast retry {name}` refills it now"
    if waiting := by_state.get("waiting_for_capacity"):
        return f"waits for room: {waiting[0].detail}"
    if backing := by_state.get("backing_off"):
        return f"tries again{_at(backing[0])}"
    if WORKFLOW_STUCK in status.notices:
        return "needs a look: the Temporal UI shows which workflow does not get on"
    if status.deploy is not None:
        step = next((s for s in status.deploy.steps if s.state == "running"), None)
        return f"deploy: {step.name} {step.detail}".rstrip() if step is not None else "deploy: about to go on"
    if WORKER_SILENT in status.notices:
        return "it goes on when a control worker answers"
    if status.phase == "failed":
        last = status.generations[0].failure if status.generations else None
        if last is not None and last.code == "deploy-cancelled":
            return "nothing: its deploy was cancelled; deploy it again when you want it"
        return f"correct the config and deploy again; `standfast status {name}` tells why it failed"
    if status.replicas_ready < status.replicas_wanted:
        return "replicas are coming up"
    return "watched; nothing to do"


def _at(replica: ReplicaStatus) -> str:
    if replica.next_try_at is None:
        return ""
    moment = datetime.fromtimestamp(replica.next_try_at, UTC).astimezone()
    wait = max(0.0, replica.next_try_at - datetime.now(UTC).timestamp())
    return f" at {moment:%H:%M:%S} (in {f'{wait:.0f} s' if wait < 100 else f'{wait / 60:.0f} min'})"


async def _ask_replica(
    temporal: "TemporalClient", generation: str, replica: int, limit: asyncio.Semaphore
) -> ReplicaStatus | str:
    """The replica's own word, else why there is none."""
    handle = temporal.get_workflow_handle(retry_id(generation, "inference", replica))
    async with limit:
        return await _answer(handle.query("status", result_type=ReplicaStatus, rpc_timeout=QUERY_TIMEOUT))


async def _ask_deploy(deploy: DeployHandle | None) -> DeployStatus | str | None:
    return None if deploy is None else await _answer(deploy.status())


async def _answer(query: Awaitable[_T]) -> _T | str:
    """The answer to a query, `WORKER_SILENT`, `WORKFLOW_STUCK`, or text when there is no such workflow."""
    from temporalio.client import WorkflowQueryFailedError
    from temporalio.service import RPCError, RPCStatusCode

    try:
        return await query
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return "no workflow"
        return WORKFLOW_STUCK if _STUCK in error.message.lower() else WORKER_SILENT
    except WorkflowQueryFailedError as error:
        return WORKFLOW_STUCK if _STUCK in str(error).lower() else WORKER_SILENT


def _from_backend(generation: "StoredGeneration", replica: int, backends: "Iterable[StoredBackend]") -> ReplicaStatus:
    backend = next((b for b in backends if b.replica == replica), None)
    ready = backend is not None and backend.state == "ready"
    number = backend.attempt.rpartition("/")[2] if backend is not None and backend.attempt else "0"
    return ReplicaStatus(
        generation=generation.id,
        role="inference",
        replica=replica,
        state="ready" if ready else "starting" if backend is not None and backend.state == "starting" else "stopped",
        attempt=int(number) if number.isdigit() else 0,
        detail=backend.url or "" if backend is not None else "",
    )


def read_failure(stored: Mapping[str, Any] | None) -> Failure | None:
    """A failure as the registry keeps it."""
    return Failure.model_validate_json(json.dumps(dict(stored))) if stored else None


def _generation(generation: "StoredGeneration") -> GenerationView:
    return GenerationView(
        id=generation.id,
        phase=generation.phase,
        created_at=generation.created_at.timestamp(),
        replicas=replicas_of(generation),
        failure=read_failure(generation.failure),
    )


def _proof(proof: "StoredProof") -> ProofView:
    return ProofView(
        id=proof.id, generation=proof.generation, passed=proof.passed, created_at=proof.created_at.timestamp()
    )


def _attempt(attempt: "StoredAttempt") -> AttemptView:
    return AttemptView(
        name=attempt.name,
        generation=attempt.generation,
        role=attempt.role,
        replica=attempt.replica,
        number=attempt.number,
        phase=attempt.phase,
        started_at=attempt.started_at.timestamp(),
        ready_at=attempt.ready_at.timestamp() if attempt.ready_at is not None else None,
        ended_at=attempt.ended_at.timestamp() if attempt.ended_at is not None else None,
        failure=read_failure(attempt.failure),
    )
