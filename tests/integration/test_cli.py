"""The command line over a whole stack that it started itself, with engines that follow a script."""

import asyncio
import dataclasses
import json
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.client import Client, DeploymentStatus
from standfast.home import Home
from standfast.spec import Image, RetryBudget
from standfast.stack.record import read_api_key, running_stack
from tests.support.command_line import CommandLine, write_config
from tests.support.scripted_deployments import Scripted, scripted
from tests.support.stack import leftovers, until


@pytest.fixture(scope="module")
async def cli(tmp_path_factory: pytest.TempPathFactory, shared_images: Path) -> AsyncIterator[CommandLine]:
    """A running stack, and the command line over it."""
    home = Home(root=tmp_path_factory.mktemp("cli") / "home")
    home.root.mkdir(mode=0o700)
    home.images.symlink_to(shared_images)
    command_line = CommandLine(home)
    try:
        await command_line.up()
        yield command_line
    finally:
        await command_line.run("down")
        assert leftovers(home) == []


@pytest.fixture
def engine(tmp_path: Path, cli: CommandLine, image: Image) -> Callable[..., Scripted]:
    """Make deployments of the scripted engine."""

    def make(name: str, **settings: Any) -> Scripted:
        return scripted(tmp_path / "engines", cli.home.root, image, name, **settings)

    return make


async def until_phase(cli: CommandLine, name: str, phase: str) -> DeploymentStatus:
    """Looks through the Python API: a process per look would be slow."""
    async with Client.connect(cli.home) as client:

        async def look() -> DeploymentStatus | None:
            (found,) = await client.status(name)
            return found if found.phase == phase else None

        return await until(look, within_s=60.0, every_s=0.2, what=f"{name} to be {phase}")


