"""Processes of this host, read from ``/proc``: whether one still is the one it was, and what an attempt left behind."""

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from standfast.platforms.base import ProcessRef

_DEAD = frozenset("ZXx")


@dataclass(frozen=True, slots=True)
class HostProcess:
    """One process; ``start_ticks`` tells it from a later one with the same number."""

    pid: int
    parent: int
    session: int
    start_ticks: int
    live: bool
    name: str

    @property
    def ref(self) -> ProcessRef:
        """Its record."""
        return ProcessRef(pid=self.pid, start_ticks=self.start_ticks, name=self.name)


def boot_id() -> str:
    """The identity of this boot: process numbers of another one mean nothing."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def read_process(pid: int) -> HostProcess | None:
    """The process, or None if there is none."""
    # By descriptor: this runs for each rank at each look.
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        text = os.read(descriptor, 4096)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    # The name stands in brackets and may hold spaces and brackets itself.
    head, _, rest = text.rpartition(b")")
    fields = rest.split()
    return HostProcess(
        pid=pid,
        parent=int(fields[1]),
        session=int(fields[3]),
        start_ticks=int(fields[19]),
        live=fields[0].decode() not in _DEAD,
        name=head.partition(b"(")[2].decode(errors="replace"),
    )


def is_alive(pid: int, start_ticks: int) -> bool:
    """Whether this very process still runs."""
    process = read_process(pid)
    return process is not None and process.live and process.start_ticks == start_ticks


def kill(pid: int, start_ticks: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Signal this very process, if it still runs."""
    if is_alive(pid, start_ticks):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@dataclass(frozen=True, kw_only=True)
class Leftovers:
    """What tells the processes of a dead launcher's engine: the mark in their environment, the engine's session (its
    first process's number and start), and those that the launcher listed last. Descendants of all these count too.
    """

    attempt: str
    rank: int | None = None
    session: int | None = None
    session_start_ticks: int | None = None
    listed: frozenset[tuple[int, int]] = frozenset()

    def find(self) -> tuple[HostProcess, ...]:
        """The live ones. Never this process or an ancestor of it."""
        processes = {process.pid: process for process in map(read_process, _pids()) if process is not None}
        for pid in _ancestry(processes):
            processes.pop(pid, None)
        leader = processes.get(self.session) if self.session is not None else None
        # The number of a session whose processes are all gone may have been given to somebody else's.
        session = None if leader is not None and leader.start_ticks != self.session_start_ticks else self.session
        found = {
            pid
            for pid, process in processes.items()
            if (session is not None and process.session == session)
            or (pid, process.start_ticks) in self.listed
            or self._is_marked(pid)
        }
        while True:
            children = {pid for pid, process in processes.items() if process.parent in found} - found
            if not children:
                return tuple(processes[pid] for pid in sorted(found) if processes[pid].live)
            found |= children

    def end(self, patience_s: float) -> tuple[tuple[ProcessRef, ...], tuple[ProcessRef, ...]]:
        """Kill them until none is left or ``patience_s`` is over. Returns those killed and those left. Blocks."""
        deadline = time.monotonic() + patience_s
        killed: dict[int, ProcessRef] = {}
        empty_looks = 0
        while True:
            rest = self.find()
            # Two empty looks in a row: a process that forks during one can escape it, but not both.
            empty_looks = 0 if rest else empty_looks + 1
            if empty_looks == 2:
                return tuple(killed.values()), ()
            for process in rest:
                killed[process.pid] = process.ref
                kill(process.pid, process.start_ticks)
            if rest and time.monotonic() >= deadline:
                return tuple(killed.values()), tuple(process.ref for process in rest)
            time.sleep(0.02)

    def _is_marked(self, pid: int) -> bool:
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False
        if f"STANDFAST_ATTEMPT={self.attempt}".encode() not in text:
            return False
        variables = dict(variable.partition(b"=")[::2] for variable in text.split(b"\0"))
        rank = variables.get(b"STANDFAST_RANK")
        return variables.get(b"STANDFAST_ATTEMPT") == self.attempt.encode() and (
            self.rank is None or rank is None or rank == str(self.rank).encode()
        )


def _pids() -> Iterable[int]:
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208


def _ancestry(processes: dict[int, HostProcess]) -> list[int]:
    line: list[int] = []
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.append(pid)
        parent = processes.get(pid)
        pid = parent.parent if parent is not None else 0
    return line
