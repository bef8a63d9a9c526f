"""A generation as text and as a JSON document. Pure: the command line adds colour."""

import json
import shlex
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from standfast.plans.options import begins_option
from standfast.plans.records import (
    Claim,
    EnvironmentBinding,
    Generation,
    MethodPlan,
    RankPlan,
    ReplicaPlan,
    RolePlan,
    Topology,
)
from standfast.values import format_duration, format_memory

_LABEL = 16
_CONTINUED = " \\"
_MANY = 8
"""Replicas that are shown one by one."""


def plan_document(generation: Generation) -> dict[str, Any]:
    """The whole generation as JSON values, with its id and the settings unfolded."""
    document = generation.model_dump(mode="json")
    document["settings"] = json.loads(generation.settings)
    return {"id": generation.id, **document}


def plan_lines(generation: Generation) -> tuple[str, ...]:
    """The plan as a person reads it: what is served, where it runs, with which commands, and behind which endpoint."""
    return tuple(_lines(generation))


def _lines(generation: Generation) -> Iterator[str]:
    yield f"{generation.deployment} on {generation.target}"
    yield _row("generation", f"{generation.id}  ({generation.digest})")
    if generation.inference is not None:
        yield from _role(generation.inference)
    retry, validation = generation.retry, generation.validation
    yield ""
    yield "policies"
    backoff = f"{_time(retry.initial_backoff_s)} to {_time(retry.max_backoff_s)} apart"
    yield _row("retry", f"{retry.attempts} attempts per {_time(retry.window_s)}, {backoff}")
    expected = "any text" if validation.expect is None else f"/{validation.expect}/"
    limit = _time(validation.timeout_s)
    yield _row("validation", f"{validation.prompt!r} must be answered with {expected} within {limit}")


def _role(role: RolePlan) -> Iterator[str]:
    model, engine = role.model, role.engine
    yield _row("model", f"{model.id}  ({model.source} {model.locator}, {model.revision})")
    yield _row("engine", f"{engine.name} {engine.version}  (image {engine.image_name} {engine.image_digest[:12]})")
    yield _row("inference hash", role.hash)
    if role.release:
        yield _row("release", role.release)
    yield ""
    yield f"inference: {size_line(len(role.replicas), role.topology)}"
    yield from _places(role)
    yield ""
    yield "processes of a replica"
    for rank in role.ranks:
        yield from _rank(role, rank)
    yield from _meeting(role)
    yield ""
    yield "endpoint"
    yield from _endpoint(role)


def size_line(replicas: int, topology: Topology) -> str:
    """How many replicas of how many nodes, and how each divides the model."""
    return f"{_count(replicas, 'replica')} of {_count(topology.nodes, 'node')}, {_division(topology)}"


def _places(role: RolePlan) -> Iterator[str]:
    """Which nodes and GPUs each replica has, and when it starts. Nodes are counted, not named: the platform chooses."""
    placement = role.placement
    if placement.gpus_per_node is not None or placement.nodes is not None:
        there = "as many nodes as it takes" if placement.nodes is None else _count(placement.nodes, "node")
        gpus = "" if placement.gpus_per_node is None else f" of {_count(placement.gpus_per_node, 'GPU')}"
        lanes = f", {_count(role.lanes, 'lane')} to a node" if role.gpus_per_node else ""
        yield _row("room", f"{there}{gpus}{lanes}")
    shown: list[ReplicaPlan | None] = list(role.replicas)
    if len(shown) > _MANY:
        shown = [*shown[: _MANY - 2], None, shown[-1]]
    for replica in shown:
        yield _row("...", "") if replica is None else _row(f"replica {replica.index}", _place(role, replica))


def _place(role: RolePlan, replica: ReplicaPlan) -> str:
    first = replica.group * role.topology.nodes
    nodes = _span("node", first, first + role.topology.nodes - 1)
    gpus = ""
    if replica.gpu_slots:
        lane = f" (lane {replica.lane})" if role.lanes > 1 else ""
        each = " of each" if role.topology.nodes > 1 else ""
        gpus = f", {_span('GPU', replica.gpu_slots[0], replica.gpu_slots[-1])}{each}{lane}"
    start = "at once" if replica.launch_delay_s == 0 else f"after {_time(replica.launch_delay_s)}"
    return f"{nodes}{gpus}, started {start}"


