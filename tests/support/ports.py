"""Ports of this test process alone, whatever else runs tests on this machine.

The ports below the kernel's ephemeral range are cut into blocks, and a process claims one by a file lock that it holds
until it ends. A block has ports for servers (`free_port`) and spans for engines (`engine_ports`). So no port is handed
out twice between being picked and being bound, neither to another worker of this run nor to another run.
"""

import fcntl
import itertools
import os
import socket
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from standfast.platforms.ports import FIRST_BASE, LAST_BASE, SPAN

_SPANS = 16
_ENGINE_PORTS = _SPANS * SPAN
_BLOCKS = (LAST_BASE + SPAN - FIRST_BASE) // _ENGINE_PORTS
_SERVERS_FROM, _SERVERS_TO = 30000, 32768
_SERVER_PORTS = (_SERVERS_TO - _SERVERS_FROM) // _BLOCKS


@cache
def _block() -> int:
    for block in range(_BLOCKS):
        path = Path(tempfile.gettempdir()) / f"standfast-test-ports.{block}"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            continue  # somebody else's
        return block  # the descriptor stays open, and with it the lock
    raise RuntimeError(f"all {_BLOCKS} blocks of test ports are claimed by other test runs")


@cache
def _servers() -> Iterator[int]:
    first = _SERVERS_FROM + _block() * _SERVER_PORTS
    return itertools.cycle(range(first, first + _SERVER_PORTS))


def engine_ports() -> str:
    """The ports of this process's engines, as ``STANDFAST_ENGINE_PORTS`` has it."""
    first = FIRST_BASE + _block() * _ENGINE_PORTS
    return f"{first}-{first + _ENGINE_PORTS - 1}"


def free_port() -> int:
    """A port that nothing listens on, and that nobody else will be given soon."""
    for port in itertools.islice(_servers(), _SERVER_PORTS):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
    raise RuntimeError("something listens on every server port of this process's block")


def any_ports() -> tuple[str, ...]:
    """Options of ``standfast up`` for a stack on ports of its own."""
    return ("--port", str(free_port()), "--temporal-port", str(free_port()), "--ui-port", str(free_port()))
