"""How operations end when they do not end well, and the exit code that each has on the command line."""

import json
from typing import TYPE_CHECKING, Any

from standfast.contracts import Failure
from standfast.problems import Problem, ProblemsError, UserError

if TYPE_CHECKING:
    from temporalio.client import WorkflowFailureError

EXIT_FAILED = 1
EXIT_TIMED_OUT = 4


class OperationFailedError(UserError):
    """An operation ended with a verdict: ``failure`` says why, with the log lines that it rests on."""

    def __init__(self, operation: str, deployment: str, failure: Failure, *, workflow_url: str | None = None) -> None:
        super().__init__(f"{operation} {deployment}: {failure.message}", help=failure.help, exit_code=EXIT_FAILED)
        self.operation = operation
        self.deployment = deployment
        self.failure = failure
        self.workflow_url = workflow_url


class DeployInProgressError(UserError):
    """Another deploy of the same deployment runs, with other settings."""

    def __init__(self, deployment: str, *, requested_by: str = "", workflow_url: str | None = None) -> None:
        by = f" (started by {requested_by})" if requested_by else ""
        super().__init__(
            f"a deploy of {deployment} with other settings is running{by}.",
            help=f"Wait for it (`standfast status {deployment} --watch`), or cancel it: "
            f"`standfast deploy --cancel {deployment}`.",
            exit_code=EXIT_FAILED,
        )
        self.workflow_url = workflow_url


class NoSuchDeploymentError(UserError):
    """The registry knows no deployment of that name."""

    def __init__(self, name: str, known: tuple[str, ...] = ()) -> None:
        listed = f"The deployments are: {', '.join(known)}." if known else "Nothing is deployed yet."
        super().__init__(f"there is no deployment {name!r}.", help=listed)


class StillRunningError(UserError):
    """The caller's patience ended before the operation did. The operation goes on."""

    def __init__(self, operation: str, deployment: str, timeout_s: float) -> None:
        super().__init__(
            f"{operation} {deployment}: not finished after {timeout_s:g} s; it goes on.",
            help=f"`standfast status {deployment} --watch` shows it.",
            exit_code=EXIT_TIMED_OUT,
        )


def operation_error(
    error: "WorkflowFailureError", *, operation: str, deployment: str, workflow_url: str | None = None
) -> Exception:
    """What a failed workflow means: `ProblemsError` for refused settings, else `OperationFailedError`."""
    from temporalio.exceptions import ApplicationError, CancelledError, FailureError, TerminatedError, TimeoutError

    cause: BaseException | None = error.cause
    while isinstance(cause, FailureError) and not isinstance(cause, ApplicationError) and cause.cause is not None:
        cause = cause.cause
    if isinstance(cause, ApplicationError):
        detail = cause.details[0] if cause.details else None
        if cause.type == "Problems" and isinstance(detail, list):
            return ProblemsError(tuple(_problem(item) for item in detail))
        failure = _failure(detail) or Failure(kind="permanent", code=cause.type or "unexpected", message=cause.message)
    elif isinstance(cause, CancelledError):
        failure = Failure(kind="interrupted", code="cancelled", message=f"The {operation} was cancelled.")
    elif isinstance(cause, TerminatedError):
        failure = Failure(
            kind="interrupted",
            code="terminated",
            message=f"The {operation} was terminated from outside; nothing was cleaned up.",
            help=f"`standfast status {deployment}` shows what is left.",
        )
    elif isinstance(cause, TimeoutError):
        failure = Failure(kind="transient", code="timed-out", message=f"The {operation} ran out of time.")
    else:
        failure = Failure(kind="transient", code="unexpected", message=str(cause or error))
    return OperationFailedError(operation, deployment, failure, workflow_url=workflow_url)


def _problem(item: Any) -> Problem:
    return item if isinstance(item, Problem) else Problem.model_validate(item)


def _failure(detail: Any) -> Failure | None:
    if isinstance(detail, Failure):
        return detail
    if isinstance(detail, dict) and "kind" in detail and "code" in detail:
        return Failure.model_validate_json(json.dumps(detail))
    return None
