"""Bytes of a client -> requests. Framing is checked here, so that what is forwarded can only be read in one way.

llhttp (strict) refuses bare line feeds, folded headers, spaces before a colon, control characters, repeated or
malformed lengths, and a length beside a transfer encoding. On top of it: sizes, exactly one ``Host``, ``chunked`` as
the only transfer encoding and never for HTTP/1.0, one
``Authorization`` at most, and trailers dropped.
"""

from collections.abc import Callable

import httptools

from workers.gateway import wire
from workers.gateway.request import Budget, Request
from workers.gateway.settings import Settings
from workers.gateway.wire import Page

_CHUNK_OVERHEAD = 8
"""Framing bytes allowed per byte of a chunked body (the smallest chunk needs 5), beyond a fixed allowance of
``head_bytes``.
"""


class RequestReader:
    """Feeds llhttp and builds :class:`Request` objects.

    ``on_head`` is called once a head is complete, and may set ``refusal`` (the body is then read and dropped) or
    ``discard``. ``on_complete`` is called once per request, in order, when it is complete or when nothing more of it
    will be read (then ``close`` is set, and ``stopped``).
    """

    def __init__(
        self,
        settings: Settings,
        budget: Budget,
        on_head: Callable[[Request], None],
        on_complete: Callable[[Request], None],
    ) -> None:
        self._settings = settings
        self._budget = budget
        self._head = on_head
        self._complete = on_complete
        self._parser = httptools.HttpRequestParser(self)
        self._replaying = False
        self._ended_one = False
        self._lines: list[bytes] = []
        self.request: Request | None = None
        """The request being read, from its first byte to its last."""
        self.stopped = False
        """Nothing more is read from this connection."""

    def feed(self, data: bytes) -> None:
        """Read ``data``. Errors of the client become a request with a refusal."""
        if self.stopped:
            return
        self._ended_one = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            self._read_on_without_upgrade(data[upgrade.args[0] :])
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError as error:
            if not self.stopped:
                self.stop(wire.problem(400, f"the request is not valid HTTP/1.1: {error}", "bad_request"))
        request = self.request
        if request is None or self.stopped:
            return
        if not self._ended_one:
            request.raw += len(data)
        limit = self._settings.head_bytes
        if not request.head_done:
            if request.raw > limit:
                self.stop(self._head_too_large())
        elif request.chunked and request.raw - request.size * _CHUNK_OVERHEAD > 2 * limit:
            self.stop(wire.problem(400, "the chunked body is mostly framing", "bad_request"))

    def stop(self, page: Page) -> None:
        """Refuse the request being read, and read nothing more."""
        request = self.request or Request()
        request.refusal = request.refusal or page
        request.close = True
        self.stopped = True
        self.request = None
        self._budget.release(request)
        self._complete(request)

    def _head_too_large(self) -> Page:
        return wire.problem(431, f"the request head is larger than {self._settings.head_bytes} bytes", "head_too_large")

    def _read_on_without_upgrade(self, rest: bytes) -> None:
        """An offer to upgrade is declined by going on in HTTP/1.1.

        llhttp ends a message at the head when it offers an upgrade (Java's client does so on every plain POST, for
        h2c). Its framing is read again by a fresh parser without the offer.
        """
        request = self.request
        if request is None or self.stopped:
            return
        if request.method == b"CONNECT":
            self.stop(wire.problem(405, "there is no tunnel through the gateway", "method_not_allowed"))
            return
        self._parser = httptools.HttpRequestParser(self)
        connection = b"connection: close\r\n" if request.close else b""
        version = b"1.0" if request.http10 else b"1.1"
        if request.http10 and not request.close:
            connection = b"connection: keep-alive\r\n"
        self._replaying = True
        request.upgrade = False
        self._parser.feed_data(b"%b / HTTP/%b\r\n%b%b\r\n" % (request.method, version, request.framing, connection))
        self._replaying = False
        self.feed(rest)

    # Callbacks of llhttp. None of them raises.

    def on_message_begin(self) -> None:
        if not self._replaying and not self.stopped:
            self.request = Request()
            self._lines = []

    def on_url(self, url: bytes) -> None:
        request = self.request
        if request is None or self._replaying:
            return
        request.target += url
        if len(request.target) > self._settings.target_bytes:
            self.stop(
                wire.problem(
                    414, f"the request target is longer than {self._settings.target_bytes} bytes", "target_too_long"
                )
            )

    def on_header(self, name: bytes, value: bytes) -> None:
        request = self.request
        if request is None or self._replaying:
            return
        request.head_size += len(name) + len(value) + 4
        if request.head_size > self._settings.head_bytes:
            self.stop(self._head_too_large())
            return
        if request.head_done:
            return
        kind = wire.REQUEST_HEADERS[name]
        if kind == wire.PASS:
            self._lines.append(name + b": " + value)
        elif kind == wire.CONTENT_LENGTH:
            request.length = int(value)
            request.framing = b"content-length: %d\r\n" % request.length
        elif kind == wire.HOST:
            request.hosts += 1
        elif kind == wire.AUTHORIZATION:
            if request.authorization is not None:
                request.refusal = wire.problem(400, "more than one Authorization header", "bad_request")
            request.authorization = value.strip()
        elif kind == wire.REQUEST_ID:
            request.request_id = value.strip()
        elif kind == wire.CONNECTION:
            request.connection = request.connection + b"," + value if request.connection else value
        elif kind == wire.TRANSFER_ENCODING:
            request.framing = b"transfer-encoding: chunked\r\n"
            request.chunked = True
            if value.strip().lower() != b"chunked":
                request.refusal = wire.problem(
                    501, "the only transfer encoding understood is chunked", "not_implemented"
                )
        elif kind == wire.EXPECT:
            request.expect = value.strip().lower()
        elif kind == wire.CONTENT_ENCODING and value.strip().lower() not in (b"", b"identity"):
            request.refusal = wire.problem(
                415,
                "the body is compressed: the gateway reads 'model' from it, so send it plain",
                "unsupported_encoding",
            )

    def on_headers_complete(self) -> None:
        request = self.request
        if request is None or self._replaying:
            return
        parser = self._parser
        request.head_done = True
        request.method = parser.get_method()
        request.close = not parser.should_keep_alive()
        request.upgrade = parser.should_upgrade()
        version = parser.get_http_version()
        request.http10 = version == "1.0"
        if fault := self._fault_of(request, version):
            self.stop(fault)
            return
        lines = self._lines
        if request.connection and (names := wire.nominated(request.connection)):
            lines = wire.without_nominated(lines, names)
        request.relay = b"\r\n".join((*lines, b""))
        if request.length > self._settings.body_bytes and not request.refusal:
            request.refusal = self._body_too_large()
        self._head(request)
        if request.refusal and (request.expect or request.length > self._settings.discard_bytes):
            self.stop(request.refusal)

    def _fault_of(self, request: Request, version: str) -> Page | None:
        """What makes this head unfit to be relayed; such a connection is closed, for its framing cannot be trusted."""
        if version not in ("1.1", "1.0"):
            return wire.problem(505, f"HTTP/{version} is not spoken here", "http_version_not_supported")
        if request.hosts != 1 and (request.hosts or not request.http10):
            return wire.problem(400, "a request needs exactly one Host header", "bad_request")
        if request.chunked and (request.http10 or request.refusal):
            return request.refusal or wire.problem(400, "HTTP/1.0 knows no transfer encoding", "bad_request")
        if request.expect and (request.expect != b"100-continue" or request.http10):
            if not request.http10:
                return wire.problem(417, "the only expectation understood is 100-continue", "expectation_failed")
            request.expect = b""
        return None

    def _body_too_large(self) -> Page:
        return wire.problem(413, f"the request body is larger than {self._settings.body_bytes} bytes", "body_too_large")

    def on_body(self, data: bytes) -> None:
        request = self.request
        if request is None:
            return
        request.size += len(data)
        if request.refusal or request.discard:
            if request.size > self._settings.discard_bytes:
                self.stop(self._body_too_large())
            return
        if request.size > self._settings.body_bytes:
            self.stop(self._body_too_large())
        elif not self._budget.admit(request, len(data)):
            self.stop(
                wire.problem(
                    503,
                    "the gateway holds too many large requests; try again",
                    "gateway_busy",
                    headers=b"retry-after: 1\r\n",
                )
            )
        else:
            if request.parts is None:
                request.parts = []
            request.parts.append(data)

    def on_message_complete(self) -> None:
        request = self.request
        if request is None or request.upgrade:
            return
        request.complete = True
        self.request = None
        self._ended_one = True
        if request.close:
            self.stopped = True
        if request.refusal:
            self._budget.release(request)
        self._complete(request)
