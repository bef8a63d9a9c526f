"""What the gateway itself answers: models, health, keys, and why a request is not relayed."""

import asyncio
import dataclasses

import pytest

from tests.support.gateway import (
    QUICK,
    Answer,
    Client,
    Engine,
    EngineConnection,
    MemoryRoutes,
    Seen,
    a_body,
    a_gateway,
    a_request,
    key_hash,
    on_uvloop,
    routes_to,
    until,
)
from workers.gateway.metrics import Metrics


@on_uvloop
async def test_an_unknown_model_is_refused_with_the_names_there_are() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        gateway.source.route("hidden", ("h@1/inference/0", engine.url), visible=False)  # type: ignore[attr-defined]
        gateway.source.route("other", generation=None)  # type: ignore[attr-defined]
        await until(lambda: len(gateway.core.table.entries) == 3)
        answer = await client.ask(a_request(a_body("mm")))
        assert (answer.status, answer.code) == (404, "model_not_found")
        message = answer.json()["error"]["message"]
        assert "'mm'" in message
        assert "'m', 'other'" in message
        assert "hidden" not in message
        assert (await client.ask(a_request(a_body("hidden")))).status == 200


@pytest.mark.parametrize("state", ["down", "starting", "draining"])
@on_uvloop
async def test_a_model_without_ready_replica_says_when_to_come_back(state: str) -> None:
    routes = MemoryRoutes()
    routes.route("m", ("m@1/inference/0", "http://127.0.0.1:9", state))  # type: ignore[arg-type]
    routes.route("new", generation=None, retry_after_s=0.2)
    async with a_gateway(routes) as gateway, Client.of(gateway) as client:
        known = await client.ask(a_request())
        new = await client.ask(a_request(a_body("new")))
    assert (known.status, known.code, known.headers["retry-after"]) == (503, "model_not_ready", "3")
    assert (new.status, new.headers["retry-after"]) == (503, "1")


@on_uvloop
async def test_a_full_queue_sheds_load_at_the_door() -> None:
    proceed = asyncio.Event()

    async def think(_: Seen, connection: EngineConnection) -> None:
        await connection.stream("one")
        await proceed.wait()
        await connection.end()

    async with (
        Engine(think) as engine,
        a_gateway(routes_to(engine, max_waiting=2)) as gateway,
        Client.of(gateway) as one,
        Client.of(gateway) as two,
        Client.of(gateway) as three,
    ):
        for client in (one, two):
            await client.send(a_request())
            await client.head()
        refused = await three.ask(a_request())
        assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "queue_full", "3")
        assert len(engine.requests) == 2
        proceed.set()
        await until(lambda: not gateway.core.inflight)
        await three.send(a_request())
        assert (await three.head()).status == 200


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"{}", "'model' is missing"),
        (b'{"model": 3}', "must be a string"),
        (b'{"model": ""}', "must be a string"),
        (b'{"model": "m", "model": "m"}', "more than once"),
        (b'{"model": "m", "\\u006dodel": "m"}', "more than once"),
        (b"[]", "must be a JSON object"),
        (b"", "not valid JSON"),
        (b'{"model": "m"', "not valid JSON"),
        (b'{"model": "m"} {}', "not valid JSON"),
    ],
)
@on_uvloop
async def test_a_body_that_names_no_single_model_is_refused(body: bytes, words: str) -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        answer = await client.ask(a_request(body))
        assert (answer.status, answer.code) == (400, "invalid_model_field")
        assert words in answer.json()["error"]["message"]
        assert (await client.ask(a_request())).status == 200


@on_uvloop
async def test_a_compressed_body_is_refused() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        answer = await client.ask(a_request(headers="Content-Encoding: gzip\r\n"))
        assert (answer.status, answer.code) == (415, "unsupported_encoding")
        assert (await client.ask(a_request(headers="Content-Encoding: identity\r\n"))).status == 200


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/models/m"])
@pytest.mark.parametrize("authorization", ["", "Authorization: Bearer wrong\r\n", "Authorization: Basic c2Y=\r\n"])
@on_uvloop
async def test_without_a_valid_key_nothing_is_shown(path: str, authorization: str) -> None:
    method = "POST" if "chat" in path else "GET"
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        answer = await client.ask(a_request(path=path, method=method, key=None, headers=authorization))
        assert (answer.status, answer.code) == (401, "invalid_api_key")
        assert answer.headers["www-authenticate"] == "Bearer"
        assert "wrong" not in answer.body.decode()
        assert (await client.ask(a_request())).status == 200
    assert len(engine.requests) == 1


