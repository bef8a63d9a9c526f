"""The gateway follows the registry, reports what it has in flight, and ends in order."""

import asyncio
import dataclasses

from tests.support.gateway import (
    PATIENCE_S,
    QUICK,
    Client,
    Engine,
    EngineConnection,
    MemoryRoutes,
    Seen,
    a_gateway,
    a_request,
    on_uvloop,
    port_of,
    routes_to,
    until,
)
from workers.gateway.server import Gateway
from workers.gateway.settings import Settings


class Stream:
    """A script that streams one event and ends when told to."""

    def __init__(self) -> None:
        self.proceed = asyncio.Event()

    async def __call__(self, _: Seen, connection: EngineConnection) -> None:
        await connection.stream("one")
        await self.proceed.wait()
        await connection.event("[DONE]")
        await connection.end()


@on_uvloop
async def test_open_requests_end_where_they_began_and_new_ones_go_to_the_new_generation() -> None:
    stream = Stream()
    async with Engine(stream) as old, Engine() as new, a_gateway(routes_to(old)) as gateway:
        routes: MemoryRoutes = gateway.source  # type: ignore[assignment]
        async with Client.of(gateway) as one, Client.of(gateway) as two:
            await one.send(a_request())
            assert (await one.head()).headers["x-standfast-generation"] == "m@1"
            routes.route("m", ("m@2/inference/0", new.url), generation="m@2")
            await until(lambda: gateway.core.table.revision == routes.number)
            for _ in range(3):
                answer = await two.ask(a_request())
                assert (answer.status, answer.headers["x-standfast-generation"]) == (200, "m@2")
            await until(lambda: routes.beats[-1] == (routes.number, {"m@1/inference/0": 1}))
            stream.proceed.set()
            assert await one.chunk() == b"data: one\n\n"
            assert await one.chunk() == b"data: [DONE]\n\n"
            assert await one.chunk() == b""
            await until(lambda: routes.beats[-1] == (routes.number, {}))
            assert (await one.ask(a_request())).headers["x-standfast-generation"] == "m@2"
        await until(lambda: old.open == 0)
    assert (len(old.requests), len(new.requests)) == (1, 4)


@on_uvloop
async def test_a_revision_is_reported_only_with_what_was_routed_before_it() -> None:
    """Whatever a beat of revision r leaves out can be stopped: no request may reach it afterwards."""
    async with Engine() as one, Engine() as two, a_gateway(routes_to(one)) as gateway, Client.of(gateway) as client:
        routes: MemoryRoutes = gateway.source  # type: ignore[assignment]
        engines = {1: one, 2: two}
        for generation in (2, 1, 2, 1, 2):
            routes.route("m", (f"m@{generation}/inference/0", engines[generation].url), generation=f"m@{generation}")
            gone = engines[3 - generation]
            quiet = f"m@{3 - generation}/inference/0"
            while True:
                await client.ask(a_request())
                revision, inflight = routes.beats[-1]
                if revision == routes.number and quiet not in inflight:
                    break
            before = len(gone.requests)
            for _ in range(5):
                await client.ask(a_request())
            assert len(gone.requests) == before


@on_uvloop
async def test_beats_come_without_news_too() -> None:
    routes = MemoryRoutes()
    async with a_gateway(routes, Settings(poll_s=0.01, beat_s=0.03)):
        await until(lambda: len(routes.beats) >= 4)
    assert set(map(str, routes.beats)) == {"(1, {})"}
    assert routes.forgotten == ["under-test"]


@on_uvloop
async def test_an_outage_of_the_registry_leaves_the_routes_as_they_were() -> None:
    settings = dataclasses.replace(QUICK, stale_s=0.3)
    async with Engine() as engine, a_gateway(routes_to(engine), settings) as gateway, Client.of(gateway) as client:
        routes: MemoryRoutes = gateway.source  # type: ignore[assignment]
        routes.down = True
        health = a_request(method="GET", path="/healthz", key=None)
        while (await client.ask(health)).status == 200:
            assert (await client.ask(a_request())).status == 200
        assert (await client.ask(a_request())).status == 200
        routes.down = False
        routes.route("other", ("o@1/inference/0", engine.url))
        await until(lambda: "other" in gateway.core.table.entries)
        beats = len(routes.beats)
        await until(lambda: len(routes.beats) > beats)


@on_uvloop
async def test_a_replica_that_comes_back_under_its_name_is_connected_to_anew() -> None:
    async with Engine() as first, Engine() as second, a_gateway(routes_to(first)) as gateway:
        routes: MemoryRoutes = gateway.source  # type: ignore[assignment]
        async with Client.of(gateway) as client:
            assert (await client.ask(a_request())).status == 200
            routes.route("m", ("m@1/inference/0", second.url))
            await until(lambda: gateway.core.table.revision == routes.number)
            assert (await client.ask(a_request())).status == 200
            await until(lambda: first.open == 0)
    assert (len(first.requests), len(second.requests)) == (1, 1)


@on_uvloop
async def test_a_backend_url_of_no_use_is_a_backend_that_cannot_be_reached() -> None:
    routes = MemoryRoutes()
    routes.route("m", ("m@1/inference/0", "unix:/nowhere"))
    async with a_gateway(routes) as gateway, Client.of(gateway) as client:
        assert (await client.ask(a_request())).code == "backend_unreachable"
        assert not gateway.core.inflight


@on_uvloop
async def test_draining_lets_open_requests_end_and_takes_no_new_ones() -> None:
    stream = Stream()
    async with Engine(stream) as engine:
        routes = routes_to(engine)
        gateway = Gateway(routes, gateway_id="under-test", settings=Settings(poll_s=0.01))
        await gateway.start("127.0.0.1", 0)
        async with Client.of(gateway) as busy, Client.of(gateway) as idle, Client.of(gateway) as half:
            await idle.ask(a_request(method="GET", path="/v1/models"))
            await half.send(a_request()[:-5])
            await busy.send(a_request())
            await busy.head()
            draining = asyncio.create_task(gateway.drain(PATIENCE_S))
            assert await idle.closed() == b""
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway))
                assert await reader.read() == b""
                writer.close()
            except ConnectionError:
                pass
            beats = len(routes.beats)
            await until(lambda: len(routes.beats) > beats)
            assert routes.forgotten == []
            await half.send(a_request()[-5:])
            assert (await half.head()).headers["connection"] == "close"
            stream.proceed.set()
            assert await busy.closed() == (b"b\r\ndata: one\n\n\r\n" + b"e\r\ndata: [DONE]\n\n\r\n" + b"0\r\n\r\n")
            await half.closed()
            assert await draining is True
    assert routes.forgotten == ["under-test"]


@on_uvloop
async def test_what_is_open_when_the_grace_ends_is_cut() -> None:
    async def think(_: Seen, connection: EngineConnection) -> None:
        await connection.stream("one")
        await connection.gone()

    async with Engine(think) as engine:
        gateway = Gateway(routes_to(engine), gateway_id="under-test", settings=Settings(poll_s=0.01))
        await gateway.start("127.0.0.1", 0)
        async with Client.of(gateway) as busy:
            await busy.send(a_request())
            await busy.head()
            assert await gateway.drain(0.05) is False
            assert b"[DONE]" not in await busy.closed()
            await until(lambda: engine.open == 0)
