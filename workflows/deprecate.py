"""DeprecateWorkflow: retire a generation, or a whole deployment."""

from temporalio import workflow
from temporalio.exceptions import FailureError

with workflow.unsafe.imports_passed_through():
    from standfast import contracts as c

from workflows import attributes, steps


@workflow.defn(name=c.DEPRECATE)
class DeprecateWorkflow:
    """Stop admissions, drain, stop, clean up. Nothing that still has the route is stopped: the route moves or goes
    first.
    """

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
            cut += await self._retire(start, generation, replicas)
        if start.generation is None:
            await steps.CLOSE_DEPLOYMENT.run(start, summary=f"Close the books of {start.deployment}")
        attributes.set_phase("retired")
        retired = tuple(generation for generation, _ in plan.generations)
        return c.DeprecateResult(
            deployment=start.deployment,
            generations=retired,
            cut=cut,
            message=_sentence(start, retired, cut),
        )

    async def _retire(self, start: c.DeprecateInput, generation: str, replicas: int) -> int:
        """Drain and stop one generation; returns how many requests were cut."""
        of = c.GenerationInput(generation=generation, deployment=start.deployment)
        await steps.SET_PHASE.run(
            c.PhaseInput(generation=generation, deployment=start.deployment, phase="draining"),
            summary=f"Send nothing new to {generation}",
        )
        workflow.set_current_details(f"Draining `{generation}`: open requests finish, new ones go elsewhere.")
        report = await steps.DRAIN_GENERATION.run(
            c.DrainInput(generation=generation, deployment=start.deployment, timeout_s=start.drain_timeout_s),
            summary=f"Let the open requests of {generation} finish",
        )
        workflow.set_current_details(f"Stopping `{generation}`.")
        for replica in range(replicas):
            await _tell_to_stop(
                c.retry_id(generation, "inference", replica), start.reason or "the generation is retired"
            )
        await steps.AWAIT_GONE.run(of, summary=f"Confirm that every process of {generation} is gone")
        await steps.CLEAN_GENERATION.run(
            c.PhaseInput(generation=generation, deployment=start.deployment, phase="retired"),
            summary=f"Clean up after {generation}",
        )
        return report.cut


async def _tell_to_stop(workflow_id: str, reason: str) -> None:
    try:
        await workflow.get_external_workflow_handle(workflow_id).signal("stop", c.StopRequest(reason=reason))
    except FailureError:
        # It is closed already; what it may have left behind is found and stopped by the next step.
        workflow.logger.info("no such workflow is open", extra={"workflow": workflow_id})


def _sentence(start: c.DeprecateInput, retired: tuple[str, ...], cut: int) -> str:
    what = start.generation or f"{start.deployment} ({len(retired)} generation{'s' if len(retired) != 1 else ''})"
    return f"{what} is retired; " + (f"{cut} open requests were cut at the deadline." if cut else "no request was cut.")
