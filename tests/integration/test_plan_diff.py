"""``standfast plan --diff`` against what a running stack serves."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from standfast.home import Home
from standfast.spec import Backpressure
from tests.support.command_line import CommandLine, write_config
from tests.support.scripted_deployments import Scripted
from tests.support.stack import TestStack


@pytest.fixture
def cli(stack: TestStack) -> CommandLine:
    return CommandLine(stack.home, {"TEMPORAL_ADDRESS": f"127.0.0.1:{stack.temporal_port}"})


async def test_it_shows_field_by_field_what_a_deploy_would_change(
    stack: TestStack, cli: CommandLine, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine("m")
    same = write_config(tmp_path / "same.py", model.deployment)
    first = await cli.run("plan", str(same), "--diff")
    assert first.code == 0, first.err
    assert "nothing serves yet" in first.out
    async with stack.client() as client:
        deployed = await client.deploy(model.deployment)

    unchanged = await cli.run("plan", str(same), "--diff", "--json")
    (document,) = unchanged.document
    assert document["diff"]["identical"]
    assert document["generation"]["id"] == document["diff"]["before"] == deployed.generation
    assert [app["reused"] for app in document["diff"]["worker_apps"]] == [True]
    assert "taken to be those of" in " ".join(document["notes"])

    other = model.changed(options={"enforce-eager": True, "max-num-seqs": 8}, context_length=512)
    changed = await cli.run("plan", str(write_config(tmp_path / "other.py", other)), "--diff")
    assert changed.code == 0, changed.err
    for line in (
        f"against {deployed.generation}, which serves",
        "  inference.context_length: (not set) -> 512",
        "  inference.options['max-num-seqs']: (not set) -> 8",
        "  rank 0 --max-model-len: (not set) -> 512",
        "  inference: a new worker app",
    ):
        assert line in changed.out

    queue = model.changed(backpressure=Backpressure(max_waiting=7))
    kept = await cli.run("plan", str(write_config(tmp_path / "queue.py", queue)), "--diff", "--json")
    (document,) = kept.document
    assert {"field": "endpoint.max_waiting", "before": "128", "after": "7"} in document["diff"]["plan"]
    assert [app["reused"] for app in document["diff"]["worker_apps"]] == [True]


async def test_an_image_that_is_not_built_yet_leaves_the_settings_to_compare(
    stack: TestStack, cli: CommandLine, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine("m")
    async with stack.client() as client:
        await client.deploy(model.deployment)
    inference = model.deployment.inference
    assert inference is not None and inference.image is not None and not isinstance(inference.image, str)
    other = model.changed(image=dataclasses.replace(inference.image, name="not-built", requirements=("vllm==0",)))
    ran = await cli.run("plan", str(write_config(tmp_path / "other.py", other)), "--diff")
    assert ran.code == 0, ran.err
    assert "  inference.image.name:" in ran.out
    assert "is not built yet" in ran.out
    assert "worker apps" not in ran.out


async def test_without_a_stack_there_is_nothing_to_compare_with(tmp_path: Path) -> None:
    home = Home(root=tmp_path / "home")
    home.root.mkdir()
    config = Path(__file__).parents[2] / "configs" / "quickstart.py"
    ran = await CommandLine(home).run("plan", str(config), "--diff")
    assert ran.code == 3
    assert "the stack is not running" in ran.err
    as_json = await CommandLine(home).run("plan", str(config), "--diff", "--json")
    assert (as_json.code, as_json.document["exit_code"]) == (3, 3)
