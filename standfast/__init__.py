"""Durable model deployments: typed configs in, proven and standing model endpoints out.

Everything a config or a program needs comes from here: ``from standfast import Deployment, Inference, Model``. Names
load when they are first used, so ``import standfast`` itself costs next to nothing.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from standfast.catalog import Catalog, load, select
    from standfast.client import Client
    from standfast.problems import Problem, ProblemsError, UserError
    from standfast.spec import (
        Adapters,
        Backpressure,
        Compute,
        Deployment,
        DirectorySource,
        HubSource,
        Image,
        Inference,
        Launch,
        Model,
        Optimizer,
        Parallelism,
        Readiness,
        RetryBudget,
        Scaling,
        Secret,
        Trainer,
        Validation,
        WheelSource,
    )
    from standfast.targets import LocalTarget, ModalTarget, SlurmTarget

    __version__: str

__all__ = [
    "Adapters",
    "Backpressure",
    "Catalog",
    "Client",
    "Compute",
    "Deployment",
    "DirectorySource",
    "HubSource",
    "Image",
    "Inference",
    "Launch",
    "LocalTarget",
    "ModalTarget",
    "Model",
    "Optimizer",
    "Parallelism",
    "Problem",
    "ProblemsError",
    "Readiness",
    "RetryBudget",
    "Scaling",
    "Secret",
    "SlurmTarget",
    "Trainer",
    "UserError",
    "Validation",
    "WheelSource",
    "load",
    "select",
]

_ELSEWHERE = {
    "Catalog": "standfast.catalog",
    "load": "standfast.catalog",
    "select": "standfast.catalog",
    "Client": "standfast.client",
    "Problem": "standfast.problems",
    "ProblemsError": "standfast.problems",
    "UserError": "standfast.problems",
    "LocalTarget": "standfast.targets",
    "ModalTarget": "standfast.targets",
    "SlurmTarget": "standfast.targets",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("standfast")
    elif name in __all__:
        from importlib import import_module

        value = getattr(import_module(_ELSEWHERE.get(name, "standfast.spec")), name)
    else:
        raise AttributeError(f"module 'standfast' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, "__version__"})
