"""What `Client` answers: typed views over the registry and the running workflows."""

from typing import Literal

from standfast.contracts import DeployStatus, Failure, ProofReport, ReplicaStatus
from standfast.plans.record import Record


class AttemptView(Record):
    """One try to bring a replica up. Times are Unix seconds."""

    name: str
    generation: str
    role: str
    replica: int
    number: int
    phase: str
    started_at: float
    ready_at: float | None
    ended_at: float | None
    failure: Failure | None


class ProofView(Record):
    """The last validation of a generation. Times are Unix seconds."""

    id: str
    generation: str
    passed: bool
    created_at: float


class GenerationView(Record):
    """A generation that is not retired yet, or the newest one. Times are Unix seconds."""

    id: str
    phase: str
    created_at: float
    replicas: int
    failure: Failure | None = None


class DeploymentStatus(Record):
    """Where a deployment stands.

    ``generation`` has the traffic (None: nothing serves yet). ``replicas`` are those of every generation that is being
    kept up; the ready and wanted counts are of ``generation``, else of the newest one. ``deploy`` is set while one
    runs.
    """

    name: str
    served_name: str
    target: str
    generation: str | None
    phase: str
    replicas_ready: int
    replicas_wanted: int
    last_proof: ProofView | None = None
    next_step: str = ""
    endpoint: str | None = None
    deploy: DeployStatus | None = None
    deploy_url: str | None = None
    generations: tuple[GenerationView, ...] = ()
    replicas: tuple[ReplicaStatus, ...] = ()
    attempts: tuple[AttemptView, ...] = ()
    notices: tuple[str, ...] = ()


class RetryOutcome(Record):
    """What became of a retry request to one replica."""

    generation: str
    role: str
    replica: int
    outcome: Literal["retrying", "nothing to retry"]
    message: str
    status: ReplicaStatus | None = None


class ValidationOutcome(Record):
    """A finished validation, and where its workflow can be seen."""

    report: ProofReport
    workflow_url: str | None = None


class LogLine(Record):
    """One line of an engine's log."""

    attempt: str
    rank: int
    text: str
