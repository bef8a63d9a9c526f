"""One client connection: who is let in, and answers in the order of the requests."""

import asyncio
from collections import deque
from functools import partial
from typing import cast

from workers.gateway import pages, wire
from workers.gateway.access import AccessLine
from workers.gateway.core import Core
from workers.gateway.exchange import Exchange
from workers.gateway.keys import digest_of, presented_key
from workers.gateway.paths import Door, door_of, needs_key, origin_form
from workers.gateway.reader import RequestReader
from workers.gateway.request import Request
from workers.gateway.upstream import tune
from workers.gateway.whole import Cut, repeated_request, whole_request
from workers.gateway.wire import Page

_QUEUE = 1
_KEY = 2
_MOST_QUEUED = 256
_NEVER = float("inf")


class ClientConnection(asyncio.Protocol):
    """Reads requests, answers them one after the other, and notices at once when the client goes.

    The end of the client's stream counts as its leaving: a client that shuts down its sending side while it waits for
    an answer is not served, as with most proxies, since on the wire it cannot be told from one that is gone.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._loop = asyncio.get_running_loop()
        self._reader = RequestReader(core.settings, core.budget, self._on_head, self._on_complete)
        self._queue: deque[Request] = deque()
        self._active: Request | None = None
        self._exchange: Exchange | None = None
        self._reading: Request | None = None
        self._last: Request | None = None
        self._cut: Cut | None = None
        self._pauses = 0
        self._pumping = False
        self._gone = False
        self._ending = False
        self._blocked_since: float | None = None
        self._deadline = _NEVER
        self._transport: asyncio.Transport
        self.peer = ""

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        tune(self._transport)
        peer = transport.get_extra_info("peername")
        self.peer = str(peer[0]) if isinstance(peer, tuple) and peer else "local"
        self._deadline = self._loop.time() + self._core.settings.head_timeout_s
        self._core.connections.add(self)

    def data_received(self, data: bytes) -> None:
        reader = self._reader
        if self._ending or reader.stopped:
            return
        if reader.request is None and not self._queue and self._read_whole(data):
            return
        settings = self._core.settings
        reader.feed(data)
        request = reader.request
        if request is not None:
            if request.head_done:
                self._deadline = self._loop.time() + settings.body_timeout_s
            elif request is not self._reading:
                self._deadline = self._loop.time() + settings.head_timeout_s
        self._reading = request

    def _read_whole(self, data: bytes) -> bool:
        """Take ``data`` by the fast lane, if it is one plain request and fits the limits."""
        core = self._core
        if self._cut is not None and self._last is not None and (at := self._cut.body_at(data)):
            request = repeated_request(self._last, data[at:])
            if request.size > core.settings.body_bytes or not core.keys.has(request.key):
                return False
            if not core.budget.admit(request, request.size):
                return False
        else:
            settings = core.settings
            whole = whole_request(data, head_limit=settings.head_bytes, target_limit=settings.target_bytes)
            if whole is None:
                return False
            request, cut = whole
            if request.size > settings.body_bytes or not core.budget.admit(request, request.size):
                return False
            self._on_head(request)
            if request.door is Door.RELAY and request.refusal is None and not request.key_unknown:
                self._last, self._cut = repeated_request(request, b""), cut
        if self._active is None and self._blocked_since is None:
            self._active = request
            if not request.key_unknown:
                self._dispatch(request)
        else:
            self._on_complete(request)
        return True

    def eof_received(self) -> None:
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._core.leave(self)

    def pause_writing(self) -> None:
        self._blocked_since = self._loop.time()
        if self._exchange is not None:
            self._exchange.pause()

    def resume_writing(self) -> None:
        self._blocked_since = None
        if self._exchange is not None:
            self._exchange.resume()
        self._pump()

    def _leave(self) -> None:
        if self._gone:
            return
        self._gone = True
        if self._exchange is not None:
            self._exchange.client_gone()
            self._exchange = None
        for request in (*self._queue, self._active, self._reader.request):
            if request is not None:
                self._core.budget.release(request)
        self._queue.clear()

    # The reader's calls.

    def _on_head(self, request: Request) -> None:
        request.target = origin_form(request.target)
        request.path = path = request.target.partition(b"?")[0]
        door = door_of(request.method, path)
        if isinstance(door, Page):
            request.refusal = request.refusal or door
            return
        request.door = door
        request.discard = door is not Door.RELAY
        if needs_key(path) and door is not Door.OPTIONS and request.refusal is None:
            self._check_key(request)
        if request.expect and request.refusal is None:
            self._continue(request)

    def _check_key(self, request: Request) -> None:
        key = presented_key(request.authorization) if request.authorization else None
        if key is None:
            request.refusal = _unauthorized("no API key was given: send 'Authorization: Bearer <key>'")
            return
        digest = digest_of(key)
        request.key = digest
        if self._core.keys.has(digest):
            return
        request.key_unknown = True
        self._pause(_KEY)
        self._core.keys.refresh().add_done_callback(partial(self._key_read, request))

    def _key_read(self, request: Request, reading: asyncio.Task[bool]) -> None:
        """The keys were read anew because ``request`` came with one that was not known."""
        if self._gone:
            return
        request.key_unknown = False
        self._resume(_KEY)
        if not self._core.keys.has(request.key) and request.refusal is None:
            if reading.cancelled() or not reading.result():
                request.refusal = wire.problem(
                    503,
                    "the API key cannot be checked now; try again",
                    "key_check_unavailable",
                    headers=b"retry-after: 1\r\n",
                )
            else:
                request.refusal = _unauthorized("the API key is not valid")
        if request is self._active:
            self._dispatch(request)
        elif request is self._reader.request:
            if request.refusal is not None and (request.expect or request.length > self._core.settings.discard_bytes):
                self._reader.stop(request.refusal)
            elif request.expect:
                self._continue(request)

    def _continue(self, request: Request) -> None:
        """Ask for the body of ``request`` when it is its turn to be answered."""
        if self._active is None and not self._queue and not request.key_unknown and not request.size:
            request.expect = b""
            self._transport.write(wire.CONTINUE)

    def _on_complete(self, request: Request) -> None:
        self._queue.append(request)
        self._pump()
        waiting = len(self._queue)
        if waiting >= self._core.settings.pipelined:
            self._pause(_QUEUE)
            if waiting > _MOST_QUEUED and not self._reader.stopped:
                self._reader.stop(wire.problem(400, "too many pipelined requests", "bad_request"))

    # Answers, in order.

    def _pump(self) -> None:
        if self._pumping:
            return
        self._pumping = True
        while (
            self._queue and self._active is None and self._blocked_since is None and not self._gone and not self._ending
        ):
            request = self._queue.popleft()
            self._active = request
            if not request.key_unknown:
                self._dispatch(request)
        self._pumping = False
        if self._pauses & _QUEUE and len(self._queue) < self._core.settings.pipelined:
            self._resume(_QUEUE)

    def _dispatch(self, request: Request) -> None:
        core = self._core
        given = request.request_id
        if not given or not wire.usable_request_id(given):
            request.request_id = core.new_request_id()
        if request.refusal is None and request.door is Door.RELAY:
            self._exchange = exchange = Exchange(core, self, request, self._loop)
            exchange.begin()
            return
        if request.held:
            core.budget.release(request)
        page = request.refusal or pages.answer(core, request)
        if page.code:
            core.metrics.refuse(page.code)
        core.metrics.unrouted.classes[page.status // 100] += 1
        if core.access.enabled and (page.status >= 400 or request.door not in (Door.HEALTH, Door.METRICS)):
            core.access.add(
                AccessLine(
                    event="request",
                    method=request.method.decode("ascii", "replace"),
                    path=request.path.decode("ascii", "replace"),
                    status=page.status,
                    outcome="refused" if page.code else "ok",
                    request_id=request.request_id.decode("ascii", "replace"),
                    client=self.peer,
                    duration_ms=0.0,
                    bytes_out=len(page.body),
                )
            )
        self.answer(request, page)

    def write(self, data: bytes) -> None:
        if not self._gone:
            self._transport.write(data)

    def answer(self, request: Request, page: Page) -> None:
        """Answer with a page of the gateway."""
        keep_alive = not request.close and not self._core.draining
        self.write(
            wire.render(
                page,
                request_id=request.request_id,
                keep_alive=keep_alive,
                http10=request.http10,
                without_body=request.method == b"HEAD",
            )
        )
        self.exchange_done(keep_alive, self._loop.time())

    def exchange_done(self, keep_alive: bool, now: float) -> None:
        """The active request is answered: go on with the next one, or end the connection."""
        request, self._active = self._active, None
        self._exchange = None
        if self._gone:
            return
        if not keep_alive or self._core.draining:
            self._end(linger=request is not None and not request.complete)
            return
        reading = self._reader.request
        settings = self._core.settings
        self._deadline = now + (settings.idle_timeout_s if reading is None else settings.head_timeout_s)
        if self._queue:
            self._pump()
        elif reading is not None and reading.expect:
            self._continue(reading)

    # Ends and limits.

    def _end(self, *, linger: bool) -> None:
        """Close once everything is written. With ``linger``, drain what the client still sends: a reset would destroy
        the answer on its way.
        """
        self._ending = True
        now = self._loop.time()
        if linger and self._transport.can_write_eof() and not self._transport.is_closing():
            self._transport.write_eof()
            self._resume(_QUEUE | _KEY)
            self._deadline = now + self._core.settings.linger_s
        else:
            self._transport.close()
            self._deadline = now + self._core.settings.write_timeout_s

    def check(self, now: float) -> None:
        settings = self._core.settings
        if self._ending:
            if now > self._deadline:
                self._transport.abort()
        elif self._blocked_since is not None:
            if now - self._blocked_since > settings.write_timeout_s:
                self._transport.abort()
        elif self._active is None and now > self._deadline:
            if self._reader.request is not None:
                self._reader.stop(wire.problem(408, "the request did not arrive in time", "request_timeout"))
            else:
                self._end(linger=False)

    def finish(self) -> None:
        """Close as soon as nothing is open on this connection."""
        if self._active is None and not self._queue and self._reader.request is None and not self._ending:
            self._end(linger=False)

    def drop(self) -> None:
        self._transport.abort()

    def _pause(self, reason: int) -> None:
        if not self._pauses and not self._transport.is_closing():
            self._transport.pause_reading()
        self._pauses |= reason

    def _resume(self, reason: int) -> None:
        if not self._pauses & reason:
            return
        self._pauses &= ~reason
        if not self._pauses and not self._transport.is_closing():
            self._transport.resume_reading()


def _unauthorized(message: str) -> Page:
    return wire.problem(401, message, "invalid_api_key", headers=b"www-authenticate: Bearer\r\n")
