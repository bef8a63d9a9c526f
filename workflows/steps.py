"""The activities that workflows call, each with its time limits and retries in one place.

A workflow says ``await STEP.run(argument, summary="...")``; how long that may take, how it is retried and how a dead
worker is noticed is said here and nowhere else. Activity types are distinct per step, since a replay compares types and
not arguments.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeVar

from temporalio import workflow
from temporalio.common import RetryPolicy

with workflow.unsafe.imports_passed_through():
    from standfast import contracts as c

_In = TypeVar("_In")
_Out = TypeVar("_Out")


@dataclass(frozen=True, kw_only=True)
class Step(Generic[_In, _Out]):
    """One activity type and its policy.

    ``start_to_close`` bounds one attempt, ``schedule_to_close`` all of them with their waits; ``heartbeat`` is the
    silence after which the worker
    counts as dead. Failures raised as non-retryable end the step at once, whatever ``maximum_attempts`` says.
    """

    name: str
    takes: type[_In]
    returns: type[_Out]
    start_to_close: timedelta
    schedule_to_close: timedelta
    heartbeat: timedelta | None = None
    initial_interval: timedelta = timedelta(seconds=1)
    maximum_interval: timedelta = timedelta(seconds=30)
    maximum_attempts: int = 0
    only_looks: bool = False
    """Owns nothing: a cancellation need not wait for it, it ends by itself soon after."""

    def start(self, argument: _In, *, summary: str, queue: str | None = None) -> workflow.ActivityHandle[_Out]:
        """Schedule the activity and return at once."""
        return workflow.start_activity(
            self.name,
            argument,
            result_type=self.returns,
            task_queue=queue,
            start_to_close_timeout=self.start_to_close,
            schedule_to_close_timeout=self.schedule_to_close,
            heartbeat_timeout=self.heartbeat,
            retry_policy=RetryPolicy(
                initial_interval=self.initial_interval,
                maximum_interval=self.maximum_interval,
                maximum_attempts=self.maximum_attempts,
                non_retryable_error_types=["PayloadsTooLarge"],
            ),
            cancellation_type=(
                workflow.ActivityCancellationType.TRY_CANCEL
                if self.only_looks
                else workflow.ActivityCancellationType.WAIT_CANCELLATION_COMPLETED
            ),
            summary=summary,
        )

    async def run(self, argument: _In, *, summary: str, queue: str | None = None) -> _Out:
        """Run the activity to its end."""
        return await self.start(argument, summary=summary, queue=queue)


_SECOND = timedelta(seconds=1)
_MINUTE = timedelta(minutes=1)
_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)

# -- preparing a generation
PIN_SETTINGS = Step(
    name="pin_settings",
    takes=c.DeployInput,
    returns=c.PinnedSettings,
    start_to_close=2 * _MINUTE,
    schedule_to_close=30 * _MINUTE,
)
BUILD_IMAGE = Step(
    name="build_image",
    takes=c.PinnedSettings,
    returns=c.Nothing,
    start_to_close=_HOUR,
    schedule_to_close=3 * _HOUR,
    heartbeat=10 * _SECOND,
    initial_interval=2 * _SECOND,
    maximum_attempts=10,
)
RESOLVE_PLAN = Step(
    name="resolve_plan",
    takes=c.ResolveInput,
    returns=c.GenerationRef,
    start_to_close=_MINUTE,
    schedule_to_close=10 * _MINUTE,
)
FETCH_WEIGHTS = Step(
    name="fetch_weights",
    takes=c.GenerationInput,
    returns=c.Nothing,
    start_to_close=12 * _HOUR,
    schedule_to_close=_DAY,
    heartbeat=10 * _SECOND,
    initial_interval=2 * _SECOND,
    maximum_attempts=20,
)
SET_PHASE = Step(
    name="set_phase", takes=c.PhaseInput, returns=c.Nothing, start_to_close=30 * _SECOND, schedule_to_close=_HOUR
)

# -- one attempt of one replica
PLACE_ATTEMPT = Step(
    name="place_attempt",
    takes=c.PlaceInput,
    returns=c.Placement,
    start_to_close=30 * _SECOND,
    schedule_to_close=10 * _MINUTE,
)
LAUNCH_ATTEMPT = Step(
    name="launch_attempt",
    takes=c.AttemptRef,
    returns=c.Nothing,
    start_to_close=_MINUTE,
    schedule_to_close=10 * _MINUTE,
    initial_interval=_SECOND,
    maximum_interval=5 * _SECOND,
)
AWAIT_READY = Step(
    name="await_ready",
    takes=c.AttemptRef,
    returns=c.ReadyAttempt,
    start_to_close=6 * _HOUR,
    schedule_to_close=_DAY,
    heartbeat=10 * _SECOND,
    maximum_interval=5 * _SECOND,
    only_looks=True,
)
PUBLISH_BACKEND = Step(
    name="publish_backend",
    takes=c.ReadyAttempt,
    returns=c.Nothing,
    start_to_close=30 * _SECOND,
    schedule_to_close=_HOUR,
)
WATCH_ATTEMPT = Step(
    name="watch_attempt",
    takes=c.ReadyAttempt,
    returns=c.WatchVerdict,
    start_to_close=_DAY + _HOUR,
    schedule_to_close=30 * _DAY,
    heartbeat=10 * _SECOND,
    maximum_interval=5 * _SECOND,
    only_looks=True,
)
END_ATTEMPT = Step(
    name="end_attempt",
    takes=c.EndAttempt,
    returns=c.Nothing,
    start_to_close=10 * _MINUTE,
    schedule_to_close=_DAY,
    heartbeat=10 * _SECOND,
    maximum_interval=10 * _SECOND,
)

# -- proofs
RUN_PROBE = Step(
    name="run_probe",
    takes=c.ProbeInput,
    returns=c.ProbeResult,
    start_to_close=15 * _MINUTE,
    schedule_to_close=45 * _MINUTE,
    heartbeat=10 * _SECOND,
    maximum_attempts=5,
    only_looks=True,
)
RECORD_PROOF = Step(
    name="record_proof", takes=c.RecordProof, returns=c.Nothing, start_to_close=30 * _SECOND, schedule_to_close=_HOUR
)

# -- traffic and retirement
AWAIT_RETIREMENT = Step(
    name="await_retirement",
    takes=c.DeployInput,
    returns=c.Nothing,
    start_to_close=7 * _DAY,
    schedule_to_close=14 * _DAY,
    heartbeat=10 * _SECOND,
    maximum_interval=5 * _SECOND,
    only_looks=True,
)
RECLAIM_GENERATION = Step(
    name="reclaim_generation",
    takes=c.GenerationInput,
    returns=c.Nothing,
    start_to_close=_HOUR,
    schedule_to_close=_DAY,
    heartbeat=10 * _SECOND,
    maximum_interval=5 * _SECOND,
    only_looks=True,
)
SWITCH_TRAFFIC = Step(
    name="switch_traffic",
    takes=c.SwitchInput,
    returns=c.Nothing,
    start_to_close=2 * _MINUTE,
    schedule_to_close=_HOUR,
    heartbeat=10 * _SECOND,
)
PLAN_RETIREMENT = Step(
    name="plan_retirement",
    takes=c.DeprecateInput,
    returns=c.RetirementPlan,
    start_to_close=30 * _SECOND,
    schedule_to_close=_HOUR,
)
WITHDRAW_TRAFFIC = Step(
    name="withdraw_traffic",
    takes=c.DeprecateInput,
    returns=c.Nothing,
    start_to_close=30 * _SECOND,
    schedule_to_close=_HOUR,
)
DRAIN_GENERATION = Step(
    name="drain_generation",
    takes=c.DrainInput,
    returns=c.DrainReport,
    start_to_close=7 * _DAY,
    schedule_to_close=14 * _DAY,
    heartbeat=10 * _SECOND,
    maximum_interval=5 * _SECOND,
)
AWAIT_GONE = Step(
    name="await_gone",
    takes=c.GenerationInput,
    returns=c.Nothing,
    start_to_close=30 * _MINUTE,
    schedule_to_close=_DAY,
    heartbeat=10 * _SECOND,
)
CLEAN_GENERATION = Step(
    name="clean_generation", takes=c.PhaseInput, returns=c.Nothing, start_to_close=2 * _MINUTE, schedule_to_close=_DAY
)
CLOSE_DEPLOYMENT = Step(
    name="close_deployment",
    takes=c.DeprecateInput,
    returns=c.Nothing,
    start_to_close=30 * _SECOND,
    schedule_to_close=_HOUR,
)

ALL: tuple[Step[object, object], ...] = tuple(value for value in list(globals().values()) if isinstance(value, Step))
