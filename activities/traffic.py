"""Moving traffic, draining, and clearing away what is retired."""

import asyncio
import time

from temporalio import activity
from temporalio.client import WorkflowExecutionDescription, WorkflowExecutionStatus
from temporalio.exceptions import ApplicationError
from temporalio.service import RPCError, RPCStatusCode

from activities.attempts import end_attempt, ending_of
from activities.context import Services, failed, misused, progress
from standfast import contracts as c
from standfast.registry import NotFound, RouteConflict, ServedNameTaken

_POLL_S = 0.2
_GATEWAY_AGE_S = 5.0
"""A gateway that has not beaten for so long is gone; nobody waits for it."""
_ACKNOWLEDGE_S = 60.0
_GONE_POLL_S = 0.5


class TrafficActivities:
    """The activities that move routes and retire generations."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @activity.defn(name="await_retirement")
    async def await_retirement(self, start: c.DeployInput) -> c.Nothing:
        """Wait until no retirement of the whole deployment is running: it would take down what a deploy brings up."""
        async with progress() as say:
            while await _runs(c.deprecate_id(start.deployment)):
                say(f"waiting for the retirement of {start.deployment} to end")
                await asyncio.sleep(_GONE_POLL_S)
        return c.Nothing()

    @activity.defn(name="reclaim_generation")
    async def reclaim_generation(self, of: c.GenerationInput) -> c.Nothing:
        """Take a generation back from its retirement.

        One that still drains keeps its replicas; one that is being stopped ends first, and is then launched anew.
        """
        id = c.deprecate_id(of.generation)
        async with progress() as say:
            if await _runs(id):
                await _reclaim(id, by=f"a deploy of {of.deployment}")
            while await _runs(id):
                say(f"waiting for the retirement of {of.generation} to end")
                await asyncio.sleep(_GONE_POLL_S)
        for backend in await self._services.registry.list_backends(of.generation):
            if backend.state == "draining" and backend.attempt is not None and backend.url is not None:
                await self._services.registry.set_backend(backend.id, "ready", expect_attempt=backend.attempt)
        return c.Nothing()

    @activity.defn(name="switch_traffic")
    async def switch_traffic(self, switch: c.SwitchInput) -> c.Nothing:
        """Point the served name at the generation, in one transaction, and wait until every gateway follows."""
        try:
            revision = await self._services.registry.switch_route(
                switch.served_name, switch.generation, switch.previous
            )
        except (RouteConflict, ServedNameTaken, NotFound) as error:
            raise misused(error, "route-conflict") from None
        async with progress() as say:
            say("waiting for the gateways")
            await self._acknowledged(revision)
        return c.Nothing(detail=f"revision {revision}")

    @activity.defn(name="plan_retirement")
    async def plan_retirement(self, start: c.DeprecateInput) -> c.RetirementPlan:
        """What a retirement takes down. A generation that has the traffic is refused: its successor takes it
        first.
        """
        registry = self._services.registry
        deployment = await registry.get_deployment(start.deployment)
        if deployment is None:
            raise failed(
                c.Failure(
                    kind="permanent",
                    code="deployment-unknown",
                    message=f"There is no deployment {start.deployment}.",
                    help="`standfast status` lists them.",
                )
            )
        if start.generation is not None and start.generation == deployment.current_generation:
            raise failed(
                c.Failure(
                    kind="permanent",
                    code="generation-serves",
                    message=f"{start.generation} has the traffic of {deployment.served_name}.",
                    help=f"Deploy a successor, or retire it all: `standfast deprecate {start.deployment}`.",
                )
            )
        if await _deployed_before_this(start.deployment):
            raise failed(
                c.Failure(
                    kind="permanent",
                    code="deploy-running",
                    message=f"A deploy of {start.deployment} is running; it would bring up again what is taken down.",
                    help=f"Cancel it first: `standfast deploy --cancel {start.deployment}`.",
                )
            )
        standing = [
            (stored.id, len(stored.record.inference.replicas) if stored.record.inference is not None else 0)
            for stored in await registry.list_generations(start.deployment)
            if (start.generation is None and stored.phase not in ("retired", "failed")) or stored.id == start.generation
        ]
        return c.RetirementPlan(generations=tuple(standing), served_name=deployment.served_name)

    @activity.defn(name="withdraw_traffic")
    async def withdraw_traffic(self, start: c.DeprecateInput) -> c.Nothing:
        """Take every route of the deployment away: no new request is admitted."""
        for route in await self._services.registry.list_routes():
            if route.deployment == start.deployment:
                await self._services.registry.delete_route(route.served_name)
        return c.Nothing()

    @activity.defn(name="drain_generation")
    async def drain_generation(self, drain: c.DrainInput) -> c.DrainReport:
        """Mark the generation's backends as draining and wait until no gateway has a request in flight on them."""
        registry = self._services.registry
        deadline = activity.info().scheduled_time.timestamp() + drain.timeout_s
        started = time.monotonic()
        backends = await registry.list_backends(drain.generation)
        for backend in backends:
            if backend.state in ("ready", "starting"):
                await registry.set_backend(backend.id, "draining")
        revision = await registry.revision()
        ids = {backend.id for backend in backends}
        async with progress() as say:
            await self._acknowledged(revision)
            while True:
                gateways = await registry.list_gateways(_GATEWAY_AGE_S)
                open_requests = sum(
                    count for gateway in gateways for id, count in gateway.inflight.items() if id in ids
                )
                if open_requests == 0 or time.time() >= deadline:
                    return c.DrainReport(
                        generation=drain.generation, cut=open_requests, took_s=round(time.monotonic() - started, 3)
                    )
                say(f"{open_requests} requests are open; {max(deadline - time.time(), 0):.0f} s left")
                await asyncio.sleep(_POLL_S)

    @activity.defn(name="await_gone")
    async def await_gone(self, of: c.GenerationInput) -> c.Nothing:
        """Wait until every attempt of the generation has ended; what no workflow owns any more is ended here."""
        async with progress() as say:
            while True:
                left = [
                    attempt
                    for attempt in await self._services.registry.list_attempts(generation=of.generation)
                    if attempt.phase != "ended"
                ]
                open_replicas = await self._open_replicas(of.generation)
                for attempt in left:
                    if attempt.replica not in open_replicas:
                        await end_attempt(self._services, ending_of(attempt, "no workflow owns it any more"))
                if not left and not open_replicas:
                    return c.Nothing()
                say(f"{len(left)} attempts and {len(open_replicas)} replicas are still ending")
                await asyncio.sleep(_GONE_POLL_S)

    @activity.defn(name="clean_generation")
    async def clean_generation(self, change: c.PhaseInput) -> c.Nothing:
        """Forget the generation's backends and record how it ended; its attempts and logs stay to be read."""
        failure = change.failure.model_dump(mode="json") if change.failure is not None else None
        await self._services.registry.delete_backends(change.generation)
        await self._services.registry.set_generation_phase(change.generation, change.phase, failure=failure)
        return c.Nothing()

    @activity.defn(name="close_deployment")
    async def close_deployment(self, start: c.DeprecateInput) -> c.Nothing:
        """Record that the deployment is retired; its served name is free again."""
        await self._services.registry.retire_deployment(start.deployment)
        return c.Nothing()

    async def _acknowledged(self, revision: int) -> None:
        """Wait until every live gateway routes by this revision or a later one."""
        deadline = time.monotonic() + _ACKNOWLEDGE_S
        while time.monotonic() < deadline:
            gateways = await self._services.registry.list_gateways(_GATEWAY_AGE_S)
            if all(gateway.revision_seen >= revision for gateway in gateways):
                return
            await asyncio.sleep(_POLL_S)
        raise ApplicationError(f"a gateway has not followed to revision {revision}", type="gateway-behind")

    async def _open_replicas(self, generation: str) -> set[int]:
        """The replicas of the generation whose workflow is still open."""
        plan = await self._services.inference_plan(generation)
        open_replicas: set[int] = set()
        for replica in plan.replicas:
            if await _runs(c.retry_id(generation, "inference", replica.index)):
                open_replicas.add(replica.index)
        return open_replicas


