"""Several deployments, several generations: no collision, no restart without need, no failed request."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from standfast.contracts import ReplicaStatus, deprecate_id, retry_id
from tests.scripted_engine import build_wheel, scripted_image
from tests.support.scripted_deployments import Scripted
from tests.support.stack import TestStack, until


async def test_two_deployments_with_different_images_do_not_collide(
    stack: TestStack, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    other = scripted_image(build_wheel(tmp_path / "wheel", version="0.3.0"), name="other")
    one, two = engine("one"), engine("two", image=other)
    async with stack.client() as client, stack.http() as http:
        first, second = await asyncio.gather(client.deploy(one.deployment), client.deploy(two.deployment))
        for result in (first, second):
            answer = await http.post(
                "/v1/completions", json={"model": result.served_name, "prompt": "hello", "max_tokens": 4}
            )
            assert answer.status_code == 200
            assert answer.headers["x-standfast-generation"] == result.generation
        registry = await client.registry()
        spans = [lease for lease in await registry.list_leases() if lease.kind == "ports"]
        assert len({lease.resource for lease in spans}) == 2
        assert {model["id"] for model in (await http.get("/v1/models")).json()["data"]} == {"one", "two"}


async def test_deploying_the_same_settings_twice_changes_nothing(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine()
    async with stack.client() as client:
        first = await client.deploy(model.deployment)
        second = await client.deploy(model.deployment)
        assert (first.changed, second.changed) == (True, False)
        assert first.generation == second.generation
        assert len(model.script.starts()) == 1


async def test_a_changed_option_replaces_the_generation_without_a_failed_request(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine(behaviour={"tokens_per_second": 100.0, "answer_tokens": 20})
    body: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 20}
    statuses: list[int] = []
    generations: set[str] = set()
    over = asyncio.Event()

    async def load(http: httpx.AsyncClient, stream: bool) -> None:
        while not over.is_set():
            answer = await http.post("/v1/completions", json={**body, "stream": stream})
            statuses.append(answer.status_code)
            generations.add(answer.headers.get("x-standfast-generation", ""))
            assert not stream or answer.text.rstrip().endswith("data: [DONE]"), answer.text[-200:]

    model.script.update(answer=None)
    async with stack.client() as client, stack.http() as http:
        # The proof expects an answer to its question; the load asks for something else.
        model.script.update(answer_tokens=None)
        first = await client.deploy(model.deployment)
        loads = [asyncio.create_task(load(http, stream)) for stream in (False, True, False, True)]
        second = await client.deploy(model.changed(context_length=512))
        assert second.changed and second.generation != first.generation

        async def only_the_new_one_is_left() -> bool:
            registry = await client.registry()
            return {attempt.generation for attempt in await registry.list_attempts() if attempt.phase != "ended"} == {
                second.generation
            }

        await until(only_the_new_one_is_left, within_s=60, every_s=0.2, what="the retirement of the old generation")
        over.set()
        await asyncio.gather(*loads)
        assert set(statuses) == {200}
        assert generations == {first.generation, second.generation}
        assert len(statuses) > 20


async def test_a_failed_replacement_leaves_the_old_generation_serving(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine()
    async with stack.client() as client, stack.http() as http:
        first = await client.deploy(model.deployment)
        words = "error: unrecognized arguments: --gone"
        model.script.update(die_on_starts=99, log_lines=[words])
        handle = await client.deploy(model.changed(context_length=512), wait=False)
        try:
            await handle.result()
        except Exception as error:
            assert "command line" in str(error)
        else:
            raise AssertionError("the replacement cannot have come up")
        answer = await http.post("/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 4})
        assert answer.headers["x-standfast-generation"] == first.generation
        assert len(model.script.starts()) == 2


async def test_a_deprecated_deployment_is_unknown_afterwards(stack: TestStack, engine: Callable[..., Scripted]) -> None:
    model = engine()
    async with stack.client() as client, stack.http() as http:
        await client.deploy(model.deployment)
        await client.deprecate("m", reason="the test")

        async def unknown() -> bool:
            answer = await http.post("/v1/completions", json={"model": "m", "prompt": "hello"})
            return answer.status_code == 404

        await until(unknown, what="the gateway's 404")
        # It can come back: attempt names go on where they ended.
        again = await client.deploy(model.deployment)
        assert again.changed
        assert len(model.script.starts()) == 2


async def test_a_replica_whose_workflow_was_terminated_is_adopted_by_the_next_deploy(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine()
    async with stack.client() as client, stack.http() as http:
        first = await client.deploy(model.deployment)
        temporal = await client.temporal()
        keeper = temporal.get_workflow_handle(retry_id(first.generation, "inference", 0))
        await keeper.terminate("an operator's mistake")
        await client.deploy(model.deployment)
        status = await keeper.query("status", result_type=ReplicaStatus)
        assert (status.state, status.attempt) == ("ready", 1)
        assert len(model.script.starts()) == 1
        answer = await http.post("/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 4})
        assert answer.status_code == 200


async def test_going_back_to_a_generation_that_still_drains_keeps_it(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine()
    async with stack.client() as client, stack.http() as http:
        first = await client.deploy(model.deployment)
        model.script.update(tokens_per_second=1.0, answer_tokens=400)
        body: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 400, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as open_answer:
            assert open_answer.status_code == 200
            model.script.update(tokens_per_second=0.0, answer_tokens=None)
            second = await client.deploy(model.changed(context_length=512))
            back = await client.deploy(model.deployment)
            assert (back.generation, back.previous) == (first.generation, second.generation)
        temporal = await client.temporal()
        await asyncio.wait_for(temporal.get_workflow_handle(deprecate_id(first.generation)).result(), 60)
        await asyncio.wait_for(temporal.get_workflow_handle(deprecate_id(second.generation)).result(), 60)
        [status] = await client.status("m")
        assert (status.phase, status.generation, status.replicas_ready) == ("serving", first.generation, 1)
        answer = await http.post("/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 4})
        assert answer.headers["x-standfast-generation"] == first.generation
        assert len(model.script.starts()) == 2


async def test_a_deploy_during_the_retirement_of_its_deployment_waits_for_the_end(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine()
    async with stack.client() as client, stack.http() as http:
        await client.deploy(model.deployment)
        model.script.update(tokens_per_second=1.0, answer_tokens=400)
        body: dict[str, Any] = {"model": "m", "prompt": "hello", "max_tokens": 400, "stream": True}
        async with http.stream("POST", "/v1/completions", json=body) as open_answer:
            assert open_answer.status_code == 200
            model.script.update(tokens_per_second=0.0, answer_tokens=None)
            retiring = asyncio.create_task(client.deprecate("m", drain_timeout_s=3600))

            async def withdrawn() -> bool:
                registry = await client.registry()
                return await registry.list_routes() == []

            await until(withdrawn, what="the withdrawal of the route")
            handle = await client.deploy(model.deployment, wait=False)
        assert (await retiring).generations
        assert (await handle.result()).changed
        answer = await http.post("/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 4})
        assert answer.status_code == 200
        [status] = await client.status("m")
        assert status.phase == "serving"
        assert len(model.script.starts()) == 2


async def test_deploying_again_brings_back_a_replica_whose_weights_were_lost(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine()
    weights = Path(model.deployment.model.source.path)
    async with stack.client() as client, stack.http() as http:
        first = await client.deploy(model.deployment)
        away = weights.rename(weights.with_name("away"))
        os.kill(model.script.starts()[-1].pid, signal.SIGKILL)

        async def given_up() -> bool:
            [status] = await client.status("m")
            return status.replicas[0].state == "failed"

        await until(given_up, within_s=60, every_s=0.2, what="the verdict on the missing weights")
        away.rename(weights)
        again = await client.deploy(model.deployment)
        assert again.generation == first.generation
        answer = await http.post("/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 4})
        assert answer.status_code == 200
