"""The embedded stack: real Temporal, worker and gateway under one supervisor that survives everything but ``down``."""

import json
import signal
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from standfast.home import Home
from standfast.stack.record import PartRecord, is_running, read_record, running_stack
from tests.support.command_line import CommandLine
from tests.support.ports import any_ports
from tests.support.stack import until

PARTS = ("temporal", "worker", "gateway")


@pytest.fixture(scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[CommandLine]:
    """One running stack for the tests that leave it running."""
    command_line = CommandLine(Home(root=tmp_path_factory.mktemp("stack") / "home"))
    try:
        await command_line.up()
        yield command_line
    finally:
        await command_line.run("down")


@pytest.fixture
async def own(tmp_path: Path) -> AsyncIterator[CommandLine]:
    """A home of the test's own; what it started is stopped."""
    command_line = CommandLine(Home(root=tmp_path / "home"))
    try:
        yield command_line
    finally:
        await command_line.run("down")


def part_of(home: Home, name: str) -> PartRecord:
    record = read_record(home)
    assert record is not None
    part = record.part(name)
    assert part is not None
    return part


async def ready_again(home: Home, name: str, before: PartRecord) -> PartRecord:
    async def look() -> PartRecord | None:
        now = part_of(home, name)
        return now if now.state == "ready" and now.process != before.process else None

    return await until(look, within_s=60.0, what=f"another {name}")


async def test_a_stack_answers_in_every_part_and_keeps_its_key_private(shared: CommandLine) -> None:
    ran = await shared.run("doctor", "--json")
    verdicts = {finding["part"]: finding["verdict"] for finding in ran.document["findings"]}
    assert ran.code == 0, ran.out
    for part in ("stack", "Temporal", "namespace", "control worker", "registry", "gateway", "uv", "packages"):
        assert verdicts[part] == "ok", ran.out
    key = shared.home.run / "api-key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    record = read_record(shared.home)
    assert record is not None
    assert key.read_text().strip() not in record.model_dump_json()


async def test_a_second_up_says_that_it_runs_and_where(shared: CommandLine) -> None:
    before = running_stack(shared.home)
    assert before is not None
    detached = await shared.run("up", "--detach", "--json")
    assert detached.code == 0
    assert detached.document["gateway"] == before.gateway
    foreground = await shared.run("up")
    assert foreground.code == 0
    assert "already running" in foreground.out
    assert before.gateway in foreground.out
    after = running_stack(shared.home)
    assert after is not None
    assert after.supervisor == before.supervisor


@pytest.mark.parametrize("name", PARTS)
async def test_a_killed_part_comes_back_where_it_was(shared: CommandLine, name: str) -> None:
    before = part_of(shared.home, name)
    assert before.process is not None
    before.process.send(signal.SIGKILL)
    await ready_again(shared.home, name, before)
    assert (await shared.run("status", "--json")).document == []


async def test_an_explicit_port_that_is_busy_is_refused_and_leaves_nothing(own: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        ran = await own.run("up", "--detach", "--json", *any_ports()[2:], "--port", port)
    assert ran.code == 2
    assert f"--port {port}: another process listens" in ran.document["error"]
    assert not is_running(own.home)


async def test_a_package_that_hides_ours_is_refused(own: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "other" / "workers").mkdir(parents=True)
    (tmp_path / "other" / "workers" / "__init__.py").touch()
    shadowed = CommandLine(own.home, {"PYTHONPATH": str(tmp_path / "other")})
    ran = await shadowed.run("up", "--detach", "--json", *any_ports())
    assert ran.code == 2
    assert "Another package named 'workers' hides" in ran.document["error"]


async def test_with_temporal_address_that_temporal_is_used_and_none_is_started(
    shared: CommandLine, own: CommandLine
) -> None:
    given = running_stack(shared.home)
    assert given is not None
    outside = CommandLine(own.home, {"TEMPORAL_ADDRESS": given.temporal.address})
    record = await outside.up()
    assert record["temporal"]["address"] == given.temporal.address
    assert not record["temporal"]["managed"]
    assert [part["name"] for part in record["parts"]] == ["worker", "gateway"]
    assert (await outside.run("doctor", "--json")).code == 0
    # Without the variable the stack's record still says where Temporal is.
    assert (await own.run("status", "--json")).document == []


async def test_ctrl_c_in_the_foreground_stops_the_stack_in_order(own: CommandLine) -> None:
    process = await own.start("up", "--json", *any_ports())
    assert process.stdout is not None
    states: list[dict[str, Any]] = []
    async for line in process.stdout:
        states.append(json.loads(line))
        if states[-1]["state"] == "ready":
            break
    process.send_signal(signal.SIGINT)
    out, err = await process.communicate()
    assert process.returncode == 0, err
    states += [json.loads(line) for line in out.splitlines()]
    assert _order_of_stops(states) == ["worker", "gateway", "temporal"]
    assert states[-1]["state"] == "stopped"
    assert not is_running(own.home)


def _order_of_stops(states: list[dict[str, Any]]) -> list[str]:
    order: list[str] = []
    for state in states:
        order += [p["name"] for p in state["parts"] if p["state"] == "stopped" and p["name"] not in order]
    return order
