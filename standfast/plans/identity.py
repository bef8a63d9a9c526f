"""The digests that name plans and generations.

They cover settings and explicit code releases, never the source tree, and depend on content alone: not on the order
of keys, the process or the release of Python.
"""

from dataclasses import is_dataclass
from functools import cache
from typing import Any, get_type_hints

from pydantic import TypeAdapter

from standfast.plans.record import canonical_json, digest_of
from standfast.plans.records import Generation, RolePlan
from standfast.spec import Deployment

_DEPLOYMENT: TypeAdapter[Deployment] = TypeAdapter(Deployment)


def settings_of(deployment: Deployment) -> str:
    """The deployment as canonical JSON, without the fields that are at their defaults; secrets are names.

    Leaving defaults out keeps the digest of a config when the language grows by a field. `read_settings` reads the
    text back.
    """
    return canonical_json(_authored(deployment, _DEPLOYMENT.dump_python(deployment, mode="json"))).decode()


def read_settings(settings: str) -> Deployment:
    """The deployment that `settings_of` wrote down."""
    return _DEPLOYMENT.validate_json(settings)


def _authored(config: Any, dumped: dict[str, Any]) -> dict[str, Any]:
    kind: Any = type(config)
    defaults, kept = _defaults(kind), {}
    for name, shown in dumped.items():
        value = getattr(config, name)
        # ``kind`` says which source of a union is meant, so it must stay.
        if name == "kind" or name not in defaults or value != defaults[name]:
            kept[name] = _authored(value, shown) if is_dataclass(value) else shown
    return kept


@cache
def _defaults(config: type) -> dict[str, Any]:
    """The defaults of a class of the language, as they are once validated (``"15m"`` is a duration then)."""
    hints = get_type_hints(config, include_extras=True)
    defaults = {}
    for name, field in config.__pydantic_fields__.items():  # type: ignore[attr-defined]
        if not field.is_required():
            default = field.get_default(call_default_factory=True)
            defaults[name] = TypeAdapter(hints[name]).validate_python(default) if isinstance(default, str) else default
    return defaults


def inference_hash(plan: RolePlan) -> str:
    """What makes the processes of an inference role what they are.

    Covered: the pinned model, the image and its option list, every rank's command, environment and claim, topology,
    readiness, start order and shutdown, the code release. Not covered: how many replicas and where they are, how the
    endpoint treats requests, retries, validation. So scaling or changing a queue limit reuses the running worker app.
    """
    return digest_of(
        {
            "role": plan.role,
            "release": plan.release,
            "model": plan.model.model_dump(mode="json"),
            "engine": plan.engine.model_dump(mode="json", exclude={"image_name", "executable"}),
            "topology": plan.topology.model_dump(mode="json"),
            "ranks": [rank.model_dump(mode="json") for rank in plan.ranks],
            "readiness": plan.readiness.model_dump(mode="json"),
            "launch": {
                "standoff_s": plan.standoff_s,
                "stagger_s": plan.stagger_s,
                "stop_grace_s": plan.stop_grace_s,
            },
        }
    )


def generation_digest(generation: Generation) -> str:
    """The digest of everything in a generation but the digest itself."""
    return digest_of(generation.model_dump(mode="json", exclude={"digest": True}))


def is_intact(generation: Generation) -> bool:
    """Whether a stored generation still has the digest of its content."""
    return generation.digest == generation_digest(generation)
