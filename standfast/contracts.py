"""What a client must know of the workflows: their names, ids, inputs, results and messages.

Workflows, activities and clients share these records; nothing here imports Temporal.
"""

from typing import Any, Literal

from pydantic import Field

from standfast.plans.record import Record
from standfast.plans.records import PinnedModel, RetryPlan, ValidationPlan

TASK_QUEUE = "standfast"
"""Workflows, and activities that any control worker may run."""

DEPLOY = "DeployWorkflow"
RETRY = "RetryWorkflow"
VALIDATE = "ValidateWorkflow"
DEPRECATE = "DeprecateWorkflow"

#: Search attributes, all keywords. The stack registers them; ``doctor`` checks them.
SEARCH_ATTRIBUTES = ("StandfastDeployment", "StandfastGeneration", "StandfastRole", "StandfastTarget", "StandfastPhase")


def host_queue(host: str) -> str:
    """The task queue of the control worker that owns a host."""
    return f"host:{host}"


def deploy_id(deployment: str) -> str:
    """One deploy of a deployment runs at a time."""
    return f"deploy/{deployment}"


def retry_id(generation: str, role: str, replica: int) -> str:
    """The workflow that keeps one replica up, for as long as the replica is wanted."""
    return f"retry/{generation}/{role}/{replica}"


def validate_id(generation: str) -> str:
    """One validation of a generation runs at a time."""
    return f"validate/{generation}"


def deprecate_id(subject: str) -> str:
    """The retirement of a generation (``name@digest``) or of a whole deployment (``name``)."""
    return f"deprecate/{subject}"


def attempt_name(generation: str, role: str, replica: int, number: int) -> str:
    """The name of one launch; launching twice under one name finds the first."""
    return f"{generation}/{role}/{replica}/{number}"


# -- failures ------------------------------------------------------------------------------------------------

FailureKind = Literal["permanent", "capacity", "transient", "interrupted"]


class Failure(Record):
    """Why an attempt, a build or a proof failed.

    ``permanent``: never retried. ``capacity``: waits without spending. ``transient``: spends one attempt and backs
    off. ``interrupted``: the host
    or an operator stopped it on purpose; started again without spending.
    """

    kind: FailureKind
    code: str
    message: str
    help: str = ""
    evidence: tuple[str, ...] = ()
    """The log lines that the verdict rests on, else the last ones; secrets are already replaced."""
    attempt: str | None = None


# -- deploy --------------------------------------------------------------------------------------------------


class DeployInput(Record):
    """Bring a deployment to what its config says. ``settings`` is the deployment as JSON (see ``standfast.spec``)."""

    deployment: str
    settings: dict[str, Any]
    target: str = "local"
    config_file: str | None = None
    requested_by: str = ""


class PinnedSettings(Record):
    """Settings whose moving parts are pinned: model revision, image recipe."""

    model: PinnedModel
    image: dict[str, Any]
    image_name: str
    image_digest: str


class ResolveInput(Record):
    """Resolve pinned settings to a generation and record it."""

    deploy: DeployInput
    pinned: PinnedSettings


class GenerationRef(Record):
    """A recorded generation, with what the deploy needs of it; the whole record is in the registry."""

    id: str
    deployment: str
    target: str
    served_name: str
    inference_hash: str
    replicas: int
    launch_delays_s: tuple[float, ...]
    attempts_so_far: tuple[int, ...]
    retry: RetryPlan
    validation: ValidationPlan
    previous: str | None
    """The generation that has the traffic now."""
    unchanged: bool
    """The same generation is already serving."""
    changes: tuple[str, ...] = ()
    """What differs from the previous generation, a line per field."""


class DeployResult(Record):
    """How a deploy ended. A deploy that failed fails its workflow instead, with a `Failure` as detail."""

    deployment: str
    generation: str
    served_name: str
    changed: bool
    message: str
    proof: str | None = None
    previous: str | None = None


class StepProgress(Record):
    """One line of a deploy's progress."""

    name: Literal["resolve", "image", "plan", "weights", "launch", "ready", "validate", "traffic", "retire"]
    state: Literal["pending", "running", "done", "failed", "skipped"] = "pending"
    detail: str = ""
    started_at: float | None = None
    """Unix seconds, workflow time."""
    ended_at: float | None = None


class ReplicaStatus(Record):
    """Where one replica is, what happened last, and what comes next."""

    generation: str
    role: str
    replica: int
    state: Literal[
        "placing",
        "waiting_for_capacity",
        "launching",
        "starting",
        "ready",
        "stopping",
        "backing_off",
        "budget_spent",
        "failed",
        "stopped",
    ]
    attempt: int = 0
    detail: str = ""
    failure: Failure | None = None
    next_try_at: float | None = None
    """Unix seconds of the next attempt, when one is scheduled."""
    spent: int = 0
    budget: int = 0


class DeployStatus(Record):
    """The answer to the ``status`` query of a deploy."""

    deployment: str
    generation: str | None
    steps: tuple[StepProgress, ...]
    replicas: tuple[ReplicaStatus, ...] = ()


# -- one replica ---------------------------------------------------------------------------------------------


