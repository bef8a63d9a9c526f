"""Listen, serve, drain."""

import asyncio
import contextlib

import structlog

from workers.gateway.access import AccessLog
from workers.gateway.client import ClientConnection
from workers.gateway.core import Core
from workers.gateway.keys import KeyRing
from workers.gateway.settings import Settings
from workers.gateway.source import RouteSource
from workers.gateway.watch import Watcher

log = structlog.get_logger()

_SWEEP_S = 0.5
_BACKLOG = 4096


class Gateway:
    """One gateway process. Use :meth:`start`, then :meth:`drain`."""

    def __init__(
        self, source: RouteSource, *, gateway_id: str, settings: Settings | None = None, access_fd: int | None = None
    ) -> None:
        self.settings = settings or Settings()
        self.source = source
        keys = KeyRing(source.active_key_hashes, interval_s=self.settings.keys_s)
        self.core = Core(self.settings, keys, AccessLog(access_fd), gateway_id=gateway_id)
        self.url = ""
        self._server: asyncio.Server | None = None
        self._watcher: Watcher | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, host: str, port: int, *, reuse_port: bool = False) -> int:
        """Read the routes (if the registry answers) and listen; returns the port."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(
            lambda: ClientConnection(self.core),
            host,
            port,
            backlog=_BACKLOG,
            reuse_port=reuse_port,
            start_serving=False,
        )
        bound = self._server.sockets[0].getsockname()
        shown = f"[{host}]" if ":" in host else host
        self.url = f"http://{shown}:{bound[1]}"
        self._watcher = Watcher(self.core, self.source, url=self.url)
        try:
            async with asyncio.timeout(self.settings.source_timeout_s):
                await self._watcher.refresh()
        except Exception as error:
            log.warning("registry_unreachable", error=type(error).__name__, revision=self.core.table.revision)
        self._watcher.start()
        self._sweeper = asyncio.create_task(self._sweep(), name="gateway-sweep")
        await self._server.start_serving()
        log.info("listening", url=self.url, gateway=self.core.gateway_id, revision=self.core.table.revision)
        return int(bound[1])

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_SWEEP_S)
            self.core.sweep(loop.time())

    async def _deserted(self, within_s: float) -> bool:
        """Wait until no client is connected."""
        self.core.deserted.clear()
        if self.core.connections:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self.core.deserted.wait()
        return not self.core.connections

    async def drain(self, grace_s: float | None = None) -> bool:
        """Accept nothing new, let open requests end, deregister. Returns whether all of them ended within the grace."""
        core = self.core
        loop = asyncio.get_running_loop()
        deadline = loop.time() + (self.settings.drain_s if grace_s is None else grace_s)
        core.draining = True
        if self._server is not None:
            self._server.close()
        log.info("draining", open=len(core.connections), in_flight=sum(core.inflight.values()))
        for connection in list(core.connections):
            connection.finish()
        clean = await self._deserted(deadline - loop.time())
        for connection in list(core.connections):
            connection.drop()
        await self._deserted(1.0)
        if self._sweeper is not None:
            self._sweeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sweeper
        if self._watcher is not None:
            await self._watcher.stop()
        core.close()
        await core.access.close()
        log.info("stopped", clean=clean)
        return clean
