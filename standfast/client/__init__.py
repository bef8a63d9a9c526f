"""The Python API of Standfast: `Client`, what it answers, and how it refuses."""

from standfast.client.client import Client
from standfast.client.connection import TemporalEndpoint, UnreachableError
from standfast.client.deploys import DeployHandle
from standfast.client.errors import (
    DeployInProgressError,
    NoSuchDeploymentError,
    OperationFailedError,
    StillRunningError,
)
from standfast.client.views import (
    AttemptView,
    DeploymentStatus,
    GenerationView,
    LogLine,
    ProofView,
    RetryOutcome,
    ValidationOutcome,
)

__all__ = [
    "AttemptView",
    "Client",
    "DeployHandle",
    "DeployInProgressError",
    "DeploymentStatus",
    "GenerationView",
    "LogLine",
    "NoSuchDeploymentError",
    "OperationFailedError",
    "ProofView",
    "RetryOutcome",
    "StillRunningError",
    "TemporalEndpoint",
    "UnreachableError",
    "ValidationOutcome",
]
