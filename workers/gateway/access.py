"""The access log: one JSON line per request, in structlog's form, without bodies, keys or query strings.

structlog's own chain costs about a quarter of a whole request here, so the line is encoded directly. Lines are
written in batches by a thread: a reader of the log that stalls must not stall the gateway. When it stalls for long,
lines are dropped and counted.
"""

import asyncio
import os
from datetime import UTC, datetime

import msgspec

_BATCH_S = 0.2
_MOST_WAITING = 8 * 1024 * 1024


class AccessLine(msgspec.Struct, gc=False, omit_defaults=True):
    """One request. ``outcome``: ok, refused, backend_fault, cut or client_gone. Times are milliseconds from the
    complete request on.
    """

    event: str
    method: str
    path: str
    status: int
    outcome: str
    request_id: str
    client: str
    duration_ms: float
    bytes_out: int
    model: str = ""
    generation: str = ""
    backend: str = ""
    first_byte_ms: float = -1.0
    level: str = ""
    timestamp: datetime | None = None


class AccessLog:
    """Collects lines and writes them to the file descriptor ``fd``; None writes nothing."""

    def __init__(self, fd: int | None) -> None:
        self._fd = fd
        self.enabled = fd is not None
        self._waiting = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None
        self._encoder = msgspec.json.Encoder()
        self.dropped = 0

    def add(self, line: AccessLine) -> None:
        if self._fd is None:
            return
        if len(self._waiting) > _MOST_WAITING:
            self.dropped += 1
            return
        line.level = "info"
        line.timestamp = datetime.now(UTC)
        self._waiting += self._encoder.encode(line)
        self._waiting += b"\n"
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_BATCH_S, self._write_batch)

    def _write_batch(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        if self._writing is not None and not self._writing.done():
            self._timer = loop.call_later(_BATCH_S, self._write_batch)
            return
        if self._waiting and self._fd is not None:
            batch, self._waiting = bytes(self._waiting), bytearray()
            self._writing = loop.run_in_executor(None, _write_all, self._fd, batch)

    async def close(self) -> None:
        """Write what is waiting; gives up when the reader does not take it within a second."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        try:
            async with asyncio.timeout(1.0):
                if self._writing is not None:
                    await self._writing
                if self._waiting and self._fd is not None:
                    batch, self._waiting = bytes(self._waiting), bytearray()
                    await asyncio.get_running_loop().run_in_executor(None, _write_all, self._fd, batch)
        except TimeoutError:
            self._fd = None
            self.enabled = False


def _write_all(fd: int, batch: bytes) -> None:
    view = memoryview(batch)
    try:
        while view:
            view = view[os.write(fd, view) :]
    except OSError:
        return
