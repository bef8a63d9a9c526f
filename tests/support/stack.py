"""A whole stack for one test: real Temporal, real control workers, a real gateway, each a process that can be
killed.
"""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
import psutil
from temporalio.client import Client as TemporalClient
from temporalio.service import RPCError

from standfast import contracts as c
from standfast.client import Client
from standfast.home import Home
from standfast.registry import Registry

_T = TypeVar("_T")


async def until(
    look: Callable[[], Awaitable[_T | None]],
    *,
    within_s: float = 60.0,
    every_s: float = 0.05,
    what: str = "the condition",
) -> _T:
    """The first truthy answer of ``look``. Fails loudly when it does not come in time."""
    deadline = time.monotonic() + within_s
    while True:
        found = await look()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not come within {within_s:g} s")
        await asyncio.sleep(every_s)


@dataclass
class TestStack:
    """One home directory and the processes over it. Every process is this test's own, and is ended with it."""

    __test__ = False

    home: Home
    temporal_port: int
    gateway_port: int
    environment: dict[str, str] = field(default_factory=dict)
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    api_key: str = ""

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.gateway_port}"

    async def start_temporal(self) -> None:
        """Start the Temporal server on this home's database file, or start it again after a kill. Returns when it
        serves: it listens a while before.
        """
        await self._spawn(
            "temporal",
            str(Path(sys.executable).parent / "temporal"),
            *("server", "start-dev", f"--db-filename={self.home.temporal_db}", f"--port={self.temporal_port}"),
            *("--headless", "--ip=127.0.0.1", "--log-level=error", "--sqlite-pragma=journal_mode=wal"),
            *("--sqlite-pragma=synchronous=0", *(f"--search-attribute={name}=Keyword" for name in c.SEARCH_ATTRIBUTES)),
        )

        async def serves() -> bool:
            with contextlib.suppress(RuntimeError, RPCError):
                temporal = await TemporalClient.connect(f"127.0.0.1:{self.temporal_port}")
                return await temporal.service_client.check_health()
            return False

        await until(serves, what="the Temporal server")

    async def start_worker(self, name: str = "worker") -> None:
        """Start a control worker."""
        await self._spawn(name, sys.executable, "-P", "-m", "workers.control")

    async def start_gateway(self, name: str = "gateway") -> None:
        """Start the gateway and wait until it serves."""
        await self._spawn(
            name,
            *(sys.executable, "-P", "-m", "workers.gateway", "--host", "127.0.0.1", "--port", str(self.gateway_port)),
            *("--grace", "2"),
        )

        async def serves() -> bool:
            with contextlib.suppress(httpx.HTTPError):
                async with httpx.AsyncClient() as http:
                    return (await http.get(f"{self.gateway_url}/healthz")).status_code == 200
            return False

        await until(serves, what="the gateway")

    async def kill(self, name: str) -> None:
        """kill -9."""
        process = self.processes.pop(name)
        process.kill()
        await process.wait()

    @contextlib.asynccontextmanager
    async def client(self) -> AsyncIterator[Client]:
        """The Python API, pointed at this stack."""
        async with Client.connect(self.home) as client:
            yield client

    @contextlib.asynccontextmanager
    async def registry(self) -> AsyncIterator[Registry]:
        """The registry of this stack."""
        async with await Registry.open(self.home.registry_url) as registry:
            yield registry

    @contextlib.asynccontextmanager
    async def http(self) -> AsyncIterator[httpx.AsyncClient]:
        """An HTTP client of the gateway, with the key."""
        headers = {"Authorization": f"Bearer {self.api_key}"}
        async with httpx.AsyncClient(base_url=self.gateway_url, headers=headers, timeout=30) as http:
            yield http

    async def close(self) -> None:
        """End everything: the stack's processes, and every process of an attempt below this home."""
        for process in self.processes.values():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        for process in self.processes.values():
            await process.wait()
        for leftover in leftovers(self.home):
            with contextlib.suppress(psutil.Error):
                leftover.kill()

    def log(self, name: str) -> str:
        """What a process of the stack wrote so far."""
        return (self.home.logs / f"{name}.log").read_text(errors="replace")

    async def _spawn(self, name: str, *argv: str) -> None:
        self.home.logs.mkdir(parents=True, exist_ok=True)
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        environment |= {
            "STANDFAST_HOME": str(self.home.root),
            "TEMPORAL_ADDRESS": f"127.0.0.1:{self.temporal_port}",
            **self.environment,
        }
        with (self.home.logs / f"{name}.log").open("ab") as log:
            self.processes[name] = await asyncio.create_subprocess_exec(
                *argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )


def leftovers(home: Home) -> list[psutil.Process]:
    """Processes that belong to attempts of this home: launchers by their argument, engines by what they inherited."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any(str(home.attempts) in word for word in process.cmdline()) or process.environ().get(
                "SCRIPTED_ENGINE_HOME"
            ) == str(home.root):
                found.append(process)
    return found
