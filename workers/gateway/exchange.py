"""One request from the routing decision to the last byte of its answer."""

import asyncio
import errno
from typing import Protocol

import structlog

from workers.gateway import wire
from workers.gateway.access import AccessLine
from workers.gateway.body import ModelFieldError, model_of
from workers.gateway.core import Core
from workers.gateway.metrics import ModelMetrics
from workers.gateway.pages import unknown_model
from workers.gateway.request import Request
from workers.gateway.responses import ResponseHead
from workers.gateway.routing import Entry, Refusal, Target, choose
from workers.gateway.upstream import Pool, UpstreamConnection
from workers.gateway.wire import Page

log = structlog.get_logger()

_OURS = (errno.EMFILE, errno.ENFILE, errno.EADDRNOTAVAIL, errno.ENOBUFS, errno.ENOMEM)
"""Connect errors that say nothing about the backend."""
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")


class Client(Protocol):
    """The client's side of an exchange."""

    peer: str

    def write(self, data: bytes) -> None: ...

    def answer(self, request: Request, page: Page) -> None:
        """Answer with a page of the gateway; the exchange is over."""
        ...

    def exchange_done(self, keep_alive: bool, now: float) -> None:
        """The answer is written, complete or (without ``keep_alive``) as far as it goes."""
        ...


