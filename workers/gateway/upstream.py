"""Connections to backends: one request at a time each, reused while fresh."""

import asyncio
import socket
import ssl
from typing import Protocol, cast
from urllib.parse import urlsplit

from workers.gateway.responses import ResponseHead, ResponseReader
from workers.gateway.routing import Target
from workers.gateway.settings import Settings
from workers.gateway.whole import Cut, whole_response

_JOINED = 64 * 1024
"""Up to this size, copying head and body into one write is cheaper than two buffers."""


class ResponseSink(Protocol):
    """Who gets the response of a connection."""

    def on_response(self, head: ResponseHead, body: bytes, complete: bool) -> None:
        """``body`` arrived since the last call. The last call has ``complete``; the first one may be the last."""
        ...

    def on_upstream_lost(self, why: str) -> None:
        """The connection ended, or broke HTTP, before the response was complete."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """Carries one request at a time. The body of the response is handed on as it arrives, without the backend's
    framing, which the client never sees.
    """

    __slots__ = (
        "_closing",
        "_cut",
        "_fed",
        "_last_head",
        "_limit",
        "_paused",
        "_pool",
        "_reader",
        "_reusable",
        "_sink",
        "_transport",
        "idle_since",
    )

    def __init__(self, pool: "Pool", limit: int) -> None:
        self._pool = pool
        self._limit = limit
        self._reader = ResponseReader(limit)
        self._sink: ResponseSink | None = None
        self._fed = False
        self._reusable = False
        self._closing = False
        self._paused = False
        self._cut: Cut | None = None
        self._last_head: ResponseHead | None = None
        self._transport: asyncio.Transport
        self.idle_since = 0.0

    def send(self, sink: ResponseSink, head: bytes, body: bytes) -> None:
        """Send one request; ``sink`` hears of its response."""
        self._sink = sink
        self._fed = self._reusable = False
        if len(body) < _JOINED:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))

    def done(self, now: float) -> None:
        """The response is complete and handed on: keep the connection for the next request when that is safe."""
        self._sink = None
        if self._paused:
            self.resume()
        if self._reusable and not self._closing and self._transport.get_write_buffer_size() == 0:
            self.idle_since = now
            self._pool.keep(self)
        else:
            self.close()

    def abort(self) -> None:
        """Nobody waits for the response: end the connection at once, so that the backend stops working on it."""
        self._sink = None
        self._closing = True
        self._transport.abort()

    def close(self) -> None:
        self._closing = True
        self._transport.close()

    def pause(self) -> None:
        """Stop reading; the backend feels it once the socket's buffers are full."""
        if not self._paused and not self._closing and not self._transport.is_closing():
            self._paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        if self._paused and not self._closing and not self._transport.is_closing():
            self._paused = False
            self._transport.resume_reading()

    @property
    def usable(self) -> bool:
        return not self._closing

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tune(self._transport)

    def eof_received(self) -> None:
        self._closing = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._pool.forget(self)
        sink, self._sink = self._sink, None
        if sink is None:
            return
        reader = self._reader
        if self._fed and exc is None and reader.head is not None and reader.ends_with_connection:
            sink.on_response(reader.head, b"", True)
        else:
            sink.on_upstream_lost("it closed the connection" if exc is None else type(exc).__name__)

    def data_received(self, data: bytes) -> None:
        sink = self._sink
        if sink is None:
            self.abort()
            return
        reader = self._reader
        if not self._fed:
            if self._cut is not None and self._last_head is not None and (at := self._cut.body_at(data)):
                self._reusable = True
                sink.on_response(self._last_head, data[at:], True)
                return
            if whole := whole_response(data, head_limit=self._limit):
                self._last_head, body, self._cut = whole
                self._reusable = True
                sink.on_response(self._last_head, body, True)
                return
            self._fed = True
            reader.reset()
        news = reader.head is None
        fault = reader.feed(data)
        head = reader.head
        if head is not None and (news or reader.parts or reader.complete):
            self._reusable = reader.reusable
            sink.on_response(head, reader.take(), reader.complete)
        if fault and not reader.complete:
            self.abort()
            sink.on_upstream_lost(fault)


def tune(transport: asyncio.Transport) -> None:
    """No Nagle delay between a head and its first event; keep-alive probes find peers that vanished without a word."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)


class Pool:
    """The connections to one life of one backend."""

    def __init__(self, target: Target, settings: Settings) -> None:
        url = urlsplit(target.url)
        if url.scheme not in ("http", "https") or not url.hostname:
            raise ValueError(f"backend {target.id} has no http URL")
        self._host = url.hostname
        self._port = url.port or (443 if url.scheme == "https" else 80)
        self._ssl = ssl.create_default_context() if url.scheme == "https" else None
        self._settings = settings
        self._idle: list[UpstreamConnection] = []
        self._closed = False
        self.target = target
        self.prefix = url.path.rstrip("/").encode("ascii")
        authority = f"[{self._host}]" if ":" in self._host else self._host
        self.host_line = f" HTTP/1.1\r\nhost: {authority}:{self._port}\r\ncontent-length: ".encode("ascii")

    def take(self, now: float) -> UpstreamConnection | None:
        """An idle connection fresh enough that the backend is not about to close it."""
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and now - connection.idle_since <= self._settings.upstream_idle_s:
                return connection
            connection.close()
        return None

    async def connect(self) -> UpstreamConnection:
        """A new connection; :class:`OSError` (time-outs included) when there is none to be had."""
        limit = self._settings.response_head_bytes
        async with asyncio.timeout(self._settings.connect_timeout_s):
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: UpstreamConnection(self, limit), self._host, self._port, ssl=self._ssl
            )
        return connection

    def keep(self, connection: UpstreamConnection) -> None:
        if self._closed:
            connection.close()
            return
        self._idle.append(connection)

    def forget(self, connection: UpstreamConnection) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    def sweep(self, now: float) -> None:
        """Close idle connections that have grown too old to be reused."""
        oldest = now - self._settings.upstream_idle_s
        stale = [connection for connection in self._idle if connection.idle_since < oldest]
        self._idle = [connection for connection in self._idle if connection.idle_since >= oldest]
        for connection in stale:
            connection.close()

    def close(self) -> None:
        """Drop idle connections, and those in use once their response is complete."""
        self._closed = True
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()
