"""Which processes belong to the engine, read from ``/proc``."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

#: Every process of an engine carries these, and so do processes that left its session.
ATTEMPT_VARIABLE = "STANDFAST_ATTEMPT"
RANK_VARIABLE = "STANDFAST_RANK"

#: Looks between two that read every process of the host again. In between, processes known to be others' are skipped;
#: that is wrong only if one ended and the engine got its number within one beat, and then not for long.
_FULL_LOOK_EVERY = 20
_DEAD = ("Z", "X", "x")


class Process(NamedTuple):
    """One process; ``start_ticks`` tells it from a later one with the same number."""

    pid: int
    parent: int
    session: int
    start_ticks: int
    status: str
    name: str

    @property
    def live(self) -> bool:
        """Whether it still runs: a zombie does not."""
        return self.status not in _DEAD


def read_process(pid: int) -> Process | None:
    """The process, or None if there is none."""
    # Read by descriptor: this runs for each engine process at each beat, and a file object would double its cost.
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
    name = head.partition(b"(")[2].decode("utf-8", "replace")
    return Process(pid, int(fields[1]), int(fields[3]), int(fields[19]), fields[0].decode(), name)


def list_pids() -> list[int]:
    """The numbers of all processes."""
    return [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]  # noqa: PTH208


class Census:
    """The live processes of one engine: its session, every descendant of the launcher, and whoever was one of them
    once.

    The launcher is the subreaper of its descendants, so that those who left the session stay descendants.
    """

    def __init__(
        self,
        session: int,
        leader_ticks: int | None = None,
        *,
        launcher: int | None = None,
        list_pids: Callable[[], Iterable[int]] = list_pids,
        read_process: Callable[[int], Process | None] = read_process,
    ) -> None:
        self._list_pids = list_pids
        self._read_process = read_process
        self._session = session
        self._leader_ticks = leader_ticks
        self._launcher = os.getpid() if launcher is None else launcher
        self._others: set[int] = set()
        self._ours: dict[int, int] = {}
        self._looks = 0

    def look(self, *, full: bool = False) -> list[Process]:
        """The live processes, by number."""
        self._looks += 1
        if full or self._looks % _FULL_LOOK_EVERY == 0:
            self._others.clear()
        pids = self._list_pids()
        unknown = [self._read_process(pid) for pid in pids if pid not in self._others and pid != self._launcher]
        candidates = [process for process in unknown if process is not None]
        ours = self._select(candidates)
        self._others.intersection_update(pids)
        self._others.update(process.pid for process in candidates if process.pid not in ours)
        self._ours = {process.pid: process.start_ticks for process in ours.values()}
        return [process for _, process in sorted(ours.items()) if process.live]

    def _select(self, candidates: list[Process]) -> dict[int, Process]:
        family = {self._launcher}
        # Once a session is empty its number may be given to somebody else's.
        leader = next((process for process in candidates if process.pid == self._session), None)
        taken = leader is not None and self._leader_ticks is not None and leader.start_ticks != self._leader_ticks
        ours: dict[int, Process] = {}
        while True:
            found = [
                process
                for process in candidates
                if process.pid not in ours
                and (
                    (process.session == self._session and not taken)
                    or process.parent in family
                    or self._ours.get(process.pid) == process.start_ticks
                )
            ]
            if not found:
                return ours
            ours.update((process.pid, process) for process in found)
            family.update(process.pid for process in found)


def find_marked(attempt: str, rank: int) -> list[Process]:
    """The live processes whose environment names this attempt and this rank or none, except this one."""
    mark = f"{ATTEMPT_VARIABLE}={attempt}".encode()
    rank_prefix = f"{RANK_VARIABLE}=".encode()
    wanted = rank_prefix + str(rank).encode()
    found: list[Process] = []
    for pid in list_pids():
        try:
            text = Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            continue
        if mark not in text or pid == os.getpid():
            continue
        variables = text.split(b"\0")
        ranks = [variable for variable in variables if variable.startswith(rank_prefix)]
        process = read_process(pid)
        if mark in variables and (not ranks or wanted in ranks) and process is not None and process.live:
            found.append(process)
    return found


def send(processes: Iterable[Process], number: signal.Signals) -> None:
    """Signal each process that is still the one it was."""
    for process in processes:
        now = read_process(process.pid)
        if now is not None and now.start_ticks == process.start_ticks:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process.pid, number)
