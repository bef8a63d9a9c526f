"""A generation as text and as a JSON document. Pure: the command line adds colour."""

import json
import shlex
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from standfast.plans.records import Claim, Generation, RankPlan, RolePlan
from standfast.values import format_duration, format_memory

_LABEL = 16
_CONTINUED = "\\"


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
    size = f"{_count(len(role.replicas), 'replica')} of {_count(role.topology.nodes, 'node')}"
    yield f"inference: {size}, {_division(role)}"
    yield from _replicas(role)
    yield ""
    yield "endpoint"
    endpoint, readiness = role.endpoint, role.readiness
    seen = "listed in /v1/models" if endpoint.visible else "hidden from /v1/models"
    yield _row("served name", f"{endpoint.served_name}  ({seen})")
    yield _row(
        "balancing", f"{endpoint.balancing} over {_count(len(role.replicas), 'backend')}; a POST is never replayed"
    )
    limit = f"{endpoint.max_waiting} waiting requests per replica"
    yield _row("overload", f"429 with Retry-After {_time(endpoint.retry_after_s)} beyond {limit}")
    yield _row(
        "ready",
        f"{readiness.health_path}, the model listed, a token within {_time(readiness.generation_timeout_s)}; ranks "
        f"joined within {_time(readiness.initialization_timeout_s)}, all within {_time(readiness.startup_timeout_s)}",
    )
    yield _row("stop", f"TERM, then KILL after {_time(role.stop_grace_s)}")


def _replicas(role: RolePlan) -> Iterator[str]:
    first, last = role.replicas[0], role.replicas[-1]
    name = f"replica {first.index}" if first is last else f"replicas {first.index} to {last.index}"
    delays = [_time(replica.launch_delay_s) for replica in role.replicas]
    start = "at once" if last.launch_delay_s == 0 else f"after {_several(delays)}"
    yield f"  {name}, started {start}"
    for rank in role.ranks:
        head = " (head)" if rank.is_head else ""
        yield f"    node {rank.node}, rank {rank.rank}{head}: {_claim(rank.claim)}"
        yield from (f"      {line}" for line in _command(role, rank))
        for binding in rank.environment:
            value = f"(secret {binding.secret})" if binding.value is None else shlex.quote(binding.value)
            yield f"      {binding.name}={_bare(value)}"


def _command(role: RolePlan, rank: RankPlan) -> list[str]:
    """The command as one would paste it, an option a line; what only the platform knows stays a placeholder."""
    lines: list[list[str]] = [[]]
    for token in rank.argv:
        if token.startswith("-") and len(token) > 1 and not token[1].isdigit():
            lines.append([])
        lines[-1] += role.engine.executable if token == "@{executable}" else [_bare(shlex.quote(token))]
    texts = [" ".join(line) for line in lines]
    texts = [f"{'  ' if index else ''}{text}" for index, text in enumerate(texts)]
    return [*(f"{text} {_CONTINUED}" for text in texts[:-1]), texts[-1]]


def _claim(claim: Claim) -> str:
    gpus = f"{claim.gpus} x {claim.gpu}, " if claim.gpu is not None else ""
    ports = ", ".join(f"{name} +{offset}" for name, offset in claim.ports.offsets)
    return (
        f"{gpus}{_count(claim.cpus, 'CPU')}, {format_memory(claim.memory_bytes)}, {claim.ports.count} ports ({ports})"
    )


def _division(role: RolePlan) -> str:
    sizes = role.topology.model_dump(exclude={"nodes"})
    return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1 or name == "tensor")


def _bare(text: str) -> str:
    # A placeholder alone needs no quotes: what is filled in has no spaces.
    return text[1:-1] if text.startswith("'@{") and text.endswith("}'") and text.count("@{") == 1 else text


def _row(label: str, text: str) -> str:
    return f"  {label:<{_LABEL}}{text}"


def _several(texts: list[str]) -> str:
    return ", ".join(texts if len(texts) <= 4 else (*texts[:3], "...", texts[-1]))


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _time(seconds: float) -> str:
    return format_duration(timedelta(seconds=seconds))