async def _describe(workflow_id: str) -> WorkflowExecutionDescription | None:
    """The newest run of a workflow; None when there is none."""
    try:
        return await activity.client().get_workflow_handle(workflow_id).describe()
    except RPCError as error:
        if error.status == RPCStatusCode.NOT_FOUND:
            return None
        raise


async def _runs(workflow_id: str) -> bool:
    found = await _describe(workflow_id)
    return found is not None and found.status == WorkflowExecutionStatus.RUNNING


async def _deployed_before_this(deployment: str) -> bool:
    """Whether a deploy runs that began before the retirement that asks, and did not begin it.

    A deploy that began later minds the retirement: it waits for its end, or takes its generation back.
    """
    deploy, own = await _describe(c.deploy_id(deployment)), await _describe(activity.info().workflow_id or "")
    return (
        deploy is not None
        and deploy.status == WorkflowExecutionStatus.RUNNING
        and own is not None
        and own.parent_id != deploy.id
        and deploy.start_time <= own.start_time
    )


async def _reclaim(workflow_id: str, *, by: str) -> None:
    try:
        await activity.client().get_workflow_handle(workflow_id).signal("reclaim", c.ReclaimRequest(by=by))
    except RPCError as error:
        if error.status != RPCStatusCode.NOT_FOUND:
            raise
