"""Port spans on one host: fixed slots of 32 ports, below the range from which the kernel takes ports for outgoing
connections.
"""

import errno
import os
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

import structlog

from standfast.problems import UserError

#: Ports per slot, as the registry hands them out; spans are aligned to it, so that two leases never overlap in part.
SPAN = 32
FIRST_BASE = 20000
LAST_BASE = 29952
#: The ports that replicas may use, such as ``20000-24999``, where they are not all of those above.
RANGE_VARIABLE = "STANDFAST_ENGINE_PORTS"

_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
#: The answers of the kernel that mean "somebody has it"; others mean that IPv6 is switched off.
_IN_USE = (errno.EADDRINUSE, errno.EACCES)
_log = structlog.get_logger(__name__)


def engine_ports(environment: Mapping[str, str] | None = None) -> range:
    """The ports that replicas of this host may use: those of ``STANDFAST_ENGINE_PORTS`` in ``environment`` (default:
    the process's own), else all from `FIRST_BASE` on. Raises `UserError` for a range that holds no whole span.
    """
    every = range(FIRST_BASE, LAST_BASE + SPAN)
    text = (os.environ if environment is None else environment).get(RANGE_VARIABLE, "").strip()
    if not text:
        return every
    words = re.fullmatch(r"(\d{1,5})-(\d{1,5})", text)
    chosen = range(int(words[1]), int(words[2]) + 1) if words else range(0)
    if not any(base >= chosen.start and base + SPAN <= chosen.stop for base in every[::SPAN]):
        raise UserError(
            f"{RANGE_VARIABLE}={text} holds no span of {SPAN} ports.",
            help=f"Write first-last within {every.start}-{every.stop - 1}, such as {every.start}-{every.start + 999}; "
            f"spans begin at {FIRST_BASE} and every {SPAN} ports from there.",
        )
    return chosen


def span_bases(ephemeral_low: int | None = None) -> tuple[int, ...]:
    """The bases of all spans that lie below ``ephemeral_low`` (default: this host's).

    A host whose ephemeral range reaches down over all of them gets them all nevertheless: `span_is_free` then skips
    what is taken at the moment, and a warning says what could collide.
    """
    low = read_ephemeral_low() if ephemeral_low is None else ephemeral_low
    every = tuple(range(FIRST_BASE, LAST_BASE + 1, SPAN))
    below = tuple(base for base in every if base + SPAN <= low)
    if not below:
        _log.warning(
            "engine ports lie in the ephemeral range", first=FIRST_BASE, last=LAST_BASE + SPAN - 1, ephemeral_low=low
        )
        return every
    return below


def read_ephemeral_low(path: Path = _EPHEMERAL) -> int:
    """The lowest port that the kernel gives to outgoing connections; 32768, the kernel's default, if it cannot be
    read.
    """
    try:
        return int(path.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return 32768


def is_free(port: int) -> bool:
    """Whether nothing on this host listens on ``port`` at any address. Connections in TIME_WAIT do not count."""
    if not 0 < port < 65536:
        raise ValueError(f"{port} is not a port")
    return _can_listen(socket.AF_INET, "0.0.0.0", port) and (
        not socket.has_ipv6 or _can_listen(socket.AF_INET6, "::", port)
    )


def span_is_free(base: int, count: int = SPAN) -> bool:
    """Whether all ``count`` ports from ``base`` are free."""
    return all(is_free(port) for port in range(base, base + count))


def span_filter(ephemeral_low: int | None = None) -> Callable[[int, int], bool]:
    """Decides whether a span may be handed out: all of it free, within `engine_ports`, and below the ephemeral range if
    possible.
    """
    chosen = engine_ports()
    allowed = frozenset(
        base for base in span_bases(ephemeral_low) if base >= chosen.start and base + SPAN <= chosen.stop
    )

    def usable(base: int, count: int) -> bool:
        slots = range(base - (base - FIRST_BASE) % SPAN, base + count, SPAN)
        return allowed.issuperset(slots) and span_is_free(base, count)

    return usable


def _can_listen(family: socket.AddressFamily, address: str, port: int) -> bool:
    try:
        probe = socket.socket(family, socket.SOCK_STREAM)
    except OSError:
        # This host has no such address family, so nothing can listen in it.
        return True
    with probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            probe.bind((address, port))
            probe.listen(1)
        except OSError as error:
            return family == socket.AF_INET6 and error.errno not in _IN_USE
    return True
