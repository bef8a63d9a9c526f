"""Requests and answers pass the gateway unchanged, as they come, on connections that are kept."""

import asyncio
import json
import socket
from contextlib import AsyncExitStack

import pytest
from openai import AsyncOpenAI

from tests.support.gateway import (
    KEY,
    Client,
    Engine,
    EngineConnection,
    Seen,
    a_body,
    a_gateway,
    a_request,
    an_answer,
    on_uvloop,
    passes,
    routes_to,
    until,
)
from workers.gateway.settings import Settings


@on_uvloop
async def test_a_request_reaches_the_backend_as_it_was_sent() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        body = b'{ "messages" : [ ],\n "model":"m", "odd": "\xc3\xa9\\u00e9" }'
        answer = await client.ask(a_request(body, path="/v1/responses?a=1&b=%20", headers="X-Custom: Yes\r\n"))
    (seen,) = engine.requests
    assert (seen.method, seen.target, seen.body) == ("POST", "/v1/responses?a=1&b=%20", body)
    assert seen.header("x-custom") == "Yes"
    assert seen.header("host") == f"127.0.0.1:{engine.port}"
    assert (answer.status, answer.json()) == (200, {"ok": True})


@on_uvloop
async def test_credentials_and_hop_by_hop_headers_stay_at_the_gateway() -> None:
    headers = (
        "Cookie: a=b\r\nProxy-Authorization: x\r\nTE: trailers\r\nKeep-Alive: timeout=5\r\n"
        "X-Standfast-Generation: lie\r\n"
        "Connection: keep-alive, X-Private\r\nX-Private: secret\r\nX-Public: yes\r\n"
    )
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        assert (await client.ask(a_request(headers=headers))).status == 200
    names = [name for name, _ in engine.requests[0].headers]
    assert sorted(names) == ["content-length", "host", "x-public", "x-request-id"]
    assert KEY not in str(engine.requests[0])


@on_uvloop
async def test_the_answer_names_the_generation_and_the_request() -> None:
    async def lie(_: Seen, connection: EngineConnection) -> None:
        await connection.send(an_answer(headers=b"X-Request-Id: other\r\nX-Standfast-Generation: lie\r\nX-More: 1\r\n"))

    async with Engine(lie) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        given = await client.ask(a_request(headers="X-Request-Id: mine-1\r\n"))
        made = await client.ask(a_request())
    assert given.headers["x-request-id"] == "mine-1"
    assert given.headers["x-standfast-generation"] == "m@1"
    assert given.headers["x-more"] == "1"
    assert engine.requests[0].header("x-request-id") == "mine-1"
    assert made.headers["x-request-id"] == engine.requests[1].header("x-request-id") != "mine-1"


