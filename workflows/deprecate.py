"""DeprecateWorkflow: retire a generation, or a whole deployment."""

import asyncio
import contextlib

from temporalio import workflow
from temporalio.exceptions import ActivityError, FailureError

with workflow.unsafe.imports_passed_through():
    from standfast import contracts as c

from workflows import attributes, shown, steps


@workflow.defn(name=c.DEPRECATE)
class DeprecateWorkflow:
    """Stop admissions, drain, stop, clean up. Nothing that still has the route is stopped: the route moves or goes
    first. A generation that a deploy reclaims before it is told to stop is left standing.
    """

    def __init__(self) -> None:
        self._reclaimed: c.ReclaimRequest | None = None

    @workflow.signal(description="Leave the generation standing: a deploy wants it again.")
    def reclaim(self, request: c.ReclaimRequest) -> None:
        self._reclaimed = self._reclaimed or request

    @workflow.run
    async def run(self, start: c.DeprecateInput) -> c.DeprecateResult:
        attributes.tag(deployment=start.deployment, target=start.target, phase="draining", generation=start.generation)
        plan = await steps.PLAN_RETIREMENT.run(
            start, summary=f"See what {start.generation or start.deployment} still runs"
        )
        if start.generation is None:
            await steps.WITHDRAW_TRAFFIC.run(
                start, summary=f"Take {plan.served_name or start.deployment} off the frontend"
            )
        cut = 0
        for generation, replicas in plan.generations:
            report = await self._drain(start, generation)
            if report is None:
                return self._left_standing(start, generation)
            cut += report.cut
            await self._take_down(start, generation, replicas)
        if start.generation is None:
            await steps.CLOSE_DEPLOYMENT.run(start, summary=f"Close the books of {start.deployment}")
        attributes.set_phase("retired")
        retired = tuple(generation for generation, _ in plan.generations)
        message = _sentence(start, retired, cut)
        shown.keep(message)
        return c.DeprecateResult(deployment=start.deployment, generations=retired, cut=cut, message=message)

    async def _drain(self, start: c.DeprecateInput, generation: str) -> c.DrainReport | None:
        """Let the open requests finish; None when the generation was reclaimed meanwhile."""
        await steps.SET_PHASE.run(
            c.PhaseInput(generation=generation, deployment=start.deployment, phase="draining"),
            summary=f"Send nothing new to {generation}",
        )
        shown.show(f"Draining `{generation}`: open requests finish, new ones go elsewhere.")
        draining = steps.DRAIN_GENERATION.start(
            c.DrainInput(generation=generation, deployment=start.deployment, timeout_s=start.drain_timeout_s),
            summary=f"Let the open requests of {generation} finish",
        )
        await workflow.wait_condition(lambda: draining.done() or self._reclaimed_from(start))
        if not self._reclaimed_from(start):
            return await draining
        draining.cancel()
        with contextlib.suppress(ActivityError, asyncio.CancelledError):
            await draining
        return None

    def _reclaimed_from(self, start: c.DeprecateInput) -> bool:
        """A whole deployment that goes, goes: the deploy that wants it back waits for the end."""
        return self._reclaimed is not None and start.generation is not None

    def _left_standing(self, start: c.DeprecateInput, generation: str) -> c.DeprecateResult:
        by = self._reclaimed.by if self._reclaimed is not None else "a deploy"
        message = f"{generation} is left standing: {by} wants it again."
        shown.keep(message)
        attributes.set_phase("reclaimed")
        return c.DeprecateResult(deployment=start.deployment, generations=(), cut=0, message=message)

    async def _take_down(self, start: c.DeprecateInput, generation: str, replicas: int) -> None:
        """Stop one generation and clean up after it."""
        of = c.GenerationInput(generation=generation, deployment=start.deployment)
        shown.show(f"Stopping `{generation}`.")
        for replica in range(replicas):
            await _tell_to_stop(
                c.retry_id(generation, "inference", replica), start.reason or "the generation is retired"
            )
        await steps.AWAIT_GONE.run(of, summary=f"Confirm that every process of {generation} is gone")
        await steps.CLEAN_GENERATION.run(
            c.PhaseInput(generation=generation, deployment=start.deployment, phase="retired"),
            summary=f"Clean up after {generation}",
        )


async def _tell_to_stop(workflow_id: str, reason: str) -> None:
    try:
        await workflow.get_external_workflow_handle(workflow_id).signal("stop", c.StopRequest(reason=reason))
    except FailureError:
        # It is closed already; what it may have left behind is found and stopped by the next step.
        workflow.logger.info("no such workflow is open", extra={"workflow": workflow_id})


def _sentence(start: c.DeprecateInput, retired: tuple[str, ...], cut: int) -> str:
    what = start.generation or f"{start.deployment} ({len(retired)} generation{'s' if len(retired) != 1 else ''})"
    return f"{what} is retired; " + (f"{cut} open requests were cut at the deadline." if cut else "no request was cut.")
