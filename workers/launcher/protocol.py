"""The attempt directory: what the launcher reads and writes, and how readers never see half a file.

The control plane writes:

- ``bound.json``: the commands of all ranks
- ``stop.json``: a request to stop: reason, at, grace_s (optional)

The launcher of each rank writes:

- ``facts/<rank>.json``: where it runs: rank, host, address, pid, start_ticks, gpus, launcher_version
- ``state/<rank>.json``: phase, beat, processes, exit record, last log lines
- ``state/<rank>.beat``: empty; its time is that of the last beat (the beat in the state may be 5 s older)
- ``logs/<rank>.log``: what the engine printed, secrets replaced
- ``lock.<rank>``: locked (flock) while a launcher lives
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

#: Bytes set aside for each of two spare state files, for the day the disk is full.
RESERVE_BYTES = 64 << 10


class AttemptDirectory:
    """The paths of one rank's files."""

    def __init__(self, root: Path, rank: int) -> None:
        self.root = root
        self.rank = rank
        self.facts = root / "facts" / f"{rank}.json"
        self.bound = root / "bound.json"
        self.stop = root / "stop.json"
        self.state = root / "state" / f"{rank}.json"
        self.beat = root / "state" / f"{rank}.beat"
        self.log = root / "logs" / f"{rank}.log"
        self.launcher_log = root / "logs" / f"launcher.{rank}.log"
        self.lock = root / f"lock.{rank}"
        self.work = root / "work" / str(rank)

    def create(self) -> None:
        """Make the directories that a launcher writes into."""
        for directory in (self.facts.parent, self.state.parent, self.log.parent, self.work):
            directory.mkdir(parents=True, exist_ok=True)


def take_lock(path: Path) -> int | None:
    """A descriptor that holds the lock until this process ends, or None if another process holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in ``path``, or None if there is no such file. Raises ValueError for anything but a JSON object."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds {type(value).__name__} where an object is needed")
    return value


def encode(value: dict[str, Any]) -> bytes:
    """``value`` as UTF-8 JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def replace_file(path: Path, data: bytes) -> None:
    """Write ``path`` in one step: readers see the old content or the new. Raises OSError, leaving nothing behind."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    except OSError:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


class StateFile:
    """The state file of a rank, replaced as a whole at each write, on a full disk too.

    Two spare files of `RESERVE_BYTES` are allocated at the start. When there is no room for a new file, the state is
    written into a spare one, whose blocks exist, and renamed into place; the spare one that it replaces is kept by a
    second link and used for the next write. So a full disk stops logs, but neither beats nor the exit record.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._names = tuple(path.with_name(f".{path.name}.spare{index}") for index in (0, 1))
        self._live_is_spare = False

    def reserve(self) -> None:
        """Allocate the spare files. Raises OSError when there is no room for them."""
        for name in self._names:
            name.write_bytes(b" " * RESERVE_BYTES)

    def release(self) -> None:
        """Delete the spare files; the state stays."""
        for name in self._names:
            with contextlib.suppress(OSError):
                name.unlink()

    def write(self, state: dict[str, Any]) -> bool:
        """Replace the state; False if that was not possible."""
        self._keep_spare()
        try:
            replace_file(self._path, encode(state))
            self._live_is_spare = False
            return True
        except OSError:
            pass
        try:
            self._write_into_spare(_fit(state))
            return True
        except OSError:
            return False

    def _keep_spare(self) -> None:
        """Give the live file a spare name again if it is one of the spare files."""
        if not self._live_is_spare:
            return
        for name in self._names:
            with contextlib.suppress(OSError):
                os.link(self._path, name)
                return

    def _write_into_spare(self, data: bytes) -> None:
        live = self._path.stat().st_ino if self._path.exists() else -1
        spare = next((name for name in self._names if name.exists() and name.stat().st_ino != live), None)
        if spare is None:
            raise FileNotFoundError("no spare file is left")
        with spare.open("r+b") as file:
            file.write(data.ljust(RESERVE_BYTES))
        spare.replace(self._path)
        self._live_is_spare = True


def _fit(state: dict[str, Any]) -> bytes:
    """``state`` in at most `RESERVE_BYTES`: the oldest log lines go first, then processes."""
    data = encode(state)
    while len(data) > RESERVE_BYTES and (state["tail"] or state["processes"]):
        shortened = "tail" if state["tail"] else "processes"
        kept = len(state[shortened]) // 2
        state = {**state, shortened: state[shortened][len(state[shortened]) - kept :]}
        data = encode(state)
    return data