@on_uvloop
async def test_every_request_gets_an_id_of_its_own() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        answers = [await client.ask(a_request()) for _ in range(5)]
        repeated = [await client.ask(a_request(headers="X-Request-Id: mine\r\n")) for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    assert len(set(ids)) == 5
    assert [request.header("x-request-id") for request in engine.requests] == [*ids, "mine", "mine"]
    assert {answer.headers["x-request-id"] for answer in repeated} == {"mine"}


@on_uvloop
async def test_an_unusable_request_id_is_replaced() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        answer = await client.ask(a_request(headers=f"X-Request-Id: {'x' * 200}\r\n"))
        spaced = await client.ask(a_request(headers="X-Request-Id: a b\r\n"))
    assert answer.headers["x-request-id"].startswith("req-")
    assert spaced.headers["x-request-id"].startswith("req-")


@on_uvloop
async def test_events_arrive_while_the_backend_is_still_thinking() -> None:
    proceed = asyncio.Event()

    async def think(_: Seen, connection: EngineConnection) -> None:
        await connection.stream("one")
        await proceed.wait()
        await connection.event("[DONE]")
        await connection.end()

    async with Engine(think) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.send(a_request())
        assert (await client.head()).headers["content-type"] == "text/event-stream"
        assert await client.chunk() == b"data: one\n\n"
        proceed.set()
        assert await client.chunk() == b"data: [DONE]\n\n"
        assert await client.chunk() == b""


@on_uvloop
async def test_a_head_is_passed_on_before_the_first_event() -> None:
    proceed = asyncio.Event()

    async def think(_: Seen, connection: EngineConnection) -> None:
        await connection.stream()
        await proceed.wait()
        await connection.end()

    async with Engine(think) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.send(a_request())
        assert (await client.head()).status == 200
        proceed.set()
        assert await client.chunk() == b""


@on_uvloop
async def test_no_side_waits_for_more_to_send() -> None:
    """Nagle's algorithm would hold the first event of a reused connection back until the head was acknowledged."""
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.ask(a_request())
        (connection,) = gateway.core.connections
        (target,) = gateway.core.table.targets
        upstream = gateway.core.pool(target).take(asyncio.get_running_loop().time())
        assert upstream is not None
        for transport in (connection._transport, upstream._transport):  # type: ignore[attr-defined]
            sock = transport.get_extra_info("socket")
            assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
        upstream.close()


@on_uvloop
async def test_connections_are_kept_on_both_sides() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        for n in range(5):
            assert (await client.ask(a_request(a_body(n=n * "x")))).status == 200
    assert (engine.connections, len(engine.requests)) == (1, 5)


@on_uvloop
async def test_an_idle_backend_connection_is_not_reused_when_it_is_old() -> None:
    settings = Settings(poll_s=0.01, upstream_idle_s=0.01)
    async with Engine() as engine, a_gateway(routes_to(engine), settings) as gateway, Client.of(gateway) as client:
        for _ in range(3):
            assert (await client.ask(a_request())).status == 200
            await passes(0.02)
    assert engine.connections == 3


@on_uvloop
async def test_a_backend_that_closes_its_idle_connections_costs_no_request() -> None:
    async def once(_: Seen, connection: EngineConnection) -> None:
        await connection.send(an_answer())
        connection.writer.close()

    async with Engine(once) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        for _ in range(5):
            assert (await client.ask(a_request())).status == 200
            await until(lambda: engine.open == 0)
            await asyncio.sleep(0)


@on_uvloop
async def test_a_backend_that_says_close_is_connected_to_anew() -> None:
    async def once(_: Seen, connection: EngineConnection) -> None:
        await connection.send(an_answer(headers=b"Connection: close\r\n"))

    async with Engine(once) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        first, second = await client.ask(a_request()), await client.ask(a_request())
    assert (first.status, second.status, engine.connections) == (200, 200, 2)
    assert "connection" not in first.headers


@on_uvloop
async def test_chunked_requests_are_relayed_with_a_length() -> None:
    body = a_body(text="x" * 100)
    chunked = b"".join(b"%x;ext=1\r\n%b\r\n" % (len(part), part) for part in (body[:7], body[7:50], body[50:]))
    head = a_request(headers="Transfer-Encoding: chunked\r\n").partition(b"\r\n\r\n")[0]
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"Content-Length")]
    data = b"\r\n".join(lines) + b"\r\n\r\n" + chunked + b"0\r\nX-Trailer: dropped\r\nAuthorization: Bearer no\r\n\r\n"
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        assert (await client.ask(data)).status == 200
        assert (await client.ask(data + a_request())).status == 200
        assert (await client.answer()).status == 200
    assert engine.requests[0].body == body
    assert engine.requests[0].header("content-length") == str(len(body))
    assert engine.requests[0].header("transfer-encoding") is None
    assert engine.requests[0].header("x-trailer") is None


@on_uvloop
async def test_a_request_may_arrive_byte_by_byte() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        sock = client.writer.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in a_request(headers="X-A: b\r\n"):
            await client.send(bytes((byte,)))
            await asyncio.sleep(0)
        assert (await client.answer()).status == 200
    assert engine.requests[0].body == a_body()
    assert engine.requests[0].header("x-a") == "b"


