"""What holds for every accepted input, found by trying many."""

import argparse
import contextlib
import dataclasses
import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from standfast.plans import bind, check, is_intact, resolve
from standfast.plans.arguments import ArgumentReader
from standfast.plans.options import OptionList, canonical
from standfast.plans.ownership import owner_of
from standfast.plans.records import Generation, Placement, ResolutionInputs
from standfast.problems import ProblemsError
from standfast.spec import Compute, Deployment, Image, Launch, Parallelism, Scaling
from tests.unit.plans_cases import (
    CPU_IMAGE,
    GPU_IMAGE,
    INSPECTION,
    SGLANG_CPU_IMAGE,
    SGLANG_IMAGE,
    deployment,
    facts,
    inputs,
    plan,
    sglang,
    sglang_inputs,
)

_VLLM_OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "max-num-seqs": st.integers(1, 512),
    "enforce_eager": st.booleans(),
    "gpu-memory-utilization": st.floats(0.1, 0.9),
    "seed": st.integers(-5, 5),
    "limit-mm-per-prompt": st.dictionaries(st.sampled_from(["image", "video"]), st.integers(0, 3)),
    "cudagraph_capture_sizes": st.lists(st.integers(1, 64), min_size=1, max_size=4),
    "chat-template": st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12),
}
_SGLANG_OPTIONS: dict[str, st.SearchStrategy[Any]] = {
    "max-running-requests": st.integers(1, 512),
    "disable_radix_cache": st.booleans(),
    "mem-fraction-static": st.floats(0.1, 0.9),
    "random_seed": st.integers(-5, 5),
    "default-chat-template-kwargs": st.dictionaries(st.sampled_from(["a", "b"]), st.integers(0, 3)),
    "cuda_graph_bs_decode": st.lists(st.integers(1, 64), min_size=1, max_size=4),
    "chat-template": st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=12),
}


@dataclasses.dataclass(frozen=True)
class Kind:
    """An engine, and what the tests must know of it."""

    deployment: Callable[..., Deployment]
    inputs: Callable[..., ResolutionInputs]
    images: tuple[Image, Image]
    """For the CPU, and for GPUs."""
    options: dict[str, st.SearchStrategy[Any]]
    meets: Callable[[tuple[str, ...], str, str], bool]
    """Whether a command meets the others at an address and port."""


ENGINES = {
    "vllm": Kind(
        deployment,
        inputs,
        (CPU_IMAGE, GPU_IMAGE),
        _VLLM_OPTIONS,
        lambda argv, address, port: (
            (argv[argv.index("--master-addr") + 1], argv[argv.index("--master-port") + 1]) == (address, port)
        ),
    ),
    "sglang": Kind(
        sglang,
        sglang_inputs,
        (SGLANG_CPU_IMAGE, SGLANG_IMAGE),
        _SGLANG_OPTIONS,
        lambda argv, address, port: f"dist_init_addr={address}:{port}" in argv,
    ),
}
each_engine = pytest.mark.parametrize("engine", list(ENGINES))

_LAUNCH = st.builds(Launch, standoff=st.sampled_from(["0s", "1m"]), stagger=st.sampled_from(["0s", "5s"]))


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]


