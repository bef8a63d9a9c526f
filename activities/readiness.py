"""From launched to ready."""

import asyncio
import time
from dataclasses import dataclass, field

from temporalio import activity

from activities.context import Services, failed, progress
from activities.engine import EngineError, complete, names_at
from activities.health import is_healthy
from standfast import contracts as c
from standfast.failures import classify, evidence_of
from standfast.plans.records import ReadinessPlan, RolePlan
from standfast.platforms.base import Observation
from standfast.platforms.watching import Fault, StandingProcess, find_fault, standing_set
from standfast.registry import backend_id

_LOOK_S = 0.25
"""Between two looks at a starting attempt."""
_FIRST_WORD = "Hello"


class ReadinessActivities:
    """Waiting for an attempt, and publishing it."""

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
        port = plan.replicas[ref.replica].backend.port
        url = f"http://{head.address}:{head.port_base + _offset(plan, port)}"
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
        complaint = await is_healthy(self.url, limits.health_path)
        if complaint is not None:
            self.complaint = complaint.text
            return False
        self._pass("health")
        try:
            names, identity = await names_at(http, self.url, limits.identity_path)
        except EngineError as error:
            self.complaint = str(error)
            return False
        if self.ref.attempt not in identity:
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
    return dict(plan.head.claim.ports.offsets)[name]


def _scheduled_at() -> float:
    """When the wait began, Unix seconds: the same for every worker that takes it over."""
    return activity.info().scheduled_time.timestamp()
