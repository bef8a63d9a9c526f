"""Bytes of a backend -> the head and the body of a response, by llhttp."""

from dataclasses import dataclass

import httptools

from workers.gateway import wire


@dataclass(slots=True, eq=False)
class ResponseHead:
    """``start``: the status line and the end-to-end headers, each with its CRLF. ``length`` is None where the backend
    gives none.
    """

    status: int
    start: bytes
    length: int | None
    event_stream: bool


def start_of(status: int, reason: bytes, lines: list[bytes]) -> bytes:
    """What a response begins with, up to the headers that each hop writes anew."""
    return b"\r\n".join((b"HTTP/1.1 %d %b" % (status, reason), *lines, b""))


class ResponseReader:
    """Reads one response after the other; :meth:`reset` before each.

    Framing is taken off: ``parts`` collects body bytes, and trailers, chunk extensions and interim (1xx) responses are
    dropped. ``complete`` says that the last byte was seen, ``reusable`` that the connection may carry another request.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._parser = httptools.HttpResponseParser(self)
        self.reset()

    def reset(self) -> None:
        self._fault = ""
        self._interim = False
        self._keep_alive = False
        self._dirty = False
        self._overhead = 0
        self._connection = b""
        self._reason = b""
        self._lines: list[bytes] = []
        self._length: int | None = None
        self._event_stream = False
        self._chunked = False
        self.head: ResponseHead | None = None
        self.parts: list[bytes] = []
        self.complete = False

    @property
    def reusable(self) -> bool:
        return self.complete and self._keep_alive and not self._dirty

    @property
    def ends_with_connection(self) -> bool:
        """The response has no length of its own: the end of the connection is its end."""
        return self.head is not None and self._length is None and not self._chunked

    def take(self) -> bytes:
        """The body bytes since the last call."""
        parts = self.parts
        if not parts:
            return b""
        self.parts = []
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def feed(self, data: bytes) -> str:
        """Read ``data``; says how it breaks the response, or nothing. What was read before the break is still good."""
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            return "it switched protocols"
        except httptools.HttpParserCallbackError:
            raise
        except httptools.HttpParserError as error:
            self._dirty = True
            return "" if self.complete else f"it broke HTTP: {error}"
        if self.parts or self.complete:
            self._overhead = 0
        else:
            self._overhead += len(data)
            if self._overhead > self._limit:
                return "it sends a head or framing without end"
        return self._fault

    # Callbacks of llhttp. None of them raises.

    def on_message_begin(self) -> None:
        self._dirty = self._dirty or self.complete

    def on_status(self, reason: bytes) -> None:
        if self.head is None:
            self._reason += reason

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.head is not None:
            return
        kind = wire.RESPONSE_HEADERS[name]
        if kind == wire.PASS:
            self._lines.append(name + b": " + value)
        elif kind == wire.CONTENT_TYPE:
            self._lines.append(name + b": " + value)
            self._event_stream = value.lower().startswith(b"text/event-stream")
        elif kind == wire.CONTENT_LENGTH:
            self._length = int(value)
        elif kind == wire.TRANSFER_ENCODING:
            self._chunked = True
            if value.strip().lower() != b"chunked":
                self._fault = "its transfer encoding is not chunked"
        elif kind == wire.CONNECTION:
            self._connection = self._connection + b"," + value if self._connection else value

    def on_headers_complete(self) -> None:
        if self.head is not None:
            return
        status = self._parser.get_status_code()
        if status < 200:
            self._interim = True
            self._length = None
            self._reason = b""
            self._lines = []
            self._connection = b""
            return
        if status > 599:
            self._fault = "its status is not one of HTTP"
        if self._fault:
            return
        if self._connection and (names := wire.nominated(self._connection)):
            self._lines = wire.without_nominated(self._lines, names)
        length = None if status in (204, 304) else self._length
        self._keep_alive = self._parser.should_keep_alive()
        self.head = ResponseHead(status, start_of(status, self._reason, self._lines), length, self._event_stream)

    def on_body(self, data: bytes) -> None:
        if self.head is not None and not self.complete:
            self.parts.append(data)

    def on_message_complete(self) -> None:
        if self._interim:
            self._interim = False
        elif self.head is not None:
            self.complete = True
