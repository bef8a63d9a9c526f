"""From ready to the first fault."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator

import structlog
from temporalio import activity

from activities.attempts import take_out
from activities.context import Services
from activities.health import Complaint, Health, is_healthy
from activities.readiness import failure_of
from standfast import contracts as c
from standfast.failures import evidence_of
from standfast.platforms.base import Observation
from standfast.platforms.watching import Fault, StandingProcess, find_fault

_Fall = asyncio.Future[tuple[Fault, Observation]]

_log = structlog.get_logger(__name__)

_LOOK_S = 0.75
"""Between two looks: with the launcher's beat of 0.5 s, a dead process is seen within about a second."""
_HEARTBEAT_S = 3.0
_HEALTH_S = 15.0
_HEALTH_AGAIN_S = 1.0
_HEALTH_TIMEOUT_S = 5.0
_RENEWAL_S = 24 * 3600.0


class WatchActivities:
    """Watching the attempts of this host."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._rounds = Rounds(services.platform.observe, every_s=_LOOK_S)

    @activity.defn(name="watch_attempt")
    async def watch(self, ready: c.ReadyAttempt) -> c.WatchVerdict:
        """Look at every process until one is missing; the endpoint leaves the routing before this returns."""
        services, ref = self._services, ready.ref
        path = (await services.inference_plan(ref.generation)).readiness.health_path
        standing = tuple(StandingProcess.from_text(text) for text in ready.standing)
        renew_at = time.monotonic() + _RENEWAL_S
        health_at = time.monotonic() + _HEALTH_S
        health = Health()
        question: asyncio.Task[Complaint | None] | None = None
        failure: c.Failure | None = None
        try:
            with self._rounds.watched(ref.attempt, standing) as falls:
                while failure is None and (now := time.monotonic()) < renew_at:
                    activity.heartbeat()
                    if question is None and now >= health_at:
                        question = asyncio.create_task(is_healthy(ready.url, path, _HEALTH_TIMEOUT_S))
                    pause = _HEARTBEAT_S if question is not None else min(_HEARTBEAT_S, health_at - now)
                    awaited = (falls,) if question is None else (falls, question)
                    await asyncio.wait(awaited, timeout=pause, return_when=asyncio.FIRST_COMPLETED)
                    if falls.done():
                        fault, observation = falls.result()
                        _log.warning("fault", attempt=ref.attempt, fault=fault.kind, message=fault.message)
                        failure = failure_of(fault, observation, had_served=True)
                    elif question is not None and question.done():
                        complaint, question, now = question.result(), None, time.monotonic()
                        health = health.after(complaint, now)
                        health_at = now + (_HEALTH_S if complaint is None else _HEALTH_AGAIN_S)
                        failure = await self._unhealthy(ref.attempt, health.verdict(now))
        finally:
            if question is not None:
                question.cancel()
        if failure is not None:
            await take_out(services, ref.generation, ref.replica, ref.attempt)
        return c.WatchVerdict(failure=failure)

    async def _unhealthy(self, attempt: str, verdict: str | None) -> c.Failure | None:
        if verdict is None:
            return None
        return c.Failure(
            kind="transient",
            code="unhealthy",
            message=f"The engine is not healthy any more: {verdict}.",
            evidence=evidence_of((await self._services.platform.observe(attempt)).tail),
            attempt=attempt,
        )


class Rounds:
    """One tick for all the attempts that are watched: a look at each, instead of a timer for each."""

    def __init__(self, look: Callable[[str], Awaitable[Observation]], *, every_s: float) -> None:
        self._look = look
        self._every_s = every_s
        self._watched: dict[_Fall, tuple[str, tuple[StandingProcess, ...]]] = {}
        self._ticking: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def watched(self, attempt: str, standing: tuple[StandingProcess, ...]) -> Iterator[_Fall]:
        """A future that is done once the attempt no longer stands: the fault, and the look that found it.

        It holds an error when looking failed; the attempt is looked at for as long as the context is open.
        """
        falls: _Fall = asyncio.get_running_loop().create_future()
        self._watched[falls] = (attempt, standing)
        if self._ticking is None or self._ticking.done():
            self._ticking = asyncio.create_task(self._tick())
            self._ticking.add_done_callback(self._ended)
        try:
            yield falls
        finally:
            del self._watched[falls]
            if not falls.cancel() and not falls.cancelled():
                falls.exception()  # seen, whether or not the watch still wanted it

    async def _tick(self) -> None:
        while self._watched:
            for falls, (attempt, standing) in list(self._watched.items()):
                if not falls.done():
                    await self._round(falls, attempt, standing)
            await asyncio.sleep(self._every_s)

    def _ended(self, ticking: asyncio.Task[None]) -> None:
        """Rounds that end while somebody is watched are an error of every watch: no silence may pass for a look."""
        if ticking is not self._ticking:
            return  # nobody was watched any more, and new rounds have begun since
        cause = None if ticking.cancelled() else ticking.exception()
        for falls in self._watched:
            if not falls.done():
                falls.set_exception(RuntimeError(f"the rounds over the watched attempts ended: {cause or 'cancelled'}"))

    async def _round(self, falls: _Fall, attempt: str, standing: tuple[StandingProcess, ...]) -> None:
        try:
            observation = await self._look(attempt)
            fault = find_fault(observation, standing)
        except Exception as error:
            if not falls.done():
                falls.set_exception(error)
            return
        if fault is not None and not falls.done():
            falls.set_result((fault, observation))
