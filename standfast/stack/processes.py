"""Processes named so that a reused pid is never taken for the old one."""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path

from standfast.plans.record import Record


class ProcessRef(Record):
    """A process: its pid and when it started, in clock ticks since boot (0 where the kernel does not tell)."""

    pid: int
    start_ticks: int

    def alive(self) -> bool:
        """Whether this very process still runs; a zombie does not."""
        return _start_ticks(self.pid) == self.start_ticks

    def send(self, signal_number: int) -> None:
        """Signal the process if it still runs."""
        if self.alive():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(self.pid, signal_number)


def reference(pid: int) -> ProcessRef | None:
    """A reference to a running process, or None when it is gone."""
    ticks = _start_ticks(pid)
    return None if ticks is None else ProcessRef(pid=pid, start_ticks=ticks)


def _start_ticks(pid: int) -> int | None:
    """Field 22 of ``/proc/<pid>/stat``; None when the process is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return None if Path("/proc/self/stat").exists() else _start_ticks_without_proc(pid)
    except ProcessLookupError:
        return None
    fields = stat[stat.rindex(")") + 2 :].split()
    return None if fields[0] in "ZX" else int(fields[19])


def _start_ticks_without_proc(pid: int) -> int | None:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0


async def wait_gone(process: ProcessRef, timeout_s: float) -> bool:
    """Wait until a process that is not our child is gone; False when it still lives after ``timeout_s``."""
    deadline = time.monotonic() + timeout_s
    while process.alive():
        if time.monotonic() >= deadline:
            return False
        await asyncio.sleep(0.05)
    return True


async def end(process: ProcessRef, *, grace_s: float) -> None:
    """TERM, at most ``grace_s`` of patience, then KILL; returns when the process is gone."""
    process.send(signal.SIGTERM)
    if not await wait_gone(process, grace_s):
        process.send(signal.SIGKILL)
        await wait_gone(process, 5.0)
