"""What operators read in the Temporal UI of a closed workflow, also where no worker can answer for it."""

from typing import Any

from temporalio.api.enums.v1 import EventType
from temporalio.client import WorkflowHandle
from temporalio.testing import WorkflowEnvironment

from standfast import contracts as c
from tests.workflows.conftest import Stage
from tests.workflows.scripted import World, permanent, transient
from tests.workflows.test_deploy import deployed, result, verdict

_WRITES = EventType.EVENT_TYPE_WORKFLOW_PROPERTIES_MODIFIED


async def last_page(handle: WorkflowHandle[Any, Any]) -> list[str]:
    page: list[str] = await (await handle.describe()).memo_value("last_page")
    return page


async def memo_writes(handle: WorkflowHandle[Any, Any]) -> int:
    return sum(event.event_type == _WRITES for event in (await handle.fetch_history()).events)


def replica_of(stage: Stage, world: World) -> WorkflowHandle[Any, Any]:
    return stage.client.get_workflow_handle(c.retry_id(world.generation, "inference", 0))


async def test_the_steps_of_a_closed_deploy_are_kept_with_it(temporal: WorkflowEnvironment) -> None:
    world = World(
        generation="m@00000000aa01", previous="m@00000000aa00", ready=lambda n: transient() if n < 3 else None
    )
    async with deployed(temporal, world) as (stage, handle):
        await result(handle)
        retired = stage.client.get_workflow_handle(c.deprecate_id("m@00000000aa00"))
        await retired.result()
        proof = stage.client.get_workflow_handle(f"{c.validate_id(world.generation)}/deploy")
        replica = replica_of(stage, world)
        assert "state  ready" in await last_page(replica)
        assert await memo_writes(replica) == 1
    # No worker runs any more.
    page = await last_page(handle)
    assert page[:2] == ["m", f"Generation: {world.generation}"]
    assert "✓  Switch the traffic  m" in page
    assert page[-1].startswith("inference/0  ready  3  ")
    assert await memo_writes(handle) == 1
    assert "generation  0  passed  answered" in await last_page(proof)
    assert (await last_page(retired))[0].startswith("m@00000000aa00 is retired")
    assert "state  stopped" in await last_page(replica)


async def test_a_failed_deploy_keeps_the_step_that_failed(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@00000000ab01", ready=lambda number: permanent())
    async with deployed(temporal, world) as (_, handle):
        await verdict(handle)
    assert "✗  Wait until they answer  The engine cannot start (unknown-option)." in await last_page(handle)


async def test_a_deploy_that_changes_nothing_keeps_its_steps_too(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@00000000ac01")
    async with deployed(temporal, world) as (stage, handle):
        await result(handle)
        world.unchanged, world.previous = True, world.generation
        start = c.DeployInput(deployment="m", settings={"name": "m"})
        again = await stage.client.start_workflow(c.DEPLOY, start, id=stage.name(), task_queue=stage.queue)
        await result(again)
    assert "–  Switch the traffic" in await last_page(again)
