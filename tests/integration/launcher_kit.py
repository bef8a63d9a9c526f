"""Real launchers with small scripts as engines, and a way to wait for what they do."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

LAUNCHER = (sys.executable, "-I", "-m", "workers.launcher")
BASE = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")

#: An engine with a child in its session, one in a session of its own and one that was double-forked.
FAMILY = """
import os, signal, subprocess, sys, time
sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
children = [subprocess.Popen(sleeper), subprocess.Popen(sleeper, start_new_session=True)]
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    os.execv(sleeper[0], sleeper)
print("family up", flush=True)
time.sleep(600)
"""

#: Ends only by SIGKILL, and so does its child.
STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    print("child up", flush=True)
    time.sleep(600)
print("up", flush=True)
time.sleep(600)
"""

T = TypeVar("T")


def eventually(look: Callable[[], T], what: str, within: float = 60.0) -> T:
    """What ``look`` returns as soon as that is true; fails after ``within`` seconds."""
    deadline = time.monotonic() + within
    while True:
        seen = look()
        if seen:
            return seen
        assert time.monotonic() < deadline, f"{what}: not within {within} s"
        time.sleep(0.02)


def python(script: str) -> list[str]:
    """The command that runs ``script``."""
    return [sys.executable, "-u", "-c", script]


def alive(pid: int, start_ticks: int | None = None) -> bool:
    """Whether a process lives (a zombie does not), and is the one that started then."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    return fields[0] not in "ZX" and start_ticks in (None, int(fields[19]))


def marked(attempt: str) -> list[int]:
    """Live processes whose environment names ``attempt``."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                if f"STANDFAST_ATTEMPT={attempt}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    found.append(int(entry.name))
    return [pid for pid in found if alive(pid)]


class Rank:
    """One rank's directory and launcher, driven by its files alone."""

    def __init__(self, root: Path, attempt: str = "kit/inference/0/1", rank: int = 0) -> None:
        self.root = root
        self.attempt = attempt
        self.rank = rank
        self.root.mkdir(exist_ok=True)

    def launch(
        self, *, secrets: dict[str, str] | None = None, options: Sequence[str] = ()
    ) -> subprocess.CompletedProcess[str]:
        """Start a detached launcher; returns when its first process has."""
        environment = {name: os.environ[name] for name in BASE if name in os.environ} | (secrets or {})
        command = [*LAUNCHER, str(self.root), "--rank", str(self.rank), "--host", "kit", "--detach", *options]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)

    def bind(self, argv: Sequence[str], **changes: Any) -> None:
        """Write the command."""
        entry = {
            "argv": list(argv),
            "environment": {},
            "secrets": [],
            "working_directory": None,
            "stop_grace_s": 5.0,
        } | changes
        self.write("bound.json", {"schema_version": 1, "attempt": self.attempt, "ranks": {str(self.rank): entry}})

    def request_stop(self, **fields: Any) -> None:
        """Write the request to stop."""
        self.write("stop.json", {"reason": "the test says so", "at": 0.0} | fields)

    def write(self, name: str, value: Any) -> None:
        """Put a file of the control plane in place."""
        temporary = self.root / f".{name}"
        temporary.write_text(json.dumps(value))
        temporary.replace(self.root / name)

    def state(self) -> dict[str, Any]:
        """The state now; empty before the first."""
        try:
            value = json.loads((self.root / "state" / f"{self.rank}.json").read_bytes())
        except FileNotFoundError:
            return {}
        assert isinstance(value, dict)
        return value

    def facts(self) -> dict[str, Any]:
        """The launcher's facts."""
        value = json.loads((self.root / "facts" / f"{self.rank}.json").read_bytes())
        assert isinstance(value, dict)
        return value

    def log(self) -> str:
        """The current log file."""
        path = self.root / "logs" / f"{self.rank}.log"
        try:
            return path.read_text(errors="replace")
        except FileNotFoundError:
            # Not written yet, or just being rotated.
            return ""

    def wait_for_phase(self, phase: str, within: float = 60.0) -> dict[str, Any]:
        """The first state in ``phase``."""
        return eventually(lambda: (s := self.state()).get("phase") == phase and s, f"phase {phase}", within) or {}

    def wait_for_processes(self, count: int) -> list[dict[str, Any]]:
        """The engine's processes once there are ``count``."""

        def look() -> list[dict[str, Any]]:
            processes = self.state().get("processes", [])
            return processes if len(processes) == count else []

        return eventually(look, f"{count} processes")

    def wait_for_line(self, text: str) -> None:
        """Until the engine has printed ``text``."""
        eventually(lambda: text in self.log(), f"the line {text!r}")


@contextlib.contextmanager
def cleared(*attempts: str, launchers: Callable[[], list[int]] = list) -> Iterator[None]:
    """Kill what a failed test leaves of ``attempts``."""
    try:
        yield
    finally:
        for pid in [*launchers(), *(pid for attempt in attempts for pid in marked(attempt))]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