@on_uvloop
async def test_a_new_key_works_at_once_and_a_revoked_one_stops() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        routes: MemoryRoutes = gateway.source  # type: ignore[assignment]
        assert (await client.ask(a_request(key="sf-new"))).status == 401
        routes.keys.add(key_hash("sf-new"))
        assert (await client.ask(a_request(key="sf-new"))).status == 200
        assert (await client.ask(a_request(key="sf-new"))).status == 200
        routes.keys.discard(key_hash("sf-new"))
        routes.number += 1
        await until(lambda: gateway.core.table.revision == routes.number)
        assert (await client.ask(a_request(key="sf-new"))).status == 401


@on_uvloop
async def test_many_unknown_keys_cause_few_reads() -> None:
    class SlowKeys(MemoryRoutes):
        def __init__(self) -> None:
            super().__init__()
            self.proceed = asyncio.Event()
            self.proceed.set()

        async def active_key_hashes(self) -> set[str]:
            found = await super().active_key_hashes()
            await self.proceed.wait()
            return found

    routes = SlowKeys()
    async with a_gateway(routes, dataclasses.replace(QUICK, keys_s=0.0, keys_reread_s=1e6)) as gateway:
        reads = routes.key_reads
        async with Client.of(gateway) as one, Client.of(gateway) as two, Client.of(gateway) as three:
            for round in range(1, 3):
                routes.proceed.clear()
                asked = [
                    asyncio.create_task(client.ask(a_request(key=f"wrong-{round}-{number}")))
                    for number, client in enumerate((one, two, three))
                ]
                await until(lambda: sum(c._active is not None for c in gateway.core.connections) == 3)  # type: ignore[attr-defined]
                routes.proceed.set()
                assert [answer.status for answer in await asyncio.gather(*asked)] == [401, 401, 401]
                assert routes.key_reads - reads == round


@on_uvloop
async def test_an_unknown_key_is_not_called_wrong_while_the_registry_is_down() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        gateway.source.down = True  # type: ignore[attr-defined]
        answer = await client.ask(a_request(key="sf-maybe"))
        assert (answer.status, answer.code, answer.headers["retry-after"]) == (503, "key_check_unavailable", "1")
        assert (await client.ask(a_request())).status == 200


@on_uvloop
async def test_models_are_those_that_can_be_asked() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        routes: MemoryRoutes = gateway.source  # type: ignore[assignment]
        routes.route("org/deep", ("d@2/inference/0", engine.url), generation="d@2")
        routes.route("hidden", ("h@1/inference/0", engine.url), visible=False)
        routes.route("starting", generation=None)
        await until(lambda: len(gateway.core.table.entries) == 4)
        listed = (await client.ask(a_request(method="GET", path="/v1/models"))).json()
        one = await client.ask(a_request(method="GET", path="/v1/models/org/deep"))
        hidden = await client.ask(a_request(method="GET", path="/v1/models/hidden"))
        starting = await client.ask(a_request(method="GET", path="/v1/models/starting"))
        absent = await client.ask(a_request(method="GET", path="/v1/models/absent"))
    assert listed["object"] == "list"
    assert [(model["id"], model["generation"]) for model in listed["data"]] == [("m", "m@1"), ("org/deep", "d@2")]
    assert {model["object"] for model in listed["data"]} == {"model"}
    assert all(isinstance(model["created"], int) for model in listed["data"])
    assert (one.status, one.json()["generation"]) == (200, "d@2")
    assert hidden.status == 200
    assert (starting.status, starting.code) == (503, "model_not_ready")
    assert (absent.status, absent.code) == (404, "model_not_found")


@on_uvloop
async def test_health_follows_the_table() -> None:
    health = a_request(method="GET", path="/healthz", key=None)
    routes = MemoryRoutes()
    routes.down = True
    settings = dataclasses.replace(QUICK, stale_s=0.3)
    async with a_gateway(routes, settings) as gateway, Client.of(gateway) as client:

        async def until_it_is(status: str) -> Answer:
            said: list[Answer] = []

            async def look() -> bool:
                said[:] = [await client.ask(health)]
                return bool(said[0].json()["status"] == status)

            await until(look)
            return said[0]

        starting = await client.ask(health)
        assert (starting.status, starting.json()["status"]) == (503, "starting")
        refused = await client.ask(a_request())
        assert (refused.status, refused.code) == (503, "key_check_unavailable")
        routes.down = False
        fresh = await until_it_is("ok")
        assert (fresh.status, fresh.json()["revision"]) == (200, 1)
        routes.down = True
        assert (await until_it_is("stale")).status == 503
        routes.down = False
        assert (await until_it_is("ok")).status == 200