class ReplicaInput(Record):
    """Keep one replica up. The fields after ``subscriber`` are carried over when the workflow continues as new."""

    generation: str
    deployment: str
    target: str
    role: Literal["inference"]
    replica: int
    inference_hash: str
    retry: RetryPlan
    validation: ValidationPlan
    launch_delay_s: float = 0.0
    subscriber: str | None = None
    """The workflow that is told of every change of state."""
    attempts_so_far: int = 0
    spent_at: tuple[float, ...] = ()
    """When attempts were spent, Unix seconds, oldest first."""
    consecutive_failures: int = 0
    has_served: bool = False


class RetryRequest(Record):
    """Refill the budget and try again at once."""

    requested_by: str = ""


class StopRequest(Record):
    """Take a replica down for good."""

    reason: str


class ReclaimRequest(Record):
    """Give a generation that is being retired back to a deploy that wants it, unless it is being stopped already."""

    by: str


class PlaceInput(Record):
    """Find room for one attempt."""

    attempt: str
    number: int
    generation: str
    role: str
    replica: int


class RankPlacement(Record):
    """Where one rank runs and what it was given there."""

    rank: int
    host: str
    address: str
    port_base: int
    gpu_ids: tuple[str, ...] = ()


class Placement(Record):
    """The leases of one attempt."""

    attempt: str
    host: str
    """The host of the head; its control worker owns the attempt."""
    ranks: tuple[RankPlacement, ...]


class AttemptRef(Record):
    """One attempt, where it was placed."""

    attempt: str
    number: int
    generation: str
    role: str
    replica: int
    placement: Placement


class ReadyAttempt(Record):
    """An attempt that answered. ``standing`` are the processes that must live from now on, as
    ``rank:pid:start_ticks:name``.
    """

    ref: AttemptRef
    url: str
    standing: tuple[str, ...]
    took_s: float
    stages: tuple[tuple[str, float], ...] = ()


class WatchVerdict(Record):
    """Why a watch ended: a failure, or (None) only because a watch is renewed once a day."""

    failure: Failure | None = None


class EndAttempt(Record):
    """Stop an attempt if it runs, confirm that it is gone, give its leases back, record why it ended."""

    attempt: str
    generation: str
    role: str
    replica: int
    host: str | None
    reason: str
    failure: Failure | None = None


# -- proofs --------------------------------------------------------------------------------------------------


class ValidateInput(Record):
    """Prove that a generation answers; the report is stored beside the hashes it proves."""

    generation: str
    deployment: str
    target: str
    inference_hash: str
    validation: ValidationPlan
    replicas: tuple[int, ...]
    """Which replicas to ask."""
    requested_by: str = ""


class ProbeInput(Record):
    """One probe against one replica."""

    probe: Literal["generation", "streaming", "stop"]
    generation: str
    replica: int
    validation: ValidationPlan
    reference: str | None = None
    """What the replica answered to the same question before; saves the stop probe from asking again."""


class ProbeResult(Record):
    """What was asked, what came back, how long it took, and the verdict."""

    probe: str
    replica: int
    passed: bool
    message: str
    request: str
    response: str
    first_token_s: float | None = None
    took_s: float


class ProofReport(Record):
    """A finished validation."""

    schema_version: Literal[1] = 1
    id: str
    generation: str
    inference_hash: str
    passed: bool
    started_at: float
    took_s: float
    probes: tuple[ProbeResult, ...]


# -- traffic and retirement ----------------------------------------------------------------------------------


class SwitchInput(Record):
    """Move the route of a served name to a generation, if it still points where we think."""

    deployment: str
    served_name: str
    generation: str
    previous: str | None


class GenerationInput(Record):
    """Names a generation to an activity."""

    generation: str
    deployment: str


class PhaseInput(Record):
    """Record the phase of a generation, with the failure that led to it."""

    generation: str
    deployment: str
    phase: Literal["preparing", "starting", "validating", "serving", "draining", "retired", "failed"]
    failure: Failure | None = None


class DeprecateInput(Record):
    """Retire one generation, or (``generation`` None) a whole deployment with all its generations and its route."""

    deployment: str
    generation: str | None
    target: str = "local"
    reason: str = ""
    drain_timeout_s: float = 300.0
    requested_by: str = ""


class RetirementPlan(Record):
    """The generations that a retirement takes down, each with its number of replicas."""

    generations: tuple[tuple[str, int], ...]
    served_name: str | None = None


class DrainInput(Record):
    """Wait until no request is in flight on a generation, at most until the deadline."""

    generation: str
    deployment: str
    timeout_s: float


class DrainReport(Record):
    """How the drain ended: ``cut`` requests were still open when the time was over."""

    generation: str
    cut: int
    took_s: float


class DeprecateResult(Record):
    """What was retired, and what was cut. ``generations`` is empty when a deploy reclaimed what was to go."""

    deployment: str
    generations: tuple[str, ...]
    cut: int
    message: str


class RecordProof(Record):
    """Keep a finished validation beside the hashes it proves."""

    deployment: str
    report: ProofReport


class Nothing(Record):
    """The result of an activity that returns nothing but success."""

    detail: str = Field(default="")
