"""The real vLLM over two logical nodes of this host, and its own opinion of every topology that plans carry out."""

import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest

from standfast.client import Client
from standfast.images.builder import image_digest
from standfast.images.recipes import VLLM_CPU
from standfast.images.store import BuiltImage, ImageStore
from standfast.plans import resolution_inputs, resolve
from standfast.plans.records import PinnedModel
from standfast.platforms.local import LocalPlatform
from standfast.spec import Compute, Deployment, Parallelism
from tests.e2e.conftest import Quickstart
from tests.e2e.tiny import commands, run_in_image, standing, tiny_deployment
from tests.support.stack import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

READ_CONFIGS = """
import importlib, json, sys, vllm
serve = importlib.import_module("vllm.entrypoints.cli.serve")
[command] = serve.cmd_init()
parser = command.subparser_init(serve.FlexibleArgumentParser(prog="vllm").add_subparsers())
verdicts = []
for argv in json.loads(sys.argv[1]):
    try:
        given = parser.parse_args(argv)
        given.model = given.model_tag
        command.validate(given)
        engine = vllm.AsyncEngineArgs.from_cli_args(given).create_engine_config(headless=given.headless)
        read = engine.parallel_config
        verdicts.append({
            "workers": read.world_size_across_dp, "on_node": read.local_world_size * read.data_parallel_size_local,
            "node": read.node_rank, "nodes": read.nnodes, "experts": read.enable_expert_parallel,
            "nodes_within_dp": read.nnodes_within_dp,
        })
    except (ValueError, AssertionError) as error:
        verdicts.append({"refused": str(error)[:200]})
print("VERDICTS" + json.dumps(verdicts))
"""


