"""Ending an attempt on this host so that nothing of it is left, whatever state its launchers are in."""

import asyncio
import json
import signal
import time
from collections.abc import Iterable
from typing import Any, Literal

from standfast.platforms import ports, processes
from standfast.platforms.attempts import AttemptFiles, RankState, read_bytes, replace_json
from standfast.platforms.base import ExitRecord, Launch, ProcessRef, StopReport, StopUnconfirmedError

#: A launcher that has not ended its engine this long after the grace is stuck; it is killed and its work taken over.
LAUNCHER_MARGIN_S = 15.0
#: How long processes may take to react to SIGKILL; memory of a large engine takes its time to be returned.
KILL_PATIENCE_S = 30.0
PORTS_PATIENCE_S = 5.0
_POLL_S = 0.05


class Stop:
    """One request to end an attempt. `carry_out` may be called by several processes at once."""

    def __init__(
        self,
        files: AttemptFiles,
        *,
        reason: str,
        grace_s: float,
        launcher_margin_s: float = LAUNCHER_MARGIN_S,
        kill_patience_s: float = KILL_PATIENCE_S,
    ) -> None:
        self._files = files
        self._boot = processes.boot_id()
        self._reason = reason
        self._grace_s = grace_s
        self._launcher_margin_s = launcher_margin_s
        self._kill_patience_s = kill_patience_s
        self._killed: list[ProcessRef] = []
        self._taken_over = False
        self._had_begun = False

    async def carry_out(self) -> StopReport:
        """End the attempt. Raises `StopUnconfirmedError` for processes that SIGKILL does not end in time."""
        await asyncio.to_thread(self._request)
        launch = await asyncio.to_thread(self._launch)
        if launch is None:
            # The request stays: a launch under this name that comes later finds it and starts nothing.
            return StopReport(attempt=self._files.attempt, outcome="never-started")
        ended_before = await asyncio.to_thread(self._all_ended, launch)
        deadline = time.monotonic() + self._grace_s + self._launcher_margin_s
        waiting = list(launch.ranks)
        for rank in waiting:
            await asyncio.to_thread(self._wake_launcher, rank)
        while waiting:
            overdue = time.monotonic() >= deadline
            waiting = [rank for rank in waiting if not await asyncio.to_thread(self._settle, rank, overdue)]
            if waiting:
                await asyncio.sleep(_POLL_S)
        await asyncio.to_thread(self._sweep, processes.Leftovers(attempt=self._files.attempt))
        return StopReport(
            attempt=self._files.attempt,
            outcome=self._outcome(ended_before),
            exits=await asyncio.to_thread(self._exits, launch),
            killed=tuple(self._killed),
            open_ports=await self._await_closed(launch.ports),
        )

    def _request(self) -> None:
        """Write ``stop.json``; an earlier request with a shorter grace stays."""
        earlier = read_bytes(self._files.stop)
        if earlier is not None and _grace_of(earlier) <= self._grace_s:
            return
        replace_json(
            self._files.stop,
            {"schema_version": 1, "reason": self._reason, "at": time.time(), "grace_s": self._grace_s},
        )

    def _launch(self) -> Launch | None:
        text = read_bytes(self._files.launch)
        return None if text is None else Launch.model_validate_json(text)

    def _all_ended(self, launch: Launch) -> bool:
        states = [self._files.read_state(rank) for rank in launch.ranks]
        self._had_begun = any(state is not None for state in states)
        return all(state is not None and state.phase == "ended" for state in states)

    def _wake_launcher(self, rank: int) -> None:
        """Spare the launcher the wait for its next look at ``stop.json``."""
        state = self._files.read_state(rank)
        if state is not None and state.phase != "ended" and state.boot_id == self._boot:
            processes.kill(state.launcher_pid, state.launcher_start_ticks, signal.SIGTERM)

    def _settle(self, rank: int, overdue: bool) -> bool:
        """Whether the rank has ended; a dead launcher's work is done here, and a stuck one's after its deadline."""
        state = self._files.read_state(rank)
        if state is not None and state.phase == "ended":
            return True
        if state is not None and self._launcher_lives(state):
            if not overdue:
                return False
            processes.kill(state.launcher_pid, state.launcher_start_ticks)
        with self._files.holding_lock(rank) as free:
            # Held though its launcher is not known to live: one is just starting, and will see the request.
            if not free:
                return False
            self._take_over(rank)
            return True

    def _launcher_lives(self, state: RankState) -> bool:
        return state.boot_id == self._boot and processes.is_alive(state.launcher_pid, state.launcher_start_ticks)

    def _take_over(self, rank: int) -> None:
        state = self._files.read_state(rank)
        if state is not None and state.phase == "ended":
            return
        begun = state is not None and state.phase in ("running", "stopping")
        here = state is not None and state.boot_id == self._boot
        leftovers = processes.Leftovers(
            attempt=self._files.attempt,
            rank=rank,
            session=state.pid if state is not None and here else None,
            session_start_ticks=state.start_ticks if state is not None else None,
            listed=frozenset((p.pid, p.start_ticks) for p in state.processes)
            if state is not None and here
            else frozenset(),
        )
        killed = self._sweep(leftovers)
        self._taken_over = self._taken_over or begun
        replace_json(self._files.state(rank), _burial(self._files.attempt, rank, state, begun, killed, self._boot))

    def _sweep(self, leftovers: processes.Leftovers) -> tuple[ProcessRef, ...]:
        killed, survivors = leftovers.end(self._kill_patience_s)
        if survivors:
            raise StopUnconfirmedError(self._files.attempt, survivors)
        self._killed.extend(killed)
        return killed

    def _outcome(self, ended_before: bool) -> Literal["stopped", "already-ended", "never-started", "taken-over"]:
        if self._taken_over or self._killed:
            return "taken-over"
        if ended_before:
            return "already-ended"
        return "stopped" if self._had_begun else "never-started"

    def _exits(self, launch: Launch) -> tuple[ExitRecord, ...]:
        states = [self._files.read_state(rank) for rank in launch.ranks]
        return tuple(state.exit for state in states if state is not None and state.exit is not None)

    async def _await_closed(self, numbers: Iterable[int]) -> tuple[int, ...]:
        deadline = time.monotonic() + PORTS_PATIENCE_S
        taken = tuple(numbers)
        while True:
            taken = await asyncio.to_thread(lambda asked: tuple(p for p in asked if not ports.is_free(p)), taken)
            if not taken or time.monotonic() >= deadline:
                return taken
            await asyncio.sleep(_POLL_S)


def _grace_of(stop: bytes) -> float:
    try:
        grace = json.loads(stop).get("grace_s")
    except (ValueError, AttributeError):
        return float("inf")
    return float(grace) if isinstance(grace, int | float) else float("inf")


def _burial(
    attempt: str, rank: int, state: RankState | None, begun: bool, killed: tuple[ProcessRef, ...], boot: str
) -> dict[str, Any]:
    """The final state of a rank whose launcher could not write it."""
    now = time.time()
    reason = "lost" if begun else "stopped"
    return {
        "schema_version": 1,
        "attempt": attempt,
        "rank": rank,
        "phase": "ended",
        "launcher_pid": state.launcher_pid if state is not None else 0,
        "launcher_start_ticks": state.launcher_start_ticks if state is not None else 0,
        "boot_id": boot,
        "pid": state.pid if state is not None else None,
        "start_ticks": state.start_ticks if state is not None else None,
        "beat": now,
        "processes": [],
        "exit": {
            "code": None,
            "signal": None,
            "reason": reason,
            "at": now,
            "survivors": [process.model_dump() for process in killed],
        },
        "tail": list(state.tail) if state is not None else [],
        "log": {"dropped_bytes": 0, "error": None},
    }