@on_uvloop
async def test_pipelined_requests_are_answered_in_order() -> None:
    async def echo(request: Seen, connection: EngineConnection) -> None:
        await connection.send(an_answer(request.body))

    async with Engine(echo) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        models = a_request(method="GET", path="/v1/models")
        requests = [a_request(a_body(n=n)) for n in range(20)]
        await client.send(requests[0] + models + b"".join(requests[1:]) + a_request(a_body("nope")) + models)
        assert (await client.answer()).json()["n"] == 0
        assert (await client.answer()).json()["object"] == "list"
        assert [(await client.answer()).json()["n"] for _ in range(19)] == list(range(1, 20))
        assert (await client.answer()).status == 404
        assert (await client.answer()).json()["object"] == "list"


@on_uvloop
async def test_a_client_may_wait_for_the_word_to_go_on() -> None:
    request = a_request(headers="Expect: 100-continue\r\n")
    head, body = request[: -len(a_body())], a_body()
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        for _ in range(2):
            await client.send(head)
            assert (await client.answer()).status == 100
            await client.send(body)
            assert (await client.answer()).status == 200
    assert engine.requests[0].header("expect") is None


@on_uvloop
async def test_the_word_to_go_on_waits_for_the_answer_before_it() -> None:
    proceed = asyncio.Event()

    async def think(_: Seen, connection: EngineConnection) -> None:
        await proceed.wait()
        await connection.send(an_answer())

    head = a_request(headers="Expect: 100-continue\r\n")[: -len(a_body())]
    async with Engine(think) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.send(a_request() + head)
        await until(lambda: len(engine.requests) == 1)
        proceed.set()
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 100
        await client.send(a_body())
        assert (await client.answer()).status == 200


@on_uvloop
async def test_connection_close_is_obeyed() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        answer = await client.ask(a_request(headers="Connection: close\r\n"))
        assert answer.headers["connection"] == "close"
        assert await client.closed() == b""


@on_uvloop
async def test_an_http_1_0_client_gets_a_plain_stream_that_ends_with_the_connection() -> None:
    async def stream(_: Seen, connection: EngineConnection) -> None:
        await connection.stream("one", "[DONE]")
        await connection.end()

    async with Engine(stream) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        answer = await client.ask(a_request(version="HTTP/1.0"))
    assert "transfer-encoding" not in answer.headers
    assert answer.headers["connection"] == "close"
    assert answer.body == b"data: one\n\ndata: [DONE]\n\n"


@on_uvloop
async def test_an_http_1_0_client_may_keep_the_connection() -> None:
    request = a_request(version="HTTP/1.0", headers="Connection: keep-alive\r\n")
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        first, second = await client.ask(request), await client.ask(request)
    assert (first.status, second.status) == (200, 200)
    assert first.headers["connection"] == "keep-alive"


@on_uvloop
async def test_an_offer_to_upgrade_is_declined_by_answering() -> None:
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        for _ in range(2):
            assert (await client.ask(a_request(headers=upgrade))).status == 200
        split = a_request(headers=upgrade)
        await client.send(split[:-5])
        await asyncio.sleep(0)
        await client.send(split[-5:] + a_request())
        assert (await client.answer()).status == 200
        assert (await client.answer()).status == 200
    assert {request.body for request in engine.requests} == {a_body()}
    assert engine.requests[0].header("upgrade") is None


@on_uvloop
async def test_interim_answers_of_a_backend_are_dropped() -> None:
    async def hurried(_: Seen, connection: EngineConnection) -> None:
        early = b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
        await connection.send(early + an_answer())

    async with Engine(hurried) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        first, second = await client.ask(a_request()), await client.ask(a_request())
    assert (first.status, second.status, engine.connections) == (200, 200, 1)
    assert "link" not in first.headers


