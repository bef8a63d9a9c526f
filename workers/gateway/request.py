"""One request, as far as it was read."""

from workers.gateway.paths import Door
from workers.gateway.wire import Page


class Request:
    """A request as read so far.

    ``refusal``: the page that answers it. ``close``: the connection ends after the answer. ``size``: body bytes seen;
    ``held``: those in memory. ``relay``: the headers to be relayed, each with its CRLF. ``key``: the hash of the API
    key it came with; ``key_unknown``: that key is being looked up.

    The defaults are class attributes: most requests change few of them, and this is the hot path.
    """

    method = b""
    target = b""
    path = b""
    http10 = False
    request_id = b""
    authorization: bytes | None = None
    key = ""
    key_unknown = False
    connection = b""
    hosts = 0
    expect = b""
    framing = b""
    relay = b""
    length = 0
    chunked = False
    upgrade = False
    head_done = False
    head_size = 0
    raw = 0
    parts: list[bytes] | None = None
    size = 0
    held = 0
    door: Door | None = None
    discard = False
    complete = False
    close = False
    refusal: Page | None = None

    def take_body(self) -> bytes:
        """The body as one object; the request no longer refers to it."""
        parts, self.parts = self.parts, None
        if not parts:
            return b""
        return parts[0] if len(parts) == 1 else b"".join(parts)


class Budget:
    """Bytes of request bodies held in memory, all connections together."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.used = 0

    def admit(self, request: Request, size: int) -> bool:
        """Hold ``size`` more bytes for ``request``, if there is room."""
        if self.used + size > self.limit:
            return False
        self.used += size
        request.held += size
        return True

    def release(self, request: Request) -> None:
        """The body of ``request`` is no longer held (sent, or dropped here)."""
        self.used -= request.held
        request.held = 0
        request.parts = None
