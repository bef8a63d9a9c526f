"""DeployWorkflow: from a config to a generation that serves."""

import asyncio

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    WorkflowAlreadyStartedError,
)

with workflow.unsafe.imports_passed_through():
    from standfast import contracts as c

from workflows import attributes, pages, shown, steps
from workflows.failures import error_of, failure_of, refusal_in

_STEPS = ("resolve", "image", "plan", "weights", "launch", "ready", "validate", "traffic", "retire")


@workflow.defn(name=c.DEPLOY)
class DeployWorkflow:
    """Resolve, build, launch, prove, switch, retire.

    The generation that has the traffic keeps it until the new one holds a proof and the route has moved. A deploy
    that fails or is cancelled before
    that takes down only what it started.
    """

    @workflow.init
    def __init__(self, start: c.DeployInput) -> None:
        self._start = start
        self._generation: c.GenerationRef | None = None
        self._steps = {name: c.StepProgress.model_validate({"name": name}) for name in _STEPS}
        self._replicas: dict[int, c.ReplicaStatus] = {}
        self._switched = False

    @workflow.run
    async def run(self, start: c.DeployInput) -> c.DeployResult:
        attributes.tag(deployment=start.deployment, target=start.target, phase="resolving")
        try:
            generation = await self._prepare()
            running = await self._launch(generation)
            if generation.unchanged and running:
                return self._nothing_to_do(generation)
            await self._await_ready(generation)
            proof = await self._validate(generation)
            await self._switch_traffic(generation)
        except (Exception, asyncio.CancelledError) as error:
            raise await self._give_up(error) from error
        await self._retire_previous(generation)
        attributes.set_phase("serving")
        shown.keep(self._page())
        return c.DeployResult(
            deployment=start.deployment,
            generation=generation.id,
            served_name=generation.served_name,
            changed=True,
            message=f"{generation.served_name} is served by {generation.id}.",
            proof=proof.id,
            previous=generation.previous,
        )

    # -- messages

    @workflow.query(description="The steps of the deploy and the replicas that it waits for.")
    def status(self) -> c.DeployStatus:
        return c.DeployStatus(
            deployment=self._start.deployment,
            generation=self._generation.id if self._generation else None,
            steps=tuple(self._steps.values()),
            replicas=tuple(status for _, status in sorted(self._replicas.items())),
        )

    @workflow.signal(description="A replica tells of its state.")
    def replica_changed(self, status: c.ReplicaStatus) -> None:
        # Replicas of other generations report here too: they subscribed to an earlier deploy of the same id.
        if self._generation is not None and status.generation == self._generation.id:
            self._replicas[status.replica] = status
            self._show()

    # -- the steps

    async def _prepare(self) -> c.GenerationRef:
        """Pin the settings, build the image, resolve and record the generation, fetch the weights."""
        start = self._start
        self._begin("resolve")
        await steps.AWAIT_RETIREMENT.run(start, summary=f"See that {start.deployment} is not just being retired")
        pinned = await steps.PIN_SETTINGS.run(start, summary=f"Pin what {start.deployment} asks for")
        self._finish("resolve", f"{pinned.model.id} at {_short(pinned.model.revision)}")
        attributes.set_phase("building")
        self._begin("image", pinned.image_name)
        built = await steps.BUILD_IMAGE.run(pinned, summary=f"Build the image {pinned.image_name}, unless it exists")
        self._finish("image", f"{pinned.image_name} {pinned.image_digest[:12]} {built.detail}".strip())
        self._begin("plan")
        generation = await steps.RESOLVE_PLAN.run(
            c.ResolveInput(deploy=start, pinned=pinned),
            summary="Resolve the plan and check every option against the image",
        )
        self._generation = generation
        attributes.tag(deployment=start.deployment, target=start.target, phase="preparing", generation=generation.id)
        of = c.GenerationInput(generation=generation.id, deployment=start.deployment)
        if not generation.unchanged:
            await steps.RECLAIM_GENERATION.run(of, summary=f"Take {generation.id} back if it is being retired")
        self._finish("plan", generation.id)
        self._begin("weights", pinned.model.id)
        fetched = await steps.FETCH_WEIGHTS.run(
            of, summary=f"Fetch the weights of {pinned.model.id}, unless they are here"
        )
        self._finish("weights", fetched.detail)
        return generation

    async def _launch(self, generation: c.GenerationRef) -> bool:
        """See that every replica has its RetryWorkflow; returns whether all of them were there already and none had
        given up.
        """
        self._begin("launch", f"{generation.replicas} replica{'s' if generation.replicas != 1 else ''}")
        if not generation.unchanged:
            await self._set_phase(generation, "starting")
        attributes.set_phase("starting")
        self._replicas.clear()  # the last words of replicas that were retired before this deploy
        found = 0
        for replica in range(generation.replicas):
            if not await self._start_replica(generation, replica):
                found += 1
        given_up = await self._revive(generation) if generation.unchanged and found == generation.replicas else 0
        self._finish("launch")
        return found == generation.replicas and not given_up

    async def _revive(self, generation: c.GenerationRef) -> int:
        """Wake the replicas that wait for an operator: what they lacked may be here again. Returns how many."""
        await workflow.wait_condition(lambda: len(self._replicas) == generation.replicas)
        waiting = [index for index, status in self._replicas.items() if status.state in ("failed", "budget_spent")]
        for replica in waiting:
            del self._replicas[replica]
            await workflow.get_external_workflow_handle(c.retry_id(generation.id, "inference", replica)).signal(
                "revive", c.RetryRequest(requested_by=self._start.requested_by)
            )
        return len(waiting)

    async def _start_replica(self, generation: c.GenerationRef, replica: int) -> bool:
        """Start the workflow that keeps one replica up; False when it runs already, which then reports to this
        deploy too.
        """
        workflow_id = c.retry_id(generation.id, "inference", replica)
        me = workflow.info().workflow_id
        try:
            await workflow.start_child_workflow(
                c.RETRY,
                c.ReplicaInput(
                    generation=generation.id,
                    deployment=generation.deployment,
                    target=generation.target,
                    role="inference",
                    replica=replica,
                    inference_hash=generation.inference_hash,
                    retry=generation.retry,
                    validation=generation.validation,
                    launch_delay_s=generation.launch_delays_s[replica],
                    subscriber=me,
                    attempts_so_far=generation.attempts_so_far[replica],
                    has_served=generation.unchanged,
                ),
                id=workflow_id,
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                static_summary=f"Keep {generation.deployment} inference/{replica} up",
            )
        except WorkflowAlreadyStartedError:
            await workflow.get_external_workflow_handle(workflow_id).signal("subscribe", me)
            return False
        return True

    async def _await_ready(self, generation: c.GenerationRef) -> None:
        """Wait until every replica answers. Waiting for room or for the budget is shown, not failed; a permanent
        failure ends the deploy.
        """
        self._begin("ready")
        await workflow.wait_condition(lambda: self._all_ready(generation) or self._down(generation) is not None)
        down = self._down(generation)
        if down is not None:
            raise error_of(down)
        self._finish("ready")

    async def _validate(self, generation: c.GenerationRef) -> c.ProofReport:
        """Prove the new generation."""
        self._begin("validate")
        attributes.set_phase("validating")
        await self._set_phase(generation, "validating")
        proof = await workflow.start_child_workflow(
            c.VALIDATE,
            c.ValidateInput(
                generation=generation.id,
                deployment=generation.deployment,
                target=generation.target,
                inference_hash=generation.inference_hash,
                validation=generation.validation,
                replicas=tuple(range(generation.replicas)),
                requested_by=self._start.requested_by,
            ),
            id=f"{c.validate_id(generation.id)}/deploy",
            result_type=c.ProofReport,
            static_summary=f"Prove {generation.id}",
        )
        # The probes wait for a replica that restarts, but not for one that is down for good.
        await workflow.wait_condition(lambda: proof.done() or self._down(generation) is not None)
        down = self._down(generation)
        if down is not None and not proof.done():
            proof.cancel()
            raise error_of(down)
        report: c.ProofReport = await proof
        if not report.passed:
            failed = next(probe for probe in report.probes if not probe.passed)
            raise error_of(
                c.Failure(
                    kind="permanent",
                    code="proof-failed",
                    message=f"The {failed.probe} probe of replica {failed.replica} failed: {failed.message}",
                    help="The model does not answer as Deployment.validation asks; the traffic stays where it was.",
                    evidence=(f"asked: {failed.request}", f"got: {failed.response}"),
                )
            )
        self._finish("validate", f"{len(report.probes)} probes passed in {report.took_s:.1f} s")
        return report

    async def _switch_traffic(self, generation: c.GenerationRef) -> None:
        """Move the route; from here on the new generation serves."""
        self._begin("traffic")
        attributes.set_phase("switching")
        task = asyncio.create_task(
            steps.SWITCH_TRAFFIC.run(
                c.SwitchInput(
                    deployment=generation.deployment,
                    served_name=generation.served_name,
                    generation=generation.id,
                    previous=generation.previous,
                ),
                summary=f"Send {generation.served_name} to {generation.id}",
            )
        )
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            # Half a switch helps nobody: it ends first, and the deploy with it.
            await task
        self._switched = True
        self._finish("traffic", generation.served_name)

    async def _retire_previous(self, generation: c.GenerationRef) -> None:
        """Start the retirement of the generation that had the traffic; it drains on its own time."""
        previous = generation.previous
        if previous is None or previous == generation.id:
            self._skip("retire")
            return
        self._begin("retire", previous)
        try:
            await workflow.start_child_workflow(
                c.DEPRECATE,
                c.DeprecateInput(
                    deployment=generation.deployment,
                    generation=previous,
                    target=generation.target,
                    reason=f"{generation.id} took the traffic",
                    requested_by=self._start.requested_by,
                ),
                id=c.deprecate_id(previous),
                parent_close_policy=workflow.ParentClosePolicy.ABANDON,
                cancellation_type=workflow.ChildWorkflowCancellationType.ABANDON,
                static_summary=f"Retire {previous}",
            )
        except WorkflowAlreadyStartedError:
            workflow.logger.info("the previous generation is being retired already")
        self._finish("retire", f"{previous} drains")

    # -- the other ends

    def _nothing_to_do(self, generation: c.GenerationRef) -> c.DeployResult:
        for name in ("ready", "validate", "traffic", "retire"):
            self._skip(name)
        attributes.set_phase("serving")
        shown.keep(self._page())
        return c.DeployResult(
            deployment=generation.deployment,
            generation=generation.id,
            served_name=generation.served_name,
            changed=False,
            message=f"Nothing to change: {generation.id} is serving these settings already.",
        )

    async def _give_up(self, error: BaseException) -> BaseException:
        """Take down what this deploy started, record why, and return the error that ends the workflow."""
        cancelled = isinstance(error, asyncio.CancelledError) or workflow.cancellation_reason() is not None
        failure = (
            c.Failure(
                kind="interrupted",
                code="deploy-cancelled",
                message=workflow.cancellation_reason() or "The deploy was cancelled.",
            )
            if cancelled
            else _failure_in(error)
        )
        for name, step in self._steps.items():
            if step.state == "running":
                self._mark(name, state="failed", detail=failure.message, ended_at=workflow.time())
        attributes.set_phase("cancelled" if cancelled else "failed")
        shown.keep(self._page())
        generation = self._generation
        if generation is not None and not self._switched and not generation.unchanged:
            await self._take_down(generation, failure)
        if cancelled:
            return error if isinstance(error, asyncio.CancelledError) else asyncio.CancelledError()
        return refusal_in(error) or error_of(failure)

    async def _take_down(self, generation: c.GenerationRef, failure: c.Failure) -> None:
        for replica in range(generation.replicas):
            try:
                await workflow.get_external_workflow_handle(c.retry_id(generation.id, "inference", replica)).signal(
                    "stop", c.StopRequest(reason=f"its deploy ended: {failure.message}")
                )
            except FailureError:
                continue  # never started, or gone already
        await steps.AWAIT_GONE.run(
            c.GenerationInput(generation=generation.id, deployment=generation.deployment),
            summary=f"Confirm that every process of {generation.id} is gone",
        )
        await steps.CLEAN_GENERATION.run(
            c.PhaseInput(generation=generation.id, deployment=generation.deployment, phase="failed", failure=failure),
            summary=f"Clean up after {generation.id}",
        )

    async def _set_phase(self, generation: c.GenerationRef, phase: str) -> None:
        await steps.SET_PHASE.run(
            c.PhaseInput.model_validate(
                {"generation": generation.id, "deployment": generation.deployment, "phase": phase}
            ),
            summary=f"Record that {generation.id} is {phase}",
        )

    # -- progress

    def _all_ready(self, generation: c.GenerationRef) -> bool:
        states = [self._replicas[index].state for index in range(generation.replicas) if index in self._replicas]
        return len(states) == generation.replicas and all(state == "ready" for state in states)

    def _down(self, generation: c.GenerationRef) -> c.Failure | None:
        """Why a replica will not come up by itself, or None."""
        for status in self._replicas.values():
            if status.generation == generation.id and status.state in ("failed", "stopped"):
                return status.failure or c.Failure(
                    kind="interrupted",
                    code="replica-stopped",
                    message=f"Replica {status.replica} was stopped: {status.detail or 'no reason given'}.",
                )
        return None

    def _begin(self, name: str, detail: str = "") -> None:
        self._mark(name, state="running", detail=detail, started_at=workflow.time())

    def _finish(self, name: str, detail: str = "") -> None:
        self._mark(name, state="done", detail=detail or self._steps[name].detail, ended_at=workflow.time())

    def _skip(self, name: str) -> None:
        self._mark(name, state="skipped")

    def _mark(self, name: str, **changes: object) -> None:
        self._steps[name] = self._steps[name].model_copy(update=changes)
        self._show()

    def _show(self) -> None:
        shown.show(self._page())

    def _page(self) -> str:
        status = self.status()
        return pages.deploy_page(status.deployment, status.generation, status.steps, status.replicas)


def _short(revision: str) -> str:
    """A commit or digest by its first digits; a version as it is."""
    return revision[:12] if len(revision) >= 40 else revision


def _failure_in(error: BaseException) -> c.Failure:
    if isinstance(error, ActivityError | ChildWorkflowError | ApplicationError):
        return failure_of(error)
    return c.Failure(kind="transient", code="unexpected", message=str(error) or type(error).__name__)
