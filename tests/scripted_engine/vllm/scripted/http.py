"""Just enough HTTP/1.1: keep-alive, pipelining, chunked bodies, and a handler that ends when its client goes."""

import asyncio
import json
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any


@dataclass(frozen=True)
class Request:
    """A complete request. Header names are lower-case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Connection(asyncio.Protocol):
    """One client connection. ``handle`` answers with `send` or `begin_stream`, `chunk` and `end_stream`."""

    def __init__(self, handle: "Callable[[Connection, Request], Awaitable[None]]") -> None:
        self._handle = handle
        self._buffer = bytearray()
        self._task: asyncio.Task[None] | None = None
        self._keep_alive = True
        self._writable = asyncio.Event()
        self._writable.set()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        self._writable.set()
        if self._task is not None:
            self._task.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._advance()

    def _advance(self) -> None:
        if self._task is not None:
            return
        try:
            request = self._parse()
        except (ValueError, IndexError):
            self._keep_alive = False
            self.send(400, {"error": "bad request"})
            return
        if request is not None:
            connection = request.headers.get("connection", "").lower()
            self._keep_alive = "close" not in connection
            self._task = asyncio.get_running_loop().create_task(self._run(request))

    async def _run(self, request: Request) -> None:
        try:
            await self._handle(self, request)
        except asyncio.CancelledError:
            return
        except Exception as error:
            print(f"ERROR: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
            self.send(500, {"error": {"message": str(error), "type": "InternalServerError", "code": 500}})
        self._task = None
        self._advance()

    def _parse(self) -> Request | None:
        head_end = self._buffer.find(b"\r\n\r\n")
        if head_end < 0:
            return None
        first, *lines = self._buffer[:head_end].decode("latin-1").split("\r\n")
        method, path, _version = first.split(" ")
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        start = head_end + 4
        if headers.get("transfer-encoding", "").lower() == "chunked":
            decoded = self._chunked(start)
            if decoded is None:
                return None
            body, end = decoded
        else:
            end = start + int(headers.get("content-length", "0"))
            if len(self._buffer) < end:
                if headers.get("expect", "").lower() == "100-continue" and len(self._buffer) == start:
                    self._write(b"HTTP/1.1 100 Continue\r\n\r\n")
                return None
            body = bytes(self._buffer[start:end])
        del self._buffer[:end]
        return Request(method, path.partition("?")[0], headers, body)

    def _chunked(self, start: int) -> tuple[bytes, int] | None:
        body = bytearray()
        while True:
            line_end = self._buffer.find(b"\r\n", start)
            if line_end < 0:
                return None
            size = int(self._buffer[start:line_end].split(b";")[0], 16)
            end = line_end + 2 + size
            if len(self._buffer) < end + 2:
                return None
            body += self._buffer[line_end + 2 : end]
            start = end + 2
            if size == 0:
                return bytes(body), start

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def send(self, status: int, payload: Any = None, headers: dict[str, str] | None = None) -> None:
        """Answer completely; ``payload`` is sent as JSON (``None``: an empty body)."""
        body = b"" if payload is None else json.dumps(payload).encode()
        self._head(status, {"content-length": str(len(body)), "content-type": "application/json", **(headers or {})})
        self._write(body)
        if not self._keep_alive:
            self.close()

    def begin_stream(self) -> None:
        """Begin a stream of server-sent events."""
        self._head(200, {"content-type": "text/event-stream; charset=utf-8", "transfer-encoding": "chunked"})

    async def chunk(self, event: str) -> None:
        """Send one event; waits while the client does not read."""
        data = f"data: {event}\n\n".encode()
        self._write(b"%x\r\n%s\r\n" % (len(data), data))
        await self._writable.wait()

    def end_stream(self) -> None:
        """End a stream in order."""
        self._write(b"0\r\n\r\n")
        if not self._keep_alive:
            self.close()

    def close(self) -> None:
        """Close the connection once everything is written."""
        if self._transport is not None:
            self._transport.close()

    def _head(self, status: int, headers: dict[str, str]) -> None:
        lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "server: scripted"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if not self._keep_alive:
            lines.append("connection: close")
        self._write("\r\n".join([*lines, "", ""]).encode("latin-1"))
