"""The registry: the database that says what is.

Open it with `Registry.open`; see `standfast.registry.rows` for what it hands out and `standfast.registry.errors` for
what it refuses.
"""

from standfast.registry.errors import (
    CapacityError,
    NotFound,
    RegistryError,
    RegistryUnavailable,
    RouteConflict,
    ServedNameTaken,
)
from standfast.registry.queries_access import hash_key
from standfast.registry.queries_backends import backend_id
from standfast.registry.registry import Registry
from standfast.registry.rows import (
    AttemptPhase,
    Backend,
    BackendState,
    GenerationPhase,
    LeaseKind,
    Reservation,
    Route,
    RoutingTable,
    StoredAttempt,
    StoredBackend,
    StoredDeployment,
    StoredGateway,
    StoredGeneration,
    StoredImage,
    StoredKey,
    StoredLease,
    StoredProof,
    StoredRoute,
)
from standfast.registry.statements import KEEP

__all__ = [
    "KEEP",
    "AttemptPhase",
    "Backend",
    "BackendState",
    "CapacityError",
    "GenerationPhase",
    "LeaseKind",
    "NotFound",
    "Registry",
    "RegistryError",
    "RegistryUnavailable",
    "Reservation",
    "Route",
    "RouteConflict",
    "RoutingTable",
    "ServedNameTaken",
    "StoredAttempt",
    "StoredBackend",
    "StoredDeployment",
    "StoredGateway",
    "StoredGeneration",
    "StoredImage",
    "StoredKey",
    "StoredLease",
    "StoredProof",
    "StoredRoute",
    "backend_id",
    "hash_key",
]
