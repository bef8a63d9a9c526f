"""Secrets travel as names: their values are in no plan, history, log, database or command line."""

from collections.abc import Callable
from pathlib import Path

import psutil

from standfast.client.errors import OperationFailedError
from standfast.problems import ProblemsError
from standfast.spec import Secret
from tests.support.scripted_deployments import Scripted
from tests.support.stack import TestStack

VALUE = "correct-horse-battery-staple-4711"


async def test_a_secret_reaches_the_engine_and_nothing_else(
    bare_stack: TestStack, engine: Callable[..., Scripted]
) -> None:
    stack = bare_stack
    stack.environment["ENGINE_TOKEN"] = VALUE
    await stack.start_worker()
    await stack.start_gateway()
    model = engine(
        environment={"TOKEN_OF_ENGINE": Secret("ENGINE_TOKEN")},
        behaviour={"print_environment": True, "children": 1},
    )
    async with stack.client() as client:
        await client.deploy(model.deployment)
        pid = model.script.starts()[0].pid
        assert psutil.Process(pid).environ()["TOKEN_OF_ENGINE"] == VALUE
        commands = [" ".join(process.info["cmdline"] or ()) for process in psutil.process_iter(["cmdline"])]
        assert not any(VALUE in command for command in commands)
        temporal = await client.temporal()
        async for execution in temporal.list_workflows():
            history = await temporal.get_workflow_handle(execution.id, run_id=execution.run_id).fetch_history()
            assert VALUE not in history.to_json()
    logs = [path for path in stack.home.root.rglob("*") if path.is_file() and "images" not in path.parts]
    assert any("TOKEN_OF_ENGINE" in path.read_text(errors="replace") for path in logs if path.suffix == ".log")
    assert [path for path in logs if VALUE.encode() in path.read_bytes()] == []


async def test_a_secret_that_is_not_set_is_named_before_anything_starts(
    stack: TestStack, engine: Callable[..., Scripted], tmp_path: Path
) -> None:
    model = engine(environment={"TOKEN_OF_ENGINE": Secret("NO_SUCH_SECRET")})
    async with stack.client() as client:
        try:
            await client.deploy(model.deployment)
        except (ProblemsError, OperationFailedError) as error:
            assert "NO_SUCH_SECRET" in str(error)
        else:
            raise AssertionError("a missing secret must be refused")
    assert model.script.starts() == []
