"""``python -I -m workers.launcher ATTEMPT_DIR --rank R --host NAME [--address ADDRESS] [--detach]``

Exit codes: 0 the rank has ended, or (``--detach``) its launcher runs, or another launcher has this rank; 1 the launcher
could not start; 2 wrong use.
"""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from workers.launcher import linux
from workers.launcher.logs import ROTATE_BYTES
from workers.launcher.protocol import AttemptDirectory, take_lock
from workers.launcher.supervisor import Supervisor


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the launcher in this process, or detached from it."""
    parser = argparse.ArgumentParser(prog="workers.launcher", description="Run one rank of an attempt.")
    parser.add_argument("directory", type=Path, help="the attempt directory")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--host", required=True, help="the name of this node")
    parser.add_argument("--address", default="127.0.0.1", help="where other ranks reach this node")
    parser.add_argument("--detach", action="store_true", help="go on in the background; return once facts are written")
    parser.add_argument("--log-bytes", type=int, default=ROTATE_BYTES, help="size at which the engine's log is rotated")
    given = parser.parse_args(arguments)
    directory = AttemptDirectory(given.directory.absolute(), given.rank)
    directory.create()

    def live(started: Callable[[], None]) -> None:
        lock = take_lock(directory.lock)
        if lock is None:
            started()
            return
        linux.name_process("standfast-rank")
        linux.become_subreaper()
        Supervisor(directory, host=given.host, address=given.address, log_bytes=given.log_bytes).run(started)

    if given.detach:
        return _detach(live, directory.launcher_log)
    live(lambda: None)
    return 0


def _detach(live: Callable[[Callable[[], None]], None], log: Path) -> int:
    """Run ``live`` in a process without terminal, parent or shared session; return when it has reported."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        os.waitpid(child, 0)
        with os.fdopen(reading, encoding="utf-8", errors="replace") as report:
            text = report.read()
        if text == "started":
            return 0
        sys.stderr.write(text or "the launcher ended before it could report\n")
        return 1
    os.setsid()
    if os.fork():
        os._exit(0)
    code = 1
    try:
        os.close(reading)
        reported = False

        def started() -> None:
            nonlocal reported
            reported = True
            os.write(writing, b"started")
            os.close(writing)

        try:
            _redirect(log)
            live(started)
            code = 0
        except BaseException:
            text = traceback.format_exc()
            if not reported:
                os.write(writing, text.encode("utf-8", "replace"))
            sys.stderr.write(text)
    finally:
        os._exit(code)


def _redirect(log: Path) -> None:
    null = os.open(os.devnull, os.O_RDONLY)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(null)
    os.close(output)


if __name__ == "__main__":
    sys.exit(main())
