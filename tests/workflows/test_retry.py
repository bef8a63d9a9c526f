"""The attempt loop, in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from temporalio.client import WorkflowHandle, WorkflowUpdateFailedError
from temporalio.exceptions import ApplicationError
from temporalio.testing import WorkflowEnvironment

from standfast import contracts as c
from tests.workflows.conftest import Stage, serve
from tests.workflows.scripted import HASH, RETRY, VALIDATION, World, permanent, transient


def replica(world: World, **changes: Any) -> c.ReplicaInput:
    start = c.ReplicaInput(
        generation=world.generation,
        deployment="m",
        target="local",
        role="inference",
        replica=0,
        inference_hash=HASH,
        retry=RETRY,
        validation=VALIDATION,
    )
    return start.model_copy(update=changes)


@contextlib.asynccontextmanager
async def kept_up(
    temporal: WorkflowEnvironment, world: World, **changes: Any
) -> AsyncIterator[tuple[Stage, WorkflowHandle[Any, Any]]]:
    """A RetryWorkflow over the world, stopped at the end if it still runs."""
    async with serve(temporal, world) as stage:
        handle = await stage.client.start_workflow(
            c.RETRY, replica(world, **changes), id=stage.name(), task_queue=stage.queue
        )
        try:
            yield stage, handle
        finally:
            with contextlib.suppress(Exception):
                await handle.signal("stop", c.StopRequest(reason="the test is over"))
                await asyncio.wait_for(handle.result(), 60)


async def until(
    stage: Stage, handle: WorkflowHandle[Any, Any], met: Callable[[c.ReplicaStatus], bool]
) -> c.ReplicaStatus:
    """The first status that meets a condition."""
    async with asyncio.timeout(60):
        while True:
            status = await stage.status(handle)
            if met(status):
                return status
            await asyncio.sleep(0.02)


async def test_an_attempt_that_answers_is_published_and_watched(temporal: WorkflowEnvironment) -> None:
    world = World()
    async with kept_up(temporal, world) as (stage, handle):
        status = await until(stage, handle, lambda s: s.state == "ready" and "watch_attempt" in world.names())
        assert status.attempt == 1
        assert status.spent == 0
        assert world.names()[:5] == [
            "place_attempt",
            "launch_attempt",
            "await_ready",
            "publish_backend",
            "watch_attempt",
        ]


async def test_a_stop_ends_the_attempt_and_the_workflow(temporal: WorkflowEnvironment) -> None:
    world = World()
    async with kept_up(temporal, world) as (stage, handle):
        await until(stage, handle, lambda s: s.state == "ready")
        await handle.signal("stop", c.StopRequest(reason="not wanted any more"))
        final = c.ReplicaStatus.model_validate(await handle.result(), strict=False)
        assert final.state == "stopped"
        assert world.names()[-1] == "end_attempt"
        assert world.calls[-1][1].failure is None


async def test_a_cancelled_workflow_still_confirms_that_its_attempt_is_gone(temporal: WorkflowEnvironment) -> None:
    world = World()
    async with kept_up(temporal, world) as (stage, handle):
        await until(stage, handle, lambda s: s.state == "ready")
        await handle.cancel()
        await handle.result()
        assert world.names()[-1] == "end_attempt"


async def test_a_transient_failure_spends_one_attempt_and_then_serves(temporal: WorkflowEnvironment) -> None:
    world = World(ready=lambda number: transient() if number <= 2 else None)
    async with kept_up(temporal, world) as (stage, handle):
        status = await until(stage, handle, lambda s: s.state == "ready")
        assert (status.attempt, status.spent) == (3, 2)
        assert world.names().count("end_attempt") == 2


async def test_a_permanent_failure_is_never_retried_by_itself(temporal: WorkflowEnvironment) -> None:
    world = World(ready=lambda number: permanent() if number == 1 else None)
    async with kept_up(temporal, world) as (stage, handle):
        status = await until(stage, handle, lambda s: s.state == "failed")
        assert status.spent == 0
        assert status.failure is not None and status.failure.evidence == ("last words",)
        assert world.names().count("place_attempt") == 1
        await handle.execute_update("retry", c.RetryRequest(requested_by="operator"))
        assert (await until(stage, handle, lambda s: s.state == "ready")).attempt == 2


async def test_waiting_for_room_spends_nothing(temporal: WorkflowEnvironment) -> None:
    full = c.Failure(kind="capacity", code="no-room", message="All GPUs are leased.")
    asked: list[str] = []

    def place(start: c.PlaceInput) -> c.Failure | None:
        asked.append(start.attempt)
        return full if len(asked) < 5 else None

    world = World(place=place)
    async with kept_up(temporal, world) as (stage, handle):
        status = await until(stage, handle, lambda s: s.state == "ready")
        assert (status.attempt, status.spent) == (1, 0)
        assert len(set(asked)) == 1


async def test_a_spent_budget_refills_with_time(temporal: WorkflowEnvironment) -> None:
    world = World(ready=lambda number: transient() if number <= 5 else None)
    async with kept_up(temporal, world) as (stage, handle):
        status = await until(stage, handle, lambda s: s.state == "ready")
        assert status.attempt == 6
        history = await handle.fetch_history()
        waited = [
            event.timer_started_event_attributes.start_to_fire_timeout.ToTimedelta().total_seconds()
            for event in history.events
            if event.HasField("timer_started_event_attributes")
        ]
        # Three attempts are spent within seconds; the fourth waits for the window of an hour.
        assert max(waited) > 3000


async def test_a_retry_by_an_operator_refills_a_spent_budget_at_once(temporal: WorkflowEnvironment) -> None:
    world = World(ready=lambda number: transient() if number <= 4 else None)
    async with kept_up(temporal, world) as (stage, handle):
        status = await until(stage, handle, lambda s: s.state in ("budget_spent", "ready"))
        if status.state == "budget_spent":
            assert status.next_try_at is not None
            await handle.execute_update("retry", c.RetryRequest(requested_by="operator"))
        assert (await until(stage, handle, lambda s: s.state == "ready")).attempt == 5


async def test_a_replica_that_served_before_returns_only_by_a_new_proof(temporal: WorkflowEnvironment) -> None:
    world = World(watch=lambda number: transient("process-lost") if number == 1 else None)
    async with kept_up(temporal, world) as (stage, handle):
        await until(stage, handle, lambda s: s.state == "ready" and s.attempt == 2)
        names = world.names()
        second = names.index("publish_backend", names.index("publish_backend") + 1)
        assert names[second - 4 : second] == ["run_probe", "run_probe", "run_probe", "record_proof"]


async def test_a_replica_that_fails_its_new_proof_is_started_again(temporal: WorkflowEnvironment) -> None:
    world = World(watch=lambda number: transient() if number == 1 else None)
    world.probe = lambda probe: sum(1 for name in world.names() if name == "await_ready") >= 3
    async with kept_up(temporal, world) as (stage, handle):
        status = await until(stage, handle, lambda s: s.state == "ready" and s.attempt >= 3)
        assert status.attempt == 3
        assert world.names().count("publish_backend") == 2


async def test_a_proof_that_could_not_be_made_is_a_failed_attempt_and_not_the_end(
    temporal: WorkflowEnvironment,
) -> None:
    world = World(watch=lambda number: transient() if number == 1 else None)
    broken = ApplicationError("the registry said no", non_retryable=True)
    world.refuse = lambda name: broken if name == "record_proof" else None
    async with kept_up(temporal, world) as (stage, handle):
        status = await until(stage, handle, lambda s: s.state == "failed")
        assert status.failure is not None and status.failure.message == "the registry said no"
        world.refuse = lambda name: None
        await handle.execute_update("retry", c.RetryRequest())
        assert (await until(stage, handle, lambda s: s.state == "ready")).attempt == 3


async def test_an_interruption_is_started_again_without_spending(temporal: WorkflowEnvironment) -> None:
    stopped = c.Failure(kind="interrupted", code="stopped-on-host", message="The stack was stopped.")
    world = World(watch=lambda number: stopped if number == 1 else None)
    async with kept_up(temporal, world) as (stage, handle):
        status = await until(stage, handle, lambda s: s.state == "ready" and s.attempt == 2)
        assert status.spent == 0


async def test_a_serving_replica_refuses_a_retry(temporal: WorkflowEnvironment) -> None:
    world = World()
    async with kept_up(temporal, world) as (stage, handle):
        await until(stage, handle, lambda s: s.state == "ready")
        with pytest.raises(WorkflowUpdateFailedError) as refused:
            await handle.execute_update("retry", c.RetryRequest())
        assert "nothing to retry" in str(refused.value.cause)


async def test_attempt_names_never_repeat_over_continue_as_new(temporal: WorkflowEnvironment) -> None:
    world = World(ready=lambda number: transient() if number <= 3 else None)
    async with kept_up(temporal, world, attempts_so_far=49, spent_at=()) as (stage, handle):
        await until(stage, handle, lambda s: s.state == "ready")
        attempts = [call.attempt for name, call in world.calls if name == "place_attempt"]
        assert attempts[0].endswith("/50")
        assert len(set(attempts)) == len(attempts)
