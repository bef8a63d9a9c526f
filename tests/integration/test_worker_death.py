"""kill -9 of the control worker, in every phase of a deploy: another worker finishes it, and nothing is launched
twice.

Each phase is held open by something real (a builder's lock, a busy database, a slow engine) until the worker is dead.
"""

import asyncio
import contextlib
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from filelock import FileLock

from standfast import contracts as c
from standfast.client import Client
from standfast.images.store import ImageStore, image_digest
from standfast.spec import Image
from tests.scripted_engine import build_wheel, scripted_image
from tests.support.scripted_deployments import Scripted
from tests.support.stack import TestStack, until


async def running_steps(client: Client, workflow_id: str) -> dict[str, int]:
    """The activities that a worker is running for a workflow now: type to attempt."""
    temporal = await client.temporal()
    description = await temporal.get_workflow_handle(workflow_id).describe()
    return {
        pending.activity_type.name: pending.attempt
        for pending in description.raw_description.pending_activities
        if pending.state == 2  # PENDING_ACTIVITY_STATE_STARTED
    }


async def replica_workflow(client: Client) -> str | None:
    """The id of the only RetryWorkflow, once there is one."""
    temporal = await client.temporal()
    async for execution in temporal.list_workflows("WorkflowType = 'RetryWorkflow' AND ExecutionStatus = 'Running'"):
        return execution.id
    return None


@contextlib.contextmanager
def busy_registry(stack: TestStack) -> Iterator[None]:
    """Hold the registry's write lock, as another process in a long transaction would."""
    connection = sqlite3.connect(stack.home.registry_db, isolation_level=None, timeout=10)
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    finally:
        connection.execute("ROLLBACK")
        connection.close()


@contextlib.asynccontextmanager
async def dying_worker(
    stack: TestStack, client: Client, model: Scripted, step: str, *, of_replica: bool = False
) -> AsyncIterator[Any]:
    """Start a deploy and a worker, and kill -9 the worker once it runs ``step``; what holds the step open ends
    after.
    """
    handle = await client.deploy(model.deployment, wait=False)
    await stack.start_worker()

    async def runs() -> bool:
        workflow_id = await replica_workflow(client) if of_replica else handle.workflow_id
        return workflow_id is not None and step in await running_steps(client, workflow_id)

    await until(runs, within_s=60, every_s=0.02, what=f"a worker that runs {step}")
    await stack.kill("worker")
    yield handle


async def finishes(stack: TestStack, handle: Any, model: Scripted) -> None:
    """A second worker finishes the deploy, with exactly one engine ever started."""
    await stack.start_worker("second")
    result: c.DeployResult = await asyncio.wait_for(handle.result(), 90)
    assert result.changed
    assert len(model.script.starts()) == 1
    async with stack.registry() as registry:
        assert len(await registry.list_attempts(generation=result.generation)) == 1


async def test_while_it_resolves(
    bare_stack: TestStack, engine: Callable[..., Scripted], image: Image, shared_images: Path
) -> None:
    model = engine()
    built = ImageStore(shared_images).read(image_digest(image))
    assert built is not None
    async with bare_stack.registry() as registry:
        await registry.put_image(built.digest, name=image.name, path=str(built.path), inspection=built.inspection)
    async with bare_stack.client() as client:
        with busy_registry(bare_stack):
            async with dying_worker(bare_stack, client, model, "resolve_plan") as handle:
                pass
        await finishes(bare_stack, handle, model)


async def test_while_it_builds_the_image(
    bare_stack: TestStack, engine: Callable[..., Scripted], tmp_path: Path, shared_images: Path
) -> None:
    recipe = scripted_image(build_wheel(tmp_path / "wheel", version="0.2.0"))
    model = engine(image=recipe)
    lock = ImageStore(shared_images).lock_path(image_digest(recipe))
    lock.parent.mkdir(parents=True, exist_ok=True)
    async with bare_stack.client() as client:
        with FileLock(lock):
            async with dying_worker(bare_stack, client, model, "build_image") as handle:
                pass
        await finishes(bare_stack, handle, model)


async def test_while_it_launches(bare_stack: TestStack, engine: Callable[..., Scripted], tmp_path: Path) -> None:
    model = engine(behaviour={"startup_gate": str(tmp_path / "go")})
    async with bare_stack.client() as client:
        handle = await client.deploy(model.deployment, wait=False)
        await bare_stack.start_worker()

        async def engine_started() -> bool:
            return bool(model.script.starts())

        await until(engine_started, within_s=60, every_s=0.005, what="the engine's first process")
        await bare_stack.kill("worker")
        (tmp_path / "go").touch()
        await finishes(bare_stack, handle, model)


async def test_while_it_awaits_readiness(
    bare_stack: TestStack, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine(behaviour={"startup_gate": str(tmp_path / "go")})
    async with bare_stack.client() as client:
        async with dying_worker(bare_stack, client, model, "await_ready", of_replica=True) as handle:
            (tmp_path / "go").touch()
        await finishes(bare_stack, handle, model)


async def test_while_it_validates(bare_stack: TestStack, engine: Callable[..., Scripted]) -> None:
    model = engine(behaviour={"held_prompts": "France"})
    async with bare_stack.client() as client:
        handle = await client.deploy(model.deployment, wait=False)
        await bare_stack.start_worker()
        temporal = await client.temporal()

        async def validates() -> bool:
            query = "WorkflowType = 'ValidateWorkflow' AND ExecutionStatus = 'Running'"
            async for execution in temporal.list_workflows(query):
                return "run_probe" in await running_steps(client, execution.id)
            return False

        await until(validates, within_s=60, every_s=0.02, what="a worker that validates")
        await bare_stack.kill("worker")
        model.script.update(held_prompts=None)
        await finishes(bare_stack, handle, model)


async def test_while_it_serves(stack: TestStack, engine: Callable[..., Scripted]) -> None:
    model = engine()
    async with stack.client() as client, stack.http() as http:
        await client.deploy(model.deployment)
        await stack.kill("worker")
        answer = await http.post("/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 4})
        assert answer.status_code == 200
        await stack.start_worker("second")
        workflow_id = await replica_workflow(client)
        assert workflow_id is not None

        async def watched_again() -> bool:
            return (await running_steps(client, workflow_id)).get("watch_attempt", 0) >= 2

        await until(watched_again, within_s=60, what="the second worker's watch")
        assert len(model.script.starts()) == 1


@pytest.mark.parametrize("parts", [("temporal",), ("temporal", "worker", "gateway")], ids=["temporal", "everything"])
async def test_a_killed_stack_finds_everything_again(
    stack: TestStack, engine: Callable[..., Scripted], parts: tuple[str, ...]
) -> None:
    model = engine()
    async with stack.client() as client:
        result = await client.deploy(model.deployment)
    for part in parts:
        await stack.kill(part)
    await stack.start_temporal()
    if "worker" in parts:
        await asyncio.gather(stack.start_worker(), stack.start_gateway())
    async with stack.client() as client, stack.http() as http:
        again = await client.deploy(model.deployment)
        assert not again.changed
        assert again.generation == result.generation
        answer = await http.post("/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 4})
        assert answer.status_code == 200
        assert len(model.script.starts()) == 1
