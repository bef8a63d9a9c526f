"""Replicas over two logical nodes of this host: placed, launched, watched and ended as one gang."""

import os
import signal
from collections.abc import Callable
from typing import Any

import httpx
import psutil

from standfast.client import Client
from standfast.platforms.base import Observation
from standfast.platforms.local import LocalPlatform
from standfast.spec import Compute, Parallelism, Scaling
from tests.support.scripted_deployments import Scripted
from tests.support.stack import TestStack, until

QUESTION: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 4}
TWO_NODES = Compute(nodes=2, cpus=1, memory="3GiB")


async def ready_attempts(client: Client) -> list[str]:
    registry = await client.registry()
    return sorted(attempt.name for attempt in await registry.list_attempts() if attempt.phase == "ready")


async def look_at(stack: TestStack, attempt: str) -> Observation:
    return await LocalPlatform(stack.home.attempts, host="anywhere").observe(attempt)


def pids_of(observation: Observation) -> list[list[int]]:
    return [[process.pid for process in rank.processes] for rank in observation.ranks]


async def test_a_replica_over_two_nodes_serves_and_leaves_nothing(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine(compute=TWO_NODES)
    async with stack.client() as client, stack.http() as http:
        await client.deploy(model.deployment)
        assert (await http.post("/v1/completions", json=QUESTION)).status_code == 200
        (attempt,) = await ready_attempts(client)
        observation = await look_at(stack, attempt)
        assert [rank.rank for rank in observation.ranks] == [0, 1]
        head, follower = (psutil.Process(pids[0]) for pids in pids_of(observation))
        assert "--headless" in follower.cmdline() and "--headless" not in head.cmdline()
        ports = [int(process.environ()["VLLM_PORT"]) for process in (head, follower)]
        assert abs(ports[0] - ports[1]) >= 32
        registry = await client.registry()
        leases = await registry.list_leases()
        assert sum(lease.count for lease in leases if lease.kind == "memory") == 2 * 3 * 2**30
        assert len([lease for lease in leases if lease.kind == "ports"]) == 2
        logs = [line.text async for line in client.logs("m", rank=1)]
        assert any("Headless" in line for line in logs)
        await client.deprecate("m", reason="the test")
        assert await registry.list_leases() == []
        assert not any(psutil.pid_exists(pid) for pids in pids_of(observation) for pid in pids)


async def test_a_dead_remote_rank_takes_its_replica_down_though_the_head_stays_healthy(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine(compute=TWO_NODES, parallelism=Parallelism(tensor=2, pipeline=1), behaviour={"children": 1})
    async with stack.client() as client, stack.http() as http:
        await client.deploy(model.deployment)
        (first,) = await ready_attempts(client)
        before = pids_of(await look_at(stack, first))
        os.kill(before[1][0], signal.SIGKILL)

        async def withdrawn() -> httpx.Response | None:
            answer = await http.post("/v1/completions", json=QUESTION)
            return answer if answer.status_code == 503 else None

        await until(withdrawn, within_s=10, what="the withdrawn route")

        async def restored() -> bool:
            return (await http.post("/v1/completions", json=QUESTION)).status_code == 200

        await until(restored, within_s=60, every_s=0.1, what="the restored route")
        (second,) = await ready_attempts(client)
        assert second != first
        assert len(model.script.starts()) == 4
        assert not any(psutil.pid_exists(pid) for pids in before for pid in pids)
        registry = await client.registry()
        ended = await registry.get_attempt(first)
        assert ended is not None and ended.failure is not None
        assert {lease.owner for lease in await registry.list_leases()} == {second}


async def test_two_replicas_over_two_nodes_stand_side_by_side(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine(compute=TWO_NODES, scaling=Scaling(min_replicas=2, max_replicas=2))
    async with stack.client() as client:
        await client.deploy(model.deployment)
        attempts = await ready_attempts(client)
        assert len(attempts) == 2
        registry = await client.registry()
        ports = [lease.resource for lease in await registry.list_leases() if lease.kind == "ports"]
        assert len(set(ports)) == 4