async def test_from_a_config_file_to_a_served_model_and_back(
    cli: CommandLine, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine("whole")
    config = str(write_config(tmp_path / "whole.py", model.deployment))

    planned = await cli.run("plan", config, "--json")
    assert planned.code == 0, planned.out
    deployed = await cli.run("deploy", config)
    assert deployed.code == 0, deployed.out + deployed.err
    for words in ("Build the image", "Wait for the model", "Prove that it answers", "whole is served by whole@"):
        assert words in deployed.out
    status = (await cli.run("status", "whole", "--json")).document
    assert (status["phase"], status["replicas_ready"], status["replicas_wanted"]) == ("serving", 1, 1)
    assert status["last_proof"]["passed"]
    assert status["attempts"][0]["phase"] == "ready"
    assert "whole" in (await cli.run("status")).out

    again = await cli.run("deploy", config, "--json")
    (outcome,) = again.document["deployments"]
    assert again.code == 0
    assert not outcome["changed"]
    assert outcome["generation"] == status["generation"]
    assert len(model.script.starts()) == 1

    nothing = await cli.run("logs", "whole", "--rank", "5")
    assert (nothing.code, nothing.out) == (0, "")
    assert "rank 5 has written nothing" in nothing.err
    watch = await cli.start("status", "--watch")
    assert watch.stdout is not None
    assert b"DEPLOYMENT" in await asyncio.wait_for(watch.stdout.readline(), 30)
    watch.send_signal(signal.SIGINT)
    await watch.communicate()
    assert watch.returncode == 130

    log = await cli.run("logs", "whole", "--attempt", "1", "--tail", "2")
    assert log.code == 0
    assert len(log.out.splitlines()) <= 2
    lines = [json.loads(line) for line in (await cli.run("logs", "whole", "--json")).out.splitlines()]
    assert {line["attempt"] for line in lines} == {status["attempts"][0]["name"]}

    proof = await cli.run("validate", "whole", "--json")
    assert proof.code == 0, proof.out
    assert proof.document["report"]["passed"]
    nothing = await cli.run("retry", "whole")
    assert nothing.code == 0
    assert "nothing to retry" in nothing.out

    retired = await cli.run("deprecate", "whole", "--reason", "the test is over", "--json")
    assert retired.code == 0, retired.out
    assert retired.document["generations"] == [status["generation"]]
    assert "whole" not in (await cli.run("status")).out
    await until_phase(cli, "whole", "retired")


async def test_refused_options_name_the_file_and_the_nearest_real_one(
    cli: CommandLine, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine("misspelt", options={"enforce-eagr": True})
    config = str(write_config(tmp_path / "misspelt.py", model.deployment))
    refused = await cli.run("deploy", config)
    assert refused.code == 2
    assert "enforce-eager" in refused.err
    assert "1 problem; nothing was started." in refused.err
    # The image is built by now, so that the plan sees the same.
    planned = await cli.run("plan", config, "--json")
    assert planned.code == 2
    assert "misspelt.py" in planned.document["problems"][0]["file"]


async def test_a_permanent_failure_ends_with_the_engines_own_words(
    cli: CommandLine, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    words = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB"
    model = engine("broken", behaviour={"die_on_starts": 99, "log_lines": [words]})
    config = str(write_config(tmp_path / "broken.py", model.deployment))
    failed = await cli.run("deploy", config)
    assert failed.code == 1
    assert "deploy broken failed" in failed.err
    assert f"│ {words}" in failed.err
    assert "standfast logs broken --attempt broken@" in failed.err
    assert len(model.script.starts()) == 1
    shown = await cli.run("status", "broken")
    assert words in shown.out
    (outcome,) = (await cli.run("deploy", config, "--json")).document["deployments"]
    assert outcome["failure"]["code"] == "out-of-memory"
    assert outcome["exit_code"] == 1


async def test_a_deploy_can_be_left_joined_and_cancelled(
    cli: CommandLine, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine("slow", behaviour={"startup_gate": str(tmp_path / "never")})
    config = str(write_config(tmp_path / "slow.py", model.deployment))
    accepted = await cli.run("deploy", config, "--no-wait", "--json")
    assert accepted.code == 0
    assert not accepted.document["deployments"][0]["attached"]

    impatient = await cli.run("deploy", config, "--timeout", "1s", "--json")
    assert impatient.code == 4
    assert "it goes on" in impatient.document["deployments"][0]["error"]

    process = await cli.start("deploy", config)
    assert process.stdout is not None
    joined = await process.stdout.readline()
    assert b"joined the running deploy of slow" in joined
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    assert process.returncode == 130
    assert b"Detached. The deploy of slow goes on." in err
    assert b"standfast deploy --cancel slow" in err
    await until_phase(cli, "slow", "deploying")

    other = dataclasses.replace(model.deployment, description="other settings")
    clash = await cli.run("deploy", str(write_config(tmp_path / "other.py", other)), "--json")
    assert clash.code == 1
    assert "a deploy of slow with other settings is running" in clash.document["error"]
    retire = await cli.run("deprecate", "slow", "--json")
    assert retire.code == 1
    assert "a deploy of slow is running" in retire.document["error"]

    assert (await cli.run("deploy", "--cancel", "slow")).code == 0
    cancelled = await until_phase(cli, "slow", "failed")
    failure = cancelled.generations[0].failure
    assert failure is not None
    assert failure.code == "deploy-cancelled"
    assert (await cli.run("deploy", "--cancel", "slow")).code == 2


async def test_retry_refills_a_spent_budget_at_once(
    cli: CommandLine, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    budget = RetryBudget(attempts=1, window="1h", initial_backoff="100ms", max_backoff="100ms")
    model = engine("spent", retry=budget, behaviour={"die_on_starts": 99, "exit_code": 7})
    config = str(write_config(tmp_path / "spent.py", model.deployment))
    await cli.run("deploy", config, "--no-wait")

    async with Client.connect(cli.home) as client:

        async def spent() -> DeploymentStatus | None:
            found = next((one for one in await client.status() if one.name == "spent"), None)
            return found if found and [r.state for r in found.replicas] == ["budget_spent"] else None

        found = await until(spent, within_s=60.0, every_s=0.2, what="a spent budget")
    assert "`standfast retry spent` refills it now" in found.next_step
    model.script.update(die_on_starts=0)
    ran = await cli.run("retry", "spent", "--json")
    assert [one["outcome"] for one in ran.document] == ["retrying"]
    await until_phase(cli, "spent", "serving")
    await cli.run("deprecate", "spent")


async def test_logs_follow_a_replica_into_its_next_attempt(
    cli: CommandLine, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine("talker", behaviour={"log_lines": ["hello from the engine"]})
    config = str(write_config(tmp_path / "talker.py", model.deployment))
    assert (await cli.run("deploy", config)).code == 0
    process = await cli.start("logs", "talker", "--follow", "--json")
    assert process.stdout is not None
    seen: set[str] = set()
    killed = False
    async with asyncio.timeout(60):
        async for line in process.stdout:
            entry = json.loads(line)
            if entry["text"] == "hello from the engine":
                seen.add(entry["attempt"].rpartition("/")[2])
            if seen == {"1"} and not killed:
                killed = True
                os.kill(model.script.starts()[0].pid, signal.SIGKILL)
            if seen == {"1", "2"}:
                break
    process.send_signal(signal.SIGINT)
    await process.communicate()
    assert process.returncode == 130
    await cli.run("deprecate", "talker")


async def test_models_outlive_a_killed_stack_and_come_back_after_down(
    cli: CommandLine, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine("standing")
    config = str(write_config(tmp_path / "standing.py", model.deployment))
    assert (await cli.run("deploy", config)).code == 0

    before = running_stack(cli.home)
    assert before is not None
    before.supervisor.send(signal.SIGKILL)
    assert (await cli.run("up", "--detach")).code == 0
    after = running_stack(cli.home)
    assert after is not None
    assert after.supervisor != before.supervisor
    assert after.ports == before.ports
    for part in before.parts:
        assert part.process is not None
        assert not part.process.alive()
    await until_phase(cli, "standing", "serving")
    assert len(model.script.starts()) == 1

    kept = await cli.run("down", "--keep-models", "--json")
    assert kept.code == 0
    assert kept.document["was_running"]
    assert len(kept.document["kept"]) == 1
    assert leftovers(cli.home)
    unreachable = await cli.run("status", "--json")
    assert unreachable.code == 3
    assert "the stack is not running" in unreachable.document["error"]

    stopped = await cli.run("down", "--json")
    assert not stopped.document["was_running"]
    assert [one["problem"] for one in stopped.document["stopped"]] == [None]
    assert leftovers(cli.home) == []
    assert (await cli.run("up", "--detach")).code == 0
    back = await until_phase(cli, "standing", "serving")
    assert len(model.script.starts()) == 2
    assert back.replicas[0].spent == 0
    await cli.run("deprecate", "standing")


async def test_quickstart_asks_the_model_and_shows_how_to_call_it(
    cli: CommandLine, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine("hello")
    ran = await cli.run("quickstart", str(write_config(tmp_path / "hello.py", model.deployment)))
    assert ran.code == 0, ran.out + ran.err
    stack = running_stack(cli.home)
    assert stack is not None
    key = read_api_key(cli.home)
    assert key is not None
    assert "Paris" in ran.out
    assert f"curl -s {stack.gateway}/v1/chat/completions" in ran.out
    assert f'OpenAI(base_url="{stack.gateway}/v1", api_key="{key}")' in ran.out
    assert f"{stack.temporal.ui}/namespaces/default/workflows/deploy%2Fhello/" in ran.out

    model.script.update(startup_gate=str(tmp_path / "go"))
    os.kill(model.script.starts()[0].pid, signal.SIGKILL)
    await until_phase(cli, "hello", "recovering")
    again = await cli.start("quickstart", str(tmp_path / "hello.py"))
    assert again.stderr is not None
    async with asyncio.timeout(60):
        while b"the model is coming back up" not in (line := await again.stderr.readline()):
            assert line
    (tmp_path / "go").touch()
    out, err = await again.communicate()
    assert again.returncode == 0, out + err
    assert b"Paris" in out
    await cli.run("deprecate", "hello")


async def test_an_unknown_deployment_is_refused_with_the_known_ones(cli: CommandLine) -> None:
    for command in (("status", "nobody"), ("logs", "nobody"), ("retry", "nobody"), ("validate", "nobody")):
        ran = await cli.run(*command, "--json")
        assert ran.code == 2
        assert "there is no deployment 'nobody'" in ran.document["error"]


async def test_two_ups_at_once_make_one_stack_and_both_succeed(tmp_path: Path) -> None:
    command_line = CommandLine(Home(root=tmp_path / "home"))
    try:
        one, other = await asyncio.gather(command_line.up(), command_line.up())
        assert one["supervisor"] == other["supervisor"]
        assert one["state"] == other["state"] == "ready"
    finally:
        await command_line.run("down")