@st.composite
def _sizes(draw: st.DrawFn) -> tuple[Compute, Parallelism]:
    """A compute, and sizes whose product it holds; some left open."""
    nodes, per_node = draw(st.sampled_from([1, 1, 2, 3, 4])), draw(st.sampled_from([1, 2, 3, 4, 8]))
    gpu: dict[str, Any] = {"gpu": "H100", "gpus": per_node} if draw(st.booleans()) else {}
    compute = Compute(nodes=nodes, cpus=8, memory="64GiB", **gpu)
    if gpu and draw(st.booleans()):
        return compute, Parallelism()
    workers = nodes * per_node
    data = draw(st.sampled_from(_divisors(workers)))
    tensor = draw(st.sampled_from(_divisors(workers // data)))
    stage = tensor * data
    parallelism = Parallelism(
        tensor=tensor,
        pipeline=workers // stage,
        data=data,
        expert=draw(st.sampled_from([None, stage])),
        data_parallel_attention=data > 1 and draw(st.booleans()),
    )
    return compute, parallelism


@st.composite
def _deployments(draw: st.DrawFn, engine: str) -> Deployment:
    compute, parallelism = draw(_sizes())
    replicas = draw(st.integers(1, 5))
    options = draw(st.fixed_dictionaries({}, optional=ENGINES[engine].options))
    wanted = ENGINES[engine].deployment(
        compute=compute,
        parallelism=parallelism,
        scaling=Scaling(min_replicas=replicas, max_replicas=replicas),
        launch=draw(_LAUNCH),
        context_length=draw(st.none() | st.integers(1, 10**6)),
        options={name: value for name, value in options.items() if "@{" not in str(value)},
        environment=draw(st.dictionaries(st.sampled_from(["A", "B", "C"]), st.sampled_from(["", "1", "two words"]))),
    )
    assume(not check(wanted))
    return wanted


@st.composite
def _placements(draw: st.DrawFn, wanted: Deployment) -> Placement:
    """Room enough, stated or not."""
    assert wanted.inference is not None
    compute, replicas = wanted.inference.compute, wanted.inference.scaling.min_replicas
    gpus = draw(st.none() | st.integers(compute.gpus or 1, 16))
    lanes = Placement(gpus_per_node=gpus).lanes(compute.gpus)
    needed = -(-replicas // lanes) * compute.nodes
    return Placement(nodes=draw(st.none() | st.integers(needed, needed + 3)), gpus_per_node=gpus)


def _resolve(wanted: Deployment, placement: Placement | None = None) -> Generation:
    assert wanted.inference is not None
    kind = ENGINES[wanted.inference.engine]
    image = kind.images[wanted.inference.compute.gpus > 0]
    return resolve(wanted, kind.inputs(image, placement=placement))


@each_engine
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_replicas_are_whole_and_share_nothing(engine: str, data: st.DataObject) -> None:
    wanted = data.draw(_deployments(engine))
    placement = data.draw(_placements(wanted))
    generation = _resolve(wanted, placement)
    role, topology = plan(generation), plan(generation).topology
    assert topology.workers == topology.tensor * topology.pipeline * topology.data
    assert role.gpus_per_node * topology.nodes in (0, topology.workers)
    assert (topology.tensor * topology.data) % topology.expert == 0
    assert [rank.rank for rank in role.ranks] == list(range(topology.nodes))
    assert [rank.is_head for rank in role.ranks].count(True) == 1
    ports: set[tuple[str, int]] = set()
    gpus: set[tuple[str, str]] = set()
    hosts: set[str] = set()
    for replica in role.replicas:
        given_facts = facts(role, replica=replica.index)
        bound = bind(role, replica.index, given_facts)
        for rank, place in zip(bound.ranks, given_facts.ranks, strict=True):
            texts = [*rank.argv, *(value for _, value in rank.environment)]
            assert not any("@{" in text for text in texts)
            mine = {(place.host, port) for _, port in rank.ports}
            span = range(place.port_base, place.port_base + role.ranks[rank.rank].claim.ports.count)
            assert len(mine) == len(rank.ports) and not mine & ports
            assert all(port in span for _, port in mine)
            held = {(place.host, gpu) for gpu in place.gpu_ids}
            assert len(held) == role.gpus_per_node and not held & gpus
            ports, gpus, hosts = ports | mine, gpus | held, hosts | {place.host}
        head = given_facts.ranks[0]
        if replica.rendezvous is not None:
            port = str(dict(bound.ranks[0].ports)[replica.rendezvous.port])
            for rank in bound.ranks:
                assert ENGINES[engine].meets(rank.argv, head.address, port)
    assert [replica.index for replica in role.replicas] == list(range(len(role.replicas)))
    assert len(hosts) == role.groups * topology.nodes
    assert placement.nodes is None or len(hosts) <= placement.nodes
    if placement.gpus_per_node is not None:
        assert all(int(gpu) < placement.gpus_per_node for _, gpu in gpus)
    assert is_intact(Generation.model_validate_json(generation.model_dump_json()))


_ANY_SIZE = st.none() | st.integers(1, 9)


@each_engine
@settings(max_examples=100, deadline=None)
@given(
    compute=st.builds(
        Compute, gpu=st.just("H100"), gpus=st.integers(1, 9), nodes=st.integers(1, 5), cpus=st.integers(1, 9)
    )
    | st.builds(Compute, nodes=st.integers(1, 5), cpus=st.integers(1, 9)),
    parallelism=st.builds(
        Parallelism,
        tensor=_ANY_SIZE,
        pipeline=_ANY_SIZE,
        data=_ANY_SIZE,
        expert=_ANY_SIZE,
        data_parallel_attention=st.booleans(),
    ),
    placement=st.builds(Placement, nodes=_ANY_SIZE, gpus_per_node=_ANY_SIZE),
)
def test_any_sizes_are_planned_or_refused_with_a_limit_and_a_hint(
    engine: str, compute: Compute, parallelism: Parallelism, placement: Placement
) -> None:
    wanted = ENGINES[engine].deployment(compute=dataclasses.replace(compute, memory="64GiB"), parallelism=parallelism)
    try:
        role = plan(_resolve(wanted, placement))
    except ProblemsError as error:
        assert len({(problem.code, problem.where) for problem in error.problems}) == len(error.problems)
        assert all(problem.value and problem.limit and problem.help for problem in error.problems)
        return
    asked = {name: getattr(parallelism, name) for name in ("tensor", "pipeline", "data", "expert")}
    assert all(size in (None, getattr(role.topology, name)) for name, size in asked.items())


@each_engine
@settings(max_examples=20, deadline=None)
@given(data=st.data(), shuffle=st.randoms())
def test_the_order_of_a_mapping_does_not_matter(engine: str, data: st.DataObject, shuffle: random.Random) -> None:
    wanted = data.draw(_deployments(engine))
    assert wanted.inference is not None

    def shuffled(mapping: Any) -> dict[str, Any]:
        items = list(mapping.items())
        shuffle.shuffle(items)
        return {key: shuffled(value) if isinstance(value, dict) else value for key, value in items}

    inference = wanted.inference
    again = ENGINES[engine].deployment(
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
