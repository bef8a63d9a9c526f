"""An engine's health: asking for it, and what the answers amount to. Asking must be cheap: many are asked, and often.

One request and one status line need no HTTP client: through httpx a question costs the worker six times as much.
"""

import asyncio
import contextlib
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

_STATUS_LINE = re.compile(rb"HTTP/1\.[01] (\d{3})\b")
_LONGEST_LINE = 4096
_REFUSALS = 3
_SILENCE_S = 60.0


@dataclass(frozen=True, kw_only=True)
class Complaint:
    """Why an engine does not count as healthy. ``silent``: no answer came in time, rather than an answer that says
    no.
    """

    text: str
    silent: bool = False


@dataclass(frozen=True, kw_only=True)
class Health:
    """What a serving engine has said of its health lately.

    A clear "no", or a closed port, counts after a few times in a row. Silence counts only after a minute: an engine
    that is busy answers late, and busy is not failing.
    """

    refusals: int = 0
    silent_since: float | None = None
    complaint: str = ""

    def after(self, complaint: Complaint | None, now: float) -> "Health":
        """The record after one more question; ``complaint`` None is a yes."""
        if complaint is None:
            return Health()
        if complaint.silent:
            since = self.silent_since if self.silent_since is not None else now
            return Health(silent_since=since, complaint=complaint.text)
        return Health(refusals=self.refusals + 1, complaint=complaint.text)

    def verdict(self, now: float) -> str | None:
        """Why the engine counts as unhealthy, or None."""
        if self.refusals >= _REFUSALS:
            return f"{self.complaint}, {self.refusals} times in a row"
        if self.silent_since is not None and now - self.silent_since >= _SILENCE_S:
            return f"{self.complaint} for {now - self.silent_since:.0f} s"
        return None


async def is_healthy(url: str, path: str, timeout_s: float = 2.0) -> Complaint | None:
    """None when the engine says that it is healthy, else what it says instead."""
    try:
        async with asyncio.timeout(timeout_s):
            line = await _status_line(url, path)
    except TimeoutError:
        return Complaint(text=f"{path}: no answer in time", silent=True)
    except ConnectionRefusedError:
        return Complaint(text=f"{path}: connection refused")
    except (OSError, ValueError) as error:
        return Complaint(text=f"{path}: {type(error).__name__}: {error}".rstrip(": "))
    status = _STATUS_LINE.match(line)
    if status is None:
        return Complaint(text=f"{path}: {'no answer' if not line else 'not an HTTP answer'}")
    return None if status[1] == b"200" else Complaint(text=f"{path}: HTTP {status[1].decode()}")


async def _status_line(url: str, path: str) -> bytes:
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port, limit=_LONGEST_LINE)
    try:
        request = f"GET {path} HTTP/1.1\r\nHost: {place.netloc}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        writer.write(request.encode())
        return await reader.readline()
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