def _rank(role: RolePlan, rank: RankPlan) -> Iterator[str]:
    head = " (head)" if rank.is_head and len(role.ranks) > 1 else ""
    yield f"  node {rank.node}, rank {rank.rank}{head}: {_claim(rank.claim)}"
    lines, like = _words(role, rank), _words(role, role.head)
    if rank.is_head or lines[0] != like[0]:
        yield from (f"    {line}{_CONTINUED}" for line in lines[:-1])
        yield f"    {lines[-1]}"
        yield from (f"    {_variable(binding)}" for binding in rank.environment)
        return
    # One command in full is enough to read; what a follower has differently is what tells it apart.
    less = [line.split()[0] for line in like if line not in lines and line.split()[0] not in _firsts(lines)]
    without = f"without {', '.join(less)}, and " if less else ""
    yield f"    as rank 0, {without}with:"
    own = [line for line in lines if line not in like]
    own += [_variable(binding) for binding in rank.environment if binding not in role.head.environment]
    yield from (f"      {line}" for line in own)


def _words(role: RolePlan, rank: RankPlan) -> list[str]:
    """The command as one would paste it, an option a line; what only the platform knows stays a placeholder."""
    lines: list[list[str]] = [[]]
    for token in rank.argv:
        if begins_option(token):
            lines.append([])
        lines[-1] += role.engine.executable if token == "@{executable}" else [_bare(shlex.quote(token))]
    return [f"{'  ' if index else ''}{' '.join(line)}" for index, line in enumerate(lines)]


def _firsts(lines: list[str]) -> set[str]:
    return {line.split()[0] for line in lines}


def _variable(binding: EnvironmentBinding) -> str:
    value = f"(secret {binding.secret})" if binding.value is None else shlex.quote(binding.value)
    return f"{binding.name}={_bare(value)}"


def _meeting(role: RolePlan) -> Iterator[str]:
    rendezvous = role.replicas[0].rendezvous
    if rendezvous is not None:
        port = dict(role.head.claim.ports.offsets)[rendezvous.port]
        wait = _time(rendezvous.timeout_s)
        yield _row("rendezvous", f"at the head, port +{port} ({rendezvous.port}); each waits {wait} for the others")


def _endpoint(role: RolePlan) -> Iterator[str]:
    endpoint, readiness, backend = role.endpoint, role.readiness, role.replicas[0].backend
    seen = "listed in /v1/models" if endpoint.visible else "hidden from /v1/models"
    yield _row("served name", f"{endpoint.served_name}  ({seen})")
    port = dict(role.head.claim.ports.offsets)[backend.port]
    heads = "its head" if len(role.replicas) == 1 else "their heads"
    yield _row("backends", f"{_several(list(endpoint.backends))}; at {heads}, port +{port} ({backend.port})")
    yield _row("balancing", f"{endpoint.balancing}; a failed rank takes out its {endpoint.failure_domain}")
    yield from (_row("relays", _method(method)) for method in endpoint.methods)
    limit = f"{endpoint.max_waiting} open requests per replica"
    passed = " and ".join(map(str, endpoint.preserved_statuses))
    yield _row(
        "overload", f"429 with Retry-After {_time(endpoint.retry_after_s)} beyond {limit}; {passed} pass through"
    )
    yield _row(
        "ready",
        f"{', '.join(readiness.stages)}; {readiness.health_path} answers 200, a token within "
        f"{_time(readiness.generation_timeout_s)}; all processes within {_time(readiness.initialization_timeout_s)}, "
        f"all of it within {_time(readiness.startup_timeout_s)}",
    )
    yield _row("stop", f"TERM, then KILL after {_time(role.stop_grace_s)}")


def _method(method: MethodPlan) -> str:
    again = ["nothing was sent"] if method.retry_unconnected else []
    again += [f"the answer is {status}" for status in method.retry_statuses]
    return f"{method.method}, {f'to another backend only while {_either(again)}' if again else 'once'}"


def _claim(claim: Claim) -> str:
    gpus = f"{claim.gpus} x {claim.gpu}, " if claim.gpu is not None else ""
    ports = ", ".join(f"{name} +{offset}" for name, offset in claim.ports.offsets)
    return (
        f"{gpus}{_count(claim.cpus, 'CPU')}, {format_memory(claim.memory_bytes)}, {claim.ports.count} ports ({ports})"
    )


def _division(topology: Topology) -> str:
    sizes = {name: getattr(topology, name) for name in ("tensor", "pipeline", "data", "expert")}
    words = [f"{name} {size}" for name, size in sizes.items() if size > 1 or name == "tensor"]
    return ", ".join([*words, *(["data-parallel attention"] if topology.data_parallel_attention else [])])


def _bare(text: str) -> str:
    # A placeholder alone needs no quotes: what is filled in has no spaces.
    return text[1:-1] if text.startswith("'@{") and text.endswith("}'") and text.count("@{") == 1 else text


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"


def _several(texts: list[str]) -> str:
    return ", ".join(texts if len(texts) <= 4 else (*texts[:3], "...", texts[-1]))


def _either(texts: list[str]) -> str:
    return " or ".join(texts)


def _span(what: str, first: int, last: int) -> str:
    return f"{what} {first}" if first == last else f"{what}s {first} to {last}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _time(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))
