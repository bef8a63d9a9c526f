"""The local platform with real launchers and engines: nothing starts twice, and nothing is left behind."""

import asyncio
import contextlib
import os
import signal
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from standfast.plans.facts import BoundRank, BoundReplica
from standfast.platforms.attempts import AttemptFiles
from standfast.platforms.base import (
    AttemptConflictError,
    Launch,
    LaunchError,
    MissingSecretError,
    Observation,
)
from standfast.platforms.local import LocalPlatform
from standfast.platforms.stopping import Stop
from standfast.platforms.watching import find_fault, standing_set
from tests.integration.launcher_kit import FAMILY, STUBBORN, Rank, alive, cleared, marked, python
from tests.support.ports import free_port

#: Listens on the port in its first argument until it is told to end.
LISTENER = """
import os, signal, socket, sys
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("listening", flush=True)
signal.pause()
"""


@pytest.fixture
def attempt(tmp_path: Path) -> Iterator[str]:
    name = f"tiny@{uuid.uuid4().hex[:12]}/inference/0/1"

    def launchers() -> list[int]:
        files = AttemptFiles(tmp_path / "attempts", name)
        states = [files.read_state(rank) for rank in (0, 1)]
        known = [(state.launcher_pid, state.launcher_start_ticks) for state in states if state is not None]
        return [pid for pid, ticks in known if alive(pid, ticks)]

    with cleared(name, launchers=launchers):
        yield name


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[LocalPlatform]:
    yield LocalPlatform(tmp_path / "attempts", host="here")


def commands(attempt: str, *argvs: list[str], secrets: tuple[tuple[str, str], ...] = ()) -> BoundReplica:
    ranks = tuple(
        BoundRank(rank=rank, argv=tuple(argv), environment=(("MODE", "test"),), secrets=secrets, ports=())
        for rank, argv in enumerate(argvs)
    )
    return BoundReplica(attempt=attempt, ranks=ranks, digest="0" * 64)


async def observed(
    platform: LocalPlatform, attempt: str, wanted: Callable[[Observation], bool], within: float = 60.0
) -> Observation:
    async with asyncio.timeout(within):
        while True:
            seen = await platform.observe(attempt)
            if wanted(seen):
                return seen
            await asyncio.sleep(0.05)


async def launched(
    platform: LocalPlatform, attempt: str, *argvs: list[str], ports: tuple[int, ...] = ()
) -> Observation:
    """The attempt with an engine running in each rank."""
    await platform.launch(Launch(attempt=attempt, ranks=tuple(range(len(argvs))), ports=ports))
    await platform.start(attempt, commands(attempt, *argvs), stop_grace_s=5.0)
    return await observed(platform, attempt, lambda seen: all(rank.processes for rank in seen.ranks))


async def test_an_attempt_is_launched_started_observed_and_stopped(platform: LocalPlatform, attempt: str) -> None:
    port = free_port()
    first = await platform.launch(Launch(attempt=attempt, ports=(port,)))
    waiting = await platform.observe(attempt)
    await platform.start(attempt, commands(attempt, [*python(LISTENER), str(port)]), stop_grace_s=5.0)
    running = await observed(platform, attempt, lambda seen: seen.tail == ("listening",))
    report = await platform.stop(attempt, "the end", 5.0)

    assert (first.outcome, first.ranks[0].host, first.ranks[0].address) == ("started", "here", "127.0.0.1")
    assert (waiting.phase, waiting.launcher_alive, waiting.processes) == ("waiting", True, ())
    assert (running.phase, running.launcher_alive, len(running.processes)) == ("running", True, 1)
    assert running.beat_age_s is not None
    assert (report.outcome, report.killed, report.open_ports) == ("stopped", (), ())
    assert (report.exits[0].signal, report.exits[0].reason) == (signal.SIGTERM, "stopped")
    assert marked(attempt) == []


