"""The fast lane: messages that arrive whole, in one read, and are as plain as nearly all of them are.

Each function takes what the transport delivered and returns a result only when that is exactly one complete message of
a plain form; for anything else, malformed or merely unusual, it returns None, and llhttp reads it. What is accepted
here is a subset of what llhttp (strict) accepts, and means the same: the tests compare the two.

Clients and backends repeat their heads on a connection, but for the digits of ``Content-Length``. A :class:`Cut` is the
last head, cut at these digits: bytes that match it need not be read again.
"""

from typing import Final

from workers.gateway import wire
from workers.gateway.request import Request
from workers.gateway.responses import ResponseHead, start_of

_TEXT: Final = bytes((0x09, *range(0x20, 0x7F), *range(0x80, 0x100)))
_TARGET: Final = bytes(byte for byte in range(0x21, 0x7F) if byte not in b"#")
_MOST_DIGITS = 9


class Cut:
    """A head before and after the digits of its ``Content-Length``."""

    __slots__ = ("_after", "_after_length", "_before", "_start")

    def __init__(self, before: bytes, after: bytes) -> None:
        self._before = before
        self._start = len(before)
        self._after = after
        self._after_length = len(after)

    def body_at(self, data: bytes) -> int:
        """Where the body begins, when ``data`` is this head with some length, and just so many bytes; or 0."""
        start = self._start
        if not data.startswith(self._before):
            return 0
        end = data.find(b"\r", start, start + _MOST_DIGITS + 1)
        if end <= start or not data.startswith(self._after, end):
            return 0
        digits = data[start:end]
        at = end + self._after_length
        return at if digits.isdigit() and int(digits) == len(data) - at else 0


def _lines(head: bytes) -> list[bytes] | None:
    """``head`` split at CRLF, unless it holds a control character anywhere else."""
    lines = head.split(b"\r\n")
    return lines if head.translate(None, _TEXT) == b"\r\n" * (len(lines) - 1) else None


def _length_of(value: bytes) -> int | None:
    digits = value.strip(b" \t")
    return int(digits) if digits.isdigit() and len(digits) <= _MOST_DIGITS else None


def _cut(head: bytes, line: bytes) -> Cut | None:
    """``head`` (with its empty line) cut in ``line``, its ``Content-Length``; None if something follows the digits."""
    digits = line.rpartition(b":")[2].lstrip(b" \t")
    if not digits.isdigit():
        return None
    start = head.index(b"\r\n" + line + b"\r\n") + 2 + len(line) - len(digits)
    return Cut(head[:start], head[start + len(digits) :])


def whole_request(data: bytes, *, head_limit: int, target_limit: int) -> tuple[Request, Cut | None] | None:
    """``data`` as a POST of origin form with a ``Content-Length``, when it is just that and nothing more."""
    if not data.startswith(b"POST /"):
        return None
    end = data.find(b"\r\n\r\n", 0, head_limit)
    if end < 0 or (lines := _lines(data[:end])) is None:
        return None
    first = lines[0].split(b" ")
    if len(first) != 3 or first[2] != b"HTTP/1.1":
        return None
    target = first[1]
    if len(target) > target_limit or target.translate(None, _TARGET):
        return None
    request = Request()
    relayed: list[bytes] = []
    length: int | None = None
    length_line = b""
    hosts = 0
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        kind = wire.REQUEST_HEADERS[name] if colon else wire.BAD
        if kind == wire.PASS:
            relayed.append(line)
        elif kind == wire.CONTENT_LENGTH and length is None:
            length, length_line = _length_of(value), line
            if length is None:
                return None
        elif kind == wire.HOST:
            hosts += 1
        elif kind == wire.AUTHORIZATION and request.authorization is None:
            request.authorization = value.strip(b" \t")
        elif kind == wire.REQUEST_ID:
            request.request_id = value.strip(b" \t")
        elif kind != wire.DROP and not (kind == wire.CONNECTION and value.strip(b" \t").lower() == b"keep-alive"):
            return None
    at = end + 4
    if hosts != 1 or length is None or length != len(data) - at:
        return None
    request.method = b"POST"
    request.target = target
    relayed.append(b"")
    request.relay = b"\r\n".join(relayed)
    request.length = request.size = length
    request.parts = [data[at:]]
    request.head_done = request.complete = True
    return request, _cut(data[:at], length_line)


def repeated_request(last: Request, body: bytes) -> Request:
    """A request whose head is that of ``last`` in all but its length."""
    request = Request()
    request.method = last.method
    request.target = last.target
    request.path = last.path
    request.door = last.door
    request.key = last.key
    request.relay = last.relay
    request.request_id = last.request_id
    request.length = request.size = len(body)
    request.parts = [body]
    request.head_done = request.complete = True
    return request


def whole_response(data: bytes, *, head_limit: int) -> tuple[ResponseHead, bytes, Cut | None] | None:
    """``data`` as a final response with a ``Content-Length`` on a connection that stays open, when it is just that."""
    if not data.startswith(b"HTTP/1.1 "):
        return None
    end = data.find(b"\r\n\r\n", 0, head_limit)
    if end < 0 or (lines := _lines(data[:end])) is None:
        return None
    _, code, reason = (*lines[0].split(b" ", 2), b"", b"")[:3]
    if len(code) != 3 or not code.isdigit() or not 200 <= (status := int(code)) <= 599 or status in (204, 304):
        return None
    relayed: list[bytes] = []
    length: int | None = None
    length_line = b""
    event_stream = False
    for line in lines[1:]:
        name, colon, value = line.partition(b":")
        kind = wire.RESPONSE_HEADERS[name] if colon else wire.BAD
        if kind == wire.PASS:
            relayed.append(line)
        elif kind == wire.CONTENT_TYPE:
            relayed.append(line)
            event_stream = value.strip(b" \t").lower().startswith(b"text/event-stream")
        elif kind == wire.CONTENT_LENGTH and length is None:
            length, length_line = _length_of(value), line
            if length is None:
                return None
        elif kind != wire.DROP and not (kind == wire.CONNECTION and value.strip(b" \t").lower() == b"keep-alive"):
            return None
    at = end + 4
    if length is None or length != len(data) - at:
        return None
    head = ResponseHead(status, start_of(status, reason, relayed), length, event_stream)
    return head, data[at:], _cut(data[:at], length_line)
