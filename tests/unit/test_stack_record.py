"""What a stack tells about itself, and the lock behind it."""

import asyncio
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.home import Home
from standfast.stack.keys import ensure_api_key
from standfast.stack.processes import ProcessRef, reference, wait_gone
from standfast.stack.record import (
    PartRecord,
    StackLock,
    StackRecord,
    TemporalRecord,
    api_key_path,
    is_running,
    read_record,
    record_path,
    running_stack,
    write_record,
)


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(root=tmp_path / "home")


def record() -> StackRecord:
    return StackRecord(
        state="ready",
        supervisor=ProcessRef(pid=1, start_ticks=1),
        started_at=1.0,
        temporal=TemporalRecord(
            address="127.0.0.1:7233", namespace="default", managed=True, ui="http://127.0.0.1:8233"
        ),
        gateway="http://127.0.0.1:8080",
        ports={"temporal": 7233},
        parts=(PartRecord(name="temporal", log="/x"),),
    )


def test_looking_for_a_stack_creates_nothing(home: Home) -> None:
    assert not is_running(home)
    assert running_stack(home) is None
    assert not home.root.exists()


def test_a_record_counts_only_while_its_supervisor_holds_the_lock(home: Home) -> None:
    lock = StackLock(home)
    assert lock.acquire()
    write_record(home, record())
    assert running_stack(home) == record()
    lock.release()
    assert running_stack(home) is None
    assert read_record(home) == record()


def test_one_supervisor_holds_a_home(home: Home) -> None:
    first, second = StackLock(home), StackLock(home)
    assert first.acquire()
    assert not second.acquire(patience_s=0.05)
    first.release()
    assert second.acquire()
    second.release()


def test_the_kernel_frees_the_lock_of_a_killed_supervisor(home: Home) -> None:
    code = (
        "import sys, pathlib; from standfast.home import Home; from standfast.stack.record import StackLock\n"
        "lock = StackLock(Home(root=pathlib.Path(sys.argv[1]))); assert lock.acquire(); print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(home.root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        assert is_running(home)
        holder.send_signal(signal.SIGKILL)
    assert not is_running(home)


def test_a_record_of_another_version_is_ignored(home: Home) -> None:
    write_record(home, record())
    record_path(home).write_text('{"schema_version": 99}')
    assert read_record(home) is None


class Keys:
    """A key store that remembers hashes."""

    def __init__(self) -> None:
        self.hashes: set[str] = set()

    async def active_key_hashes(self) -> set[str]:
        return self.hashes

    async def create_api_key(self, label: str) -> tuple[object, str]:
        import hashlib

        key = f"sf-{len(self.hashes)}-{label}"
        self.hashes.add(hashlib.sha256(key.encode()).hexdigest())
        return object(), key


async def test_the_api_key_is_made_once_and_readable_by_its_owner_alone(home: Home) -> None:
    keys = Keys()
    first, new = await ensure_api_key(home, keys)
    assert new
    assert await ensure_api_key(home, keys) == (first, False)
    assert stat.S_IMODE(api_key_path(home).stat().st_mode) == 0o600
    assert stat.S_IMODE(home.run.stat().st_mode) == 0o700


async def test_a_key_that_the_registry_lost_is_replaced(home: Home) -> None:
    keys = Keys()
    await ensure_api_key(home, keys)
    keys.hashes = {"other"}
    _, new = await ensure_api_key(home, keys)
    assert new


def test_a_process_is_not_mistaken_for_a_later_one_with_its_pid() -> None:
    me = reference(os.getpid())
    assert me is not None
    assert me.alive()
    assert not me.model_copy(update={"start_ticks": me.start_ticks + 1}).alive()


async def test_waiting_for_a_process_ends_with_it() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE)
    running = reference(process.pid)
    assert running is not None
    assert not await wait_gone(running, 0.05)
    assert process.stdin is not None
    process.stdin.close()
    assert await wait_gone(running, 60.0)
    await process.wait()
