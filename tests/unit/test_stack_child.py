"""A supervised process: waited for, started again, ended with its supervisor."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from standfast.stack.child import Child, ChildFailedError, ChildSpec, exit_text, log_tail
from standfast.stack.processes import ProcessRef, reference, wait_gone

SERVE = (
    "import os, pathlib, sys, time; print('hello', flush=True); up = pathlib.Path(sys.argv[1])\n"
    "up.with_suffix('.new').write_text(str(time.time())); up.with_suffix('.new').replace(up); time.sleep(600)"
)
STUBBORN = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + SERVE


class Seen:
    """The states that a child went through."""

    def __init__(self) -> None:
        self.states: list[str] = []
        self.changed = asyncio.Event()

    def __call__(self, child: Child) -> None:
        self.states.append(child.record.state)
        self.changed.set()

    async def until(self, look: Callable[[], bool], within_s: float = 60.0) -> None:
        async with asyncio.timeout(within_s):
            while not look():
                self.changed.clear()
                await self.changed.wait()


def spec(tmp_path: Path, code: str, answers: Callable[[float], Awaitable[bool]] | None = None) -> ChildSpec:
    marker = tmp_path / "up"

    async def marked(spawned_at: float) -> bool:
        # What the file says, not its time: the clock of file times lags behind that of the process.
        return marker.exists() and float(marker.read_text()) >= spawned_at

    return ChildSpec(
        name="worker",
        argv=(sys.executable, "-c", code, str(marker)),
        environment={**os.environ, "PYTHONUNBUFFERED": "1"},
        log=tmp_path / "logs" / "worker.log",
        answers=answers or marked,
        start_timeout_s=60.0,
        stop_grace_s=0.3,
    )


def process_of(child: Child) -> ProcessRef:
    assert child.record.process is not None
    return child.record.process


async def test_a_killed_child_starts_again_and_answers_again(tmp_path: Path) -> None:
    seen = Seen()
    child = Child(spec(tmp_path, SERVE), seen)
    running = asyncio.create_task(child.keep_up())
    await seen.until(lambda: child.record.state == "ready")
    first = process_of(child)
    first.send(signal.SIGKILL)
    await seen.until(lambda: child.record.restarts == 1)
    await seen.until(lambda: child.record.state == "ready")
    assert process_of(child) != first
    await child.stop()
    await running
    assert seen.states[0] == "starting"
    assert "restarting" in seen.states
    assert child.record.state == "stopped"
    assert log_tail(child.spec.log) == ("hello", "hello")


async def test_a_child_that_never_comes_up_is_given_up_with_its_verdict(tmp_path: Path) -> None:
    child = Child(spec(tmp_path, "print('no such option'); raise SystemExit(3)"), Seen())
    with pytest.raises(ChildFailedError) as failure:
        await child.keep_up()
    assert failure.value.message == "ended with exit code 3"
    assert log_tail(failure.value.log)[-1] == "no such option"


async def test_a_child_that_ignores_term_is_killed_after_its_grace(tmp_path: Path) -> None:
    seen = Seen()
    child = Child(spec(tmp_path, STUBBORN), seen)
    running = asyncio.create_task(child.keep_up())
    await seen.until(lambda: child.record.state == "ready")
    process = process_of(child)
    await child.stop()
    await running
    assert not process.alive()


async def test_stopping_during_the_backoff_ends_it(tmp_path: Path) -> None:
    seen = Seen()
    child = Child(spec(tmp_path, SERVE), seen)
    running = asyncio.create_task(child.keep_up())
    await seen.until(lambda: child.record.state == "ready")
    process_of(child).send(signal.SIGKILL)
    await seen.until(lambda: child.record.state == "restarting")
    await child.stop()
    await asyncio.wait_for(running, 60.0)
    assert child.record.process is None


@pytest.mark.skipif(sys.platform != "linux", reason="the parent-death signal is Linux's")
async def test_a_child_ends_when_its_supervisor_is_killed(tmp_path: Path) -> None:
    supervisor = (
        "import asyncio, os, pathlib, sys; from standfast.stack.child import Child, ChildSpec\n"
        "root = pathlib.Path(sys.argv[1])\n"
        "async def answers(_): return (root / 'up').exists()\n"
        "spec = ChildSpec(name='worker', argv=(sys.executable, '-c', sys.argv[2], str(root / 'up')),\n"
        "    environment=dict(os.environ), log=root / 'log', answers=answers)\n"
        "def changed(child):\n"
        "    if child.record.state == 'ready': print(child.record.process.pid, flush=True)\n"
        "asyncio.run(Child(spec, changed).keep_up())\n"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", supervisor, str(tmp_path), SERVE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    child = reference(int(await process.stdout.readline()))
    assert child is not None
    process.kill()
    await process.wait()
    assert await wait_gone(child, 60.0)


def test_exits_are_told_in_words() -> None:
    assert exit_text(3) == "exit code 3"
    assert exit_text(-9) == "SIGKILL"
    assert exit_text(-99) == "signal 99"
