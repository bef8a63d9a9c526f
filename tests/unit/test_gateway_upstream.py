"""A connection to a backend, over a transport that only notes what is done to it."""

import asyncio
from typing import cast

from tests.support.gateway import on_uvloop
from workers.gateway.responses import ResponseHead
from workers.gateway.routing import Target
from workers.gateway.settings import Settings
from workers.gateway.upstream import Pool, UpstreamConnection


class NotedTransport:
    """Stands for a TCP transport."""

    def __init__(self) -> None:
        self.written = b""
        self.reading = True
        self.open = True
        self.unsent = 0

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: tuple[bytes, ...]) -> None:
        self.written += b"".join(parts)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.open = False

    abort = close

    def is_closing(self) -> bool:
        return not self.open

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def get_extra_info(self, _name: str) -> None:
        return None


class Sink:
    """Collects a response; ``slow`` pauses the connection with each piece, as a client does that does not read."""

    def __init__(self, connection: UpstreamConnection, *, slow: bool = False) -> None:
        self.connection = connection
        self.slow = slow
        self.body = b""
        self.lost = ""

    def on_response(self, head: ResponseHead, body: bytes, complete: bool) -> None:
        self.body += body
        if self.slow:
            self.connection.pause()
        if complete:
            self.connection.done(0.0)

    def on_upstream_lost(self, why: str) -> None:
        self.lost = why


def a_pool() -> Pool:
    return Pool(Target("b", "http://127.0.0.1:1"), Settings())


def a_connection(pool: Pool) -> tuple[UpstreamConnection, NotedTransport]:
    connection, transport = UpstreamConnection(pool, 1 << 18), NotedTransport()
    connection.connection_made(cast("asyncio.Transport", transport))
    return connection, transport


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


@on_uvloop
async def test_a_connection_that_was_slowed_down_reads_again_for_the_next_request() -> None:
    pool = a_pool()
    connection, transport = a_connection(pool)
    sink = Sink(connection, slow=True)
    connection.send(sink, b"head", b"body")
    connection.data_received(WHOLE)
    assert (transport.written, sink.body) == (b"headbody", b"ok")
    assert pool.take(0.0) is connection
    assert transport.reading


@on_uvloop
async def test_a_connection_with_unsent_bytes_is_not_kept() -> None:
    pool = a_pool()
    connection, transport = a_connection(pool)
    transport.unsent = 1
    connection.send(Sink(connection), b"head", b"x" * 100_000)
    connection.data_received(WHOLE)
    assert pool.take(0.0) is None
    assert not transport.open


@on_uvloop
async def test_a_closed_pool_keeps_nothing() -> None:
    pool = a_pool()
    connection, transport = a_connection(pool)
    sink = Sink(connection)
    connection.send(sink, b"head", b"")
    pool.close()
    connection.data_received(WHOLE)
    assert sink.body == b"ok"
    assert not transport.open


@on_uvloop
async def test_old_connections_are_swept() -> None:
    pool = a_pool()
    connection, transport = a_connection(pool)
    connection.send(Sink(connection), b"head", b"")
    connection.data_received(WHOLE)
    states = []
    for now in (1.9, 2.1):
        pool.sweep(now)
        states.append(transport.open)
    assert states == [True, False]
    assert pool.take(2.1) is None


@on_uvloop
async def test_a_connection_that_the_backend_is_closing_is_not_taken() -> None:
    pool = a_pool()
    connection, _ = a_connection(pool)
    connection.send(Sink(connection), b"head", b"")
    connection.data_received(WHOLE)
    connection.eof_received()
    assert pool.take(0.0) is None


@on_uvloop
async def test_heads_and_bodies_may_come_in_any_pieces() -> None:
    chunked = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n1;x=y\r\n!\r\n0\r\nT: t\r\n\r\n"
    for message, body in ((WHOLE, b"ok"), (chunked, b"ok!")):
        for cut in range(1, len(message)):
            pool = a_pool()
            connection, _ = a_connection(pool)
            for pieces in ((message[:cut], message[cut:]), (message,), (message[:cut], message[cut:])):
                sink = Sink(connection)
                connection.send(sink, b"head", b"")
                for piece in pieces:
                    connection.data_received(piece)
                assert (sink.body, sink.lost) == (body, "")
                assert pool.take(0.0) is connection
