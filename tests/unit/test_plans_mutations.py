"""One field changed: every record notices, or it is written here why that field stands alone."""

import copy
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import ValidationError

from standfast.plans import bind, is_intact, resolve
from standfast.plans.facts import BindFacts, BoundReplica
from standfast.plans.inspection import Inspection
from standfast.plans.record import Record
from standfast.plans.records import EnvironmentBinding, Generation, ResolutionInputs
from tests.unit.plans_cases import CASES, facts, plan

_GPUS = "two-replicas-of-two-nodes"
_CPUS = "cpu-two-nodes-tensor"
_ENGINE = "the engine's own text, or provenance: nothing in the plan says it a second time, and the hash covers it"
_POLICY = "a policy that no other field repeats"
_AMOUNT = "any amount is a plan; whether a node has it is found when it is placed"
_FACT = "a fact of the platform, which a plan cannot know"
_INPUT = "said once: the resolver holds it against the deployment"

#: Fields that may change alone, as regular expressions over their paths, each with the reason.
_ALONE: dict[type[Record], dict[str, str]] = {
    Generation: {
        r"(deployment|target|digest|settings|trainer_hash)": "what the generation is called; its digest notices",
        r"retry\.(attempts|window_s|initial_backoff_s|backoff_multiplier|max_backoff_s)": _POLICY,
        r"validation\.\w+": _POLICY,
        r"inference\.model\.\w+": _ENGINE,
        r"inference\.engine\.(name|version|image_name|image_digest|options_digest|executable.*)": _ENGINE,
        r"inference\.release": _ENGINE,
        r"inference\.topology\.(expert|data_parallel_attention)": "sizes that do not change the number of workers",
        r"inference\.placement\.(nodes|gpus_per_node)": "more room than the replicas need is room",
        r"inference\.ranks\.\d+\.argv.*": _ENGINE,
        r"inference\.ranks\.\d+\.environment.*": _ENGINE,
        r"inference\.ranks\.\d+\.claim\.(cpus|memory_bytes|ports\.count|ports\.offsets.*)": _AMOUNT,
        r"inference\.readiness\.(startup_timeout_s|generation_timeout_s|identity_path)": _POLICY,
        r"inference\.endpoint\.(visible|max_waiting|retry_after_s|methods.*)": _POLICY,
        r"inference\.stop_grace_s": _POLICY,
    },
    BindFacts: {
        r"(attempt|model_path|executable.*)": _FACT,
        r"ranks\.\d+\.(host|address|port_base|gpu_ids.*)": _FACT,
        r"ranks(\.\d+(\.rank)?)?": "which ranks there must be is the plan's: `bind` looks",
    },
    BoundReplica: {
        r"(attempt|digest)": "names; one name is bound to one digest where it is launched",
        r"ranks\.\d+\.(argv|environment|secrets|ports).*": "what is run: its digest was taken when it was bound",
        r"ranks": "the first ranks of a gang are a smaller gang",
    },
    Inspection: {
        r"(image_digest|engine|version|inspector|executable.*)": _ENGINE,
        r"options.*": "what the engine says of itself; the options digest notices",
    },
    ResolutionInputs: {
        r"(target|image_name|accelerator|releases.*)": _INPUT,
        r"model\.\w+": _INPUT,
        r"inspection\..*": _INPUT,
        r"image_environment.*": _INPUT,
        r"placement\.(nodes|gpus_per_node)": _INPUT,
    },
}

#: More of them where there is less to contradict.
_ALONE_HERE: dict[str, dict[str, str]] = {
    _CPUS: {
        r"inference\.topology\.(tensor|pipeline|data)": "without GPUs nothing else counts the workers of a rank",
        r"inference\.(standoff_s|stagger_s)": "one replica waits for none",
    }
}


def _records() -> dict[str, Record]:
    generations = {case: resolve(*CASES[case]) for case in (_GPUS, _CPUS)}
    role = plan(generations[_GPUS])
    given = facts(role, replica=1)
    inputs = CASES[_GPUS][1]
    inspection = inputs.inspection.model_copy(update={"options": inputs.inspection.options[:6]})
    return {
        **generations,
        "facts": given,
        "bound": bind(role, 1, given),
        "inspection": inspection,
        "inputs": inputs.model_copy(
            update={
                "inspection": inspection,
                "image_environment": (
                    EnvironmentBinding(name="A", value="1"),
                    EnvironmentBinding(name="B", secret="B"),
                ),
            }
        ),
    }


def _others(value: Any) -> Iterator[Any]:
    """Values of the same kind, and one of another."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
        yield value * 2 + 1
        yield -1
    elif isinstance(value, str):
        yield f"{value}x"
        yield ""
    elif isinstance(value, list):
        yield [*value, *value[-1:]] if value else ["x"]
        yield value[:-1] if value else ["x", "x"]
        yield value[::-1] if value[::-1] != value else [*value, "x"]
    elif value is None:
        yield 1
        yield "x"
    yield None if value is not None else {}


def _mutations(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[tuple[Any, ...], Any]]:
    if path:
        yield from ((path, other) for other in _others(value))
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _mutations(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _mutations(item, (*path, index))


def _with(document: Any, path: tuple[Any, ...], value: Any) -> Any:
    changed = copy.deepcopy(document)
    holder = changed
    for part in path[:-1]:
        holder = holder[part]
    holder[path[-1]] = value
    return changed


def _accepted(record: Record) -> set[str]:
    """The paths at which some other value passes."""
    document = record.model_dump(mode="json")
    accepted = set()
    for path, value in _mutations(document):
        text = json.dumps(_with(document, path, value))
        try:
            again = type(record).model_validate_json(text)
        except ValidationError:
            continue
        if again != record:
            accepted.add(".".join(map(str, path)))
    return accepted


@pytest.mark.parametrize("name", list(_records()))
def test_a_field_that_another_one_determines_cannot_change_alone(name: str) -> None:
    record = _records()[name]
    allowed = {**_ALONE[type(record)], **_ALONE_HERE.get(name, {})}
    unexplained = {path for path in _accepted(record) if not any(re.fullmatch(pattern, path) for pattern in allowed)}
    assert unexplained == set()


def test_no_reason_is_kept_for_a_field_that_is_refused() -> None:
    stale: dict[type[Record], set[str]] = {kind: set(allowed) for kind, allowed in _ALONE.items()}
    for record in _records().values():
        paths = _accepted(record)
        stale[type(record)] -= {
            pattern for pattern in stale[type(record)] if any(re.fullmatch(pattern, path) for path in paths)
        }
    assert {pattern for patterns in stale.values() for pattern in patterns} == set()


@pytest.mark.parametrize("case", [_GPUS, _CPUS])
def test_what_passes_alone_does_not_pass_the_digest(case: str) -> None:
    record = resolve(*CASES[case])
    document = record.model_dump(mode="json")
    for path, value in _mutations(document):
        try:
            again = Generation.model_validate_json(json.dumps(_with(document, path, value)))
        except ValidationError:
            continue
        assert again == record or not is_intact(again), path
