"""API keys: presented in clear, compared as SHA-256, never logged or written.

In clear a key is in memory only as part of what its connection has received (the last head is kept while it is open).
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection

import structlog

log = structlog.get_logger()


def presented_key(authorization: bytes) -> bytes | None:
    """The key of an ``Authorization: Bearer`` header; None for any other scheme."""
    scheme, _, key = authorization.partition(b" ")
    key = key.strip()
    return key if scheme.lower() == b"bearer" and key else None


def digest_of(key: bytes) -> str:
    """What stands for a key from here on: its SHA-256 in hexadecimal digits."""
    return hashlib.sha256(key).hexdigest()


class KeyRing:
    """The hashes of the active keys, read anew from ``fetch``.

    A key made a moment ago must work at once, and a flood of wrong keys must not become a flood of queries: an
    unknown key asks for :meth:`refresh`, reads are shared by all who wait, and two reads are at least ``interval_s``
    apart.
    """

    def __init__(self, fetch: Callable[[], Awaitable[Collection[str]]], *, interval_s: float) -> None:
        self._fetch = fetch
        self._interval_s = interval_s
        self._hashes: frozenset[str] = frozenset()
        self._last_read = -float("inf")
        self._reading: asyncio.Task[bool] | None = None

    def has(self, digest: str) -> bool:
        return digest in self._hashes

    def age(self, now: float) -> float:
        """Seconds since the last read began."""
        return now - self._last_read

    async def read(self) -> None:
        """Read now, whatever the interval; raises what the registry raises."""
        self._last_read = asyncio.get_running_loop().time()
        self._hashes = frozenset(await self._fetch())

    def refresh(self) -> asyncio.Task[bool]:
        """A read that starts now, or as soon as the interval allows; its result says whether the registry answered."""
        if self._reading is None or self._reading.done():
            self._reading = asyncio.get_running_loop().create_task(self._read())
        return self._reading

    async def _read(self) -> bool:
        loop = asyncio.get_running_loop()
        wait = self._last_read + self._interval_s - loop.time()
        if wait > 0:
            await asyncio.sleep(wait)
        try:
            await self.read()
        except Exception as error:
            log.warning("keys_unreadable", error=type(error).__name__)
            return False
        return True
