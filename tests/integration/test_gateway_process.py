"""The gateway as a command, on a real registry."""

import asyncio
import json
import os
import signal
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import pytest

from standfast.registry import Registry, backend_id
from tests.support.gateway import PATIENCE_S, Engine, a_body, on_uvloop, until
from tests.support.registry_records import a_generation, put_generations

ROOT = Path(__file__).resolve().parents[2]


@asynccontextmanager
async def a_process(directory: Path, url: str, *more: str) -> AsyncIterator[tuple[Process, str]]:
    """The running command and its URL; killed at the end."""
    ready = directory / "ready"
    arguments = ("--port", "0", "--registry", url, "--id", "g", "--ready-file", str(ready))
    with (directory / "err.log").open("wb") as errors, (directory / "out.log").open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "workers.gateway", *arguments, *more),
            stdout=output,
            stderr=errors,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    try:
        await until(lambda: ready.exists() or process.returncode is not None)
        assert process.returncode is None, (directory / "err.log").read_text()
        yield process, ready.read_text().strip()
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def routed(registry: Registry, engine: Engine) -> str:
    """The deployment ``qwen``, served by ``engine``; returns an API key."""
    generation = a_generation("qwen")
    await put_generations(registry, generation)
    await registry.put_backend(
        backend_id(generation.id, 0), generation=generation.id, replica=0, host="h", state="ready", url=engine.url
    )
    await registry.switch_route("qwen", generation.id, None)
    return (await registry.create_api_key("test"))[1]


@on_uvloop
async def test_the_command_serves_follows_the_registry_and_ends_in_order(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'registry.db'}"
    async with await Registry.open(url) as registry, Engine() as engine, httpx.AsyncClient() as http:
        key = await routed(registry, engine)
        async with a_process(tmp_path, url) as (process, base):
            headers = {"Authorization": f"Bearer {key}"}
            answer = await http.post(f"{base}/v1/completions?token=secret", content=a_body("qwen"), headers=headers)
            assert (answer.status_code, answer.json()) == (200, {"ok": True})

            async def healthy() -> bool:
                return (await http.get(f"{base}/healthz")).status_code == 200

            await until(healthy)
            new_key = (await registry.create_api_key("another"))[1]
            models = await http.get(f"{base}/v1/models", headers={"Authorization": f"Bearer {new_key}"})
            assert [model["id"] for model in models.json()["data"]] == ["qwen"]

            (generation,) = await registry.list_generations("qwen")
            await registry.set_backend(backend_id(generation.id, 0), "draining")

            async def withdrawn() -> bool:
                asked = await http.post(f"{base}/v1/completions", content=a_body("qwen"), headers=headers)
                return asked.status_code == 503

            async def reported() -> bool:
                return [g.revision_seen for g in await registry.list_gateways()] == [await registry.revision()]

            await until(withdrawn)
            await until(reported)
            (gateway,) = await registry.list_gateways()
            assert (gateway.id, gateway.url, gateway.inflight) == ("g", base, {})

            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                assert await process.wait() == 0
            assert await registry.list_gateways() == []
    output = (tmp_path / "out.log").read_text()
    lines = [json.loads(line) for line in output.splitlines()]
    assert lines[0]["path"] == "/v1/completions"
    assert (lines[0]["status"], lines[0]["model"], lines[0]["outcome"]) == (200, "qwen", "ok")
    assert key not in output
    assert "secret" not in output
    events = [json.loads(line)["event"] for line in (tmp_path / "err.log").read_text().splitlines()]
    assert (events[0], events[-1]) == ("routes", "stopped")


@on_uvloop
async def test_several_processes_share_the_port_and_the_fallen_are_replaced(tmp_path: Path) -> None:
    url = f"sqlite+aiosqlite:///{tmp_path / 'registry.db'}"
    async with await Registry.open(url) as registry, Engine() as engine:
        key = await routed(registry, engine)
        async with a_process(tmp_path, url, "--processes", "2") as (process, base):

            async def both_beat() -> bool:
                return {gateway.id for gateway in await registry.list_gateways(10.0)} == {"g/0", "g/1"}

            await until(both_beat)
            headers = {"Authorization": f"Bearer {key}"}
            for _ in range(6):
                async with httpx.AsyncClient() as http:
                    asked = await http.post(f"{base}/v1/completions", content=a_body("qwen"), headers=headers)
                    assert asked.status_code == 200
            victim = children_of(process.pid)[0]
            os.kill(victim, signal.SIGKILL)
            await until(lambda: victim not in (now := children_of(process.pid)) and len(now) == 2)
            process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE_S):
                await process.wait()
            assert children_of(process.pid) == []


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    return [int(child) for child in path.read_text().split()] if path.exists() else []


@on_uvloop
async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    async with Engine() as engine:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "workers.gateway", "--port", str(engine.port)),
            *("--registry", f"sqlite+aiosqlite:///{tmp_path / 'registry.db'}"),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        _, errors = await process.communicate()
    assert process.returncode == 3
    assert json.loads(errors.splitlines()[-1])["event"] == "cannot_listen"


@on_uvloop
async def test_a_gateway_may_start_before_its_registry(tmp_path: Path) -> None:
    directory = tmp_path / "later"
    directory.write_text("not a directory yet")
    url = f"sqlite+aiosqlite:///{directory / 'registry.db'}"
    async with a_process(tmp_path, url) as (_, base), httpx.AsyncClient() as http:

        async def healthy() -> bool:
            return (await http.get(f"{base}/healthz")).status_code == 200

        assert (await http.get(f"{base}/healthz")).json()["status"] == "starting"
        directory.unlink()
        directory.mkdir()
        await until(healthy)


pytestmark = pytest.mark.timeout(180)
