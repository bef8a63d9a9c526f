"""Deployments of the scripted engine: small, quick, and as real as any to everything but the tokens."""

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.spec import (
    Compute,
    Deployment,
    DirectorySource,
    Image,
    Inference,
    Launch,
    Model,
    Readiness,
    RetryBudget,
    Validation,
)
from tests.scripted_engine import Script

_READINESS = Readiness(startup_timeout="3m", initialization_timeout="2m", generation_timeout="1m")
"""Never reached when all is well, however busy the machine is."""


@dataclass(frozen=True)
class Scripted:
    """A deployment and the script that its engines follow."""

    deployment: Deployment
    script: Script

    def changed(self, **inference: Any) -> Deployment:
        """The deployment with other settings of its inference role."""
        assert self.deployment.inference is not None
        return dataclasses.replace(
            self.deployment, inference=dataclasses.replace(self.deployment.inference, **inference)
        )


def scripted(
    root: Path,
    home: Path,
    image: Image,
    name: str = "m",
    *,
    retry: RetryBudget | None = None,
    readiness: Readiness | None = None,
    environment: dict[str, Any] | None = None,
    behaviour: dict[str, Any] | None = None,
    **inference: Any,
) -> Scripted:
    """A deployment of the scripted engine; its files lie below ``root``."""
    directory = root / name
    weights = directory / "weights"
    weights.mkdir(parents=True)
    (weights / "config.json").write_text(json.dumps({"model_type": "scripted"}))
    script = Script.create(directory, **(behaviour or {}))
    role = {
        "engine": "vllm",
        "image": image,
        "compute": Compute(cpus=1, memory="3GiB"),
        "options": {"enforce-eager": True},
        "environment": {**script.environment, "SCRIPTED_ENGINE_HOME": str(home), **(environment or {})},
        "readiness": readiness or _READINESS,
        "launch": Launch(stop_grace="2s"),
        **inference,
    }
    deployment = Deployment(
        name=name,
        model=Model(id=f"scripted/{name}", source=DirectorySource(path=str(weights))),
        inference=Inference(**role),
        retry=retry or RetryBudget(attempts=5, window="10m", initial_backoff="200ms", max_backoff="1s"),
        validation=Validation(expect="Paris", timeout="1m"),
    )
    return Scripted(deployment=deployment, script=script)
