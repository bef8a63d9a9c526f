"""Which port each server of the stack listens on."""

import socket
from collections.abc import Callable

from standfast.problems import UserError

SEARCHED_PORTS = 100
"""How many ports above a taken default are tried."""


def port_is_free(host: str, port: int) -> bool:
    """Whether a server could listen on ``host:port`` now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def any_free_port(host: str) -> int:
    """A port that the kernel says is free."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        port: int = probe.getsockname()[1]
        return port


def choose_port(
    *,
    option: str,
    host: str,
    asked: int | None,
    preferred: tuple[int, ...],
    taken: set[int],
    is_free: Callable[[str, int], bool] = port_is_free,
) -> tuple[int, str | None]:
    """The port to use, and a notice when it is not the usual one.

    ``asked`` is the explicit option (0: any free port); it is used or refused with `UserError`. Without it the
    ``preferred`` ones are tried in order, then those above the last of them. ``taken`` are ports given to other servers
    of this stack.
    """
    if asked == 0:
        port = any_free_port(host)
        while port in taken:
            port = any_free_port(host)
        return port, None
    if asked is not None:
        if asked in taken or not is_free(host, asked):
            raise UserError(
                f"{option} {asked}: another process listens on {host}:{asked}.",
                help=f"Stop that process, give {option} another port, or leave {option} out to take the next free one.",
            )
        return asked, None
    default = preferred[-1]
    for port in (*preferred, *range(default + 1, default + 1 + SEARCHED_PORTS)):
        if port not in taken and is_free(host, port):
            return port, (
                f"port {default} is taken; using {port} ({option} chooses another)" if port > default else None
            )
    raise UserError(
        f"no free port from {default} to {default + SEARCHED_PORTS} on {host}.",
        help=f"Give {option} a free port.",
    )