async def test_launching_again_adopts_what_runs_even_from_another_control_process(
    platform: LocalPlatform, attempt: str, tmp_path: Path
) -> None:
    before = await launched(platform, attempt, ["sleep", "600"])
    successor = LocalPlatform(tmp_path / "attempts", host="here")

    again = await successor.launch(Launch(attempt=attempt))
    await successor.start(attempt, commands(attempt, ["sleep", "600"]), stop_grace_s=5.0)

    assert again.outcome == "adopted"
    assert (await successor.observe(attempt)).processes == before.processes
    assert len(marked(attempt)) == 1


async def test_an_engine_outlives_the_control_process_that_launched_it(attempt: str, tmp_path: Path) -> None:
    script = f"""
import asyncio, os, signal
from pathlib import Path
from standfast.plans.facts import BoundRank, BoundReplica
from standfast.platforms.base import Launch
from standfast.platforms.local import LocalPlatform

async def main():
    platform = LocalPlatform(Path({str(tmp_path / "attempts")!r}), host="here")
    await platform.launch(Launch(attempt={attempt!r}))
    rank = BoundRank(rank=0, argv=("sleep", "600"), environment=(), secrets=(), ports=())
    bound = BoundReplica(attempt={attempt!r}, ranks=(rank,), digest="0" * 64)
    await platform.start({attempt!r}, bound, stop_grace_s=5.0)
    os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(main())
"""
    control = await asyncio.create_subprocess_exec(sys.executable, "-c", script, start_new_session=True)
    assert await control.wait() == -signal.SIGKILL
    platform = LocalPlatform(tmp_path / "attempts", host="here")

    running = await observed(platform, attempt, lambda seen: len(seen.processes) == 1)
    adopted = await platform.launch(Launch(attempt=attempt))

    assert running.launcher_alive
    assert adopted.outcome == "adopted"
    assert (await platform.stop(attempt, "done", 5.0)).outcome == "stopped"


async def test_launches_at_the_same_time_start_one_engine(
    platform: LocalPlatform, attempt: str, tmp_path: Path
) -> None:
    platforms = [platform, *(LocalPlatform(tmp_path / "attempts", host="here") for _ in range(3))]

    launches = await asyncio.gather(*(one.launch(Launch(attempt=attempt)) for one in platforms))
    await asyncio.gather(
        *(
            one.start(attempt, commands(attempt, ["sh", "-c", "echo up; exec sleep 600"]), stop_grace_s=5.0)
            for one in platforms
        )
    )
    await observed(platform, attempt, lambda seen: seen.tail == ("up",))

    assert len({launch.ranks[0].pid for launch in launches}) == 1
    assert len(marked(attempt)) == 1


async def test_a_finished_attempt_is_returned_and_not_started(platform: LocalPlatform, attempt: str) -> None:
    await platform.launch(Launch(attempt=attempt))
    await platform.start(attempt, commands(attempt, ["sh", "-c", "echo bang; exit 9"]), stop_grace_s=5.0)
    ended = await observed(platform, attempt, lambda seen: seen.phase == "ended")

    again = await platform.launch(Launch(attempt=attempt))

    assert again.finished
    assert (await platform.observe(attempt)).exit == ended.exit
    assert ended.exit is not None
    assert ended.exit.code == 9
    assert platform.read_log(attempt, 0, 0) == (b"bang\n", 5)


async def test_an_attempt_told_to_stop_before_its_launch_never_starts(platform: LocalPlatform, attempt: str) -> None:
    report = await platform.stop(attempt, "changed our mind", 5.0)

    launch = await platform.launch(Launch(attempt=attempt))

    assert report.outcome == "never-started"
    assert (launch.outcome, launch.ranks) == ("finished", ())
    assert (await platform.stop(attempt, "once more", 5.0)).outcome == "never-started"


