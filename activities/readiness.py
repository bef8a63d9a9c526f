"""From launched to ready, and from ready to the first fault."""

import asyncio
import time
from dataclasses import dataclass, field

import structlog
from temporalio import activity

from activities.attempts import take_out
from activities.context import Services, failed, progress
from activities.engine import Complaint, EngineError, complete, is_healthy, listed_models
from standfast import contracts as c
from standfast.failures import classify, evidence_of
from standfast.plans.records import ReadinessPlan, RolePlan
from standfast.platforms.base import Observation
from standfast.platforms.watching import Fault, StandingProcess, find_fault, standing_set
from standfast.registry import backend_id

_log = structlog.get_logger(__name__)

_LOOK_S = 0.25
"""Between two looks at a starting attempt."""
_WATCH_S = 0.75
"""Between two looks at a serving one: with the launcher's beat of 0.5 s, a dead process is seen within about a
second.
"""
_HEARTBEAT_S = 2.0
_HEALTH_S = 15.0
_HEALTH_AGAIN_S = 1.0
_HEALTH_TIMEOUT_S = 5.0
_HEALTH_REFUSALS = 3
_HEALTH_SILENCE_S = 60.0
_WATCH_RENEWAL_S = 24 * 3600.0
_FIRST_WORD = "Hello"


