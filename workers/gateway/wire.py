"""How HTTP is written: pages, errors in OpenAI's shape, and which headers pass a proxy."""

import re
from dataclasses import dataclass
from email.utils import formatdate
from http import HTTPStatus
from typing import Final

import msgspec

PASS: Final = 0
DROP: Final = 1
BAD: Final = -1
AUTHORIZATION: Final = 2
CONTENT_LENGTH: Final = 3
TRANSFER_ENCODING: Final = 4
EXPECT: Final = 5
CONNECTION: Final = 6
HOST: Final = 7
REQUEST_ID: Final = 8
CONTENT_ENCODING: Final = 9
CONTENT_TYPE: Final = 10

_HOP_BY_HOP = (
    b"keep-alive",
    b"proxy-authenticate",
    b"proxy-authorization",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"upgrade",
    b"http2-settings",
)
_SEEN_SPELLINGS = 1024


class HeaderKinds(dict[bytes, int]):
    """Header name, in any spelling -> what to do with it. Spellings are learnt, up to a bound, so that the common
    case is one look-up.
    """

    def __init__(self, kinds: dict[bytes, int]) -> None:
        super().__init__(kinds)
        self._kinds = kinds

    def __missing__(self, name: bytes) -> int:
        lower = name.lower()
        kind = DROP if lower.startswith(b"x-standfast-") else self._kinds.get(lower, PASS)
        if not _TOKEN.fullmatch(name):
            kind = BAD
        if len(self) < _SEEN_SPELLINGS:
            self[name] = kind
        return kind


REQUEST_HEADERS = HeaderKinds(
    {
        **dict.fromkeys(_HOP_BY_HOP, DROP),
        b"cookie": DROP,
        b"authorization": AUTHORIZATION,
        b"content-length": CONTENT_LENGTH,
        b"transfer-encoding": TRANSFER_ENCODING,
        b"expect": EXPECT,
        b"connection": CONNECTION,
        b"host": HOST,
        b"x-request-id": REQUEST_ID,
        b"content-encoding": CONTENT_ENCODING,
    }
)
"""Credentials (``Authorization``, ``Cookie``) are the gateway's own business: backends never see them."""

RESPONSE_HEADERS = HeaderKinds(
    {
        **dict.fromkeys(_HOP_BY_HOP, DROP),
        b"x-request-id": DROP,
        b"set-cookie": DROP,
        b"content-length": CONTENT_LENGTH,
        b"transfer-encoding": TRANSFER_ENCODING,
        b"connection": CONNECTION,
        b"content-type": CONTENT_TYPE,
    }
)

REASONS: Final = {status.value: status.phrase.encode() for status in HTTPStatus}
CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"
LAST_CHUNK: Final = b"0\r\n\r\n"
_TOKEN = re.compile(rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:/=+@-]{1,128}")


@dataclass(frozen=True, slots=True)
class Page:
    """An answer of the gateway itself. ``headers`` are complete lines, each with its CRLF; ``code`` is the error's
    code, or empty.
    """

    status: int
    body: bytes
    content_type: bytes = b"application/json"
    headers: bytes = b""
    code: str = ""


def render(
    page: Page, *, request_id: bytes, keep_alive: bool, http10: bool = False, without_body: bool = False
) -> bytes:
    """The page as one HTTP/1.1 message. ``without_body``: the answer to HEAD, whose ``content-length`` speaks of the
    body that GET would get.
    """
    head = (
        b"HTTP/1.1 %d %b\r\ncontent-type: %b\r\ncontent-length: %d\r\ndate: %b\r\nx-request-id: %b\r\n%b%b\r\n"
        % (
            page.status,
            REASONS.get(page.status, b"Unknown"),
            page.content_type,
            len(page.body),
            formatdate(usegmt=True).encode(),
            request_id,
            page.headers,
            connection_line(keep_alive=keep_alive, http10=http10),
        )
        if page.status != HTTPStatus.NO_CONTENT
        else b"HTTP/1.1 204 No Content\r\nx-request-id: %b\r\n%b%b\r\n"
        % (request_id, page.headers, connection_line(keep_alive=keep_alive, http10=http10))
    )
    return head if without_body else head + page.body


def connection_line(*, keep_alive: bool, http10: bool) -> bytes:
    """The ``connection`` header, where one is needed: HTTP/1.1 persists unless told otherwise, HTTP/1.0 does not."""
    if not keep_alive:
        return b"connection: close\r\n"
    return b"connection: keep-alive\r\n" if http10 else b""


def error_json(message: str, *, kind: str, code: str | None, param: str | None = None) -> bytes:
    """An error object as OpenAI's clients read it."""
    return msgspec.json.encode({"error": {"message": message, "type": kind, "param": param, "code": code}})


def problem(status: int, message: str, code: str, *, param: str | None = None, headers: bytes = b"") -> Page:
    """An error page; ``kind`` follows from the status as in OpenAI's API."""
    kind = {401: "authentication_error", 429: "rate_limit_error"}.get(
        status, "server_error" if status >= 500 else "invalid_request_error"
    )
    return Page(status, error_json(message, kind=kind, code=code, param=param), headers=headers, code=code)


def usable_request_id(given: bytes) -> bool:
    """Whether a client's request id may go into headers and logs as it is."""
    return _REQUEST_ID.fullmatch(given) is not None


def nominated(connection: bytes) -> frozenset[bytes]:
    """The header names that a ``Connection`` header declares to be meant for the next hop only."""
    return frozenset(token.strip().lower() for token in connection.split(b",")) - {
        b"close",
        b"keep-alive",
        b"upgrade",
        b"",
    }


def without_nominated(lines: list[bytes], names: frozenset[bytes]) -> list[bytes]:
    """``lines`` (``name: value``) less those whose name is in ``names``."""
    return [line for line in lines if line.partition(b":")[0].lower() not in names]