async def test_a_waiting_attempt_stops_at_once(platform: LocalPlatform, attempt: str) -> None:
    await platform.launch(Launch(attempt=attempt))

    report = await platform.stop(attempt, "not needed", 600.0)

    assert (report.outcome, report.exits[0].reason) == ("stopped", "stopped")
    assert (await platform.stop(attempt, "again", 5.0)).outcome == "already-ended"


async def test_a_launcher_killed_while_it_waited_is_replaced(platform: LocalPlatform, attempt: str) -> None:
    first = await platform.launch(Launch(attempt=attempt))
    os.kill(first.ranks[0].pid, signal.SIGKILL)
    await observed(platform, attempt, lambda seen: not seen.launcher_alive)

    second = await platform.launch(Launch(attempt=attempt))

    assert second.outcome == "started"
    assert second.ranks[0].pid != first.ranks[0].pid


async def test_a_killed_launcher_is_a_fault_and_stop_ends_what_it_left(platform: LocalPlatform, attempt: str) -> None:
    running = await launched(platform, attempt, python(FAMILY))
    running = await observed(platform, attempt, lambda seen: len(seen.processes) == 4)
    launcher = (await platform.launch(Launch(attempt=attempt))).ranks[0]

    os.kill(launcher.pid, signal.SIGKILL)
    lost = await observed(platform, attempt, lambda seen: find_fault(seen) is not None)
    relaunch = await platform.launch(Launch(attempt=attempt))
    report = await platform.stop(attempt, "lost", 5.0)

    fault = find_fault(lost, standing_set([running]))
    assert fault is not None
    assert fault.kind == "launcher-lost"
    assert relaunch.finished
    assert report.outcome == "taken-over"
    assert len(report.killed) == 3
    assert report.exits[0].reason == "lost"
    assert not any(alive(process.pid, process.start_ticks) for process in running.processes)
    assert (await platform.observe(attempt)).phase == "ended"


async def test_a_stuck_launcher_is_killed_and_its_work_done(platform: LocalPlatform, attempt: str) -> None:
    running = await launched(platform, attempt, python(FAMILY))
    running = await observed(platform, attempt, lambda seen: len(seen.processes) == 4)
    launcher = (await platform.launch(Launch(attempt=attempt))).ranks[0]
    os.kill(launcher.pid, signal.SIGSTOP)
    silent = await observed(platform, attempt, lambda seen: find_fault(seen, beat_limit_s=1.0) is not None)

    stop = Stop(
        AttemptFiles(platform.root, attempt),
        reason="stuck",
        grace_s=0.1,
        launcher_margin_s=0.3,
        kill_patience_s=60,
    )
    report = await stop.carry_out()

    fault = find_fault(silent, beat_limit_s=1.0)
    assert fault is not None
    assert fault.kind == "beat-lost"
    assert report.outcome == "taken-over"
    assert not alive(launcher.pid, launcher.start_ticks)
    assert not any(alive(process.pid, process.start_ticks) for process in running.processes)


async def test_an_engine_that_ignores_term_is_gone_when_stop_returns(platform: LocalPlatform, attempt: str) -> None:
    await launched(platform, attempt, python(STUBBORN))
    running = await observed(platform, attempt, lambda seen: len(seen.processes) == 2)

    report = await platform.stop(attempt, "enough", 0.2)

    assert (report.outcome, report.exits[0].signal) == ("stopped", signal.SIGKILL)
    assert not any(alive(process.pid, process.start_ticks) for process in running.processes)


async def test_two_stops_at_the_same_time_both_return(platform: LocalPlatform, attempt: str, tmp_path: Path) -> None:
    await launched(platform, attempt, python(STUBBORN))
    other = LocalPlatform(tmp_path / "attempts", host="here")

    reports = await asyncio.gather(platform.stop(attempt, "one", 600.0), other.stop(attempt, "two", 0.2))

    assert {report.exits[0].reason for report in reports} == {"stopped"}
    assert marked(attempt) == []


