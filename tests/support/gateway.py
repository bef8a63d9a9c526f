"""A gateway under test, with routes in memory, scripted engines behind it and raw clients before it."""

import asyncio
import functools
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Self

import uvloop

from standfast.registry.rows import Backend, BackendState, Route, RoutingTable
from workers.gateway.server import Gateway
from workers.gateway.settings import Settings

KEY = "sf-a-key-for-tests"
PATIENCE_S = 60.0
"""How long a test waits for what must happen; never reached when all is well."""


P = ParamSpec("P")


def on_uvloop(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run a test on an event loop of its own, of the kind that the gateway runs on."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(test(*args, **kwargs))

    return run


def key_hash(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


async def until(condition: Callable[[], bool | Awaitable[bool]]) -> None:
    """Poll ``condition``; fails after :data:`PATIENCE_S`."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            met = condition()
            if met if isinstance(met, bool) else await met:
                return
            await asyncio.sleep(0.005)


async def passes(seconds: float) -> None:
    """Wait until the loop's clock, which the limits under test go by, has moved on so far."""
    loop = asyncio.get_running_loop()
    end = loop.time() + seconds
    await until(lambda: loop.time() > end)


class MemoryRoutes:
    """A registry in memory. ``down`` makes every call fail."""

    def __init__(self) -> None:
        self.number = 1
        self.routes: dict[str, Route] = {}
        self.keys = {key_hash(KEY)}
        self.key_reads = 0
        self.beats: list[tuple[int, dict[str, int]]] = []
        self.forgotten: list[str] = []
        self.down = False

    def route(
        self,
        served_name: str,
        *backends: tuple[str, str] | tuple[str, str, BackendState],
        generation: str | None = "m@1",
        visible: bool = True,
        max_waiting: int = 100,
        retry_after_s: float = 2.5,
    ) -> None:
        """Route ``served_name`` to ``(id, url[, state])`` from the next poll on."""
        self.routes[served_name] = Route(
            served_name=served_name,
            deployment=served_name,
            generation=generation,
            visible=visible,
            max_waiting=max_waiting,
            retry_after_s=retry_after_s,
            backends=tuple(
                Backend(id=id, url=url, state=state[0] if state else "ready", attempt=None)
                for id, url, *state in backends
            ),
        )
        self.number += 1

    def _check(self) -> None:
        if self.down:
            raise ConnectionError("the registry is down")

    async def revision(self) -> int:
        self._check()
        return self.number

    async def routing_table(self) -> RoutingTable:
        self._check()
        return RoutingTable(revision=self.number, routes=tuple(self.routes.values()))

    async def active_key_hashes(self) -> set[str]:
        self._check()
        self.key_reads += 1
        return set(self.keys)

    async def gateway_beat(self, id: str, *, url: str, revision_seen: int, inflight: Mapping[str, int]) -> None:
        self._check()
        self.beats.append((revision_seen, dict(inflight)))

    async def forget_gateway(self, id: str) -> None:
        self._check()
        self.forgotten.append(id)


QUICK = Settings(
    poll_s=0.01,
    beat_s=0.2,
    keys_s=0.05,
    stale_s=PATIENCE_S,
    connect_timeout_s=PATIENCE_S,
    linger_s=PATIENCE_S,
    upstream_idle_s=PATIENCE_S,
)
"""Does at once what it does now and then, and gives up on nothing before the test does."""


@asynccontextmanager
async def a_gateway(routes: MemoryRoutes, settings: Settings = QUICK) -> AsyncIterator[Gateway]:
    """A listening gateway; drained without grace at the end."""
    gateway = Gateway(routes, gateway_id="under-test", settings=settings)
    await gateway.start("127.0.0.1", 0)
    try:
        yield gateway
    finally:
        await gateway.drain(0.0)


def routes_to(*engines: "Engine", max_waiting: int = 100) -> MemoryRoutes:
    """The model ``m`` on these engines."""
    routes = MemoryRoutes()
    routes.route(
        "m", *((f"m@1/inference/{n}", engine.url) for n, engine in enumerate(engines)), max_waiting=max_waiting
    )
    return routes


def port_of(gateway: Gateway) -> int:
    return int(gateway.url.rsplit(":", 1)[1])


@dataclass
class Seen:
    """A request as an engine got it."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key == name), None)


class EngineConnection:
    """What a script answers with."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def stream(self, *events: str) -> None:
        """The head of an event stream and some events."""
        await self.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        for event in events:
            await self.event(event)

    async def event(self, text: str) -> None:
        data = f"data: {text}\n\n".encode()
        await self.send(b"%x\r\n%b\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.send(b"0\r\n\r\n")

    async def gone(self) -> None:
        """Wait until the gateway has closed this connection."""
        while await self.reader.read(65536):
            pass

    def cut(self) -> None:
        self.writer.transport.abort()


Script = Callable[[Seen, EngineConnection], Awaitable[None]]


def an_answer(body: bytes = b'{"ok": true}', status: str = "200 OK", headers: bytes = b"") -> bytes:
    return b"HTTP/1.1 %b\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b" % (
        status.encode(),
        len(body),
        headers,
        body,
    )


async def answer(_request: Seen, connection: EngineConnection) -> None:
    await connection.send(an_answer())


class Engine:
    """An HTTP server that follows a script, one call per request; ``requests`` are those that it got in full."""

    def __init__(self, script: Script = answer) -> None:
        self.script = script
        self.requests: list[Seen] = []
        self.connections = 0
        self.open = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        self.open += 1
        connection = EngineConnection(reader, writer)
        try:
            while (request := await self._read(reader)) is not None:
                self.requests.append(request)
                await self.script(request, connection)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self.open -= 1
            writer.close()
            self._tasks.discard(task)

    async def _read(self, reader: asyncio.StreamReader) -> Seen | None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return None
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        length = int(dict(headers).get("content-length", "0"))
        return Seen(method, target, headers, await reader.readexactly(length))


@dataclass
class Answer:
    """A response as a client got it. ``complete`` is False when the connection ended before its framing did."""

    status: int
    headers: dict[str, str]
    body: bytes = b""
    complete: bool = True
    version: str = "HTTP/1.1"
    raw: bytes = field(default=b"", repr=False)

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        """The code of an OpenAI-style error."""
        return str(self.json()["error"]["code"])


def a_body(model: str = "m", **more: object) -> bytes:
    return json.dumps({"model": model, **more}).encode()


def a_request(
    body: bytes | None = None,
    *,
    path: str = "/v1/chat/completions",
    key: str | None = KEY,
    headers: str = "",
    version: str = "HTTP/1.1",
    method: str = "POST",
) -> bytes:
    """A request as bytes; ``headers`` are complete lines with their CRLF."""
    body = a_body() if body is None else body
    authorization = f"Authorization: Bearer {key}\r\n" if key else ""
    framing = f"Content-Length: {len(body)}\r\n" if method == "POST" else ""
    head = f"{method} {path} {version}\r\nHost: gateway\r\n{authorization}{framing}{headers}\r\n"
    return head.encode("latin-1") + (body if method == "POST" else b"")


class Client:
    """A connection that sends bytes as they are and reads responses with care."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    @asynccontextmanager
    async def of(cls, gateway: Gateway, limit: int = 2**16) -> AsyncIterator["Client"]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port_of(gateway), limit=limit)
        try:
            yield cls(reader, writer)
        finally:
            writer.close()

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def ask(self, data: bytes) -> Answer:
        await self.send(data)
        return await self.answer()

    async def head(self) -> Answer:
        """Read a response head."""
        async with asyncio.timeout(PATIENCE_S):
            raw = await self.reader.readuntil(b"\r\n\r\n")
        first, *lines = raw[:-4].decode("latin-1").split("\r\n")
        version, status, _ = (*first.split(" ", 2), "")[:3]
        pairs = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        assert len({name for name, _ in pairs}) == len(pairs), f"a header came twice: {pairs}"
        return Answer(int(status), dict(pairs), version=version, raw=raw)

    async def answer(self, *, without_body: bool = False) -> Answer:
        """Read a whole response."""
        found = await self.head()
        if without_body or found.status in (100, 204, 304):
            return found
        async with asyncio.timeout(PATIENCE_S):
            try:
                if "content-length" in found.headers:
                    found.body = await self.reader.readexactly(int(found.headers["content-length"]))
                elif found.headers.get("transfer-encoding") == "chunked":
                    while chunk := await self.chunk():
                        found.body += chunk
                else:
                    found.body = await self.reader.read(-1)
            except asyncio.IncompleteReadError as error:
                found.complete = False
                found.body += error.partial
        return found

    async def chunk(self) -> bytes:
        """One chunk; empty for the last one. Raises :class:`asyncio.IncompleteReadError` when the connection ends."""
        async with asyncio.timeout(PATIENCE_S):
            line = await self.reader.readuntil(b"\r\n")
            data = await self.reader.readexactly(int(line, 16) + 2)
        assert data.endswith(b"\r\n")
        return data[:-2]

    async def closed(self) -> bytes:
        """What still comes until the gateway closes the connection."""
        async with asyncio.timeout(PATIENCE_S):
            try:
                return await self.reader.read(-1)
            except ConnectionResetError:
                return b""
