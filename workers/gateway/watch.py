"""Follows the registry: routes and keys in, heartbeats out. An outage changes nothing but the age of the table."""

import asyncio
import contextlib

import structlog

from workers.gateway.core import Core
from workers.gateway.routing import index
from workers.gateway.source import RouteSource

log = structlog.get_logger()


class Watcher:
    """Two loops, so that a slow write of a heartbeat never delays the routes.

    A heartbeat's revision and counts are taken in one step, and a request is counted in the step that routes it.
    Hence a backend that is absent from the table of the reported revision, and has no requests in the reported
    counts, never gets a request from this gateway again.
    """

    def __init__(self, core: Core, source: RouteSource, *, url: str) -> None:
        self._core = core
        self._source = source
        self._url = url
        self._tell = asyncio.Event()
        self._reachable = True
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._sent: tuple[int, dict[str, int]] | None = None
        core.on_drained = self._tell.set

    def start(self) -> None:
        poll, beat = self._poll(), self._beat()
        self._tasks = [asyncio.create_task(poll, name="gateway-poll"), asyncio.create_task(beat, name="gateway-beat")]

    async def stop(self) -> None:
        """End both loops, and let the registry forget this gateway.

        The loops are waited for, not cancelled, so that no late heartbeat can follow the farewell.
        """
        self._stopping = True
        self._tell.set()
        settings = self._core.settings
        if self._tasks:
            _, pending = await asyncio.wait(self._tasks, timeout=settings.beat_timeout_s)
            for task in pending:
                task.cancel()
        try:
            async with asyncio.timeout(settings.beat_timeout_s):
                await self._source.forget_gateway(self._core.gateway_id)
        except Exception as error:
            log.warning("not_deregistered", error=type(error).__name__)

    async def _poll(self) -> None:
        core, settings = self._core, self._core.settings
        while not self._stopping:
            try:
                async with asyncio.timeout(settings.source_timeout_s):
                    await self.refresh()
                if not self._reachable:
                    log.info("registry_back", revision=core.table.revision)
                self._reachable = True
            except Exception as error:
                if self._reachable:
                    log.warning("registry_unreachable", error=type(error).__name__, revision=core.table.revision)
                self._reachable = False
            await asyncio.sleep(settings.poll_s)

    async def refresh(self) -> None:
        """One look at the registry."""
        core = self._core
        loop = asyncio.get_running_loop()
        news = await self._source.revision() != core.table.revision
        if news or core.keys.age(loop.time()) > core.settings.keys_reread_s:
            await core.keys.read()
        if news:
            table = index(await self._source.routing_table())
            core.install(table)
            self._tell.set()
            log.info("routes", revision=table.revision, models=len(table.entries), backends=len(table.targets))
        core.confirm(loop.time())

    async def _beat(self) -> None:
        core, settings = self._core, self._core.settings
        loop = asyncio.get_running_loop()
        last = -float("inf")
        heard = True
        while not self._stopping:
            self._tell.clear()
            now = loop.time()
            revision, inflight = core.table.revision, dict(core.inflight)
            if (revision, inflight) != self._sent or now - last >= settings.beat_s:
                try:
                    async with asyncio.timeout(settings.beat_timeout_s):
                        await self._source.gateway_beat(
                            core.gateway_id, url=self._url, revision_seen=revision, inflight=inflight
                        )
                    self._sent = (revision, inflight)
                    last = now
                    heard = True
                except Exception as error:
                    self._sent = None
                    if heard:
                        log.warning("beat_failed", error=type(error).__name__)
                    heard = False
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(settings.poll_s):
                    await self._tell.wait()