async def test_a_killed_process_of_a_standing_engine_is_a_fault(platform: LocalPlatform, attempt: str) -> None:
    await launched(platform, attempt, python(FAMILY))
    standing = standing_set([await observed(platform, attempt, lambda seen: len(seen.processes) == 4)])
    for victim in standing:
        head = min(standing, key=lambda one: one.process.start_ticks)
        if victim != head:
            os.kill(victim.process.pid, signal.SIGKILL)
            break

    seen = await observed(platform, attempt, lambda seen: find_fault(seen, standing) is not None)

    fault = find_fault(seen, standing)
    assert fault is not None
    assert fault.kind == "process-lost"
    assert str(victim.process.pid) in fault.message


async def test_helpers_that_end_by_themselves_are_no_fault(
    platform: LocalPlatform, attempt: str, tmp_path: Path
) -> None:
    engine = ["sh", "-c", 'mkfifo "$PIPE" 2>/dev/null; cat "$PIPE" & sleep 600']
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    bound = commands(attempt, engine)
    rank = bound.ranks[0].model_copy(update={"environment": (("PIPE", str(pipe)),)})
    await platform.launch(Launch(attempt=attempt))
    await platform.start(attempt, bound.model_copy(update={"ranks": (rank,)}), stop_grace_s=5.0)
    early = await observed(platform, attempt, lambda seen: len(seen.processes) == 3)

    await asyncio.to_thread(pipe.write_text, "end")
    late = await observed(platform, attempt, lambda seen: len(seen.processes) == 2)

    assert find_fault(late, standing_set([early, late])) is None
    assert find_fault(late, standing_set([early])) is not None


async def test_one_ranks_exit_is_the_attempts_and_names_the_rank(platform: LocalPlatform, attempt: str) -> None:
    await launched(platform, attempt, ["sleep", "600"], ["sh", "-c", "echo up; read x </dev/null; exec sleep 600"])
    before = await platform.observe(attempt)
    os.kill(before.ranks[1].processes[0].pid, signal.SIGKILL)

    seen = await observed(platform, attempt, lambda seen: seen.exit is not None)

    fault = find_fault(seen)
    assert fault is not None
    assert (fault.kind, fault.rank) == ("engine-exited", 1)
    assert seen.tail == ("up",)
    assert seen.phase == "ended"
    assert seen.ranks[0].phase == "running"
    report = await platform.stop(attempt, "the gang ends together", 5.0)
    assert len(report.exits) == 2
    assert marked(attempt) == []


