"""The command: ``python -m workers.gateway --host 127.0.0.1 --port 8000 --registry URL --id NAME``."""

import argparse
import asyncio
import contextlib
import gc
import os
import resource
import signal
import socket
import sys
from collections.abc import Collection, Mapping
from pathlib import Path

import structlog
import uvloop

from standfast.home import Home
from standfast.registry import Registry
from standfast.registry.rows import RoutingTable
from workers.gateway.server import Gateway
from workers.gateway.settings import Settings
from workers.gateway.supervise import supervise

log = structlog.get_logger()


class LazyRegistry:
    """The registry, opened at the first call that succeeds: a gateway may start before its database does."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._registry: Registry | None = None
        self._opening = asyncio.Lock()

    async def _open(self) -> Registry:
        async with self._opening:
            if self._registry is None:
                self._registry = await Registry.open(self._url)
            return self._registry

    async def revision(self) -> int:
        return await (await self._open()).revision()

    async def routing_table(self) -> RoutingTable:
        return await (await self._open()).routing_table()

    async def active_key_hashes(self) -> Collection[str]:
        return await (await self._open()).active_key_hashes()

    async def gateway_beat(self, id: str, *, url: str, revision_seen: int, inflight: Mapping[str, int]) -> None:
        registry = await self._open()
        await registry.gateway_beat(id, url=url, revision_seen=revision_seen, inflight=inflight)

    async def forget_gateway(self, id: str) -> None:
        await (await self._open()).forget_gateway(id)

    async def close(self) -> None:
        if self._registry is not None:
            await self._registry.close()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m workers.gateway", description="The frontend of Standfast.")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=8000, help="port to listen on; 0 picks one (default: %(default)s)")
    parser.add_argument(
        "--registry", default=None, help="database URL (default: $STANDFAST_REGISTRY_URL, or the home's)"
    )
    parser.add_argument("--id", default=None, help="name of this gateway in the registry (default: host name and port)")
    parser.add_argument("--processes", type=int, default=1, help="processes that share the port (default: %(default)s)")
    parser.add_argument("--reuse-port", action="store_true", help="share the port with other gateways (SO_REUSEPORT)")
    parser.add_argument(
        "--grace", type=float, default=Settings().drain_s, help="seconds that open requests get after TERM"
    )
    parser.add_argument("--body-limit", type=int, default=Settings().body_bytes, help="largest request body in bytes")
    parser.add_argument("--access-log", default="-", help="a file, '-' for standard output, or 'off'")
    parser.add_argument("--parent", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--ready-file", type=Path, default=None, help="file to write the URL to once it is served")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT. Exit code 0, or 1 when requests were still open at the end of the grace."""
    options = parse(arguments)
    configure_logs()
    if options.processes > 1:
        return asyncio.run(supervise(sys.argv[1:] if arguments is None else arguments, options))
    raise_file_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(serve(options))


async def serve(options: argparse.Namespace) -> int:
    """One gateway process, from its first look at the registry to its last request."""
    url = options.registry or Home.default().registry_url
    gateway_id = options.id or f"{socket.gethostname()}:{options.port or os.getpid()}"
    settings = Settings(drain_s=options.grace, body_bytes=options.body_limit)
    access_fd = _open_access_log(options.access_log)
    source = LazyRegistry(url)
    gateway = Gateway(source, gateway_id=gateway_id, settings=settings, access_fd=access_fd)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        await gateway.start(options.host, options.port, reuse_port=options.reuse_port)
    except OSError as error:
        log.error("cannot_listen", host=options.host, port=options.port, error=str(error))
        return 3
    settle()
    if options.ready_file is not None:
        await asyncio.to_thread(_write_ready_file, options.ready_file, gateway.url)
    orphan = asyncio.create_task(_stop_with_parent(options.parent, stop)) if options.parent else None
    await stop.wait()
    if orphan is not None:
        orphan.cancel()
    clean = await gateway.drain()
    await source.close()
    return 0 if clean else 1


async def _stop_with_parent(parent: int, stop: asyncio.Event) -> None:
    """A supervised process does not outlive its supervisor."""
    while os.getppid() == parent:  # noqa: ASYNC110 - nothing announces the death of a parent
        await asyncio.sleep(0.5)
    stop.set()


def configure_logs() -> None:
    """Events as JSON lines on standard error; the access log has a descriptor of its own."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )


def settle() -> None:
    """Take what was made so far out of the garbage collector's sight: going through it again and again would cost
    pauses of many milliseconds.
    """
    gc.collect()
    gc.freeze()


def raise_file_limit() -> None:
    """Each relayed request needs two descriptors; the soft limit of 1024 is none of our choosing."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _open_access_log(where: str) -> int | None:
    if where == "off":
        return None
    if where == "-":
        return sys.stdout.fileno()
    return os.open(where, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o640)


def _write_ready_file(path: Path, url: str) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    temporary.write_text(f"{url}\n", encoding="utf-8")
    temporary.replace(path)
