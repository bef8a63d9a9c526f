"""RetryWorkflow: keep one replica up for as long as it is wanted."""

import asyncio
import contextlib
from datetime import timedelta
from typing import Any, TypeVar

from temporalio import workflow
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    ChildWorkflowError,
    FailureError,
    WorkflowAlreadyStartedError,
    is_cancelled_exception,
)

with workflow.unsafe.imports_passed_through():
    from standfast import budget
    from standfast import contracts as c

from workflows import attributes, pages, shown, steps
from workflows.failures import failure_of

_T = TypeVar("_T")

_CAPACITY_POLL_S = (5.0, 30.0)
"""The first and the longest wait between two looks for room."""
_ATTEMPTS_PER_RUN = 50
"""Attempts after which the workflow continues as new, so that its history stays short."""
_PASSING = ("placing", "launching", "stopping")
"""States that pass by themselves within moments; subscribers are not told of them."""

_AT_REST = ("ready", "failed", "budget_spent", "stopped")
"""States that may last: their page is kept in the memo."""


@workflow.defn(name=c.RETRY)
class RetryWorkflow:
    """The attempt loop of one replica.

    Place it, launch it, wait until the model answers, publish it, watch it. Whatever ends an attempt is classified: a
    permanent failure waits for an operator, a lack of room waits without spending, anything else spends one attempt of
    the budget and backs off. Ends only when told to stop.
    """

    @workflow.init
    def __init__(self, start: c.ReplicaInput) -> None:
        self._input = start
        self._number = start.attempts_so_far
        self._spent_at = start.spent_at
        self._failures_in_a_row = start.consecutive_failures
        self._has_served = start.has_served
        self._subscribers = [start.subscriber] if start.subscriber else []
        self._stop: c.StopRequest | None = None
        self._retry_requested = False
        self._messages: set[asyncio.Task[None]] = set()
        self._status = c.ReplicaStatus(
            generation=start.generation,
            role=start.role,
            replica=start.replica,
            state="placing",
            attempt=self._number,
            budget=start.retry.attempts,
        )

    @workflow.run
    async def run(self, start: c.ReplicaInput) -> c.ReplicaStatus:
        attributes.tag(
            deployment=start.deployment,
            target=start.target,
            phase="placing",
            generation=start.generation,
            role=start.role,
        )
        if start.launch_delay_s > 0 and start.attempts_so_far == 0:
            self._set("placing", f"starts {start.launch_delay_s:g} s after the first replica")
            await self._sleep(start.launch_delay_s)
        attempts_in_this_run = 0
        try:
            while self._stop is None:
                if attempts_in_this_run >= _ATTEMPTS_PER_RUN or workflow.info().is_continue_as_new_suggested():
                    await self._messages_sent()
                    workflow.continue_as_new(self._carried_over())
                attempts_in_this_run += 1
                failure = await self._attempt()
                if failure is not None and self._stop is None:
                    await self._after(failure)
        except asyncio.CancelledError:
            self._stop_because_cancelled()
        self._set("stopped", self._stop.reason if self._stop else "")
        await self._messages_sent()
        await workflow.wait_condition(workflow.all_handlers_finished)
        return self._status

    # -- messages

    @workflow.query(description="Where the replica is, what failed last, what comes next.")
    def status(self) -> c.ReplicaStatus:
        return self._status

    @workflow.update(description="Refill the retry budget and try again at once.")
    async def retry(self, request: c.RetryRequest) -> c.ReplicaStatus:
        self._refill()
        return self._status

    @retry.validator
    def _only_when_it_waits(self, request: c.RetryRequest) -> None:
        if self._status.state in ("ready", "stopping", "stopped"):
            raise ApplicationError(
                f"The replica is {self._status.state}; there is nothing to retry.", type="NothingToRetry"
            )

    @workflow.signal(description="Refill the retry budget and try again, if the replica waits for that.")
    def revive(self, request: c.RetryRequest) -> None:
        if self._status.state in ("failed", "budget_spent", "backing_off"):
            self._refill()

    @workflow.signal(description="Take the replica down for good.")
    def stop(self, request: c.StopRequest) -> None:
        self._stop = self._stop or request

    @workflow.signal(description="Report every change of state to another workflow.")
    def subscribe(self, workflow_id: str) -> None:
        if workflow_id not in self._subscribers:
            self._subscribers.append(workflow_id)
        self._tell(workflow_id, self._status)

    # -- one attempt

    async def _attempt(self) -> c.Failure | None:
        """Run one attempt to its end; returns why it ended, or None when it was stopped on purpose."""
        self._number += 1
        self._retry_requested = False
        number = self._number
        attempt = c.attempt_name(self._input.generation, self._input.role, self._input.replica, number)
        placement: c.Placement | None = None
        failure: c.Failure | None = None
        try:
            placement = await self._place(attempt, number)
            if placement is None and self._stop is None:
                # Nothing was leased under this name: the next run of the workflow goes on with it.
                self._number -= 1
                return None
            if placement is not None:
                failure = await self._run(self._reference(attempt, number, placement))
        except (ActivityError, ChildWorkflowError) as error:
            if is_cancelled_exception(error) and workflow.cancellation_reason() is not None:
                self._stop_because_cancelled()
            else:
                failure = failure_of(error)
        except asyncio.CancelledError:
            self._stop_because_cancelled()
        await self._end(attempt, placement, failure)
        return failure

    async def _place(self, attempt: str, number: int) -> c.Placement | None:
        """Lease room; waits as long as there is none, spending nothing."""
        place = c.PlaceInput(
            attempt=attempt,
            number=number,
            generation=self._input.generation,
            role=self._input.role,
            replica=self._input.replica,
        )
        self._set("placing")
        wait, longest = _CAPACITY_POLL_S
        while self._stop is None and not workflow.info().is_continue_as_new_suggested():
            try:
                return await self._unless_stopped(
                    steps.PLACE_ATTEMPT.start(place, summary=f"Find room for attempt {number} of {self._label}")
                )
            except ActivityError as error:
                failure = failure_of(error)
                if failure.kind != "capacity":
                    raise
                self._set("waiting_for_capacity", failure.message, next_try_at=workflow.time() + wait)
                await self._sleep(wait)
                self._retry_requested = False
                wait = min(2 * wait, longest)
        return None

    async def _run(self, ref: c.AttemptRef) -> c.Failure | None:
        """Launch, wait until the model answers, publish, watch."""
        queue = c.host_queue(ref.placement.host)
        self._set("launching", f"on {ref.placement.host}")
        await steps.LAUNCH_ATTEMPT.run(ref, summary=f"Launch attempt {ref.number} of {self._label}", queue=queue)
        self._set("starting", f"on {ref.placement.host}")
        ready = await self._unless_stopped(
            steps.AWAIT_READY.start(
                ref, summary=f"Wait until attempt {ref.number} of {self._label} answers", queue=queue
            )
        )
        if ready is None:
            return None
        if self._has_served:
            failure = await self._prove_again(ready)
            if failure is not None or self._stop is not None:
                return failure
        await steps.PUBLISH_BACKEND.run(ready, summary=f"Put {self._label} behind the frontend")
        self._has_served = True
        self._failures_in_a_row = 0
        self._set("ready", f"answered after {ready.took_s:.1f} s at {ready.url}")
        while True:
            verdict = await self._unless_stopped(
                steps.WATCH_ATTEMPT.start(ready, summary=f"Watch every process of {self._label}", queue=queue)
            )
            if verdict is None:
                return None
            if verdict.failure is not None:
                return verdict.failure

    async def _prove_again(self, ready: c.ReadyAttempt) -> c.Failure | None:
        """A replica that served before returns to the traffic by a new proof."""
        self._set("starting", "proving again before it takes traffic")
        start = self._input
        proof = c.ValidateInput(
            generation=start.generation,
            deployment=start.deployment,
            target=start.target,
            inference_hash=start.inference_hash,
            validation=start.validation,
            replicas=(start.replica,),
        )
        try:
            report: c.ProofReport = await workflow.execute_child_workflow(
                c.VALIDATE,
                proof,
                id=f"{c.validate_id(self._input.generation)}/{ready.ref.replica}/{ready.ref.number}",
                result_type=c.ProofReport,
                static_summary=f"Prove {self._label} again",
            )
        except WorkflowAlreadyStartedError:
            return c.Failure(
                kind="transient", code="proof-clash", message="another validation of this attempt is running"
            )
        if report.passed:
            return None
        failed = next(probe for probe in report.probes if not probe.passed)
        return c.Failure(
            kind="transient", code="proof-failed", message=f"The {failed.probe} probe failed: {failed.message}"
        )

    async def _end(self, attempt: str, placement: c.Placement | None, failure: c.Failure | None) -> None:
        """Stop what runs under the attempt's name and confirm that it is gone; happens even when the workflow is
        cancelled.
        """
        reason = failure.message if failure is not None else self._stop.reason if self._stop is not None else "ended"
        self._set("stopping", reason, failure=failure)
        end = c.EndAttempt(
            attempt=attempt,
            generation=self._input.generation,
            role=self._input.role,
            replica=self._input.replica,
            host=placement.host if placement is not None else None,
            reason=reason,
            failure=failure,
        )
        queue = c.host_queue(placement.host) if placement is not None else None
        task = asyncio.create_task(
            steps.END_ATTEMPT.run(
                end, summary=f"Confirm that attempt {self._number} of {self._label} is gone", queue=queue
            )
        )
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError:
            self._stop_because_cancelled()
            await task

    async def _after(self, failure: c.Failure) -> None:
        """Decide what a failure leads to, and wait for it."""
        now = workflow.time()
        if failure.kind == "permanent":
            self._set("failed", failure.message, failure=failure)
            await workflow.wait_condition(lambda: self._retry_requested or self._stop is not None)
            return
        if failure.kind == "interrupted":
            return
        plan = self._input.retry
        self._failures_in_a_row += 1
        if budget.available(self._spent_at, plan, now) == 0:
            refill = budget.refills_at(self._spent_at, plan, now)
            self._set("budget_spent", failure.message, failure=failure, next_try_at=refill)
            await self._sleep(refill - now)
        self._spent_at = (*budget.still_spent(self._spent_at, plan, workflow.time()), workflow.time())
        if self._stop is not None or self._retry_requested:
            return
        wait = budget.backoff_s(plan, self._failures_in_a_row, workflow.random().random())
        self._set("backing_off", failure.message, failure=failure, next_try_at=workflow.time() + wait)
        await self._sleep(wait)

    # -- small helpers

    def _refill(self) -> None:
        self._spent_at = ()
        self._failures_in_a_row = 0
        self._retry_requested = True

    def _stop_because_cancelled(self) -> None:
        reason = workflow.cancellation_reason() or "the workflow was cancelled"
        self._stop = self._stop or c.StopRequest(reason=reason)

    @property
    def _label(self) -> str:
        return f"{self._input.deployment} {self._input.role}/{self._input.replica}"

    def _reference(self, attempt: str, number: int, placement: c.Placement) -> c.AttemptRef:
        return c.AttemptRef(
            attempt=attempt,
            number=number,
            generation=self._input.generation,
            role=self._input.role,
            replica=self._input.replica,
            placement=placement,
        )

    async def _unless_stopped(self, handle: workflow.ActivityHandle[_T]) -> _T | None:
        """The activity's result, or None when a stop came first; the activity is then cancelled and has cleaned
        up.
        """
        await workflow.wait_condition(lambda: handle.done() or self._stop is not None)
        if not handle.done():
            handle.cancel()
            try:
                await handle
            except (ActivityError, asyncio.CancelledError) as error:
                if not is_cancelled_exception(error):
                    raise
            return None
        return await handle

    async def _sleep(self, seconds: float) -> None:
        """Wait, unless an operator asks for a retry or a stop first."""
        with contextlib.suppress(TimeoutError):
            await workflow.wait_condition(
                lambda: self._retry_requested or self._stop is not None,
                timeout=timedelta(seconds=max(seconds, 0.0)),
                timeout_summary=f"{self._label}: {self._status.state.replace('_', ' ')}",
            )

    def _set(
        self, state: str, detail: str = "", *, failure: c.Failure | None = None, next_try_at: float | None = None
    ) -> None:
        """Record a change of state everywhere it is shown: query, search attribute, page, subscribers.

        The last failure stays in view until the replica is ready again.
        """
        now = workflow.time()
        changes: dict[str, Any] = {
            "state": state,
            "attempt": self._number,
            "detail": detail,
            "next_try_at": next_try_at,
            "spent": len(budget.still_spent(self._spent_at, self._input.retry, now)),
        }
        if failure is not None or state == "ready":
            changes["failure"] = failure
        before = self._status
        self._status = before.model_copy(update=changes)
        page = pages.replica_page(self._status)
        if state in _AT_REST and state != before.state:
            shown.keep(page)
        else:
            shown.show(page)
        if state != before.state:
            attributes.set_phase(state)
        if (state, detail) != (before.state, before.detail) and state not in _PASSING:
            for subscriber in self._subscribers:
                self._tell(subscriber, self._status)

    def _tell(self, workflow_id: str, status: c.ReplicaStatus) -> None:
        task = asyncio.create_task(self._send(workflow_id, status))
        self._messages.add(task)
        task.add_done_callback(self._messages.discard)

    async def _send(self, workflow_id: str, status: c.ReplicaStatus) -> None:
        try:
            await workflow.get_external_workflow_handle(workflow_id).signal("replica_changed", status)
        except FailureError as error:
            workflow.logger.info("a subscriber is gone", extra={"subscriber": workflow_id, "error": str(error)})
            if workflow_id in self._subscribers:
                self._subscribers.remove(workflow_id)

    async def _messages_sent(self) -> None:
        await workflow.wait_condition(lambda: not self._messages)

    def _carried_over(self) -> c.ReplicaInput:
        return self._input.model_copy(
            update={
                "subscriber": self._subscribers[0] if self._subscribers else None,
                "attempts_so_far": self._number,
                "spent_at": self._spent_at,
                "consecutive_failures": self._failures_in_a_row,
                "has_served": self._has_served,
                "launch_delay_s": 0.0,
            }
        )