@dataclass(frozen=True)
class Tiny:
    """Two small models with random weights, one dense and one with experts."""

    image: BuiltImage
    root: Path

    def deployment(self, name: str, *, model: str = "dense", **inference: Any) -> Deployment:
        return tiny_deployment(name, self.root / model, engine="vllm", **inference)

    async def run(self, code: str, *arguments: str) -> str:
        """Run code with the image's Python, as engines run; returns what it printed."""
        return await run_in_image(
            self.image, code, *arguments, environment={"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
        )


@pytest.fixture(scope="module")
async def tiny(quickstart: Quickstart, tiny_models: Path) -> Tiny:
    image = ImageStore(quickstart.home.images).read(image_digest(VLLM_CPU))
    assert image is not None
    return Tiny(image=image, root=tiny_models)


TWO_NODES = Compute(nodes=2, cpus=1, memory="3GiB")


@pytest.fixture(scope="module")
async def client(quickstart: Quickstart, tiny: Tiny) -> AsyncIterator[Client]:
    """Three gangs, brought up side by side: tensor and pipeline over two nodes, tensor on one."""
    gangs = [
        tiny.deployment(
            "tensor-two",
            compute=TWO_NODES,
            parallelism=Parallelism(tensor=2, pipeline=1),
            options={"enforce-eager": True},
        ),
        tiny.deployment("pipeline-two", compute=TWO_NODES),
        tiny.deployment(
            "tensor-one",
            compute=Compute(cpus=2, memory="4GiB"),
            parallelism=Parallelism(tensor=2),
            options={"enforce-eager": True},
        ),
    ]
    async with standing(quickstart.home, gangs) as client:
        yield client


async def attempts_of(client: Client, deployment: str) -> list[str]:
    """The attempts that have not ended."""
    registry = await client.registry()
    return [one.name for one in await registry.list_attempts() if one.deployment == deployment and one.phase != "ended"]


async def complete(quickstart: Quickstart, model: str) -> int:
    """How many tokens come out."""
    async with openai.AsyncOpenAI(
        base_url=f"{quickstart.gateway}/v1", api_key=quickstart.api_key, max_retries=0, timeout=60
    ) as api:
        answer = await api.completions.create(model=model, prompt="a few words", max_tokens=8, temperature=0)
    assert answer.usage is not None
    return answer.usage.completion_tokens


@pytest.mark.parametrize("model", ["tensor-two", "pipeline-two", "tensor-one"])
async def test_every_division_answers(quickstart: Quickstart, client: Client, model: str) -> None:
    assert await complete(quickstart, model) > 0
    (attempt,) = await attempts_of(client, model)
    seen = await LocalPlatform(quickstart.home.attempts, host="anywhere").observe(attempt)
    workers = [[one.name for one in rank.processes if one.name.startswith("VLLM::Worker")] for rank in seen.ranks]
    assert [len(names) for names in workers] == ([2] if model == "tensor-one" else [1, 1])
    assert {one.name for one in seen.ranks[0].processes} >= {"VLLM::EngineCor"}


async def test_a_dead_remote_rank_restarts_the_whole_gang(quickstart: Quickstart, client: Client) -> None:
    platform = LocalPlatform(quickstart.home.attempts, host="anywhere")
    (first,) = await attempts_of(client, "tensor-two")
    before = await platform.observe(first)
    victim = next(one for one in before.ranks[1].processes if one.name.startswith("VLLM::Worker"))
    os.kill(victim.pid, signal.SIGKILL)

    async def relaunched() -> bool:
        attempts = await attempts_of(client, "tensor-two")
        if not attempts or first in attempts:
            return False
        phases = [rank.phase for rank in (await platform.observe(attempts[0])).ranks]
        return phases == ["running", "running"]

    await until(relaunched, within_s=60, every_s=0.2, what="the second attempt")
    assert not any(psutil.pid_exists(one.pid) for one in before.processes)
    registry = await client.registry()
    ended = await registry.get_attempt(first)
    assert ended is not None and ended.failure is not None
    with pytest.raises(openai.APIStatusError) as refused:
        await complete(quickstart, "tensor-two")
    assert refused.value.status_code == 503


# -- what the engine makes of our commands -----------------------------------------------------------------------------

TOPOLOGIES: list[tuple[str, int, dict[str, Any]]] = [
    ("dense", 1, {"pipeline": 2}),
    ("dense", 1, {"data": 2}),
    ("dense", 2, {"tensor": 2, "pipeline": 2}),
    ("dense", 2, {"tensor": 4, "pipeline": 1}),
    ("dense", 2, {"data": 4}),
    ("experts", 2, {"tensor": 4, "pipeline": 1, "expert": 4}),
    ("experts", 2, {"data": 4, "expert": 4, "data_parallel_attention": True}),
    ("experts", 2, {"tensor": 2, "data": 2, "expert": 4}),
    ("experts", 4, {"tensor": 2, "pipeline": 2, "data": 2, "expert": 4}),
]


async def test_the_engine_reads_every_topology_as_it_was_planned(tiny: Tiny) -> None:
    pinned = {
        kind: PinnedModel(id=f"tiny/{kind}", source="directory", locator="/", revision="r")
        for kind in ("dense", "experts")
    }
    roles = []
    for model, nodes, sizes in TOPOLOGIES:
        wanted = tiny.deployment(
            "read",
            model=model,
            compute=Compute(nodes=nodes, cpus=8, memory="32GiB"),
            parallelism=Parallelism(**sizes),
        )
        inputs = resolution_inputs(
            target="local", model=pinned[model], image=VLLM_CPU, inspection=tiny.image.inspection
        )
        role = resolve(wanted, inputs).inference
        assert role is not None
        roles.append(role)
    argvs = [commands(role, tiny.root / model) for role, (model, _, _) in zip(roles, TOPOLOGIES, strict=True)]
    # What `check` refuses, the engine refuses too: copies that neither fill nodes nor fit into them.
    refused = [*argvs[4][0]]
    refused[refused.index("--data-parallel-size") + 1] = "3"
    refused += ["--tensor-parallel-size", "2"]
    read = await tiny.run(READ_CONFIGS, json.dumps([argv for ranks in argvs for argv in ranks] + [refused]))
    *verdicts, last = json.loads(read.partition("VERDICTS")[2])
    for role in roles:
        for rank in role.ranks:
            verdict = verdicts.pop(0)
            assert verdict.get("refused") is None, verdict
            assert verdict["workers"] == role.topology.workers
            assert verdict["on_node"] == role.topology.workers_per_node
            assert (verdict["node"], verdict["nodes"]) == (rank.node, role.topology.nodes)
            assert verdict["experts"] == (role.topology.expert > 1)
    assert "refused" in last
