"""What goes wrong on the way up: which verdicts are final, which are retried, and what never gets traffic."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.client.errors import OperationFailedError
from standfast.problems import ProblemsError
from standfast.spec import Compute, DirectorySource, Model, Readiness, RetryBudget
from tests.support.scripted_deployments import Scripted
from tests.support.stack import TestStack, until


async def test_a_misspelt_option_fails_before_anything_is_launched(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine(options={"enforce-eagr": True})
    async with stack.client() as client:
        with pytest.raises(ProblemsError) as refusal:
            await client.deploy(model.deployment)
    assert "enforce-eager" in str(refusal.value)
    assert model.script.starts() == []


async def test_every_problem_is_told_at_once(stack: TestStack, engine: Callable[..., Scripted]) -> None:
    model = engine(options={"enforce-eagr": True, "port": 1}, extra_args=["--no-such-flag"])
    async with stack.client() as client:
        with pytest.raises(ProblemsError) as refusal:
            await client.deploy(model.deployment)
    assert len(refusal.value.problems) >= 3


async def test_an_engine_that_refuses_its_command_line_is_not_retried(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    words = "vllm serve: error: unrecognized arguments: --from-the-future"
    model = engine(behaviour={"die_on_starts": 99, "exit_code": 2, "log_lines": [words]})
    async with stack.client() as client:
        with pytest.raises(OperationFailedError) as verdict:
            await client.deploy(model.deployment)
        failure = verdict.value.failure
        assert (failure.kind, failure.code) == ("permanent", "unknown-option")
        assert words in failure.evidence
        assert len(model.script.starts()) == 1
        registry = await client.registry()
        assert await registry.list_leases() == []


async def test_out_of_memory_at_load_is_not_retried(stack: TestStack, engine: Callable[..., Scripted]) -> None:
    words = "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes."
    model = engine(behaviour={"die_on_starts": 99, "log_lines": [words]})
    async with stack.client() as client:
        with pytest.raises(OperationFailedError) as verdict:
            await client.deploy(model.deployment)
        assert verdict.value.failure.code == "out-of-memory"
        assert len(model.script.starts()) == 1


async def test_more_memory_than_the_host_has_is_a_verdict(stack: TestStack, engine: Callable[..., Scripted]) -> None:
    model = engine(compute=Compute(cpus=1, memory="100TiB"))
    async with stack.client() as client:
        with pytest.raises(OperationFailedError) as verdict:
            await client.deploy(model.deployment)
        assert verdict.value.failure.code == "not-enough-memory"
        assert model.script.starts() == []


async def test_missing_weights_are_a_verdict(stack: TestStack, engine: Callable[..., Scripted], tmp_path: Path) -> None:
    import dataclasses

    model = engine()
    nowhere = Model(id="scripted/m", source=DirectorySource(path=str(tmp_path / "nowhere")))
    async with stack.client() as client:
        with pytest.raises(OperationFailedError) as verdict:
            await client.deploy(dataclasses.replace(model.deployment, model=nowhere))
    assert verdict.value.failure.kind == "permanent"
    assert "nowhere" in verdict.value.failure.message


async def test_an_engine_that_dies_on_its_first_two_starts_serves_in_the_end(
    stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    model = engine(behaviour={"die_on_starts": 2, "log_lines": ["something flaky"]})
    async with stack.client() as client:
        assert (await client.deploy(model.deployment)).changed
        assert len(model.script.starts()) == 3
        [status] = await client.status("m")
        assert status.replicas[0].spent == 2


async def test_a_server_that_ends_with_code_0_has_failed(stack: TestStack, engine: Callable[..., Scripted]) -> None:
    model = engine(behaviour={"die_on_starts": 1, "exit_code": 0})
    async with stack.client() as client:
        await client.deploy(model.deployment)
        registry = await client.registry()
        [_, first] = sorted(await registry.list_attempts(), key=lambda attempt: -attempt.number)
        assert first.failure is not None and "exit code 0" in first.failure["message"]


async def test_a_spent_budget_refills_with_time(stack: TestStack, engine: Callable[..., Scripted]) -> None:
    budget = RetryBudget(attempts=1, window="4s", initial_backoff="100ms", max_backoff="200ms")
    model = engine(behaviour={"die_on_starts": 3}, retry=budget)
    async with stack.client() as client:
        assert (await client.deploy(model.deployment)).changed
        assert len(model.script.starts()) == 4


async def test_a_retry_refills_a_spent_budget_at_once(stack: TestStack, engine: Callable[..., Scripted]) -> None:
    budget = RetryBudget(attempts=1, window="1d", initial_backoff="100ms", max_backoff="200ms")
    model = engine(behaviour={"die_on_starts": 2}, retry=budget)
    async with stack.client() as client:
        handle = await client.deploy(model.deployment, wait=False)

        async def spent() -> bool:
            found = await client.status()
            return any(replica.state == "budget_spent" for status in found for replica in status.replicas)

        await until(spent, within_s=60, every_s=0.2, what="the spent budget")
        [outcome] = await client.retry("m")
        assert outcome.outcome == "retrying"
        assert (await asyncio.wait_for(handle.result(), 60)).changed
        assert len(model.script.starts()) == 3


@pytest.mark.parametrize("how", ["hang", "error"])
async def test_a_healthy_engine_that_cannot_generate_never_gets_traffic(
    stack: TestStack, engine: Callable[..., Scripted], how: str
) -> None:
    readiness = Readiness(startup_timeout="3m", initialization_timeout="2m", generation_timeout="3s")
    model = engine(behaviour={"healthy_but_silent": how}, readiness=readiness)
    async with stack.client() as client, stack.http() as http:
        handle = await client.deploy(model.deployment, wait=False)
        registry = await client.registry()

        async def judged() -> bool:
            attempts = await registry.list_attempts()
            return any(a.failure is not None and a.failure["code"] == "not-generating" for a in attempts)

        await until(judged, within_s=60, every_s=0.2, what="the verdict on the silent engine")
        answer = await http.post("/v1/completions", json={"model": "m", "prompt": "hello", "max_tokens": 1})
        assert answer.status_code == 503
        assert "retry-after" in answer.headers
        assert [backend.state for backend in await registry.list_backends() if backend.state == "ready"] == []
        model.script.update(healthy_but_silent=None)
        assert (await asyncio.wait_for(handle.result(), 90)).changed


async def test_another_process_on_the_port_is_noticed(stack: TestStack, engine: Callable[..., Scripted]) -> None:
    model = engine(behaviour={"attempts": {"/1$": {"wrong_identity": "somebody-else"}}})
    async with stack.client() as client:
        await client.deploy(model.deployment)
        registry = await client.registry()
        first = next(attempt for attempt in await registry.list_attempts() if attempt.number == 1)
        assert first.failure is not None and first.failure["code"] == "wrong-process"


async def test_a_cancelled_deploy_leaves_nothing_behind(
    stack: TestStack, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine(behaviour={"startup_gate": str(tmp_path / "never")})
    async with stack.client() as client:
        handle = await client.deploy(model.deployment, wait=False)

        async def started() -> bool:
            return bool(model.script.starts())

        await until(started, within_s=60, what="the engine")
        await handle.cancel()
        with pytest.raises(OperationFailedError):
            await asyncio.wait_for(handle.result(), 60)
        registry = await client.registry()
        assert await registry.list_leases() == []
        assert all(attempt.phase == "ended" for attempt in await registry.list_attempts())
