"""Reading generations that an earlier release recorded.

A record says its ``schema_version``; what an earlier one lacked is filled in one version at a time, and the digests
stay what they were, since they name the generation in workflows, routes and proofs.
"""

import json
from collections.abc import Callable
from typing import Any

from standfast.plans.records import Generation
from standfast.problems import UserError
from standfast.values import parse_duration

CURRENT = 2


def read_generation(text: str | bytes) -> Generation:
    """The generation that was recorded as JSON by this release or an earlier one.

    Raises `standfast.problems.UserError` for a later one, ``ValueError`` (``pydantic.ValidationError`` is one) for what
    is no generation.
    """
    document = json.loads(text)
    version = document.get("schema_version") if isinstance(document, dict) else None
    if isinstance(version, int) and version > CURRENT:
        raise UserError(
            f"A generation was recorded by a later release of Standfast (version {version}, and this one reads up to "
            f"{CURRENT}).",
            help="Use the release that recorded it, or deploy the config again with this one.",
        )
    while isinstance(version, int) and version in _LIFTS:
        try:
            document = _LIFTS[version](document)
        except (AttributeError, IndexError, KeyError, TypeError) as error:
            raise ValueError(f"what was recorded as a generation of version {version} is none ({error!r})") from None
        version = document["schema_version"]
        text = json.dumps(document)
    return Generation.model_validate_json(text)


def _lift_1(document: dict[str, Any]) -> dict[str, Any]:
    """Version 1 knew replicas of one node, each alone on it, and kept the ranks with each replica."""
    inference = document.get("inference")
    if inference is not None:
        inference = _lift_role_1(inference, json.loads(document["settings"]))
    return {**document, "schema_version": 2, "inference": inference}


def _lift_role_1(role: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    ranks = role["replicas"][0]["ranks"]
    gpus = ranks[0]["claim"]["gpus"]
    launch = settings["inference"].get("launch", {})
    endpoint = {
        name: value
        for name, value in role["endpoint"].items()
        if name not in ("retry_before_first_byte_sent", "replay_post", "preserve_overload")
    }
    replicas = [
        {
            "index": replica["index"],
            "group": replica["index"],
            "lane": 0,
            "gpu_slots": list(range(gpus)),
            "launch_delay_s": replica["launch_delay_s"],
            "rendezvous": None,
            "backend": {
                "id": f"inference/{replica['index']}",
                "rank": 0,
                "port": "http",
                "served_name": endpoint["served_name"],
                "health_path": role["readiness"]["health_path"],
            },
        }
        for replica in role["replicas"]
    ]
    endpoint["backends"] = [replica["backend"]["id"] for replica in replicas]
    return {
        **role,
        "schema_version": 2,
        "topology": {**role["topology"], "data_parallel_attention": False},
        "placement": {"schema_version": 1, "nodes": None, "gpus_per_node": None},
        "ranks": ranks,
        "replicas": replicas,
        "endpoint": endpoint,
        "standoff_s": parse_duration(launch.get("standoff", "0s")).total_seconds(),
        "stagger_s": parse_duration(launch.get("stagger", "0s")).total_seconds(),
    }


_LIFTS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _lift_1}
