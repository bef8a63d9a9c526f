"""Reading the logs of attempts, across restarts of the engine."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Protocol

from standfast.client.views import LogLine
from standfast.problems import UserError

if TYPE_CHECKING:
    from standfast.registry import Registry, StoredAttempt

POLL_S = 0.2
ATTEMPT_POLL_S = 1.0
CHUNK = 1 << 20


class LogReader(Protocol):
    """What of `standfast.platforms.base.Platform` is used here."""

    def read_log(self, attempt: str, rank: int, offset: int, limit: int = CHUNK) -> tuple[bytes, int]:
        """Bytes from ``offset``, and the offset to go on from."""
        ...


class RankLog:
    """A place in the log of one rank of one attempt."""

    def __init__(self, platform: LogReader, attempt: str, rank: int) -> None:
        self._platform = platform
        self._attempt = attempt
        self._rank = rank
        self._offset = 0
        self._partial = b""

    async def new_lines(self) -> list[LogLine]:
        """The whole lines written since the last call."""
        found: list[LogLine] = []
        while True:
            try:
                data, offset = await asyncio.to_thread(
                    self._platform.read_log, self._attempt, self._rank, self._offset, CHUNK
                )
            except FileNotFoundError:
                return found
            if not data:
                return found
            self._offset = offset
            *whole, self._partial = (self._partial + data).split(b"\n")
            found += [self._line(line) for line in whole]

    def last_line(self) -> list[LogLine]:
        """What was written without an end of line."""
        return [self._line(self._partial)] if self._partial else []

    def _line(self, text: bytes) -> LogLine:
        return LogLine(attempt=self._attempt, rank=self._rank, text=text.decode("utf-8", "replace").rstrip("\r"))


async def read_logs(
    registry: "Registry",
    platform: LogReader,
    deployment: str,
    *,
    replica: int = 0,
    attempt: str | None = None,
    rank: int = 0,
    follow: bool = False,
    tail: int | None = None,
) -> AsyncIterator[LogLine]:
    """The lines of one attempt (default: the replica's newest); with ``follow`` also what comes, later attempts
    included.

    ``attempt`` is a number or a full attempt name; a named attempt is followed to its own end only. ``tail`` keeps only
    the last lines of what is there already. Raises `UserError`.
    """
    current = await find_attempt(registry, deployment, replica=replica, attempt=attempt)
    while True:
        log = RankLog(platform, current.name, rank)
        lines = await log.new_lines()
        for line in lines if tail is None else lines[len(lines) - min(tail, len(lines)) :]:
            yield line
        tail = None
        if not follow:
            for line in log.last_line():
                yield line
            return
        ended = False
        looked_at = 0.0
        successor: StoredAttempt | None = None
        while successor is None:
            if time.monotonic() - looked_at >= ATTEMPT_POLL_S:
                looked_at = time.monotonic()
                newest = await find_attempt(registry, deployment, replica=replica, attempt=attempt)
                ended = newest.name != current.name or newest.ended_at is not None
                successor = newest if newest.name != current.name else None
            for line in await log.new_lines():
                yield line
            if ended and attempt is not None:
                break
            await asyncio.sleep(POLL_S)
        for line in [*await log.new_lines(), *log.last_line()]:
            yield line
        if successor is None:
            return
        current = successor


async def find_attempt(registry: "Registry", deployment: str, *, replica: int, attempt: str | None) -> "StoredAttempt":
    """The replica's newest attempt, or the one asked for by number or by name. Raises `UserError`."""
    if attempt is not None and not attempt.isdigit():
        found = await registry.get_attempt(attempt)
        if found is None or found.deployment != deployment:
            raise UserError(
                f"{deployment} has no attempt {attempt!r}.", help=f"`standfast status {deployment}` lists them."
            )
        return found
    attempts = await registry.list_attempts(deployment=deployment, replica=replica, limit=None if attempt else 1)
    if attempt is not None:
        attempts = [a for a in attempts if a.number == int(attempt)]
    if not attempts:
        wanted = f"attempt {attempt}" if attempt is not None else "attempt"
        raise UserError(
            f"replica {replica} of {deployment} has no {wanted}, so there is no log.",
            help=f"`standfast status {deployment}` shows what there is.",
        )
    return attempts[0]
