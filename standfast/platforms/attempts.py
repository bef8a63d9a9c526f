"""The control plane's side of attempt directories: names, files, and what a launcher reported.

The launcher's side is `workers.launcher.protocol`; the two share the files and no code, since the launcher must run
where Standfast is not installed.
"""

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pydantic
from pydantic import BaseModel, ConfigDict, Field

from standfast.plans.record import canonical_json
from standfast.platforms.base import ExitRecord, LaunchedRank, ProcessRef, RankPhase

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@:+-]*(/[A-Za-z0-9][A-Za-z0-9._@:+-]*)*")
_LONGEST_NAME = 240


class _Reported(BaseModel):
    # Later launchers may report more; what is known here must be right.
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class LogState(_Reported):
    """How the launcher's log fares: bytes that could not be written, and why."""

    dropped_bytes: int = 0
    error: str | None = None


class RankState(_Reported):
    """``state/<rank>.json`` as its launcher last wrote it."""

    attempt: str | None = None
    phase: RankPhase
    launcher_pid: int
    launcher_start_ticks: int
    boot_id: str = ""
    pid: int | None = None
    start_ticks: int | None = None
    beat: float
    processes: tuple[ProcessRef, ...] = ()
    exit: ExitRecord | None = None
    tail: tuple[str, ...] = ()
    log: LogState = Field(default_factory=LogState)


class _Facts(_Reported):
    rank: int
    host: str
    address: str
    pid: int
    start_ticks: int


class AttemptFiles:
    """The files of one attempt, under the directory of all attempts. Raises ValueError for an unusable name."""

    def __init__(self, root: Path, attempt: str) -> None:
        if not _NAME.fullmatch(attempt) or len(attempt) > _LONGEST_NAME:
            raise ValueError(f"{attempt!r} is not the name of an attempt")
        self.attempt = attempt
        self.directory = root / attempt.replace("/", "%")
        self.launch = self.directory / "launch.json"
        self.bound = self.directory / "bound.json"
        self.stop = self.directory / "stop.json"

    def state(self, rank: int) -> Path:
        """Where the launcher of ``rank`` reports."""
        return self.directory / "state" / f"{rank}.json"

    def beat(self, rank: int) -> Path:
        """What the launcher of ``rank`` touches at each beat."""
        return self.directory / "state" / f"{rank}.beat"

    def log(self, rank: int) -> Path:
        """The current log file of ``rank``."""
        return self.directory / "logs" / f"{rank}.log"

    def lock(self, rank: int) -> Path:
        """What the launcher of ``rank`` keeps locked while it lives."""
        return self.directory / f"lock.{rank}"

    def read_facts(self, rank: int) -> LaunchedRank | None:
        """Where the launcher of ``rank`` runs; None until it has said so."""
        text = read_bytes(self.directory / "facts" / f"{rank}.json")
        if text is None:
            return None
        facts = _Facts.model_validate_json(text)
        return LaunchedRank(
            rank=facts.rank, host=facts.host, address=facts.address, pid=facts.pid, start_ticks=facts.start_ticks
        )

    def read_state(self, rank: int) -> RankState | None:
        """The last report of ``rank``, or None. A file cut short by a crash of the host counts as none."""
        text = read_bytes(self.state(rank))
        return None if text is None else parse_state(text)

    @contextlib.contextmanager
    def holding_lock(self, rank: int) -> Iterator[bool]:
        """Hold the launcher's lock, so that none can start meanwhile; yields False if a launcher holds it."""
        path = self.lock(rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True
        finally:
            os.close(descriptor)


def attempt_of(directory: Path) -> str:
    """The attempt whose directory this is."""
    return directory.name.replace("%", "/")


def parse_state(text: bytes) -> RankState | None:
    """A launcher's report, or None if it is not one."""
    try:
        return RankState.model_validate_json(text)
    except pydantic.ValidationError:
        return None


def read_bytes(path: Path) -> bytes | None:
    """The content of ``path``, or None if there is no such file."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return None


def replace_json(path: Path, value: Any) -> None:
    """Write ``path`` in one step: readers see the old content or the new one."""
    temporary = _write_beside(path, canonical_json(value))
    temporary.replace(path)


def create_json(path: Path, value: Any) -> bytes:
    """Write ``path`` in one step unless it exists, and return what it holds then: of several writers, one wins."""
    existing = read_bytes(path)
    if existing is not None:
        return existing
    data = canonical_json(value)
    temporary = _write_beside(path, data)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return path.read_bytes()
    finally:
        temporary.unlink()
    return data


def _write_beside(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}.tmp")
    temporary.write_bytes(data)
    return temporary