@on_uvloop
async def test_an_answer_without_length_is_framed_anew() -> None:
    async def plain(_: Seen, connection: EngineConnection) -> None:
        await connection.send(b"HTTP/1.1 200 Fine\r\nContent-Type: text/plain\r\n\r\nall of it")
        connection.writer.close()

    async with Engine(plain) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        for _ in range(2):
            answer = await client.ask(a_request())
            assert (answer.status, answer.body, answer.complete) == (200, b"all of it", True)
            assert b"200 Fine" in answer.raw


@pytest.mark.parametrize("status", ["204 No Content", "304 Not Modified"])
@on_uvloop
async def test_answers_without_body_stay_without_body(status: str) -> None:
    async def empty(_: Seen, connection: EngineConnection) -> None:
        await connection.send(f"HTTP/1.1 {status}\r\nETag: x\r\n\r\n".encode())

    async with Engine(empty) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        for _ in range(2):
            answer = await client.ask(a_request())
            assert answer.status == int(status[:3])
            assert not {"content-length", "transfer-encoding"} & set(answer.headers)


@on_uvloop
async def test_a_large_body_arrives_whole() -> None:
    body = a_body(text="x" * (8 * 1024 * 1024))
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        assert (await client.ask(a_request(body))).status == 200
        assert gateway.core.budget.used == 0
    assert engine.requests[0].body == body


@on_uvloop
async def test_a_client_that_reads_slowly_slows_the_backend_down() -> None:
    piece, pieces = b"x" * 65536, 1000
    sent = 0

    async def pour(_: Seen, connection: EngineConnection) -> None:
        nonlocal sent
        await connection.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _number in range(pieces):
            await connection.send(b"%x\r\n%b\r\n" % (len(piece), piece))
            sent += len(piece)
        await connection.end()

    async with Engine(pour) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.send(a_request())
        await client.head()
        stalled = -1
        while sent != stalled:
            stalled = sent
            await asyncio.sleep(0.1)
        assert stalled < len(piece) * pieces / 2
        received = 0
        while chunk := await client.chunk():
            received += len(chunk)
        assert received == len(piece) * pieces


@on_uvloop
async def test_the_least_loaded_backend_gets_the_request() -> None:
    async def wait(_: Seen, connection: EngineConnection) -> None:
        await connection.stream("one")
        await connection.gone()

    async with Engine(wait) as one, Engine(wait) as two, a_gateway(routes_to(one, two)) as gateway:
        async with AsyncExitStack() as clients:
            for _ in range(6):
                client = await clients.enter_async_context(Client.of(gateway))
                await client.send(a_request())
                await client.head()
            assert (len(one.requests), len(two.requests)) == (3, 3)
            assert gateway.core.inflight == {"m@1/inference/0": 3, "m@1/inference/1": 3}
        await until(lambda: not gateway.core.inflight)


@on_uvloop
async def test_the_openai_client_is_served() -> None:
    event = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}

    async def speak(request: Seen, connection: EngineConnection) -> None:
        if not json.loads(request.body).get("stream"):
            message = {"role": "assistant", "content": "Paris"}
            full = event | {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
            await connection.send(an_answer(json.dumps(full).encode()))
            return
        await connection.stream()
        for word in ("Par", "is"):
            await connection.event(json.dumps(event | {"choices": [{"index": 0, "delta": {"content": word}}]}))
        await connection.event("[DONE]")
        await connection.end()

    async with (
        Engine(speak) as engine,
        a_gateway(routes_to(engine)) as gateway,
        AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=KEY, max_retries=0) as openai,
    ):
        assert [model.id for model in (await openai.models.list()).data] == ["m"]
        answer = await openai.chat.completions.create(model="m", messages=[{"role": "user", "content": "?"}])
        assert answer.choices[0].message.content == "Paris"
        stream = await openai.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "?"}], stream=True
        )
        assert "".join([chunk.choices[0].delta.content or "" async for chunk in stream]) == "Paris"
