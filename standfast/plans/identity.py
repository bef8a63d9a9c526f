"""The digests that name plans and generations.

They cover settings and explicit code releases, never the source tree, and depend on content alone: not on the order
of keys, the process or the release of Python.
"""

from typing import Any

from pydantic import TypeAdapter

from standfast.plans.records import Generation, RankPlan, RolePlan, canonical_json, digest_of
from standfast.spec import Deployment

_DEPLOYMENT: TypeAdapter[Deployment] = TypeAdapter(Deployment)


def settings_of(deployment: Deployment) -> str:
    """The deployment as canonical JSON, defaults included; secrets are names."""
    return canonical_json(_DEPLOYMENT.dump_python(deployment, mode="json")).decode()


def inference_hash(plan: RolePlan, *, standoff_s: float, stagger_s: float) -> str:
    """What makes the processes of an inference role what they are.

    Covered: the pinned model, the image and its option list, every rank's command, environment and claim, topology,
    readiness, start order and shutdown, the code release. Not covered: how many replicas, how the endpoint treats
    requests, retries, validation. So scaling or changing a queue limit reuses the running worker app.
    """
    return digest_of(
        {
            "role": plan.role,
            "release": plan.release,
            "model": plan.model.model_dump(mode="json"),
            "engine": plan.engine.model_dump(mode="json", exclude={"image_name"}),
            "topology": plan.topology.model_dump(mode="json"),
            "ranks": [_rank_digest(rank) for rank in plan.replicas[0].ranks],
            "readiness": plan.readiness.model_dump(mode="json"),
            "launch": {"standoff_s": standoff_s, "stagger_s": stagger_s, "stop_grace_s": plan.stop_grace_s},
        }
    )


def generation_digest(generation: Generation) -> str:
    """The digest of everything in a generation but the digest itself.

    Each rank enters as its own digest, so that replicas that share a rank cost next to nothing.
    """
    content = generation.model_dump(mode="json", exclude={"digest": True, "inference": {"replicas"}})
    if generation.inference is not None:
        known: dict[int, str] = {}
        replicas: list[dict[str, Any]] = []
        for replica in generation.inference.replicas:
            for rank in replica.ranks:
                if id(rank) not in known:
                    known[id(rank)] = _rank_digest(rank)
            ranks = [known[id(rank)] for rank in replica.ranks]
            replicas.append({"index": replica.index, "launch_delay_s": replica.launch_delay_s, "ranks": ranks})
        content["inference"]["replicas"] = replicas
    return digest_of(content)


def is_intact(generation: Generation) -> bool:
    """Whether a stored generation still has the digest of its content."""
    return generation.digest == generation_digest(generation)


def _rank_digest(rank: RankPlan) -> str:
    return digest_of(rank.model_dump(mode="json"))
