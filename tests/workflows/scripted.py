"""A scripted world for workflow tests: every activity by name, answering what the test says.

The activities are replaced at their wire (Temporal's task queue); the workflows are the real ones, on a real
server with virtual time.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from temporalio import activity

from standfast import contracts as c
from standfast.plans.records import PinnedModel, RetryPlan, ValidationPlan
from workflows.failures import error_of

RETRY = RetryPlan(attempts=3, window_s=3600.0, initial_backoff_s=2.0, backoff_multiplier=2.0, max_backoff_s=60.0)
VALIDATION = ValidationPlan(prompt="What is the capital of France?", expect="Paris", max_tokens=8, timeout_s=30.0)
HASH = "a" * 64


def transient(code: str = "engine-exited") -> c.Failure:
    """A failure that goes away."""
    return c.Failure(kind="transient", code=code, message=f"The engine ended ({code}).")


def permanent(code: str = "unknown-option") -> c.Failure:
    """A failure that does not."""
    return c.Failure(
        kind="permanent", code=code, message=f"The engine cannot start ({code}).", evidence=("last words",)
    )


@dataclass
class World:
    """What the activities answer, and what they were asked.

    ``ready`` and ``watch`` are called with the attempt's number; they return a failure, or None. A watch that
    returns None holds until cancelled.
    """

    generation: str = "m@000000000001"
    previous: str | None = None
    unchanged: bool = False
    replicas: int = 1
    place: Callable[[c.PlaceInput], c.Failure | None] = lambda place: None
    ready: Callable[[int], c.Failure | None] = lambda number: None
    watch: Callable[[int], c.Failure | None] = lambda number: None
    probe: Callable[[c.ProbeInput], bool] = lambda probe: True
    drains: bool = False
    """Whether a drain goes on until it is cancelled."""
    refuse: Callable[[str], Exception | None] = lambda name: None
    calls: list[tuple[str, Any]] = field(default_factory=list)

    def names(self) -> list[str]:
        """The activities that ran, in order."""
        return [name for name, _ in self.calls]

    def _called(self, name: str, argument: Any) -> None:
        self.calls.append((name, argument))
        error = self.refuse(name)
        if error is not None:
            raise error

    def activities(self) -> list[Callable[..., Any]]:
        """One activity per step of the workflows."""

        @activity.defn(name="pin_settings")
        async def pin_settings(start: c.DeployInput) -> c.PinnedSettings:
            self._called("pin_settings", start)
            model = PinnedModel(id="org/m", source="hub", locator="org/m", revision="c" * 40)
            return c.PinnedSettings(model=model, image={}, image_name="scripted", image_digest=HASH)

        @activity.defn(name="build_image")
        async def build_image(pinned: c.PinnedSettings) -> c.Nothing:
            self._called("build_image", pinned)
            return c.Nothing(detail="built")

        @activity.defn(name="resolve_plan")
        async def resolve_plan(start: c.ResolveInput) -> c.GenerationRef:
            self._called("resolve_plan", start)
            return c.GenerationRef(
                id=self.generation,
                deployment=start.deploy.deployment,
                target="local",
                served_name="m",
                inference_hash=HASH,
                replicas=self.replicas,
                launch_delays_s=(0.0,) * self.replicas,
                attempts_so_far=(0,) * self.replicas,
                retry=RETRY,
                validation=VALIDATION,
                previous=self.previous,
                unchanged=self.unchanged,
            )

        @activity.defn(name="place_attempt")
        async def place_attempt(place: c.PlaceInput) -> c.Placement:
            self._called("place_attempt", place)
            failure = self.place(place)
            if failure is not None:
                raise error_of(failure)
            rank = c.RankPlacement(rank=0, host="h1", address="127.0.0.1", port_base=20000)
            return c.Placement(attempt=place.attempt, host="h1", ranks=(rank,))

        @activity.defn(name="await_ready")
        async def await_ready(ref: c.AttemptRef) -> c.ReadyAttempt:
            self._called("await_ready", ref)
            failure = self.ready(ref.number)
            if failure is not None:
                raise error_of(failure)
            return c.ReadyAttempt(ref=ref, url="http://127.0.0.1:20000", standing=("0:1:1:engine",), took_s=1.0)

        @activity.defn(name="watch_attempt")
        async def watch_attempt(ready: c.ReadyAttempt) -> c.WatchVerdict:
            import asyncio

            self._called("watch_attempt", ready)
            failure = self.watch(ready.ref.number)
            while failure is None:
                activity.heartbeat()
                await asyncio.sleep(0.05)
            return c.WatchVerdict(failure=failure)

        @activity.defn(name="run_probe")
        async def run_probe(probe: c.ProbeInput) -> c.ProbeResult:
            self._called("run_probe", probe)
            passed = self.probe(probe)
            return c.ProbeResult(
                probe=probe.probe,
                replica=probe.replica,
                passed=passed,
                message="answered" if passed else "silent",
                request="POST",
                response="Paris",
                took_s=0.1,
            )

        @activity.defn(name="plan_retirement")
        async def plan_retirement(start: c.DeprecateInput) -> c.RetirementPlan:
            self._called("plan_retirement", start)
            return c.RetirementPlan(
                generations=((start.generation or self.generation, self.replicas),), served_name="m"
            )

        @activity.defn(name="drain_generation")
        async def drain_generation(drain: c.DrainInput) -> c.DrainReport:
            import asyncio

            self._called("drain_generation", drain)
            while self.drains:
                activity.heartbeat()
                await asyncio.sleep(0.05)
            return c.DrainReport(generation=drain.generation, cut=0, took_s=0.0)

        return [
            pin_settings,
            build_image,
            resolve_plan,
            place_attempt,
            await_ready,
            watch_attempt,
            run_probe,
            plan_retirement,
            drain_generation,
            self._plain("fetch_weights", c.GenerationInput),
            self._plain("set_phase", c.PhaseInput),
            self._plain("launch_attempt", c.AttemptRef),
            self._plain("publish_backend", c.ReadyAttempt),
            self._plain("end_attempt", c.EndAttempt),
            self._plain("record_proof", c.RecordProof),
            self._plain("await_retirement", c.DeployInput),
            self._plain("reclaim_generation", c.GenerationInput),
            self._plain("switch_traffic", c.SwitchInput),
            self._plain("withdraw_traffic", c.DeprecateInput),
            self._plain("await_gone", c.GenerationInput),
            self._plain("clean_generation", c.PhaseInput),
            self._plain("close_deployment", c.DeprecateInput),
        ]

    def _plain(self, name: str, takes: type) -> Callable[..., Any]:
        async def run(argument: Any) -> c.Nothing:
            self._called(name, argument)
            return c.Nothing()

        run.__annotations__["argument"] = takes
        return activity.defn(name=name)(run)
