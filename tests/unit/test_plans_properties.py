"""What holds for every accepted input, found by trying many."""

import argparse
import contextlib
import io
import json
import random
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from standfast.plans import bind, is_intact, resolve
from standfast.plans.arguments import ArgumentReader
from standfast.plans.facts import BindFacts, RankFacts
from standfast.plans.options import OptionList, canonical
from standfast.plans.ownership import owner_of
from standfast.plans.records import Generation
from standfast.spec import Compute, Deployment, Launch, Parallelism, Scaling
from tests.unit.plans_cases import CASES, GPU_IMAGE, INSPECTION, deployment, inputs, plan

_OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "max-num-seqs": st.integers(1, 512),
    "enforce_eager": st.booleans(),
    "gpu-memory-utilization": st.floats(0.1, 0.9),
    "seed": st.integers(-5, 5),
    "limit-mm-per-prompt": st.dictionaries(st.sampled_from(["image", "video"]), st.integers(0, 3)),
    "cudagraph_capture_sizes": st.lists(st.integers(1, 64), min_size=1, max_size=4),
    "chat-template": st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12),
}


@st.composite
def _deployments(draw: st.DrawFn) -> Deployment:
    on_gpu, tensor, pipeline = draw(st.booleans()), draw(st.sampled_from([1, 2, 4])), draw(st.sampled_from([1, 2]))
    workers, replicas = tensor * pipeline, draw(st.integers(1, 5))
    gpu: dict[str, Any] = {"gpu": draw(st.sampled_from(["any", "H100"])), "gpus": workers} if on_gpu else {}
    options = draw(st.fixed_dictionaries({}, optional=_OPTIONS))
    return deployment(
        compute=Compute(cpus=8, memory="64GiB", **gpu),
        parallelism=Parallelism(tensor=tensor, pipeline=pipeline),
        scaling=Scaling(min_replicas=replicas, max_replicas=replicas),
        launch=Launch(standoff=draw(st.sampled_from(["0s", "1m"])), stagger=draw(st.sampled_from(["0s", "5s"]))),
        context_length=draw(st.none() | st.integers(1, 10**6)),
        options={name: value for name, value in options.items() if "@{" not in str(value)},
        environment=draw(st.dictionaries(st.sampled_from(["A", "B", "C"]), st.sampled_from(["", "1", "two words"]))),
    )


def _resolve(wanted: Deployment) -> Generation:
    assert wanted.inference is not None
    return resolve(wanted, inputs(GPU_IMAGE) if wanted.inference.compute.gpus else inputs())


@settings(max_examples=40, deadline=None)
@given(_deployments())
def test_replicas_are_whole_and_share_nothing(wanted: Deployment) -> None:
    generation = _resolve(wanted)
    role = plan(generation)
    ports: set[int] = set()
    gpus: set[str] = set()
    for replica in role.replicas:
        assert [rank.rank for rank in role.ranks] == list(range(role.topology.nodes))
        claim = role.head.claim
        assert claim.gpus * role.topology.nodes in (0, role.topology.workers)
        facts = BindFacts(
            attempt=f"{generation.id}/inference/{replica.index}/1",
            model_path="/weights",
            executable=("vllm", "serve"),
            ranks=(
                RankFacts(
                    rank=0,
                    host="one",
                    address="127.0.0.1",
                    port_base=20000 + replica.index * claim.ports.count,
                    gpu_ids=tuple(str(replica.index * claim.gpus + gpu) for gpu in range(claim.gpus)),
                ),
            ),
        )
        (bound,) = bind(role, replica.index, facts).ranks
        texts = [*bound.argv, *(value for _, value in bound.environment)]
        assert not any("@{" in text for text in texts)
        mine = {port for _, port in bound.ports}
        assert len(mine) == len(claim.ports.offsets) and not mine & ports
        assert all(facts.ranks[0].port_base <= port < facts.ranks[0].port_base + claim.ports.count for port in mine)
        assert not set(facts.ranks[0].gpu_ids) & gpus
        ports |= mine
        gpus |= set(facts.ranks[0].gpu_ids)
    assert [replica.index for replica in role.replicas] == list(range(len(role.replicas)))
    assert is_intact(Generation.model_validate_json(generation.model_dump_json()))


@settings(max_examples=25, deadline=None)
@given(_deployments(), st.randoms())
def test_the_order_of_a_mapping_does_not_matter(wanted: Deployment, shuffle: random.Random) -> None:
    assert wanted.inference is not None

    def shuffled(mapping: Any) -> dict[str, Any]:
        items = list(mapping.items())
        shuffle.shuffle(items)
        return {key: shuffled(value) if isinstance(value, dict) else value for key, value in items}

    inference = wanted.inference
    again = deployment(
        compute=inference.compute,
        parallelism=inference.parallelism,
        scaling=inference.scaling,
        launch=inference.launch,
        context_length=inference.context_length,
        options=shuffled(inference.options),
        environment=shuffled(inference.environment),
    )
    assert _resolve(again) == _resolve(wanted)


# -- the reader agrees with a real parser ------------------------------------------------------------------------------

_TABLE = OptionList(INSPECTION.options)


def _parser() -> argparse.ArgumentParser:
    """A parser that declares the inspected options, as the engine does."""
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    for spec in INSPECTION.options:
        if not spec.flags:
            continue
        common: dict[str, Any] = {"dest": spec.dest, "default": None}
        if spec.negations:
            parser.add_argument(*spec.flags, action="store_true", **common)
            parser.add_argument(*spec.negations, action="store_false", **common)
        elif spec.maximum == 0:
            parser.add_argument(*spec.flags, action="store_true", **common)
        elif spec.repeatable:
            parser.add_argument(*spec.flags, action="append", choices=spec.choices, **common)
        else:
            nargs = {(0, 1): "?", (1, None): "+", (1, 1): None}[(spec.minimum, spec.maximum)]
            kind = {"int": int, "float": float}.get(spec.type, str)
            choices = None if spec.choices is None else [kind(choice) for choice in spec.choices]
            parser.add_argument(*spec.flags, nargs=nargs, type=kind, choices=choices, **common)
    return parser


