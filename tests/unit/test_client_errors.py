"""What a failed workflow means to its caller."""

from typing import Any

import pytest
from temporalio.client import WorkflowFailureError
from temporalio.exceptions import (
    ActivityError,
    ApplicationError,
    CancelledError,
    RetryState,
    TerminatedError,
)

from standfast.client.errors import OperationFailedError, operation_error
from standfast.contracts import Failure
from standfast.problems import Problem, ProblemsError

FAILURE = Failure(kind="transient", code="engine-exited", message="The engine ended.", evidence=("boom",))
PROBLEM = Problem(code="c", where="Deployment.name", message="wrong", help="right")


def meaning(cause: BaseException) -> Exception:
    return operation_error(
        WorkflowFailureError(cause=cause), operation="deploy", deployment="m", workflow_url="http://ui"
    )


def in_activity(cause: BaseException) -> ActivityError:
    error = ActivityError(
        "failed",
        scheduled_event_id=1,
        started_event_id=2,
        identity="",
        activity_type="a",
        activity_id="1",
        retry_state=RetryState.NON_RETRYABLE_FAILURE,
    )
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("detail", [FAILURE, FAILURE.model_dump(mode="json")], ids=["record", "json"])
@pytest.mark.parametrize("wrap", [lambda cause: cause, in_activity], ids=["direct", "in an activity"])
def test_a_failure_travels_as_the_first_detail(detail: Any, wrap: Any) -> None:
    error = meaning(wrap(ApplicationError("The engine ended.", detail, type="engine-exited")))
    assert isinstance(error, OperationFailedError)
    assert error.failure == FAILURE
    assert error.message == "deploy m: The engine ended."
    assert (error.exit_code, error.workflow_url) == (1, "http://ui")


def test_refused_settings_come_back_as_all_their_problems() -> None:
    error = meaning(ApplicationError("refused", [PROBLEM.model_dump(mode="json")] * 2, type="Problems"))
    assert isinstance(error, ProblemsError)
    assert error.problems == (PROBLEM, PROBLEM)


@pytest.mark.parametrize(
    ("cause", "code"),
    [
        (CancelledError("c"), "cancelled"),
        (TerminatedError("t"), "terminated"),
        (ApplicationError("odd", type="Odd"), "Odd"),
        (RuntimeError("odd"), "unexpected"),
    ],
)
def test_other_endings_have_a_code_too(cause: BaseException, code: str) -> None:
    error = meaning(cause)
    assert isinstance(error, OperationFailedError)
    assert error.failure.code == code
