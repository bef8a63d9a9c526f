"""The deploy, in virtual time: what it does in which order, and what it leaves alone when it fails."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from temporalio.client import WorkflowFailureError, WorkflowHandle
from temporalio.exceptions import ApplicationError, CancelledError
from temporalio.testing import WorkflowEnvironment

from standfast import contracts as c
from tests.support.stack import until
from tests.workflows.conftest import Stage, serve
from tests.workflows.scripted import World, permanent, transient

INPUT = c.DeployInput(deployment="m", settings={"name": "m"})


@contextlib.asynccontextmanager
async def deployed(
    temporal: WorkflowEnvironment, world: World, *, replays: bool = False
) -> AsyncIterator[tuple[Stage, WorkflowHandle[Any, Any]]]:
    """A deploy over the world; its replicas are stopped at the end."""
    async with serve(temporal, world, replays=replays) as stage:
        handle = await stage.client.start_workflow(c.DEPLOY, INPUT, id=stage.name(), task_queue=stage.queue)
        try:
            yield stage, handle
        finally:
            for replica in range(world.replicas):
                with contextlib.suppress(Exception):
                    keeper = stage.client.get_workflow_handle(c.retry_id(world.generation, "inference", replica))
                    await keeper.signal("stop", c.StopRequest(reason="the test is over"))
                    await asyncio.wait_for(keeper.result(), 60)


async def _called(world: World, name: str) -> bool:
    return name in world.names()


async def result(handle: WorkflowHandle[Any, Any]) -> c.DeployResult:
    return c.DeployResult.model_validate(await asyncio.wait_for(handle.result(), 60), strict=False)


async def verdict(handle: WorkflowHandle[Any, Any]) -> c.Failure:
    with pytest.raises(WorkflowFailureError) as failure:
        await asyncio.wait_for(handle.result(), 60)
    cause = failure.value.cause
    assert isinstance(cause, ApplicationError)
    return c.Failure.model_validate(cause.details[0], strict=False)


async def test_a_deploy_moves_the_traffic_only_after_the_proof(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@0000000000a1", replicas=2, previous="m@0000000000a0")
    async with deployed(temporal, world) as (_, handle):
        done = await result(handle)
        assert done.changed and done.generation == world.generation and done.proof is not None
        order = world.names()
        assert order.index("record_proof") < order.index("switch_traffic")
        assert order.count("run_probe") == 6
        assert max(i for i, n in enumerate(order) if n == "publish_backend") < order.index("run_probe")


async def test_every_replica_is_asked_and_the_report_is_in_order(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@0000000000a5", replicas=3)
    async with deployed(temporal, world) as (_, handle):
        await result(handle)
        [recorded] = [given for name, given in world.calls if name == "record_proof"]
        probes = [(probe.replica, probe.probe) for probe in recorded.report.probes]
        assert probes == [(replica, name) for replica in range(3) for name in ("generation", "streaming", "stop")]
        asked = [given for name, given in world.calls if name == "run_probe"]
        assert all((given.reference is not None) == (given.probe == "stop") for given in asked)


async def test_the_previous_generation_is_retired_after_the_switch(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@0000000000b1", previous="m@0000000000b0")
    async with deployed(temporal, world) as (stage, handle):
        await result(handle)
        await asyncio.wait_for(stage.client.get_workflow_handle(c.deprecate_id("m@0000000000b0")).result(), 60)
        order = world.names()
        assert order.index("switch_traffic") < order.index("drain_generation") < order.index("await_gone")


async def test_deploying_what_serves_changes_nothing_and_says_so(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@0000000000c1")
    async with deployed(temporal, world) as (stage, handle):
        await result(handle)
        world.unchanged, world.previous = True, world.generation
        world.calls.clear()
        again = await stage.client.start_workflow(c.DEPLOY, INPUT, id=stage.name(), task_queue=stage.queue)
        second = await result(again)
        assert not second.changed
        assert "Nothing to change" in second.message
        assert "switch_traffic" not in world.names() and "place_attempt" not in world.names()


async def test_deploying_what_serves_revives_a_replica_whose_workflow_is_gone(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@0000000000d1", unchanged=True, previous="m@0000000000d1")
    async with deployed(temporal, world) as (_, handle):
        done = await result(handle)
        assert done.changed
        assert "place_attempt" in world.names()


async def test_a_permanent_failure_is_the_verdict_and_the_traffic_stays(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@0000000000e1", previous="m@0000000000e0", ready=lambda number: permanent())
    async with deployed(temporal, world) as (_, handle):
        failure = await verdict(handle)
        assert (failure.kind, failure.code) == ("permanent", "unknown-option")
        assert failure.evidence == ("last words",)
        order = world.names()
        assert "switch_traffic" not in order
        assert order.count("place_attempt") == 1
        assert order.index("await_gone") < order.index("clean_generation")


@pytest.mark.parametrize("replays", [False, True], ids=["cached", "replayed"])
async def test_a_transient_failure_is_waited_out(temporal: WorkflowEnvironment, replays: bool) -> None:
    world = World(generation=f"m@0000000000f{int(replays)}", ready=lambda n: transient() if n <= 2 else None)
    async with deployed(temporal, world, replays=replays) as (_, handle):
        assert (await result(handle)).changed


async def test_a_failed_proof_keeps_the_traffic_where_it_was(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@000000000011", previous="m@000000000010", probe=lambda probe: probe.probe != "stop")
    async with deployed(temporal, world) as (_, handle):
        failure = await verdict(handle)
        assert failure.code == "proof-failed"
        assert "switch_traffic" not in world.names()
        assert "await_gone" in world.names()


async def test_refused_settings_reach_the_client_with_every_problem(temporal: WorkflowEnvironment) -> None:
    problems = [{"code": "a", "where": "x", "message": "one"}, {"code": "b", "where": "y", "message": "two"}]
    refusal = ApplicationError("two problems", problems, type="Problems", non_retryable=True)
    world = World(generation="m@000000000021", refuse=lambda name: refusal if name == "resolve_plan" else None)
    async with deployed(temporal, world) as (_, handle):
        with pytest.raises(WorkflowFailureError) as failure:
            await asyncio.wait_for(handle.result(), 60)
        assert isinstance(failure.value.cause, ApplicationError)
        assert failure.value.cause.type == "Problems"
        assert failure.value.cause.details[0] == problems
        assert "place_attempt" not in world.names()


async def test_a_cancelled_deploy_takes_down_only_what_it_started(temporal: WorkflowEnvironment) -> None:
    full = c.Failure(kind="capacity", code="no-room", message="full")
    world = World(generation="m@000000000031", previous="m@000000000030", place=lambda place: full)
    async with deployed(temporal, world) as (_, handle):
        await until(lambda: _called(world, "place_attempt"), what="the placing")
        await handle.cancel()
        with pytest.raises(WorkflowFailureError) as failure:
            await asyncio.wait_for(handle.result(), 60)
        assert isinstance(failure.value.cause, CancelledError)
        assert "clean_generation" in world.names()
        assert "switch_traffic" not in world.names()
        assert "drain_generation" not in world.names()


async def test_the_status_of_a_deploy_tells_each_step_and_replica(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@000000000041")
    async with deployed(temporal, world) as (_, handle):
        await result(handle)
        status = await handle.query("status", result_type=c.DeployStatus)
        assert [step.name for step in status.steps][:3] == ["resolve", "image", "plan"]
        assert {step.state for step in status.steps} <= {"done", "skipped"}
        assert status.replicas[0].state == "ready"


async def test_a_deprecation_withdraws_the_route_before_it_drains(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@000000000051")
    async with serve(temporal, world) as stage:
        start = c.DeprecateInput(deployment="m", generation=None, reason="no longer wanted")
        handle = await stage.client.start_workflow(c.DEPRECATE, start, id=stage.name(), task_queue=stage.queue)
        done = c.DeprecateResult.model_validate(await asyncio.wait_for(handle.result(), 60), strict=False)
        assert done.generations == (world.generation,)
        order = [name for name in world.names() if name != "set_phase"]
        assert order == [
            "plan_retirement",
            "withdraw_traffic",
            "drain_generation",
            "await_gone",
            "clean_generation",
            "close_deployment",
        ]


async def test_a_generation_is_left_standing_when_a_deploy_reclaims_it_while_it_drains(
    temporal: WorkflowEnvironment,
) -> None:
    world = World(generation="m@0000000000g1", drains=True)
    async with serve(temporal, world) as stage:
        start = c.DeprecateInput(deployment="m", generation=world.generation)
        retirement = await stage.client.start_workflow(
            c.DEPRECATE, start, id=c.deprecate_id(world.generation), task_queue=stage.queue
        )
        await retirement.signal("reclaim", c.ReclaimRequest(by="a deploy of m"))
        done = c.DeprecateResult.model_validate(await asyncio.wait_for(retirement.result(), 60), strict=False)
        assert done.generations == () and "left standing" in done.message
        assert "await_gone" not in world.names() and "clean_generation" not in world.names()


async def test_a_whole_deployment_that_is_retired_is_not_reclaimed(temporal: WorkflowEnvironment) -> None:
    world = World(generation="m@0000000000h1")
    async with serve(temporal, world) as stage:
        start = c.DeprecateInput(deployment="m", generation=None)
        retirement = await stage.client.start_workflow(
            c.DEPRECATE,
            start,
            id=stage.name(),
            task_queue=stage.queue,
            start_signal="reclaim",
            start_signal_args=[c.ReclaimRequest(by="a deploy of m")],
        )
        done = c.DeprecateResult.model_validate(await asyncio.wait_for(retirement.result(), 60), strict=False)
        assert done.generations == (world.generation,)
        assert "close_deployment" in world.names()


async def test_deploying_what_should_serve_wakes_a_replica_that_has_given_up(temporal: WorkflowEnvironment) -> None:
    verdicts = {2: permanent("image-missing")}
    world = World(
        generation="m@0000000000i1",
        ready=verdicts.get,
        watch=lambda number: transient() if number == 1 else None,
    )
    async with deployed(temporal, world) as (stage, handle):
        await result(handle)
        keeper = stage.client.get_workflow_handle(c.retry_id(world.generation, "inference", 0))

        async def given_up() -> bool:
            return (await stage.status(keeper)).state == "failed"

        await until(given_up, what="the permanent failure")
        world.unchanged, world.previous = True, world.generation
        again = await stage.client.start_workflow(c.DEPLOY, INPUT, id=stage.name(), task_queue=stage.queue)
        await result(again)
        assert ((await stage.status(keeper)).state, (await stage.status(keeper)).attempt) == ("ready", 3)


async def test_a_replica_of_another_generation_does_not_speak_for_the_one_that_is_deployed(
    temporal: WorkflowEnvironment,
) -> None:
    world = World(generation="m@0000000000j1", ready=lambda number: transient() if number == 1 else None)
    async with deployed(temporal, world) as (_, handle):
        stranger = c.ReplicaStatus(generation="m@0000000000j0", role="inference", replica=0, state="stopped")
        await handle.signal("replica_changed", stranger)
        await handle.signal("replica_changed", stranger.model_copy(update={"state": "ready"}))
        assert (await result(handle)).changed
        status = await handle.query("status", result_type=c.DeployStatus)
        assert [replica.generation for replica in status.replicas] == [world.generation]