class Exchange:
    """Relays one request.

    Nothing is sent twice: the request goes to a second backend only when the first could not be connected to. After
    that, whatever the backend says (429 and 503 included) is the answer, and its silence or death is reported, never
    papered over.
    """

    _body = b""
    _bytes_out = 0
    _chunked = False
    _connecting: asyncio.Task[None] | None = None
    _done = False
    _entry: Entry | None = None
    _event_stream = False
    _first_at = 0.0
    _last = b""
    _metrics: ModelMetrics | None = None
    _status = 0
    _target: Target | None = None
    _tried: tuple[str, ...] = ()
    _upstream: UpstreamConnection | None = None

    def __init__(self, core: Core, client: Client, request: Request, loop: asyncio.AbstractEventLoop) -> None:
        self._core = core
        self._client = client
        self._request = request
        self._loop = loop
        self._started = loop.time()
        self._keep_alive = not request.close

    # Towards the backend.

    def begin(self) -> None:
        """Find the model, choose a backend and send, in one step unless a connection has to be made."""
        core = self._core
        body = self._request.take_body()
        try:
            model = model_of(body)
        except ModelFieldError as error:
            self._refuse(wire.problem(400, str(error), "invalid_model_field", param="model"))
            return
        entry = core.table.entries.get(model)
        if entry is None:
            self._refuse(unknown_model(core, model))
            return
        self._body = body
        self._entry = entry
        self._metrics = core.metrics.of(model)
        self._metrics.inflight += 1
        self._route(entry, self._started)

    def _route(self, entry: Entry, now: float) -> None:
        core = self._core
        held = core.held_at(now) if core.held else ()
        choice = choose(entry, core.inflight, held, core.pick, self._tried)
        if choice is Refusal.FULL and not self._tried:
            message = (
                f"the model '{entry.served_name}' has {entry.max_waiting} requests waiting per replica; try again later"
            )
            self._refuse(wire.problem(429, message, "queue_full", headers=_retry_after(entry)))
        elif isinstance(choice, Refusal):
            reason, code = ("no replica is ready yet", "model_not_ready")
            if self._tried:
                reason, code = ("no replica can be reached", "backend_unreachable")
            message = f"the model '{entry.served_name}' is known, but {reason}"
            self._refuse(wire.problem(503, message, code, headers=_retry_after(entry)))
        else:
            self._target = choice
            core.acquire(choice)
            self._connect_to(choice, now)

    def _connect_to(self, target: Target, now: float) -> None:
        try:
            pool = self._core.pool(target)
        except ValueError as error:
            self._unreachable(target, OSError(errno.EINVAL, str(error)))
            return
        connection = pool.take(now)
        if connection is not None:
            self._send(pool, connection)
        else:
            self._connecting = self._loop.create_task(self._connect(pool, target))

    async def _connect(self, pool: Pool, target: Target) -> None:
        try:
            connection = await pool.connect()
        except OSError as error:
            self._connecting = None
            self._unreachable(target, error)
            return
        self._connecting = None
        if self._done:
            connection.abort()
            return
        self._core.held.pop(target.id, None)
        self._send(pool, connection)

    def _unreachable(self, target: Target, error: OSError) -> None:
        """No connection, so nothing was sent: one other backend of the same generation may take the request."""
        if self._done or self._entry is None:
            return
        core = self._core
        core.metrics.fault(target.id, "connect")
        if error.errno in _OURS or core.hold(target, self._loop.time()):
            log.warning("backend_unreachable", backend=target.id, error=type(error).__name__, errno=error.errno)
        core.release(target)
        self._target = None
        entry = core.table.entries.get(self._entry.served_name)
        if not self._tried and entry is not None and entry.generation == self._entry.generation:
            self._tried = (target.id,)
            self._route(entry, self._loop.time())
            return
        message = f"the model '{self._entry.served_name}' is known, but no replica can be reached"
        self._refuse(wire.problem(503, message, "backend_unreachable", headers=_retry_after(self._entry)))

    def _send(self, pool: Pool, connection: UpstreamConnection) -> None:
        request = self._request
        body, self._body = self._body, b""
        head = b"POST %b%b%b%d\r\nx-request-id: %b\r\n%b\r\n" % (
            pool.prefix,
            request.target,
            pool.host_line,
            len(body),
            request.request_id,
            request.relay,
        )
        self._upstream = connection
        connection.send(self, head, body)
        if request.held:
            self._core.budget.release(request)

    # From the backend.

    def on_response(self, head: ResponseHead, body: bytes, complete: bool) -> None:
        if self._done:
            return
        now = self._loop.time()
        data = b"" if self._status else self._begin_response(head, body, complete)
        if body:
            if not self._first_at:
                self._first_at = now
            self._bytes_out += len(body)
            self._last = body
        if not self._chunked:
            data += body
        elif complete:
            data = b"%b%x\r\n%b\r\n0\r\n\r\n" % (data, len(body), body) if body else data + wire.LAST_CHUNK
        elif body:
            data = b"%b%x\r\n%b\r\n" % (data, len(body), body)
        if data:
            self._client.write(data)
        if complete:
            if self._upstream is not None:
                self._upstream.done(now)
            self._finish("ok", now)
            self._client.exchange_done(self._keep_alive, now)

    def _begin_response(self, head: ResponseHead, body: bytes, complete: bool) -> bytes:
        """The response head: the backend's own headers, our framing, and what names the generation and the request."""
        request, entry = self._request, self._entry
        assert entry is not None
        self._status = status = head.status
        self._event_stream = head.event_stream and head.length is None
        if self._core.draining:
            self._keep_alive = False
        if head.length is not None:
            framing = b"content-length: %d\r\n" % (len(body) if complete else head.length)
        elif status in (204, 304):
            framing = b""
        elif request.http10:
            self._keep_alive = False
            framing = b""
        else:
            self._chunked = True
            framing = b"transfer-encoding: chunked\r\n"
        if not self._keep_alive or request.http10:
            framing += wire.connection_line(keep_alive=self._keep_alive, http10=request.http10)
        return b"%b%b%bx-request-id: %b\r\n\r\n" % (head.start, framing, entry.header, request.request_id)

    def on_upstream_lost(self, why: str) -> None:
        if self._done or self._target is None or self._entry is None:
            return
        core, backend = self._core, self._target.id
        log.warning(
            "backend_lost",
            backend=backend,
            why=why,
            request_id=self._request.request_id.decode(),
            after_head=bool(self._status),
        )
        if not self._status:
            core.metrics.fault(backend, "no_response")
            message = f"the backend of the model '{self._entry.served_name}' failed before it answered: {why}"
            page = wire.problem(502, message, "backend_failed", headers=self._entry.header)
            self._finish("backend_fault", self._loop.time(), page)
            self._client.answer(self._request, page)
            return
        core.metrics.fault(backend, "cut")
        if self._event_stream:
            self._client.write(self._error_event(why))
        now = self._loop.time()
        self._finish("cut", now)
        self._client.exchange_done(False, now)

    def _error_event(self, why: str) -> bytes:
        """The last event of a cut stream. No ``[DONE]`` and no last chunk follow, so no client can take the answer
        for complete.
        """
        assert self._entry is not None
        message = f"the answer of the model '{self._entry.served_name}' was cut off: {why}"
        event = b"data: " + wire.error_json(message, kind="server_error", code="stream_cut") + b"\n\n"
        if self._last and not self._last.endswith(_EVENT_ENDS):
            event = b"\n\n" + event
        return b"%x\r\n%b\r\n" % (len(event), event) if self._chunked else event

    # From the client.

    def pause(self) -> None:
        """The client reads too slowly: stop reading from the backend."""
        if self._upstream is not None and not self._done:
            self._upstream.pause()

    def resume(self) -> None:
        if self._upstream is not None and not self._done:
            self._upstream.resume()

    def client_gone(self) -> None:
        """Nobody waits for the answer: let the backend stop working on it."""
        if self._done:
            return
        if self._connecting is not None:
            self._connecting.cancel()
        if self._upstream is not None:
            self._upstream.abort()
        if self._metrics is not None:
            self._metrics.client_gone += 1
        self._finish("client_gone", self._loop.time())

    # Ends.

    def _refuse(self, page: Page) -> None:
        if self._entry is not None and self._entry.header:
            page = Page(page.status, page.body, page.content_type, page.headers + self._entry.header, page.code)
        self._finish("refused", self._loop.time(), page)
        self._client.answer(self._request, page)

    def _finish(self, outcome: str, now: float, page: Page | None = None) -> None:
        """Settle the counts and write the access line; the exchange is over."""
        self._done = True
        core = self._core
        if self._request.held:
            core.budget.release(self._request)
        duration = now - self._started
        if page is not None:
            self._status = page.status
            self._bytes_out = len(page.body)
            core.metrics.refuse(page.code)
        metrics = self._metrics
        if metrics is not None:
            metrics.inflight -= 1
            metrics.duration.observe(duration)
            if self._first_at:
                metrics.first_byte.observe(self._first_at - self._started)
        if self._status:
            (metrics or core.metrics.unrouted).classes[self._status // 100] += 1
        if core.access.enabled:
            request, entry, target = self._request, self._entry, self._target
            core.access.add(
                AccessLine(
                    event="request",
                    method="POST",
                    path=request.path.decode("ascii", "replace"),
                    status=self._status or 499,
                    outcome=outcome,
                    request_id=request.request_id.decode("ascii", "replace"),
                    client=self._client.peer,
                    duration_ms=round(duration * 1000, 2),
                    bytes_out=self._bytes_out,
                    model=entry.served_name if entry else "",
                    generation=(entry.generation or "") if entry else "",
                    backend=target.id if target else "",
                    first_byte_ms=round((self._first_at - self._started) * 1000, 2) if self._first_at else -1.0,
                )
            )
        if self._target is not None:
            core.release(self._target)


def _retry_after(entry: Entry) -> bytes:
    return b"retry-after: %b\r\n" % entry.retry_after