_PARSER = _parser()
_MANAGED = {spec.dest for spec in INSPECTION.options if owner_of(spec) is not None}


_VALUES = ["1", "0.5", "x", "auto", "-1", "{}", "a b"]
_NOISE = [*_VALUES, "-", "--", "-x y", "-0.5"]


def _argument(draw: st.DrawFn) -> list[str]:
    """A flag and its values as somebody might write them; one time in four oddly."""
    flag = draw(st.sampled_from(sorted(_TABLE.by_flag)))
    spec, odd = _TABLE.by_flag[flag], draw(st.integers(0, 3)) == 0
    if odd:
        flag = flag[: draw(st.integers(2, len(flag)))] + draw(st.sampled_from(["", "=1", "=x", "1", "=", ".a"]))
    if draw(st.booleans()):
        flag = flag[:2] + flag[2:].replace("-", "_")
    if odd:
        return [flag, *draw(st.lists(st.sampled_from(_NOISE), max_size=2))]
    count = 0 if flag in spec.negations or spec.maximum == 0 else 1
    values = st.sampled_from(spec.choices or _VALUES)
    return [flag, *draw(st.lists(values, min_size=count, max_size=count if spec.maximum else count + 1))]


@st.composite
def _tokens(draw: st.DrawFn) -> list[str]:
    return [token for _ in range(draw(st.integers(1, 3))) for token in _argument(draw)]


def _as_the_engine_reads(tokens: list[str]) -> Iterator[str]:
    for token in tokens:
        name, equals, value = token.partition("=")
        yield canonical(name) + equals + value if token.startswith("--") else token


@settings(max_examples=200, deadline=None)
@given(_tokens())
def test_what_is_accepted_parses_and_touches_nothing_managed(tokens: list[str]) -> None:
    reader = ArgumentReader(_TABLE, engine="vLLM", where="Deployment.inference")
    read = reader.arguments(tokens)
    if reader.problems:
        return
    assert [token for setting in read for token in setting.tokens] == tokens
    with contextlib.redirect_stderr(io.StringIO()):
        parsed, rest = _PARSER.parse_known_args(list(_as_the_engine_reads(tokens)))
    assert rest == []
    touched = {dest for dest, value in vars(parsed).items() if value is not None}
    assert not touched & _MANAGED
    assert touched <= {setting.spec.dest for setting in read}


@settings(max_examples=100, deadline=None)
@given(_tokens())
def test_what_reaches_a_managed_setting_is_refused(tokens: list[str]) -> None:
    with contextlib.redirect_stderr(io.StringIO()):
        try:
            parsed, _ = _PARSER.parse_known_args(list(_as_the_engine_reads(tokens)))
        except (argparse.ArgumentError, SystemExit):
            return
    if {dest for dest, value in vars(parsed).items() if value is not None} & _MANAGED:
        reader = ArgumentReader(_TABLE, engine="vLLM", where="Deployment.inference")
        reader.arguments(tokens)
        assert any(problem.code == "managed-option" for problem in reader.problems)


# -- a stored generation cannot be altered unnoticed -------------------------------------------------------------------


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, (*path, key))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, (*path, index))
    else:
        yield path


def _altered(document: Any, path: tuple[Any, ...]) -> Any:
    copy = json.loads(json.dumps(document))
    holder = copy
    for part in path[:-1]:
        holder = holder[part]
    value = holder[path[-1]]
    if isinstance(value, bool):
        holder[path[-1]] = not value
    elif isinstance(value, int | float):
        holder[path[-1]] = value + 1
    else:
        holder[path[-1]] = "x" if value is None else f"{value}x"
    return copy


@pytest.mark.parametrize("case", ["cpu-one-replica", "gpu-three-lanes"])
def test_any_altered_field_of_a_stored_generation_is_noticed(case: str) -> None:
    document = resolve(*CASES[case]).model_dump(mode="json")
    unnoticed = []
    for path in _leaves(document):
        try:
            altered = Generation.model_validate_json(json.dumps(_altered(document, path)))
        except ValidationError:
            continue
        if is_intact(altered):
            unnoticed.append(path)
    assert unnoticed == []


@pytest.mark.parametrize(
    "path",
    [
        ("inference_hash",),
        ("digest",),
        ("inference", "topology", "nodes"),
        ("inference", "topology", "tensor"),
        ("inference", "replicas", 0, "index"),
        ("inference", "replicas", 0, "launch_delay_s"),
        ("inference", "replicas", 1, "index"),
        ("inference", "ranks", 0, "rank"),
        ("inference", "ranks", 0, "node"),
        ("inference", "ranks", 0, "claim", "gpus"),
        ("inference", "engine", "options_digest"),
        ("inference", "schema_version"),
        ("schema_version",),
        ("inference", "endpoint", "failure_domain"),
        ("inference", "readiness", "health_path"),
    ],
)
def test_an_inconsistent_field_is_refused_on_reading(path: tuple[Any, ...]) -> None:
    document = resolve(*CASES["gpu-three-lanes"]).model_dump(mode="json")
    if path[-1] == "health_path":
        document["inference"]["readiness"]["health_path"] = "health"
        altered = document
    else:
        altered = _altered(document, path)
    with pytest.raises(ValidationError):
        Generation.model_validate_json(json.dumps(altered))
