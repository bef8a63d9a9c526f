"""One supervised process: started, waited for until it answers, started again when it dies."""

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from standfast.stack import tether
from standfast.stack.processes import reference
from standfast.stack.record import PartRecord

LOG_LIMIT_BYTES = 20 * 2**20
"""A log longer than this is moved aside (``.1``) when its process starts again."""
STABLE_AFTER_S = 30.0
"""A process that lived this long starts again without backoff."""
MAX_BACKOFF_S = 10.0
START_TRIES = 3
"""How often a process may die before it first answers; then the stack gives up."""


@dataclass(frozen=True, kw_only=True)
class ChildSpec:
    """How to run a part.

    ``answers(spawned_at)`` says whether the process that was spawned then (Unix seconds) does its work.
    """

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    log: Path
    answers: Callable[[float], Awaitable[bool]]
    start_timeout_s: float = 60.0
    stop_grace_s: float = 15.0


class ChildFailedError(Exception):
    """A part that never answered: what happened, and the end of its log."""

    def __init__(self, name: str, message: str, log: Path) -> None:
        super().__init__(message)
        self.name, self.message, self.log = name, message, log


@dataclass
class Child:
    """A running `ChildSpec`. ``changed`` is called after every change of `record`."""

    spec: ChildSpec
    changed: Callable[["Child"], None]
    record: PartRecord = field(init=False)
    ready: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    _process: asyncio.subprocess.Process | None = field(init=False, default=None)
    _exit: "asyncio.Task[int] | None" = field(init=False, default=None)
    _stopping: asyncio.Event = field(init=False, default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.record = PartRecord.model_validate({"name": self.spec.name, "log": str(self.spec.log)})

    def _set(self, **fields: object) -> None:
        self.record = self.record.model_copy(update=fields)
        self.changed(self)

    async def keep_up(self) -> None:
        """Run until `stop`; raises `ChildFailedError` when the process does not come up in the first place."""
        failures = 0
        while not self._stopping.is_set():
            spawned_at = time.time()
            started = time.monotonic()
            process, exit_task = await self._spawn()
            if self._stopping.is_set():
                await self._end(process, exit_task)
                return
            self._set(state="starting", process=reference(process.pid), detail="")
            verdict = await self._await_answer(process, exit_task, spawned_at)
            if verdict is None:
                self.ready.set()
                self._set(state="ready", detail=f"up in {time.monotonic() - started:.1f} s")
                verdict = f"ended with {exit_text(await asyncio.shield(exit_task))}"
            if self._stopping.is_set():
                return
            lived_s = time.monotonic() - started
            failures = 0 if lived_s > STABLE_AFTER_S else failures + 1
            if not self.ready.is_set() and failures >= START_TRIES:
                raise ChildFailedError(self.spec.name, verdict, self.spec.log)
            pause_s = min(0.25 * 2 ** max(failures - 1, 0), MAX_BACKOFF_S)
            self._set(
                state="restarting",
                process=None,
                restarts=self.record.restarts + 1,
                detail=f"{verdict}; starting again in {pause_s:.1f} s",
            )
            await asyncio.sleep(pause_s)

    async def _spawn(self) -> "tuple[asyncio.subprocess.Process, asyncio.Task[int]]":
        log = self.spec.log
        log.parent.mkdir(parents=True, exist_ok=True)
        if log.exists() and log.stat().st_size > LOG_LIMIT_BYTES:
            log.replace(log.with_name(f"{log.name}.1"))
        tethered = (sys.executable, "-I", "-S", str(Path(tether.__file__)), str(os.getpid()), *self.spec.argv)
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                *tethered,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=dict(self.spec.environment),
                cwd="/",
                start_new_session=True,  # Ctrl-C must reach the supervisor alone, which then stops the parts in order
            )
        exit_task = asyncio.create_task(process.wait())
        self._process, self._exit = process, exit_task
        return process, exit_task

    async def _await_answer(
        self, process: asyncio.subprocess.Process, exit_task: "asyncio.Task[int]", spawned_at: float
    ) -> str | None:
        """None once the process answers; else what went wrong, with the process gone."""
        deadline = time.monotonic() + self.spec.start_timeout_s
        pause_s = 0.05
        while time.monotonic() < deadline:
            if exit_task.done():
                return f"ended with {exit_text(process.returncode)}"
            if await self.spec.answers(spawned_at):
                return None
            await asyncio.wait({exit_task}, timeout=pause_s)
            pause_s = min(pause_s * 1.3, 0.3)
        await self._end(process, exit_task)
        return f"did not answer within {self.spec.start_timeout_s:.0f} s"

    async def stop(self) -> None:
        """End the process for good: TERM, grace, KILL."""
        self._stopping.set()
        if self._process is not None and self._exit is not None and not self._exit.done():
            self._set(state="stopping")
            await self._end(self._process, self._exit)
        self._set(state="stopped", process=None)

    async def _end(self, process: asyncio.subprocess.Process, exit_task: "asyncio.Task[int]") -> None:
        for signal_number, patience_s in ((signal.SIGTERM, self.spec.stop_grace_s), (signal.SIGKILL, 5.0)):
            if exit_task.done():
                return
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(signal_number)
            await asyncio.wait({exit_task}, timeout=patience_s)


def exit_text(returncode: int | None) -> str:
    """An exit status for people: ``exit code 3``, ``SIGKILL``."""
    if returncode is None:
        return "no exit code"
    if returncode >= 0:
        return f"exit code {returncode}"
    with contextlib.suppress(ValueError):
        return signal.Signals(-returncode).name
    return f"signal {-returncode}"


def log_tail(path: Path, lines: int = 12) -> tuple[str, ...]:
    """The last lines of a log; empty when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - 16384))
            return tuple(file.read().decode("utf-8", "replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ()
