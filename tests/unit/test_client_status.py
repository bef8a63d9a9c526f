"""What comes next, in a sentence."""

import time

import pytest

from standfast.client.deploys import settings_of
from standfast.client.status import WORKER_SILENT, WORKFLOW_STUCK, next_step
from standfast.client.views import DeploymentStatus, GenerationView
from standfast.contracts import DeployStatus, Failure, ReplicaStatus, StepProgress
from standfast.spec import Deployment, Inference, Model, Secret


def standing(*states: str, **more: object) -> DeploymentStatus:
    replicas = tuple(
        ReplicaStatus.model_validate(
            {
                "generation": "m@1",
                "role": "inference",
                "replica": number,
                "state": state,
                "detail": "needs 8 GiB",
                "next_try_at": time.time() + 30,
            }
        )
        for number, state in enumerate(states)
    )
    fields = {
        "name": "m",
        "served_name": "m",
        "target": "local",
        "generation": "m@1",
        "phase": "serving",
        "replicas_ready": states.count("ready"),
        "replicas_wanted": len(states),
        "replicas": replicas,
        **more,
    }
    return DeploymentStatus.model_validate(fields)


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (("ready",), "watched; nothing to do"),
        (("ready", "starting"), "replicas are coming up"),
        (("ready", "backing_off"), "tries again at "),
        (("budget_spent",), "`standfast retry m` refills it now"),
        (("waiting_for_capacity",), "waits for room: needs 8 GiB"),
        (("backing_off", "failed"), "replica 1 needs a fix: `standfast logs m`"),
    ],
)
def test_the_most_urgent_replica_decides_what_comes_next(states: tuple[str, ...], words: str) -> None:
    assert words in next_step(standing(*states))


def test_a_running_deploy_tells_its_step() -> None:
    deploy = DeployStatus(
        deployment="m", generation=None, steps=(StepProgress(name="image", state="running", detail="vllm-cpu"),)
    )
    assert next_step(standing(phase="deploying", deploy=deploy)) == "deploy: image vllm-cpu"


@pytest.mark.parametrize(
    ("notice", "words"), [(WORKER_SILENT, "when a control worker answers"), (WORKFLOW_STUCK, "needs a look")]
)
def test_without_answers_nothing_is_promised(notice: str, words: str) -> None:
    assert words in next_step(standing("ready", notices=(notice,)))


def test_a_cancelled_deploy_asks_for_nothing() -> None:
    failure = Failure(kind="interrupted", code="deploy-cancelled", message="x")
    generation = GenerationView(id="m@1", phase="failed", created_at=0.0, replicas=1, failure=failure)
    assert "was cancelled" in next_step(standing(phase="failed", generations=(generation,)))
    assert "correct the config" in next_step(standing(phase="failed"))


def test_settings_travel_as_json_with_secrets_as_names() -> None:
    inference = Inference(engine="vllm", environment={"HF_TOKEN": Secret("MY_TOKEN")})
    settings = settings_of(Deployment(name="m", model=Model(id="a/b"), inference=inference))
    assert settings["inference"]["environment"] == {"HF_TOKEN": {"name": "MY_TOKEN"}}
    assert settings["inference"]["launch"]["stop_grace"] == "30s"
