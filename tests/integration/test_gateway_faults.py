"""What becomes of a request when a backend is busy, unreachable, broken or cut off, and when the client goes."""

import asyncio
import json
import socket
from contextlib import ExitStack

import pytest

from tests.support.gateway import (
    Client,
    Engine,
    EngineConnection,
    MemoryRoutes,
    Seen,
    a_gateway,
    a_request,
    an_answer,
    answer,
    on_uvloop,
    routes_to,
    until,
)
from tests.support.ports import free_port
from workers.gateway.settings import Settings


def a_dead_url() -> str:
    """A port that refuses connections."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.mark.parametrize("status", ["429 Too Many Requests", "503 Service Unavailable"])
@on_uvloop
async def test_a_busy_backend_is_heard_out_and_is_not_failing(status: str) -> None:
    busy = an_answer(b'{"error": {"message": "busy"}}', status, b"Retry-After: 7\r\n")

    async def refuse(_: Seen, connection: EngineConnection) -> None:
        await connection.send(busy)

    async with (
        Engine(refuse) as engine,
        Engine(refuse) as other,
        a_gateway(routes_to(engine, other)) as gateway,
        Client.of(gateway) as client,
    ):
        for n in range(1, 21):
            refused = await client.ask(a_request())
            assert (refused.status, refused.headers["retry-after"]) == (int(status[:3]), "7")
            assert refused.body == b'{"error": {"message": "busy"}}'
            assert len(engine.requests) + len(other.requests) == n
        engine.script = other.script = answer
        assert [(await client.ask(a_request())).status for _ in range(10)] == [200] * 10
        assert not gateway.core.held
        assert not gateway.core.metrics.faults


@on_uvloop
async def test_another_replica_takes_over_when_one_cannot_be_reached() -> None:
    async with Engine() as engine:
        routes = MemoryRoutes()
        routes.route("m", ("m@1/inference/0", a_dead_url()), ("m@1/inference/1", engine.url))
        async with a_gateway(routes) as gateway, Client.of(gateway) as client:
            assert [(await client.ask(a_request())).status for _ in range(30)] == [200] * 30
            assert gateway.core.metrics.faults.get(("m@1/inference/0", "connect"), 0) >= 1
            assert not gateway.core.inflight
        assert len(engine.requests) == 30


@on_uvloop
async def test_an_unreachable_replica_is_passed_over_for_a_while() -> None:
    async with Engine() as engine:
        routes = MemoryRoutes()
        routes.route("m", ("m@1/inference/0", a_dead_url()), ("m@1/inference/1", engine.url))
        settings = Settings(poll_s=0.01, hold_s=60.0)
        async with a_gateway(routes, settings) as gateway, Client.of(gateway) as client:
            for _ in range(40):
                assert (await client.ask(a_request())).status == 200
            assert gateway.core.metrics.faults == {("m@1/inference/0", "connect"): 1}


@on_uvloop
async def test_when_no_replica_can_be_reached_the_client_is_told_when_to_come_back() -> None:
    routes = MemoryRoutes()
    urls = [a_dead_url() for _ in range(3)]
    routes.route("m", *((f"m@1/inference/{n}", url) for n, url in enumerate(urls)))
    async with a_gateway(routes) as gateway, Client.of(gateway) as client:
        for _ in range(2):
            refused = await client.ask(a_request())
            assert (refused.status, refused.code) == (503, "backend_unreachable")
            assert refused.headers["retry-after"] == "3"
            assert refused.headers["x-standfast-generation"] == "m@1"
        assert sum(gateway.core.metrics.faults.values()) == 4
        assert not gateway.core.inflight


@on_uvloop
async def test_a_single_replica_is_tried_again_at_once_after_it_could_not_be_reached() -> None:
    routes = MemoryRoutes()
    engine = Engine()
    async with engine:
        pass
    routes.route("m", ("m@1/inference/0", engine.url))
    async with a_gateway(routes, Settings(poll_s=0.01, hold_s=60.0)) as gateway, Client.of(gateway) as client:
        assert (await client.ask(a_request())).status == 503
        async with engine:
            assert (await client.ask(a_request())).status == 200


@on_uvloop
async def test_a_replica_that_does_not_accept_in_time_counts_as_unreachable() -> None:
    with ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):  # a full backlog: the next handshake is not answered
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        async with Engine() as engine:
            routes = MemoryRoutes()
            routes.route("m", ("m@1/inference/0", f"http://127.0.0.1:{deaf.getsockname()[1]}"))
            settings = Settings(poll_s=0.01, connect_timeout_s=2.0)
            async with a_gateway(routes, settings) as gateway, Client.of(gateway) as client:
                assert (await client.ask(a_request())).code == "backend_unreachable"
                routes.route("m", *routes_of(gateway), ("m@1/inference/1", engine.url))
                await until(lambda: len(gateway.core.table.targets) == 2)
                assert [(await client.ask(a_request())).status for _ in range(4)] == [200] * 4


def routes_of(gateway: object) -> list[tuple[str, str]]:
    return [(target.id, target.url) for target in gateway.core.table.targets]  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nContent-",
        b"what?\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\nabc",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
        b"HTTP/1.1 999 Odd\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: a\nY: b\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 300_000,
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20_000,
    ],
    ids=lambda said: said[:60],
)
@on_uvloop
async def test_a_backend_that_fails_before_its_answer_is_reported_and_never_asked_twice(said: bytes) -> None:
    async def fail(_: Seen, connection: EngineConnection) -> None:
        await connection.send(said)
        connection.writer.close()

    async with Engine(fail) as one, Engine(fail) as two, a_gateway(routes_to(one, two)) as gateway:
        async with Client.of(gateway) as client:
            refused = await client.ask(a_request())
            assert (refused.status, refused.code) == (502, "backend_failed")
            assert len(one.requests) + len(two.requests) == 1
            one.script = two.script = answer
            assert (await client.ask(a_request())).status == 200
        assert not gateway.core.inflight


@on_uvloop
async def test_a_stream_that_is_cut_ends_with_an_error_event_and_without_an_end() -> None:
    async def cut(_: Seen, connection: EngineConnection) -> None:
        await connection.stream("one", "two")
        connection.writer.close()

    async with Engine(cut) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        found = await client.ask(a_request())
    assert (found.status, found.complete) == (200, False)
    *events, last, end = found.body.split(b"\n\n")
    assert (events, end) == ([b"data: one", b"data: two"], b"")
    error = json.loads(last.removeprefix(b"data: "))["error"]
    assert (error["code"], error["type"]) == ("stream_cut", "server_error")
    assert b"[DONE]" not in found.body
    assert gateway.core.metrics.faults == {("m@1/inference/0", "cut"): 1}


@on_uvloop
async def test_an_event_that_is_cut_does_not_swallow_the_error_event() -> None:
    async def cut(_: Seen, connection: EngineConnection) -> None:
        await connection.stream("one")
        await connection.send(b"9\r\ndata: par\r\n")
        connection.cut()

    async with Engine(cut) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        found = await client.ask(a_request())
    assert found.body.startswith(b'data: one\n\ndata: par\n\ndata: {"error"')
    assert not found.complete


@on_uvloop
async def test_an_http_1_0_client_is_told_of_the_cut_too() -> None:
    async def cut(_: Seen, connection: EngineConnection) -> None:
        await connection.stream("one")
        connection.cut()

    async with Engine(cut) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        found = await client.ask(a_request(version="HTTP/1.0"))
    assert b'data: {"error"' in found.body


@pytest.mark.parametrize("framing", [b"Content-Length: 100\r\n", b"Transfer-Encoding: chunked\r\n"])
@on_uvloop
async def test_an_answer_that_is_cut_cannot_be_taken_for_complete(framing: bytes) -> None:
    async def cut(_: Seen, connection: EngineConnection) -> None:
        body = b"part" if b"Length" in framing else b"4\r\npart\r\n"
        await connection.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n%b\r\n%b" % (framing, body))
        connection.writer.close()

    async with Engine(cut) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        found = await client.ask(a_request())
    assert (found.status, found.body, found.complete) == (200, b"part", False)


@pytest.mark.parametrize(
    ("sent", "body"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokHTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil", b"ok"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok, and more", b"ok"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nX: y\r\n\r\nmore", b"ok"),
    ],
)
@on_uvloop
async def test_what_a_backend_says_beyond_its_answer_reaches_nobody(sent: bytes, body: bytes) -> None:
    async def talk(_: Seen, connection: EngineConnection) -> None:
        await connection.send(sent)

    async with Engine(talk) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        first = await client.ask(a_request())
        assert (first.status, first.body, first.complete) == (200, body, True)
        engine.script = answer
        assert (await client.ask(a_request())).json() == {"ok": True}
    assert engine.connections == 2


@on_uvloop
async def test_trailers_and_chunk_extensions_without_end_are_a_cut() -> None:
    async def ramble(_: Seen, connection: EngineConnection) -> None:
        await connection.stream("one")
        for _number in range(200):
            await connection.send(b"1;" + b"x" * 65536)

    async with Engine(ramble) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        found = await client.ask(a_request())
    assert not found.complete
    assert b"stream_cut" in found.body


@on_uvloop
async def test_a_backend_that_speaks_unasked_is_not_listened_to() -> None:
    async def chatter(_: Seen, connection: EngineConnection) -> None:
        await connection.send(an_answer())
        await asyncio.sleep(0)
        await connection.send(an_answer(b'{"poison": true}'))

    async with Engine(chatter) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        assert (await client.ask(a_request())).json() == {"ok": True}
        await until(lambda: engine.open == 0)
        engine.script = answer
        assert (await client.ask(a_request())).json() == {"ok": True}


@pytest.mark.parametrize("moment", ["before the head", "in the stream"])
@pytest.mark.parametrize("manner", ["close", "reset", "half-close"])
@on_uvloop
async def test_when_the_client_goes_the_backend_is_let_go(moment: str, manner: str) -> None:
    async def think(_: Seen, connection: EngineConnection) -> None:
        if moment == "in the stream":
            await connection.stream("one")
        await connection.gone()

    async with Engine(think) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.send(a_request())
        await until(lambda: len(engine.requests) == 1)
        if moment == "in the stream":
            await client.head()
        assert gateway.core.inflight == {"m@1/inference/0": 1}
        match manner:
            case "close":
                client.writer.close()
            case "reset":
                client.writer.transport.abort()
            case _:
                client.writer.write_eof()
        await until(lambda: engine.open == 0 and not gateway.core.inflight)
        assert gateway.core.metrics.of("m").client_gone == 1


@on_uvloop
async def test_a_client_that_goes_while_it_is_connected_for_leaves_nothing_behind() -> None:
    with ExitStack() as stack:
        deaf = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        for _ in range(3):
            filler = stack.enter_context(socket.socket())
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        routes = MemoryRoutes()
        routes.route("m", ("m@1/inference/0", f"http://127.0.0.1:{deaf.getsockname()[1]}"))
        async with a_gateway(routes, Settings(poll_s=0.01, connect_timeout_s=30.0)) as gateway:
            async with Client.of(gateway) as client:
                await client.send(a_request())
                await until(lambda: bool(gateway.core.inflight))
            await until(lambda: not gateway.core.inflight and not gateway.core.connections)
            assert gateway.core.budget.used == 0


@on_uvloop
async def test_a_client_that_never_reads_is_dropped() -> None:
    async def pour(_: Seen, connection: EngineConnection) -> None:
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await connection.send(b"10000\r\n" + b"x" * 65536 + b"\r\n")

    settings = Settings(poll_s=0.01, write_timeout_s=0.1)
    async with Engine(pour) as engine, a_gateway(routes_to(engine), settings) as gateway, Client.of(gateway) as client:
        await client.send(a_request())
        await until(lambda: engine.open == 1)
        await until(lambda: engine.open == 0 and not gateway.core.inflight)


@on_uvloop
async def test_a_slow_backend_is_waited_for() -> None:
    proceed = asyncio.Event()

    async def think(_: Seen, connection: EngineConnection) -> None:
        await proceed.wait()
        await connection.send(an_answer())

    loop = asyncio.get_running_loop()
    async with Engine(think) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.send(a_request())
        await until(lambda: len(engine.requests) == 1)
        for days in range(1, 4):
            gateway.core.sweep(loop.time() + days * 86400)
        proceed.set()
        assert (await client.answer()).status == 200
