"""What changes between two generations, field by field, and which worker apps stay."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from standfast.plans.identity import settings_of
from standfast.plans.options import begins_option
from standfast.plans.record import Record, canonical_json
from standfast.plans.records import Generation, RankPlan, RolePlan
from standfast.spec import Deployment


class Change(Record):
    """One field that differs. ``before`` or ``after`` is None where the field is absent."""

    field: str
    before: str | None
    after: str | None

    def render(self) -> str:
        """``field: before -> after``."""
        return f"{self.field}: {_shown(self.before)} -> {_shown(self.after)}"


class WorkerAppChange(Record):
    """What becomes of the worker app of one role: the hashes that name it before and after.

    It is reused when the hash stays: whatever its processes are is the same, and none of them has another command.
    """

    role: Literal["inference", "trainer"]
    before: str | None
    after: str | None

    @property
    def reused(self) -> bool:
        """Whether the same worker app serves both generations."""
        return self.before is not None and self.before == self.after

    def render(self) -> str:
        """A line that says so."""
        before, after = (None if name is None else name[:12] for name in (self.before, self.after))
        if self.reused:
            return f"{self.role}: the same worker app {after}"
        if after is None:
            return f"{self.role}: no worker app in place of {before}"
        return f"{self.role}: a new worker app {after}{'' if before is None else f' in place of {before}'}"


class GenerationDiff(Record):
    """The difference of two generations.

    ``settings`` are the fields that the config changed, ``plan`` what changed in the resolved plan (model pin, image,
    places, commands, variables, claims). ``after`` is None where only the settings could be compared.
    """

    before: str | None
    after: str | None
    settings: tuple[Change, ...]
    plan: tuple[Change, ...]
    worker_apps: tuple[WorkerAppChange, ...]

    @property
    def identical(self) -> bool:
        """True when nothing at all differs."""
        return not self.settings and not self.plan

    @property
    def reuses_inference(self) -> bool:
        """Whether the worker app of the inference role is kept."""
        return any(app.reused for app in self.worker_apps if app.role == "inference")

    def lines(self) -> tuple[str, ...]:
        """The difference as a person reads it, a line per field."""
        if self.before is None:
            return (f"{self.after or 'This'} is the first generation.",)
        if self.identical:
            return (f"{self.after or self.before} is the same generation.",)
        return (
            *(change.render() for change in (*self.settings, *self.plan)),
            *(app.render() for app in self.worker_apps),
        )


def difference(before: Generation | None, after: Generation) -> GenerationDiff:
    """Compare what stands (None: nothing) with what would stand."""
    apps = tuple(_worker_apps(before, after))
    if before is None:
        return GenerationDiff(before=None, after=after.id, settings=(), plan=(), worker_apps=apps)
    return GenerationDiff(
        before=before.id,
        after=after.id,
        settings=tuple(_changes(_settings(before.settings), _settings(after.settings))),
        plan=tuple(_plan_changes(before, after)),
        worker_apps=apps,
    )


def settings_difference(before: Generation | None, deployment: Deployment) -> GenerationDiff:
    """Compare what stands with a config that cannot be resolved yet: the settings alone."""
    if before is None:
        return GenerationDiff(before=None, after=None, settings=(), plan=(), worker_apps=())
    changes = tuple(_changes(_settings(before.settings), _settings(settings_of(deployment))))
    return GenerationDiff(before=before.id, after=None, settings=changes, plan=(), worker_apps=())


def _worker_apps(before: Generation | None, after: Generation) -> Iterator[WorkerAppChange]:
    stood = before.inference_hash if before is not None else None
    if stood is not None or after.inference_hash is not None:
        yield WorkerAppChange(role="inference", before=stood, after=after.inference_hash)
    stood = before.trainer_hash if before is not None else None
    if stood is not None or after.trainer_hash is not None:
        yield WorkerAppChange(role="trainer", before=stood, after=after.trainer_hash)


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[Change]:
    for field in dict.fromkeys((*before, *after)):
        if before.get(field) != after.get(field):
            yield Change(field=field, before=before.get(field), after=after.get(field))


def _settings(settings: str) -> dict[str, str]:
    return dict(_leaves(json.loads(settings), ""))


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


def _plan_changes(before: Generation, after: Generation) -> Iterator[Change]:
    yield from _changes({"target": before.target}, {"target": after.target})
    old, new = before.inference, after.inference
    yield from _changes(dict(_role(old)) if old else {}, dict(_role(new)) if new else {})
    yield from _rank_changes(old.ranks if old else (), new.ranks if new else ())


def _role(role: RolePlan) -> Iterator[tuple[str, str]]:
    yield "replicas", str(len(role.replicas))
    parts = {"model", "engine", "topology", "placement", "readiness", "endpoint"}
    shown = role.model_dump(mode="json", include=parts, exclude={"endpoint": {"backends"}})
    for name, part in shown.items():
        yield from _leaves(part, name)
    for name in ("standoff_s", "stagger_s", "stop_grace_s", "release"):
        yield name, str(getattr(role, name))


# -- ranks -------------------------------------------------------------------------------------------------------------


def _rank_changes(before: tuple[RankPlan, ...], after: tuple[RankPlan, ...]) -> Iterator[Change]:
    """What differs between the ranks; what differs alike in several of them is said once."""
    both = min(len(before), len(after))
    alike: dict[tuple[str, str | None, str | None], list[int]] = {}
    for rank in range(both):
        for change in _changes(dict(_rank(before[rank])), dict(_rank(after[rank]))):
            alike.setdefault((change.field, change.before, change.after), []).append(rank)
    for (field, was, becomes), ranks in alike.items():
        yield Change(field=f"{_who(ranks, both)} {field}", before=was, after=becomes)
    for gone in before[both:]:
        yield Change(field=f"rank {gone.rank}", before=" ".join(gone.argv), after=None)
    for added in after[both:]:
        yield Change(field=f"rank {added.rank}", before=None, after=" ".join(added.argv))


def _who(ranks: list[int], count: int) -> str:
    if len(ranks) == count and count > 1:
        return "every rank"
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and runs[-1][-1] == rank - 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    words = [str(run[0]) if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs]
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(words)}"


def _rank(rank: RankPlan) -> Iterator[tuple[str, str]]:
    for flag, values in _flags(rank.argv):
        yield flag, " ".join(values)
    for binding in rank.environment:
        value = binding.value if binding.value is not None else f"secret {binding.secret}"
        yield f"${binding.name}", value
    yield from _leaves(rank.claim.model_dump(mode="json"), "claim")


def _flags(argv: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
    """The arguments grouped by option; one that comes again is numbered."""
    flag, values, seen = "command", list[str](), dict[str, int]()
    for token in argv:
        if begins_option(token):
            yield flag, values
            name, equals, value = token.partition("=")
            name = name.removesuffix(":")
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
