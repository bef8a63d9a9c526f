"""The pages that the Temporal UI shows."""

from typing import get_args

import pytest

from standfast.contracts import Failure, ReplicaStatus, StepProgress
from workflows.pages import deploy_page, next_step, plain, replica_page

STATES = get_args(ReplicaStatus.model_fields["state"].annotation)


def status(state: str) -> ReplicaStatus:
    return ReplicaStatus.model_validate(
        {"generation": "m@1", "role": "inference", "replica": 0, "state": state, "attempt": 2, "budget": 5, "spent": 1}
    )


@pytest.mark.parametrize("state", STATES)
def test_every_state_says_what_comes_next(state: str) -> None:
    assert next_step(status(state))
    assert "4 of 5 left" in replica_page(status(state))


def test_a_failure_shows_its_words_and_its_log_lines() -> None:
    failure = Failure(kind="permanent", code="x", message="It broke.", help="Mend it.", evidence=("last | line",))
    page = replica_page(status("failed").model_copy(update={"failure": failure}))
    for part in ("It broke.", "Mend it.", "last | line"):
        assert part in page


def test_a_pipe_in_a_detail_does_not_break_the_table() -> None:
    steps = (StepProgress(name="resolve", state="running", detail="a | b\nc"),)
    page = deploy_page("m", None, steps, ())
    assert "a \\| b c" in page


def test_a_page_is_plain_lines_where_markdown_is_not_read() -> None:
    steps = (
        StepProgress(name="resolve", state="done", detail="org/m at 0a1b"),
        StepProgress(name="image", state="failed", detail="a | b"),
        StepProgress(name="plan"),
    )
    page = deploy_page("m", None, steps, (status("backing_off"),))
    assert plain(page) == [
        "m",
        "Generation: not resolved yet",
        "✓  Pin the settings  org/m at 0a1b",
        "✗  Build the image  a | b",
        "·  Resolve the plan",
        "inference/0  backing off  2",
    ]
    failure = Failure(kind="permanent", code="x", message="It broke.", help="Mend it.", evidence=("last | line",))
    broken = plain(replica_page(status("failed").model_copy(update={"failure": failure})))
    assert broken[:3] == ["m@1 · inference/0", "state  failed", "attempt  2"]
    assert broken[-4:] == ["Last failure: x (permanent)", "It broke.", "Mend it.", "last | line"]
