"""The real SGLang, on one node and over two logical nodes of this host, and its own opinion of planned settings."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest

from standfast.client import Client
from standfast.images.builder import build
from standfast.images.store import BuiltImage, ImageStore
from standfast.plans import resolution_inputs, resolve
from standfast.plans.records import PinnedModel
from standfast.platforms.local import LocalPlatform
from standfast.spec import Compute, Deployment, Image, Parallelism
from tests.e2e.conftest import Quickstart
from tests.e2e.tiny import commands, run_in_image, standing, tiny_deployment
from tests.support.sglang_cpu import sglang_cpu_image

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

READ_SETTINGS = """
import argparse, json, sys
import standfast_sglang
from sglang.srt.arg_groups.overrides import resolving_view
from sglang.srt.arg_groups.validation_hook import check_server_args
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(add_help=False)
ServerArgs.add_cli_args(parser)
verdicts = []
for tokens in json.loads(sys.argv[1]):
    try:
        given = ServerArgs(**standfast_sglang.convert(standfast_sglang.read_settings(tokens), parser))
        given.resolve_once()
        check_server_args(given)
        read = resolving_view(given)
        names = ("tp_size", "pp_size", "dp_size", "attn_dp_size", "ep_size", "nnodes", "node_rank", "weight_version")
        verdicts.append({name: getattr(read, name) for name in names})
    except (ValueError, AssertionError, TypeError) as error:
        verdicts.append({"refused": str(error)[:200]})
print("VERDICTS" + json.dumps(verdicts))
"""


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Image:
    return sglang_cpu_image(tmp_path_factory.mktemp("wheels"))


@pytest.fixture(scope="module")
async def image(quickstart: Quickstart, recipe: Image) -> BuiltImage:
    return await build(recipe, ImageStore(quickstart.home.images), on_progress=lambda _: None)


def deployment(name: str, recipe: Image, model: Path, **inference: Any) -> Deployment:
    return tiny_deployment(
        name,
        model,
        engine="sglang",
        image=recipe,
        # Little of the memory that is free when it starts: other engines start beside it.
        options={"mem-fraction-static": 0.5, "max-total-tokens": 4096},
        extra_args=["--disable-overlap-schedule"],
        **inference,
    )


@pytest.fixture(scope="module")
async def client(quickstart: Quickstart, image: BuiltImage, recipe: Image, tiny_models: Path) -> AsyncIterator[Client]:
    """The same model on one node, and divided over two."""
    wanted = [
        deployment("sglang-one", recipe, tiny_models / "dense", compute=Compute(cpus=1, memory="4GiB")),
        deployment(
            "sglang-two",
            recipe,
            tiny_models / "dense",
            compute=Compute(nodes=2, cpus=1, memory="4GiB"),
            parallelism=Parallelism(tensor=2, pipeline=1),
            # Both nodes are this host: each takes a core of its own.
            environment={"SGLANG_CPU_OMP_THREADS_BIND": "0|1"},
        ),
    ]
    async with standing(quickstart.home, wanted) as client:
        yield client


async def test_one_node_and_two_answer_alike(quickstart: Quickstart, client: Client) -> None:
    async with openai.AsyncOpenAI(
        base_url=f"{quickstart.gateway}/v1", api_key=quickstart.api_key, max_retries=0, timeout=60
    ) as api:
        answers = {}
        for model in ("sglang-one", "sglang-two"):
            answer = await api.completions.create(model=model, prompt="a few words", max_tokens=8, temperature=0)
            answers[model] = answer.choices[0].text
            stream = await api.completions.create(
                model=model, prompt="a few words", max_tokens=8, temperature=0, stream=True
            )
            assert "".join([chunk.choices[0].text async for chunk in stream if chunk.choices]) == answers[model]
    assert answers["sglang-one"] == answers["sglang-two"] != ""


async def test_every_rank_of_the_gang_runs_its_part(quickstart: Quickstart, client: Client) -> None:
    registry = await client.registry()
    [attempt] = [one for one in await registry.list_attempts(deployment="sglang-two") if one.phase == "ready"]
    seen = await LocalPlatform(quickstart.home.attempts, host="anywhere").observe(attempt.name)
    schedulers = [[one.name for one in rank.processes if "schedul" in one.name] for rank in seen.ranks]
    assert [len(names) for names in schedulers] == [1, 1]


TOPOLOGIES: list[tuple[str, int, dict[str, Any]]] = [
    ("dense", 1, {"tensor": 2}),
    ("dense", 1, {"pipeline": 2}),
    ("dense", 1, {"data": 2}),
    ("dense", 2, {"tensor": 4, "pipeline": 1}),
    ("dense", 2, {"tensor": 2, "pipeline": 2}),
    ("experts", 2, {"tensor": 4, "pipeline": 1, "expert": 4}),
    ("experts", 2, {"data": 4, "expert": 4, "data_parallel_attention": True}),
    ("experts", 2, {"tensor": 2, "data": 2, "expert": 2, "data_parallel_attention": True}),
]


async def test_the_engine_reads_every_topology_as_it_was_planned(
    image: BuiltImage, recipe: Image, tiny_models: Path
) -> None:
    roles, argvs = [], []
    for model, nodes, sizes in TOPOLOGIES:
        wanted = deployment(
            "read",
            recipe,
            tiny_models / model,
            compute=Compute(nodes=nodes, cpus=8, memory="32GiB"),
            parallelism=Parallelism(**sizes),
        )
        pinned = PinnedModel(id=f"tiny/{model}", source="directory", locator="/", revision="r")
        inputs = resolution_inputs(target="local", model=pinned, image=recipe, inspection=image.inspection)
        role = resolve(wanted, inputs).inference
        assert role is not None
        roles.append(role)
        argvs += commands(role, tiny_models / model)
    # What the plan refuses, the engine refuses too: data-parallel copies over several nodes.
    refused = [token for token in argvs[4] if not token.startswith("tp_size")] + ["tp_size:=2", "dp_size:=2"]
    read = await run_in_image(
        image, READ_SETTINGS, json.dumps([*argvs, refused]), environment={"SGLANG_USE_CPU_ENGINE": "1"}
    )
    *verdicts, last = json.loads(read.partition("VERDICTS")[2])
    for role in roles:
        topology = role.topology
        copies = 1 if topology.data_parallel_attention else topology.data
        for rank in role.ranks:
            verdict = verdicts.pop(0)
            assert verdict.get("refused") is None, verdict
            assert verdict["tp_size"] * verdict["pp_size"] * verdict["dp_size"] == topology.workers
            assert (verdict["pp_size"], verdict["dp_size"], verdict["ep_size"]) == (
                topology.pipeline,
                copies,
                topology.expert,
            )
            assert verdict["attn_dp_size"] == topology.data // copies
            assert (verdict["nnodes"], verdict["node_rank"]) == (topology.nodes, rank.node)
            assert verdict["weight_version"] == "a/1"
    assert "refused" in last
