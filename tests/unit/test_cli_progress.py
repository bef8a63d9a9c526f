"""How a deploy and a status look."""

import io
import time

import pytest
from rich.console import Console

from standfast.cli.output import ago, took, words
from standfast.cli.progress import DeployView, LineProgress, replica_line
from standfast.cli.status import _details, _table
from standfast.client import DeploymentStatus
from standfast.client.views import AttemptView, ProofView
from standfast.contracts import DeployStatus, Failure, ReplicaStatus, StepProgress

FAILURE = Failure(
    kind="transient", code="engine-exited", message="The engine ended.", evidence=("boom",), attempt="a/1"
)


def console() -> Console:
    return Console(file=io.StringIO(), width=120, color_system=None, soft_wrap=True)


def printed(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def replica(state: str = "starting", **more: object) -> ReplicaStatus:
    fields = {"generation": "m@1", "role": "inference", "replica": 0, "state": state, "attempt": 2, **more}
    return ReplicaStatus.model_validate(fields)


def status(*steps: StepProgress, replicas: tuple[ReplicaStatus, ...] = ()) -> DeployStatus:
    return DeployStatus(deployment="m", generation="m@1", steps=steps, replicas=replicas)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (125, "2 min 05 s"), (12000, "3 h 20 min"), (90000, "1 d 1 h")],
)
def test_lengths_of_time_are_short(seconds: float, text: str) -> None:
    assert took(seconds) == text


def test_ages_and_states_read_as_words() -> None:
    assert ago(100.0, now=160.0) == "1 min 00 s ago"
    assert words("waiting_for_capacity") == "waiting for capacity"


def test_a_picture_has_a_line_per_step_and_per_replica_that_is_waited_for() -> None:
    view = DeployView("m", "local")
    view.update(
        status(
            StepProgress(name="image", state="done", detail="vllm-cpu", started_at=1.0, ended_at=63.0),
            StepProgress(name="ready", state="running", started_at=time.time()),
            StepProgress(name="validate"),
            replicas=(replica(detail="on host\nmore"),),
        )
    )
    view.said[0] = "Loading weights"
    target = console()
    target.print(view)
    lines = printed(target).splitlines()
    assert lines[0] == "m to local   m@1"
    assert lines[1].split() == ["✓", "Build", "the", "image", "1", "min", "02", "s", "vllm-cpu"]
    assert "Wait for the model" in lines[2]
    assert lines[3].strip() == "inference/0  attempt 2, starting: on host"
    assert lines[4].strip() == "│ Loading weights"
    assert "Prove that it answers" in lines[5]


def test_before_a_worker_takes_it_up_the_picture_says_so() -> None:
    target = console()
    target.print(DeployView("m", "local"))
    assert "waiting for the control worker" in printed(target)


def test_without_a_terminal_each_change_is_one_line_once() -> None:
    view = DeployView("m", "local")
    target = console()
    lines = LineProgress([view], target)
    changed = lines.progress(view)
    step = StepProgress(name="image", state="running", started_at=1.0)
    changed(status(step))
    changed(status(step.model_copy(update={"detail": "installing"})))
    changed(status(step.model_copy(update={"state": "done", "ended_at": 2.0}), replicas=(replica(),)))
    changed(status(step.model_copy(update={"state": "done", "ended_at": 2.0}), replicas=(replica("ready"),)))
    notice = lines.notice(view)
    notice("no worker")
    notice("no worker")
    assert [line.split()[0] for line in printed(target).splitlines()] == ["▸", "✓", "inference/0", "inference/0", "!"]


def test_a_replica_that_backs_off_says_when_it_tries_again_and_why() -> None:
    shown = replica_line(replica("backing_off", detail="The engine ended.", next_try_at=0.0, failure=FAILURE)).plain
    assert "attempt 2, backing off, next try at" in shown
    assert shown.endswith(": The engine ended.")


def one(**more: object) -> DeploymentStatus:
    fields = {
        "name": "m",
        "served_name": "model",
        "target": "local",
        "generation": "m@0123456789ab",
        "phase": "serving",
        "replicas_ready": 1,
        "replicas_wanted": 1,
        "next_step": "watched; nothing to do",
        **more,
    }
    return DeploymentStatus.model_validate(fields)


def test_the_table_answers_what_stands_and_what_comes_next() -> None:
    target = console()
    proof = ProofView(id="p", generation="m@0123456789ab", passed=True, created_at=time.time() - 60)
    target.print(_table((one(last_proof=proof),)))
    heading, row = printed(target).splitlines()
    assert heading.split()[:3] == ["DEPLOYMENT", "MODEL", "NAME"]
    for words_ in ("m ", "model", "0123456789ab", "serving", "1/1", "passed 1 min 00 s ago", "watched; nothing to do"):
        assert words_ in row


def test_the_details_tell_the_attempts_and_why_the_last_one_failed() -> None:
    attempt = AttemptView(
        name="a/1",
        generation="m@0123456789ab",
        role="inference",
        replica=0,
        number=1,
        phase="ended",
        started_at=100.0,
        ready_at=None,
        ended_at=104.0,
        failure=FAILURE,
    )
    waiting = replica("backing_off", failure=FAILURE, spent=1, budget=5)
    target = console()
    for line in _details(one(replicas=(waiting,), attempts=(attempt,))):
        target.print(line)
    shown = printed(target)
    assert "retry budget: 4 of 5 attempts left" in shown
    assert "attempt 1" in shown
    assert "ended after 4.0 s  transient: engine-exited" in shown
    assert "why the last one failed  transient: engine-exited" in shown
    assert "│ boom" in shown
    assert "log: standfast logs m --attempt a/1" in shown
