"""What changes between two generations, field by field, and which worker apps stay."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from standfast.plans.records import Generation, RankPlan, Record, RolePlan, canonical_json


class Change(Record):
    """One field that differs. ``before`` or ``after`` is None where the field is absent."""

    field: str
    before: str | None
    after: str | None

    def render(self) -> str:
        """``field: before -> after``."""
        return f"{self.field}: {_shown(self.before)} -> {_shown(self.after)}"


class GenerationDiff(Record):
    """The difference of two generations.

    ``settings`` are the fields that the config changed, ``plan`` what changed in the resolved plan (model pin, image,
    commands, variables, claims). ``reuses_inference`` says that the running worker app of the inference role is kept.
    """

    before: str | None
    after: str
    settings: tuple[Change, ...]
    plan: tuple[Change, ...]
    reuses_inference: bool

    @property
    def identical(self) -> bool:
        """True when nothing at all differs."""
        return not self.settings and not self.plan

    def lines(self) -> tuple[str, ...]:
        """The difference as a person reads it, a line per field."""
        if self.before is None:
            return (f"{self.after} is the first generation.",)
        if self.identical:
            return (f"{self.after} is the same generation.",)
        verdict = "keeps the running worker app" if self.reuses_inference else "starts a new worker app"
        return (*(change.render() for change in (*self.settings, *self.plan)), f"inference: {verdict}")


def difference(before: Generation | None, after: Generation) -> GenerationDiff:
    """Compare what stands (None: nothing) with what would stand."""
    if before is None:
        return GenerationDiff(before=None, after=after.id, settings=(), plan=(), reuses_inference=False)
    return GenerationDiff(
        before=before.id,
        after=after.id,
        settings=tuple(_changes(_settings(before), _settings(after))),
        plan=tuple(_changes(_plan(before), _plan(after))),
        reuses_inference=before.inference_hash == after.inference_hash and after.inference_hash is not None,
    )


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for field in dict.fromkeys((*before, *after)):
        if before.get(field) != after.get(field):
            yield Change(field=field, before=before.get(field), after=after.get(field))


def _settings(generation: Generation) -> dict[str, str]:
    return dict(_leaves(json.loads(generation.settings), ""))


def _leaves(value: Any, path: str) -> Iterator[tuple[str, str]]:
    """Pairs of field path and value; keys that are no identifiers stand in brackets, as a config writes them."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            if path.endswith((".options", ".environment")) or not key.isidentifier():
                yield from _leaves(item, f"{path}[{key!r}]")
            else:
                yield from _leaves(item, f"{path}.{key}" if path else key)
    elif value is not None and value != {}:
        yield path, value if isinstance(value, str) else canonical_json(value).decode()


def _plan(generation: Generation) -> dict[str, str]:
    plan = {"target": generation.target}
    if generation.inference is not None:
        plan.update(_role(generation.inference))
    return plan


def _role(role: RolePlan) -> Iterator[tuple[str, str]]:
    yield "replicas", str(len(role.replicas))
    parts = role.model_dump(mode="json", include={"model", "engine", "topology", "readiness", "endpoint"})
    for name, part in parts.items():
        yield from _leaves(part, name)
    yield "release", role.release
    for rank in role.ranks:
        yield from _rank(rank)


def _rank(rank: RankPlan) -> Iterator[tuple[str, str]]:
    place = f"rank {rank.rank}"
    for flag, values in _flags(rank.argv):
        yield f"{place} {flag}", " ".join(values)
    for binding in rank.environment:
        value = binding.value if binding.value is not None else f"secret {binding.secret}"
        yield f"{place} ${binding.name}", value
    yield from _leaves(rank.claim.model_dump(mode="json"), f"{place} claim")


def _flags(argv: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """The arguments grouped by flag; a flag that comes again is numbered."""
    flag, values, seen = "command", list[str](), dict[str, int]()
    for token in argv:
        if token.startswith("-") and len(token) > 1 and not token[1].isdigit():
            yield flag, values
            name, equals, value = token.partition("=")
            seen[name] = seen.get(name, 0) + 1
            flag = name if seen[name] == 1 else f"{name} ({seen[name]})"
            values = [value] if equals else []
        else:
            values.append(token)
    yield flag, values


def _shown(value: str | None) -> str:
    if value is None:
        return "(not set)"
    return value if value and len(value) <= 120 else f"{value[:117]}..." if value else "(on)"