async def test_a_stranger_on_a_port_is_reported(platform: LocalPlatform, attempt: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        await launched(platform, attempt, ["sleep", "600"], ports=(port,))

        report = await platform.stop(attempt, "done", 5.0)

    assert report.open_ports == (port,)


async def test_a_missing_secret_is_named_and_nothing_is_launched(tmp_path: Path, attempt: str) -> None:
    platform = LocalPlatform(tmp_path / "attempts", host="here", environment={"PATH": os.environ["PATH"]})

    with pytest.raises(MissingSecretError, match="HF_TOKEN"):
        await platform.launch(Launch(attempt=attempt, secrets=("HF_TOKEN",)))

    assert (await platform.observe(attempt)).phase == "absent"


async def test_a_launcher_gets_the_named_secrets_and_not_the_whole_environment(tmp_path: Path, attempt: str) -> None:
    environment = {"PATH": os.environ["PATH"], "TOKEN": "t0ken-value", "OTHER": "other-value"}
    platform = LocalPlatform(tmp_path / "attempts", host="here", environment=environment)

    launch = await platform.launch(Launch(attempt=attempt, secrets=("TOKEN",)))
    await platform.start(
        attempt, commands(attempt, ["sh", "-c", "echo is $KEY"], secrets=(("KEY", "TOKEN"),)), stop_grace_s=5.0
    )
    variables = Path(f"/proc/{launch.ranks[0].pid}/environ").read_bytes()
    ended = await observed(platform, attempt, lambda seen: seen.phase == "ended")

    assert b"TOKEN=t0ken-value" in variables
    assert b"OTHER" not in variables
    assert ended.tail == ("is ***",)
    written = [path for path in launch.directory.rglob("*") if path.is_file()]
    assert not [path for path in written if b"t0ken-value" in path.read_bytes()]


async def test_a_log_is_read_on_from_where_one_was(platform: LocalPlatform, attempt: str, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    os.mkfifo(go_on)
    await platform.launch(Launch(attempt=attempt))
    script = f"echo one; read x <{go_on}; echo two"
    await platform.start(attempt, commands(attempt, ["sh", "-c", script]), stop_grace_s=5.0)
    await observed(platform, attempt, lambda seen: seen.tail == ("one",))

    first, offset = platform.read_log(attempt, 0, 0)
    await asyncio.to_thread(go_on.write_text, "\n")
    await observed(platform, attempt, lambda seen: seen.phase == "ended")

    assert first == b"one\n"
    assert platform.read_log(attempt, 0, offset) == (b"two\n", 8)
    assert platform.read_log(attempt, 0, 8) == (b"", 8)
    assert platform.read_log(attempt, 1, 0) == (b"", 0)


async def test_one_name_has_one_launch_and_one_command(platform: LocalPlatform, attempt: str) -> None:
    await platform.launch(Launch(attempt=attempt))
    await platform.start(attempt, commands(attempt, ["sleep", "600"]), stop_grace_s=5.0)

    with pytest.raises(AttemptConflictError, match="other ranks"):
        await platform.launch(Launch(attempt=attempt, ranks=(0, 1)))
    with pytest.raises(AttemptConflictError, match="another command"):
        await platform.start(attempt, commands(attempt, ["sleep", "5"]), stop_grace_s=5.0)
    with pytest.raises(AttemptConflictError, match="cannot start"):
        await platform.start(attempt, commands("other/inference/0/1", ["sleep", "5"]), stop_grace_s=5.0)


async def test_attempts_are_listed_and_removed_once_ended(platform: LocalPlatform, attempt: str) -> None:
    assert await platform.list_attempts() == ()
    await launched(platform, attempt, ["sleep", "600"])

    (listed,) = await platform.list_attempts()
    with pytest.raises(AttemptConflictError, match="has not ended"):
        await platform.remove(attempt)
    await platform.stop(attempt, "done", 5.0)
    await platform.remove(attempt)

    assert (listed.attempt, listed.phase, listed.launcher_alive) == (attempt, "running", True)
    assert await platform.list_attempts() == ()
    assert (await platform.observe(attempt)).ranks == ()


async def test_a_launcher_that_cannot_start_says_why(tmp_path: Path, attempt: str) -> None:
    broken = LocalPlatform(tmp_path / "attempts", host="here", launcher=("sh", "-c", "echo no room >&2; exit 1"))

    with pytest.raises(LaunchError, match="no room"):
        await broken.launch(Launch(attempt=attempt))


@pytest.mark.parametrize("name", ["", "../up", "a//b", "a/../b", ".hidden", "a b", "a%b", "x" * 300])
async def test_a_name_that_is_no_attempts_is_refused(platform: LocalPlatform, name: str) -> None:
    with pytest.raises(ValueError, match="not the name of an attempt"):
        await platform.observe(name)


async def test_an_attempt_whose_launcher_was_killed_before_it_reported_can_be_stopped(
    platform: LocalPlatform, attempt: str
) -> None:
    broken = LocalPlatform(platform.root, host="here", launcher=("false",))
    with contextlib.suppress(LaunchError):
        await broken.launch(Launch(attempt=attempt))

    report = await platform.stop(attempt, "never came up", 5.0)
    late = await asyncio.to_thread(Rank(AttemptFiles(platform.root, attempt).directory, attempt).launch)

    assert (report.outcome, report.exits[0].reason) == ("never-started", "stopped")
    assert late.returncode == 0
    assert (await platform.observe(attempt)).phase == "ended"