class ReadinessActivities:
    """Waiting for an attempt, publishing it, watching it."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @activity.defn(name="await_ready")
    async def await_ready(self, ref: c.AttemptRef) -> c.ReadyAttempt:
        """Wait until the model really answers: process alive, health, listed under its name and identity, one
        token.
        """
        services = self._services
        plan = await services.inference_plan(ref.generation)
        head = ref.placement.ranks[0]
        url = f"http://{head.address}:{head.port_base + _offset(plan, 'http')}"
        async with progress() as say:
            climb = _Climb(services=services, ref=ref, plan=plan, url=url, started=_scheduled_at())
            while not await climb.look():
                say(climb.sentence())
                await asyncio.sleep(_LOOK_S)
        await services.registry.set_backend(
            backend_id(ref.generation, ref.replica), "starting", url=url, expect_attempt=ref.attempt
        )
        return c.ReadyAttempt(
            ref=ref,
            url=url,
            standing=tuple(process.to_text() for process in climb.standing),
            took_s=round(time.time() - climb.started, 3),
            stages=tuple(climb.stages.items()),
        )

    @activity.defn(name="publish_backend")
    async def publish(self, ready: c.ReadyAttempt) -> c.Nothing:
        """Let the frontend send requests to the attempt, once its generation has the route."""
        registry = self._services.registry
        ref = ready.ref
        await registry.set_backend(
            backend_id(ref.generation, ref.replica), "ready", url=ready.url, expect_attempt=ref.attempt
        )
        await registry.set_attempt(ref.attempt, phase="ready")
        return c.Nothing()

    @activity.defn(name="watch_attempt")
    async def watch(self, ready: c.ReadyAttempt) -> c.WatchVerdict:
        """Look at every process until one is missing; the endpoint leaves the routing before this returns."""
        services, ref = self._services, ready.ref
        plan = await services.inference_plan(ref.generation)
        standing = tuple(StandingProcess.from_text(text) for text in ready.standing)
        renew_at = time.monotonic() + _WATCH_RENEWAL_S
        health_at = time.monotonic() + _HEALTH_S
        heartbeat_at = 0.0
        health = Health()
        while (now := time.monotonic()) < renew_at:
            if now >= heartbeat_at:
                activity.heartbeat()
                heartbeat_at = now + _HEARTBEAT_S
            observation = await services.platform.observe(ref.attempt)
            fault = find_fault(observation, standing)
            if fault is not None:
                await take_out(services, ref.generation, ref.replica, ref.attempt)
                _log.warning("fault", attempt=ref.attempt, fault=fault.kind, message=fault.message)
                return c.WatchVerdict(failure=failure_of(fault, observation, had_served=True))
            if now >= health_at:
                complaint = await is_healthy(services.http, ready.url, plan.readiness.health_path, _HEALTH_TIMEOUT_S)
                health = health.after(complaint, now)
                health_at = time.monotonic() + (_HEALTH_S if complaint is None else _HEALTH_AGAIN_S)
                if health.verdict(now) is not None:
                    await take_out(services, ref.generation, ref.replica, ref.attempt)
                    return c.WatchVerdict(
                        failure=c.Failure(
                            kind="transient",
                            code="unhealthy",
                            message=f"The engine is not healthy any more: {health.verdict(now)}.",
                            evidence=evidence_of(observation.tail),
                            attempt=ref.attempt,
                        )
                    )
            await asyncio.sleep(_WATCH_S)
        return c.WatchVerdict()


@dataclass(frozen=True, kw_only=True)
class Health:
    """What a serving engine has said of its health lately.

    A clear "no", or a closed port, counts after a few times in a row. Silence counts only after a minute: an engine
    that is busy answers late, and busy is not failing.
    """

    refusals: int = 0
    silent_since: float | None = None
    complaint: str = ""

    def after(self, complaint: Complaint | None, now: float) -> "Health":
        """The record after one more question; ``complaint`` None is a yes."""
        if complaint is None:
            return Health()
        if complaint.silent:
            since = self.silent_since if self.silent_since is not None else now
            return Health(silent_since=since, complaint=complaint.text)
        return Health(refusals=self.refusals + 1, complaint=complaint.text)

    def verdict(self, now: float) -> str | None:
        """Why the engine counts as unhealthy, or None."""
        if self.refusals >= _HEALTH_REFUSALS:
            return f"{self.complaint}, {self.refusals} times in a row"
        if self.silent_since is not None and now - self.silent_since >= _HEALTH_SILENCE_S:
            return f"{self.complaint} for {now - self.silent_since:.0f} s"
        return None


@dataclass(kw_only=True)
class _Climb:
    """The stages of one attempt on its way to ready; each is passed once, in order."""

    services: Services
    ref: c.AttemptRef
    plan: RolePlan
    url: str
    started: float
    stages: dict[str, float] = field(default_factory=dict)
    standing: tuple[StandingProcess, ...] = ()
    complaint: str = ""
    silent_since: float | None = None

    async def look(self) -> bool:
        """One look; True once a token came out. Raises the failure that ends the attempt."""
        observation = await self.services.platform.observe(self.ref.attempt)
        fault = find_fault(observation) if observation.ranks else None
        if fault is not None:
            raise failed(failure_of(fault, observation, had_served=False))
        limits = self.plan.readiness
        waited = time.time() - self.started
        if observation.phase != "running":
            self.complaint = "the launcher has not started the engine yet"
            if waited > limits.initialization_timeout_s:
                raise failed(self._too_late("initialization", limits.initialization_timeout_s, observation))
            return False
        self._pass("process")
        answered = await self._answers(limits)
        if not answered and waited > limits.startup_timeout_s:
            raise failed(self._too_late("start-up", limits.startup_timeout_s, observation))
        return answered

    async def _answers(self, limits: ReadinessPlan) -> bool:
        http, served = self.services.http, self.plan.endpoint.served_name
        complaint = await is_healthy(http, self.url, limits.health_path)
        if complaint is not None:
            self.complaint = complaint.text
            return False
        self._pass("health")
        try:
            names = await listed_models(http, self.url)
        except EngineError as error:
            self.complaint = str(error)
            return False
        if self.ref.attempt not in names:
            raise failed(
                c.Failure(
                    kind="transient",
                    code="wrong-process",
                    message=f"Another process answers on {self.url}; it serves {', '.join(names) or 'nothing'}.",
                    help="The next attempt gets other ports.",
                    attempt=self.ref.attempt,
                )
            )
        if served not in names:
            self.complaint = f"/v1/models does not list {served}"
            return False
        self._pass("listed")
        return await self._generates(served, limits)

    async def _generates(self, served: str, limits: ReadinessPlan) -> bool:
        now = time.time()
        self.silent_since = self.silent_since if self.silent_since is not None else now
        left = self.silent_since + limits.generation_timeout_s - now
        try:
            await complete(self.services.http, self.url, served, _FIRST_WORD, max_tokens=1, timeout_s=max(left, 1.0))
        except EngineError as error:
            self.complaint = f"healthy, but no token: {error}"
            # An engine that fails to generate often dies of it: its own last words are the better verdict.
            observation = await self.services.platform.observe(self.ref.attempt)
            fault = find_fault(observation)
            if fault is not None:
                raise failed(failure_of(fault, observation, had_served=False)) from None
            if time.time() - self.silent_since > limits.generation_timeout_s:
                raise failed(
                    c.Failure(
                        kind="transient",
                        code="not-generating",
                        message=f"Healthy, but no token within {limits.generation_timeout_s:g} s: {error}",
                        help="It never got traffic. Its log may say more: `standfast logs`.",
                        evidence=evidence_of(observation.tail),
                        attempt=self.ref.attempt,
                    )
                ) from None
            return False
        self._pass("token")
        first = await self._beat_after(time.time())
        self.standing = standing_set([first, await self._beat_after(time.time())])
        return True

    async def _beat_after(self, moment: float) -> Observation:
        """The first look whose processes were counted after ``moment``, by every rank's launcher."""
        while True:
            observation = await self.services.platform.observe(self.ref.attempt)
            fault = find_fault(observation)
            if fault is not None:
                raise failed(failure_of(fault, observation, had_served=False))
            if observation.beat_age_s is not None and time.time() - observation.beat_age_s > moment:
                return observation
            await asyncio.sleep(_LOOK_S / 2)

    def sentence(self) -> str:
        """What it waits for, in words."""
        return f"{self.complaint or 'starting'} ({time.time() - self.started:.0f} s)"

    def _pass(self, stage: str) -> None:
        self.stages.setdefault(stage, round(time.time() - self.started, 3))

    def _too_late(self, what: str, limit_s: float, observation: Observation) -> c.Failure:
        return c.Failure(
            kind="transient",
            code=f"{what}-timeout",
            message=f"Not ready within {limit_s:g} s ({what}): {self.complaint or 'no word from the engine'}.",
            help="Raise Readiness.startup_timeout if the model needs longer; `standfast logs` shows what it does.",
            evidence=evidence_of(observation.tail),
            attempt=self.ref.attempt,
        )


def failure_of(fault: Fault, observation: Observation, *, had_served: bool) -> c.Failure:
    """The verdict on a fault, read from how the engine ended and what it wrote last."""
    exit = observation.exit
    if exit is not None and exit.reason == "stopped":
        return c.Failure(
            kind="interrupted",
            code="stopped-on-host",
            message="The replica was stopped on its host from outside.",
            attempt=observation.attempt,
        )
    if exit is not None and exit.reason == "exited":
        return classify(
            observation.tail, code=exit.code, signal=exit.signal, had_served=had_served, attempt=observation.attempt
        )
    return c.Failure(
        kind="transient",
        code=fault.kind,
        message=fault.message[:1].upper() + fault.message[1:] + ".",
        evidence=evidence_of(observation.tail),
        attempt=observation.attempt,
    )


def _offset(plan: RolePlan, name: str) -> int:
    return dict(plan.replicas[0].ranks[0].claim.ports.offsets)[name]


def _scheduled_at() -> float:
    """When the wait began, Unix seconds: the same for every worker that takes it over."""
    return activity.info().scheduled_time.timestamp()
