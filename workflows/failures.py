"""From what Temporal raises to the `Failure` that people read, and back."""

from collections.abc import Mapping

from temporalio import workflow
from temporalio.exceptions import ActivityError, ApplicationError, ChildWorkflowError, FailureError, TimeoutError

with workflow.unsafe.imports_passed_through():
    from standfast.contracts import Failure


def failure_of(error: BaseException) -> Failure:
    """The failure inside an activity or child workflow error; what carries none counts as transient, with its own
    words.
    """
    cause = _cause(error)
    if isinstance(cause, ApplicationError):
        detail = cause.details[0] if cause.details else None
        if isinstance(detail, Failure):
            return detail
        if isinstance(detail, Mapping) and "kind" in detail:
            return Failure.model_validate(detail, strict=False)
        return Failure(
            kind="permanent" if cause.non_retryable else "transient",
            code=cause.type or "unexpected",
            message=cause.message,
        )
    if isinstance(cause, TimeoutError):
        return Failure(
            kind="transient",
            code="step-timed-out",
            message=f"{_step(error)} did not finish in time.",
            help="Is a control worker running? `standfast doctor` tells.",
        )
    return Failure(kind="transient", code="unexpected", message=str(cause) or type(cause).__name__)


def error_of(failure: Failure) -> ApplicationError:
    """The error that fails a workflow with this failure as its verdict."""
    text = f"{failure.message}\n{failure.help}".strip()
    return ApplicationError(text, failure, type=failure.code, non_retryable=True)


def refusal_in(error: BaseException) -> ApplicationError | None:
    """The configuration problems that the error carries, stripped of the step that found them; None when it carries
    none. They are passed on as they are, so that a client sees every problem.
    """
    cause = _cause(error)
    return cause if isinstance(cause, ApplicationError) and cause.type == "Problems" else None


def _cause(error: BaseException) -> BaseException:
    """What went wrong inside the step or child workflow that failed."""
    while isinstance(error, ActivityError | ChildWorkflowError) and error.cause is not None:
        error = error.cause
    return error


def _step(error: BaseException) -> str:
    return (
        error.activity_type
        if isinstance(error, ActivityError)
        else "the child workflow"
        if isinstance(error, FailureError)
        else "a step"
    )
