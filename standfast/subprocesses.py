"""Runs tools as child processes: their lines as they come, ended with everything they started when cancelled."""

import asyncio
import contextlib
import os
import re
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_TAIL_LINES = 60
_TERM_GRACE_S = 5.0


@dataclass(frozen=True)
class Finished:
    """How a child process ended (a negative number: by that signal), and the last lines it wrote."""

    returncode: int
    tail: tuple[str, ...]

    @property
    def log(self) -> str:
        """The last lines as one text."""
        return "\n".join(self.tail)


def without_credentials(line: str) -> str:
    """``line`` with user names and passwords in URLs hidden."""
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", line)


async def run(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: Path,
    lock: int,
    on_line: Callable[[str], None],
    on_tick: Callable[[], None],
    tick_s: float = 5.0,
    log: Path | None = None,
) -> Finished:
    """Run a command to its end.

    ``on_line`` gets every line of its output (both streams), ``on_tick`` is called whenever none came for ``tick_s``
    seconds; ``log`` is appended to. The child inherits the ``lock`` descriptor: where its parent is killed, the lock
    is held for as long as the child still writes (`standfast.diskcache.locked`). A cancellation ends the child and
    everything it started. Raises ``OSError``.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=cwd,
        env=dict(environ),
        start_new_session=True,
        pass_fds=(lock,),
    )
    assert child.stdout is not None
    try:
        with contextlib.ExitStack() as stack:
            sink = stack.enter_context(log.open("a", encoding="utf-8")) if log is not None else None
            async for line in _lines(child.stdout, tick_s):
                if line is None:
                    on_tick()
                    continue
                shown = without_credentials(line)
                tail.append(shown)
                if sink is not None:
                    sink.write(f"{shown}\n")
                    sink.flush()
                on_line(shown)
        return Finished(await child.wait(), tuple(tail))
    finally:
        if child.returncode is None:
            await _end(child)


async def _lines(stream: asyncio.StreamReader, tick_s: float) -> AsyncIterator[str | None]:
    """Lines as they come, and ``None`` whenever none came for a while."""
    pending = b""
    reading: asyncio.Task[bytes] | None = None
    try:
        while True:
            reading = reading or asyncio.ensure_future(stream.read(65536))
            done, _ = await asyncio.wait({reading}, timeout=tick_s)
            if not done:
                yield None
                continue
            chunk, reading = reading.result(), None
            *whole, pending = (pending + chunk).replace(b"\r", b"\n").split(b"\n")
            for line in whole:
                if line.strip():
                    yield line.decode(errors="replace")
            if not chunk:
                if pending.strip():
                    yield pending.decode(errors="replace")
                return
    finally:
        if reading is not None:
            reading.cancel()


async def _end(child: asyncio.subprocess.Process) -> None:
    for sent, patience in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sent)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), patience)
            return
