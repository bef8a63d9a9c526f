"""kill -9 of an engine's processes: the route goes, the dead attempt leaves nothing, and the model comes back by a
proof.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from standfast.client import Client
from standfast.home import Home
from standfast.platforms.base import ProcessRef
from standfast.platforms.local import LocalPlatform
from standfast.platforms.processes import is_alive
from tests.support.scripted_deployments import Scripted
from tests.support.stack import TestStack, until

QUESTION: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 4}


async def processes_of(home: Home, attempt: str) -> dict[str, ProcessRef]:
    """The live processes of an attempt by name, as its launcher reports them."""
    platform = LocalPlatform(home.attempts, host="anywhere")
    return {process.name: process for process in (await platform.observe(attempt)).processes}


def lives(process: ProcessRef) -> bool:
    """Whether it is still there, and not another of its number."""
    return is_alive(process.pid, process.start_ticks)


async def serving_attempt(client: Client) -> str | None:
    """The attempt that is ready, if one is."""
    registry = await client.registry()
    for attempt in await registry.list_attempts():
        if attempt.phase == "ready":
            return attempt.name
    return None


@pytest.mark.parametrize("victim", ["main", "VLLM::EngineCor", "VLLM::Worker"])
async def test_the_replica_is_relaunched_and_returns_by_a_proof(
    stack: TestStack, engine: Callable[..., Scripted], victim: str, tmp_path: Path
) -> None:
    # A child's death is ignored by the engine's own health, as in the worst of real engines. (The kernel keeps fifteen
    # characters of a process's name.)
    model = engine(behaviour={"children": 2, "on_child_death": "ignore"})
    async with stack.client() as client, stack.http() as http:
        await client.deploy(model.deployment)
        first = await serving_attempt(client)
        assert first is not None
        family = await processes_of(stack.home, first)
        pid = model.script.starts()[0].pid if victim == "main" else family[victim].pid
        model.script.update(startup_gate=str(tmp_path / "go"))
        os.kill(pid, signal.SIGKILL)

        async def withdrawn() -> httpx.Response | None:
            answer = await http.post("/v1/completions", json=QUESTION)
            return answer if answer.status_code == 503 else None

        refusal = await until(withdrawn, what="the withdrawn route")
        assert int(refusal.headers["retry-after"]) >= 1
        (tmp_path / "go").touch()

        async def restored() -> bool:
            return (await http.post("/v1/completions", json=QUESTION)).status_code == 200

        await until(restored, within_s=60, every_s=0.1, what="the restored route")
        assert len(model.script.starts()) == 2
        second = await serving_attempt(client)
        assert second is not None and second != first
        registry = await client.registry()
        assert {lease.owner for lease in await registry.list_leases()} == {second}
        assert not any(lives(process) for process in family.values())
        ended = await registry.get_attempt(first)
        assert ended is not None and ended.phase == "ended" and ended.failure is not None
        generation = ended.generation
        assert len(await registry.list_proofs(generation=generation)) == 2


async def test_a_replica_whose_launcher_was_killed_is_relaunched(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine()
    async with stack.client() as client, stack.http() as http:
        await client.deploy(model.deployment)
        first = await serving_attempt(client)
        assert first is not None
        orphan = psutil.Process(model.script.starts()[0].pid)
        launcher = orphan.parent()
        assert launcher is not None
        os.kill(launcher.pid, signal.SIGKILL)

        async def relaunched() -> bool:
            serving = await serving_attempt(client)
            return serving is not None and serving != first

        await until(relaunched, within_s=60, every_s=0.1, what="the second attempt")
        assert not orphan.is_running()

        async def answers() -> bool:
            return (await http.post("/v1/completions", json=QUESTION)).status_code == 200

        await until(answers, what="the restored route")


async def test_an_engine_that_ignores_sigterm_and_left_a_stray_child_is_cleared_away(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine(behaviour={"children": 1, "ignore_sigterm": True, "double_fork": True})
    async with stack.client() as client:
        await client.deploy(model.deployment)
        attempt = await serving_attempt(client)
        assert attempt is not None
        family = await processes_of(stack.home, attempt)
        assert len(family) >= 2
        await client.deprecate("m", reason="the test")
        assert not any(lives(process) for process in family.values())
        registry = await client.registry()
        assert await registry.list_leases() == []
