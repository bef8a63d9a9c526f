"""The whole path with the real vLLM: the quickstart, a killed engine process, a replaced generation."""

import asyncio
import dataclasses
import json
import os
import signal
from pathlib import Path

import openai
import psutil
import pytest

from standfast import catalog
from standfast.client import Client
from standfast.platforms.local import LocalPlatform
from standfast.spec import Deployment
from tests.e2e.conftest import Quickstart, standfast
from tests.support.stack import until

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.py"
QUESTION = "What is the capital of France?"


def client_of(quickstart: Quickstart) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(
        base_url=f"{quickstart.gateway}/v1", api_key=quickstart.api_key, max_retries=0, timeout=60
    )


def config() -> Deployment:
    [deployment] = catalog.load(CONFIG)
    return deployment


async def ask(client: openai.AsyncOpenAI, model: str) -> str:
    answer = await client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": QUESTION}], max_tokens=24, temperature=0
    )
    return answer.choices[0].message.content or ""


def test_it_prints_the_answer_and_how_to_ask_again(quickstart: Quickstart) -> None:
    assert "Paris" in quickstart.output
    assert f"curl -s {quickstart.gateway}/v1/chat/completions" in quickstart.output
    assert f'base_url="{quickstart.gateway}/v1"' in quickstart.output
    assert "/namespaces/default/workflows/deploy" in quickstart.output


async def test_the_openai_client_is_answered_and_streamed_to(quickstart: Quickstart) -> None:
    async with client_of(quickstart) as client:
        models = [model.id async for model in await client.models.list()]
        assert models == [config().resolved_served_name]
        assert "Paris" in await ask(client, models[0])
        stream = await client.chat.completions.create(
            model=models[0], messages=[{"role": "user", "content": QUESTION}], max_tokens=24, temperature=0, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert "Paris" in "".join(pieces)
        assert len(pieces) > 3
        with pytest.raises(openai.NotFoundError):
            await ask(client, "no-such-model")
    async with openai.AsyncOpenAI(base_url=f"{quickstart.gateway}/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            await ask(stranger, models[0])


def test_a_second_deploy_changes_nothing_and_a_misspelt_flag_fails_at_once(
    quickstart: Quickstart, tmp_path: Path
) -> None:
    again = standfast(quickstart.home.root, "deploy", str(CONFIG), "--json")
    assert again.returncode == 0, again.stderr
    assert '"changed": false' in again.stdout or '"changed":false' in again.stdout
    misspelt = tmp_path / "misspelt.py"
    misspelt.write_text(CONFIG.read_text().replace('"enforce-eager"', '"enforce-eagr"'))
    refused = standfast(quickstart.home.root, "deploy", str(misspelt))
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert "enforce-eager" in refused.stdout + refused.stderr


async def test_a_killed_engine_core_is_seen_and_the_model_comes_back_by_a_proof(quickstart: Quickstart) -> None:
    served = config().resolved_served_name
    async with Client.connect(quickstart.home) as client, client_of(quickstart) as model:
        registry = await client.registry()
        first = next(attempt for attempt in await registry.list_attempts() if attempt.phase == "ready")
        platform = LocalPlatform(quickstart.home.attempts, host="anywhere")
        family = {process.name: process.pid for process in (await platform.observe(first.name)).processes}
        os.kill(family["VLLM::EngineCor"], signal.SIGKILL)

        async def withdrawn() -> openai.APIStatusError | None:
            try:
                await ask(model, served)
            except openai.APIStatusError as error:
                return error if error.status_code == 503 else None
            return None

        refusal = await until(withdrawn, within_s=30, what="the withdrawn route")
        assert int(refusal.response.headers["retry-after"]) >= 1

        async def restored() -> bool:
            try:
                return "Paris" in await ask(model, served)
            except openai.APIStatusError:
                return False

        await until(restored, within_s=600, every_s=1, what="the model's return")
        assert not any(psutil.pid_exists(pid) for pid in family.values())
        attempts = await registry.list_attempts()
        second = next(attempt for attempt in attempts if attempt.phase == "ready")
        assert second.number == first.number + 1
        assert {lease.owner for lease in await registry.list_leases()} == {second.name}
        assert len(await registry.list_proofs(generation=first.generation)) == 2


async def test_a_changed_option_replaces_the_generation_without_a_failed_request(quickstart: Quickstart) -> None:
    before = config()
    assert before.inference is not None
    changed = dataclasses.replace(before, inference=dataclasses.replace(before.inference, context_length=1024))
    over = asyncio.Event()
    answers: list[str] = []
    async with Client.connect(quickstart.home) as client, client_of(quickstart) as model:

        async def load() -> None:
            while not over.is_set():
                answers.append(await ask(model, before.resolved_served_name))
                await asyncio.sleep(1)

        asking = asyncio.create_task(load())
        result = await client.deploy(changed)
        assert result.changed and result.previous is not None
        registry = await client.registry()

        async def only_the_new_one_is_left() -> bool:
            attempts = [attempt for attempt in await registry.list_attempts() if attempt.phase != "ended"]
            return {attempt.generation for attempt in attempts} == {result.generation}

        await until(only_the_new_one_is_left, within_s=120, every_s=0.5, what="the retirement of the old generation")
        over.set()
        await asking
    assert len(answers) > 5
    assert all("Paris" in answer for answer in answers)


def test_status_and_plan_tell_what_stands(quickstart: Quickstart) -> None:
    status = standfast(quickstart.home.root, "status", "--json")
    assert status.returncode == 0, status.stderr
    [deployment] = json.loads(status.stdout)
    assert deployment["replicas_ready"] == 1
    plan = standfast(quickstart.home.root, "plan", str(CONFIG))
    assert plan.returncode == 0, plan.stderr
    assert "vllm" in plan.stdout and "serve" in plan.stdout


def test_down_leaves_no_process(quickstart: Quickstart) -> None:
    done = standfast(quickstart.home.root, "down")
    assert done.returncode == 0, done.stdout + done.stderr
    left = []
    for process in psutil.process_iter(["cmdline"]):
        if str(quickstart.home.root) in " ".join(process.info["cmdline"] or ()):
            left.append(process.info["cmdline"])
    assert left == []
