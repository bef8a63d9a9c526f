"""When a serving engine counts as unhealthy."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from activities.health import Complaint, Health, is_healthy
from tests.support.ports import free_port

SILENT = Complaint(text="/health: no answer in time", silent=True)
REFUSED = Complaint(text="/health: HTTP 503")


def test_a_clear_no_counts_after_three_times_in_a_row() -> None:
    health = Health()
    for second in range(3):
        assert health.verdict(second) is None
        health = health.after(REFUSED, second)
    assert "HTTP 503, 3 times in a row" in (health.verdict(3) or "")


def test_a_yes_clears_the_record() -> None:
    health = Health().after(REFUSED, 0).after(REFUSED, 1).after(None, 2).after(REFUSED, 3)
    assert health.verdict(4) is None


def test_a_busy_engine_may_be_silent_for_a_while_but_not_for_ever() -> None:
    health = Health()
    for second in range(0, 60, 6):
        health = health.after(SILENT, 100.0 + second)
        assert health.verdict(100.0 + second) is None
    assert "no answer in time for 60 s" in (health.verdict(160.0) or "")


def test_silence_and_refusals_are_counted_apart() -> None:
    health = Health().after(SILENT, 0.0).after(REFUSED, 50.0).after(SILENT, 70.0)
    assert health.verdict(100.0) is None


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def saying(answer: bytes) -> Serve:
    """A server that reads a request, answers with these bytes and closes."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"GET /health HTTP/1.1\r\n")
        writer.write(answer)
        writer.close()

    return serve


async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.read()
    writer.close()


@contextlib.asynccontextmanager
async def engine(serve: Serve) -> AsyncIterator[str]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", None),
        (b"HTTP/1.0 200 OK\r\n\r\n", None),
        (b"HTTP/1.1 503 Service Unavailable\r\n\r\n", "/health: HTTP 503"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", "/health: HTTP 204"),
        (b"", "/health: no answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "/health: not an HTTP answer"),
        (b"HTTP/1.1 2", "/health: not an HTTP answer"),
    ],
)
async def test_only_a_200_is_healthy(answer: bytes, complaint: str | None) -> None:
    async with engine(saying(answer)) as url:
        said = await is_healthy(url, "/health", timeout_s=30)
    assert said == (None if complaint is None else Complaint(text=complaint))


async def test_a_status_line_without_end_is_refused() -> None:
    async with engine(saying(b"x" * 100_000)) as url:
        said = await is_healthy(url, "/health", timeout_s=30)
    assert said is not None and not said.silent


async def test_silence_is_told_from_a_no() -> None:
    async with engine(silent) as url:
        said = await is_healthy(url, "/health", timeout_s=0.05)
    assert said is not None and said.silent


async def test_a_closed_port_is_a_no() -> None:
    url = f"http://127.0.0.1:{free_port()}"
    assert await is_healthy(url, "/health", timeout_s=30) == Complaint(text="/health: connection refused")
