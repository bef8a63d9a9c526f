"""What a stack tells about itself: ``<home>/run/stack.json``, and the lock that says whether it runs.

The lock is the truth about "running": the kernel gives it back when the supervisor dies, whatever the record says.
"""

import fcntl
import os
import time
from pathlib import Path
from typing import IO, Literal

from pydantic import ValidationError

from standfast.home import Home
from standfast.plans.record import Record
from standfast.stack.processes import ProcessRef

LAST_WORD = "standfast-stack-failed "
"""Begins the last line of the log of a background supervisor that could not come up; a JSON object follows."""


class TemporalRecord(Record):
    """Where Temporal answers.

    ``managed``: the stack runs it; else it was given by ``TEMPORAL_ADDRESS`` or a ``profile``.
    """

    address: str
    namespace: str
    managed: bool
    ui: str | None = None
    profile: str | None = None


class PartRecord(Record):
    """One supervised process."""

    name: Literal["temporal", "worker", "gateway"]
    state: Literal["waiting", "starting", "ready", "restarting", "stopping", "stopped"] = "waiting"
    process: ProcessRef | None = None
    restarts: int = 0
    detail: str = ""
    log: str


class StackRecord(Record):
    """One embedded stack. It holds addresses and process ids, never a secret."""

    schema_version: Literal[1] = 1
    state: Literal["starting", "ready", "stopping", "stopped", "failed"]
    supervisor: ProcessRef
    started_at: float
    temporal: TemporalRecord
    gateway: str
    """The gateway's base URL as clients on this host reach it."""
    ports: dict[str, int]
    """By option name: ``temporal``, ``ui``, ``gateway``; the next stack of this home prefers them."""
    parts: tuple[PartRecord, ...]
    notices: tuple[str, ...] = ()
    error: str | None = None

    def part(self, name: str) -> PartRecord | None:
        """The part of that name."""
        return next((part for part in self.parts if part.name == name), None)


def record_path(home: Home) -> Path:
    return home.run / "stack.json"


def api_key_path(home: Home) -> Path:
    return home.run / "api-key"


def read_record(home: Home) -> StackRecord | None:
    """The last record of this home's stack, running or not; None when there is none that this version can read."""
    try:
        return StackRecord.model_validate_json(record_path(home).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None


def write_record(home: Home, record: StackRecord) -> None:
    """Replace the record in one step."""
    write_private(record_path(home), record.model_dump_json(indent=2) + "\n")


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner reads, in one step."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(text)
    scratch.replace(path)


def read_api_key(home: Home) -> str | None:
    """The key that the first ``up`` made, for tools on this host."""
    try:
        return api_key_path(home).read_text().strip() or None
    except FileNotFoundError:
        return None


class StackLock:
    """Held by the one supervisor of a home while it lives."""

    def __init__(self, home: Home) -> None:
        self._path = home.run / "stack.lock"
        self._file: IO[str] | None = None

    def acquire(self, *, patience_s: float = 0.5) -> bool:
        """Take the lock; a short patience outlasts those who only look (`is_running`). False when another supervisor
        holds it.
        """
        self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self._path.open("a")
        deadline = time.monotonic() + patience_s
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    file.close()
                    return False
                time.sleep(0.02)
            else:
                self._file = file
                return True

    def release(self) -> None:
        """Give the lock back."""
        if self._file is not None:
            self._file.close()
            self._file = None


def is_running(home: Home) -> bool:
    """Whether a supervisor holds this home's lock. Creates nothing."""
    try:
        file = (home.run / "stack.lock").open()
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False


def running_stack(home: Home) -> StackRecord | None:
    """The record of the stack that runs in this home, or None."""
    return read_record(home) if is_running(home) else None
