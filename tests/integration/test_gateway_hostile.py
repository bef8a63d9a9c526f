"""Requests that are malformed, too large, too slow, or mean two things at once."""

import asyncio
import dataclasses

import pytest

from tests.support.gateway import (
    KEY,
    QUICK,
    Client,
    Engine,
    MemoryRoutes,
    a_body,
    a_gateway,
    a_request,
    on_uvloop,
    routes_to,
    until,
)
from workers.gateway.settings import Settings

HEAD = f"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {KEY}\r\n".encode()
BODY = a_body()
SMUGGLED = b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(BODY), len(BODY)) + BODY, 400),
        (HEAD + b"Content-Length: %d\r\nContent-Length: 0\r\n\r\n" % len(BODY) + BODY, 400),
        (HEAD + b"Content-Length: %d, %d\r\n\r\n" % (len(BODY), len(BODY)) + BODY, 400),
        (HEAD + b"Content-Length: +%d\r\n\r\n" % len(BODY) + BODY, 400),
        (HEAD + b"Content-Length: -1\r\n\r\n" + BODY, 400),
        (HEAD + b"Content-Length: 0x10\r\n\r\n" + BODY, 400),
        (HEAD + b"Content-Length:\r\n\r\n" + BODY, 400),
        (HEAD + b"Content-Length: 99999999999999999999999\r\n\r\n" + BODY, 400),
        (HEAD + b"Content-Length : %d\r\n\r\n" % len(BODY) + BODY, 400),
        (HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501),
        (HEAD + b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: identity\r\n\r\n" + BODY, 501),
        (HEAD + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\nhello\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n", 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n", 400),
        (HEAD + b"X: a\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY, 400),
        (HEAD.replace(b"HTTP/1.1\r\n", b"HTTP/1.1\n") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"X: a\r\n folded\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"X: a\rb\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"X: a\0b\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"X\0: b\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"no colon\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b": empty\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD + b"Host: second\r\nContent-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b"Host: gateway\r\n", b"") + b"Content-Length: 2\r\n\r\n{}", 400),
        (HEAD.replace(b"HTTP/1.1", b"HTTP/1.0") + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (HEAD.replace(b"HTTP/1.1", b"HTTP/2.0") + b"Content-Length: 2\r\n\r\n{}", 505),
        (HEAD.replace(b"HTTP/1.1", b"HTTP/0.9") + b"Content-Length: 2\r\n\r\n{}", 505),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
        (b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: elsewhere\r\n\r\n", 405),
        (b"HELLO / HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /v1/mod els HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /v1/\x80 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00", 400),
        (HEAD + b"Expect: 200-maybe\r\nContent-Length: 2\r\n\r\n{}", 417),
    ],
    ids=lambda value: repr(value[-70:]) if isinstance(value, bytes) else str(value),
)
@on_uvloop
async def test_a_request_that_is_not_plain_http_is_refused_and_the_connection_closed(
    request_bytes: bytes, status: int
) -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        answer = await client.ask(request_bytes + SMUGGLED)
        assert (answer.status, answer.headers["connection"]) == (status, "close")
        assert answer.json()["error"]["message"]
        client.writer.write_eof()
        assert await client.closed() == b""
    assert engine.requests == []


@on_uvloop
async def test_two_authorizations_are_refused() -> None:
    twice = f"Authorization: Bearer {KEY}\r\n"
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        assert (await client.ask(a_request(headers=twice))).status == 400
    assert engine.requests == []


@on_uvloop
async def test_an_earlier_request_is_answered_before_the_refusal() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.send(a_request() + HEAD + b"X: a\nY: b\r\n\r\n")
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 400
    assert len(engine.requests) == 1


@on_uvloop
async def test_bytes_after_a_last_request_are_not_a_request() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.send(a_request(headers="Connection: close\r\n") + a_request())
        assert (await client.answer()).status == 200
        assert await client.closed() == b""
    assert len(engine.requests) == 1


SMALL = dataclasses.replace(QUICK, body_bytes=1000, head_bytes=2000, target_bytes=500, discard_bytes=2000)


@on_uvloop
async def test_a_body_beyond_the_limit_is_refused_before_it_is_sent() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine), SMALL) as gateway, Client.of(gateway) as client:
        for headers in ("", "Expect: 100-continue\r\n"):
            head = a_request(b"x" * 3000, headers=headers).partition(b"\r\n\r\n")[0] + b"\r\n\r\n"
            async with Client.of(gateway) as other:
                answer = await other.ask(head)
                assert (answer.status, answer.code) == (413, "body_too_large")
                assert answer.headers["connection"] == "close"
        whole = await client.ask(a_request(b"x" * 1001))
        assert (whole.status, whole.code) == (413, "body_too_large")
        assert (await client.ask(a_request())).status == 200
        exact = a_body(pad="x" * (1000 - len(a_body(pad=""))))
        assert (await client.ask(a_request(exact))).status == 200
        assert gateway.core.budget.used == 0
    assert len(engine.requests) == 2


@on_uvloop
async def test_a_chunked_body_beyond_the_limit_is_refused_as_it_comes() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine), SMALL) as gateway, Client.of(gateway) as client:
        await client.send(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
        for _ in range(11):
            await client.send(b"64\r\n" + b"x" * 100 + b"\r\n")
        answer = await client.answer()
        assert (answer.status, answer.headers["connection"]) == (413, "close")
        assert gateway.core.budget.used == 0
    assert engine.requests == []


@on_uvloop
async def test_the_refusal_survives_bytes_that_are_still_coming() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        body = b"x" * (70 * 1024 * 1024)
        sending = asyncio.create_task(client.send(a_request(body)))
        answer = await client.answer()
        assert (answer.status, answer.code) == (413, "body_too_large")
        await asyncio.wait([sending])
        sending.exception()


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (HEAD + b"X: " + b"y" * 3000 + b"\r\n\r\n", 431),
        (HEAD + b"X: y\r\n" * 600 + b"\r\n", 431),
        (HEAD + b"X: " + b"y" * 3000, 431),
        (b"GET /" + b"x" * 600 + b" HTTP/1.1\r\nHost: x\r\n\r\n", 414),
        (b"POST /" + b"x" * 600 + b" HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n", 414),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;" + b"e" * 5000, 400),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 10 + b"0\r\nT: " + b"t" * 6000, 400),
    ],
    ids=lambda value: repr(value[-60:]) if isinstance(value, bytes) else str(value),
)
@on_uvloop
async def test_heads_targets_and_framing_have_limits(request_bytes: bytes, status: int) -> None:
    async with Engine() as engine, a_gateway(routes_to(engine), SMALL) as gateway, Client.of(gateway) as client:
        for start in range(0, len(request_bytes), 1500):
            await client.send(request_bytes[start : start + 1500])
            await asyncio.sleep(0.01)
        assert (await client.answer()).status == status
    assert engine.requests == []


