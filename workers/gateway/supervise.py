"""Several gateway processes on one port (SO_REUSEPORT): start them, start the fallen again, stop them together."""

import argparse
import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Iterator

import structlog

log = structlog.get_logger()

_RESTART_S = 1.0


async def supervise(arguments: list[str], options: argparse.Namespace) -> int:
    """Run ``options.processes`` children until SIGTERM or SIGINT; returns the worst of their last exit codes."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    with _reserved(options.host, options.port) as port:
        base = options.id or f"{socket.gethostname()}:{port}"
        codes = await asyncio.gather(
            *(_keep_running([*arguments, *_own(base, index, port)], stop) for index in range(options.processes))
        )
    return max(codes)


def _own(base: str, index: int, port: int) -> list[str]:
    """The options that differ between the children; of a repeated option the last one counts."""
    own = ["--processes", "1", "--reuse-port", "--port", str(port), "--id", f"{base}/{index}"]
    return [*own, "--parent", str(os.getpid())]


async def _keep_running(arguments: list[str], stop: asyncio.Event) -> int:
    stopping = asyncio.create_task(stop.wait())
    while True:
        process = await asyncio.create_subprocess_exec(sys.executable, "-P", "-m", "workers.gateway", *arguments)
        ended = asyncio.create_task(process.wait())
        await asyncio.wait((ended, stopping), return_when=asyncio.FIRST_COMPLETED)
        if stop.is_set():
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            return await ended
        log.warning("gateway_process_ended", code=process.returncode)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RESTART_S):
                await stop.wait()
        if stop.is_set():
            return process.returncode or 0


@contextlib.contextmanager
def _reserved(host: str, port: int) -> Iterator[int]:
    """A port that only processes of this user which ask for it by SO_REUSEPORT can share; 0 picks a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        holder.bind((host, port))
        yield int(holder.getsockname()[1])