@on_uvloop
async def test_metrics_count_by_model_and_status() -> None:
    async def moody(request: Seen, connection: EngineConnection) -> None:
        status = b"429 Too Many Requests" if b"busy" in request.body else b"200 OK"
        await connection.send(b"HTTP/1.1 %b\r\nContent-Length: 2\r\n\r\nok" % status)

    async with Engine(moody) as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.ask(a_request())
        await client.ask(a_request())
        await client.ask(a_request(a_body(mood="busy")))
        await client.ask(a_request(a_body('un"known')))
        answer = await client.ask(a_request(method="GET", path="/metrics", key=None))
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    assert 'standfast_gateway_requests_total{model="m",status="2xx"} 2' in lines
    assert 'standfast_gateway_requests_total{model="m",status="4xx"} 1' in lines
    assert 'standfast_gateway_requests_total{model="",status="4xx"} 1' in lines
    assert 'standfast_gateway_time_to_first_byte_seconds_count{model="m"} 3' in lines
    assert 'standfast_gateway_refusals_total{code="model_not_found"} 1' in lines
    assert 'standfast_gateway_in_flight{model="m"} 0' in lines
    assert not any("known" in line for line in lines if "model=" in line)
    assert not any("faults_total{" in line for line in lines)


def test_metrics_escape_their_labels() -> None:
    metrics = Metrics()
    metrics.of('a"\\\n')
    text = metrics.render(inflight={}, revision=1, table_age_s=0.0, connections=0, log_dropped=0, gateway="g").decode()
    assert 'model="a\\"\\\\\\n"' in text


@pytest.mark.parametrize("path", ["/healthz", "/v1/models", "/v1/models/m", "/metrics"])
@on_uvloop
async def test_head_is_get_without_the_body(path: str) -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        await client.send(a_request(method="HEAD", path=path) + a_request(method="GET", path="/v1/models"))
        head = await client.answer(without_body=True)
        assert (head.status, (await client.answer()).status) == (200, 200)
        assert int(head.headers["content-length"]) > 0


@on_uvloop
async def test_options_names_the_methods() -> None:
    async with a_gateway(MemoryRoutes()) as gateway, Client.of(gateway) as client:
        for path in ("/v1/chat/completions", "*"):
            answer = await client.ask(a_request(method="OPTIONS", path=path, key=None))
            assert answer.status == 204
            assert "POST" in answer.headers["allow"]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/responses/x", 405),
        ("POST", "/healthz", 405),
        ("POST", "/v1/models", 405),
        ("GET", "/", 404),
        ("POST", "/tokenize", 404),
        ("POST", "/v1/", 404),
        ("POST", "/v1/load_lora_adapter", 404),
        ("POST", "/v1/%6coad_lora_adapter", 404),
        ("POST", "/v1/unload_lora_adapter/", 404),
        ("POST", "/v1/../metrics", 400),
        ("POST", "/v1/%2e%2E/metrics", 400),
        ("POST", "/v1/.%2fx", 400),
        ("POST", "//v1/chat/completions", 400),
        ("POST", "/v1//chat/completions", 400),
        ("POST", "/v1/a%5c..%5cb", 400),
        ("POST", "/v1/a%0d%0aX:b", 400),
        ("POST", "/v1/chat/completions#x", 400),
    ],
)
@on_uvloop
async def test_other_paths_and_methods_stay_at_the_gateway(method: str, path: str, status: int) -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        answer = await client.ask(a_request(method=method, path=path))
        assert answer.status == status
        assert (status != 405) or "allow" in answer.headers
        assert (await client.ask(a_request())).status == 200
    assert len(engine.requests) == 1


@on_uvloop
async def test_a_target_in_absolute_form_means_its_path() -> None:
    async with Engine() as engine, a_gateway(routes_to(engine)) as gateway, Client.of(gateway) as client:
        assert (await client.ask(a_request(path="http://elsewhere:80/v1/completions?x=1"))).status == 200
    assert engine.requests[0].target == "/v1/completions?x=1"
    assert engine.requests[0].header("host") == f"127.0.0.1:{engine.port}"