@on_uvloop
async def test_large_bodies_together_have_a_limit() -> None:
    settings = Settings(poll_s=0.01, buffered_bytes=1000)
    request = a_request(a_body(pad="x" * 600))
    async with Engine() as engine, a_gateway(routes_to(engine), settings) as gateway:
        async with Client.of(gateway) as one, Client.of(gateway) as two:
            await one.send(request[:-100])
            await until(lambda: gateway.core.budget.used > 400)
            refused = await two.ask(request)
            assert (refused.status, refused.code, refused.headers["retry-after"]) == (503, "gateway_busy", "1")
            await one.send(request[-100:])
            assert (await one.answer()).status == 200
        async with Client.of(gateway) as three:
            assert (await three.ask(request)).status == 200
            await three.send(request[:-1])
            await until(lambda: gateway.core.budget.used > 400)
        await until(lambda: gateway.core.budget.used == 0)


@on_uvloop
async def test_a_refused_body_is_read_and_dropped_and_the_connection_goes_on() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        big = a_request(a_body(pad="x" * 500_000), key=None)
        assert (await client.ask(big)).status == 401
        assert (await client.ask(a_request(key=None, headers="Expect: 100-continue\r\n")[:-14])).status == 401
        assert gateway.core.budget.used == 0
    assert engine.requests == []


@on_uvloop
async def test_what_never_comes_to_an_end_is_timed_out() -> None:
    settings = Settings(poll_s=0.01, head_timeout_s=1e4, body_timeout_s=1e5, idle_timeout_s=1e6)
    loop = asyncio.get_running_loop()
    async with Engine() as engine, a_gateway(routes_to(engine), settings) as gateway:
        async with (
            Client.of(gateway) as silent,
            Client.of(gateway) as head,
            Client.of(gateway) as body,
            Client.of(gateway) as idle,
        ):
            await head.send(HEAD)
            await body.send(a_request()[:-3])
            assert (await idle.ask(a_request())).status == 200
            await until(lambda: len(gateway.core.connections) == 4 and gateway.core.budget.used > 0)
            await until(lambda: sum(c._reader.request is not None for c in gateway.core.connections) == 2)  # type: ignore[attr-defined]
            gateway.core.sweep(loop.time())
            gateway.core.sweep(loop.time() + settings.head_timeout_s + 1.0)
            assert (await head.answer()).status == 408
            assert await silent.closed() == b""
            gateway.core.sweep(loop.time() + settings.body_timeout_s + 1.0)
            assert (await body.answer()).status == 408
            assert (await idle.ask(a_request())).status == 200
            gateway.core.sweep(loop.time() + settings.idle_timeout_s + 1.0)
            assert await idle.closed() == b""
        assert gateway.core.budget.used == 0


@on_uvloop
async def test_endless_pipelining_is_not_buffered() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine), QUICK) as gateway, Client.of(gateway) as client:
        never = asyncio.Event()
        engine.script = lambda _request, _connection: never.wait()  # type: ignore[assignment,return-value]
        await client.send(a_request())
        await until(lambda: len(engine.requests) == 1)
        (connection,) = gateway.core.connections
        sending = asyncio.create_task(client.send(a_request(method="GET", path="/v1/models") * 200_000))
        await until(lambda: connection._pauses != 0 or connection._reader.stopped)  # type: ignore[attr-defined]
        assert len(connection._queue) < 6000  # type: ignore[attr-defined]
        sending.cancel()


@on_uvloop
async def test_a_gateway_without_routes_refuses_in_words() -> None:
    async with a_gateway(MemoryRoutes()) as gateway, Client.of(gateway) as client:
        answer = await client.ask(a_request())
        assert (answer.status, answer.code) == (404, "model_not_found")
        assert "none" in answer.json()["error"]["message"]
