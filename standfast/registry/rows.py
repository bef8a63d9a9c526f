"""What the registry hands out: frozen rows, and the routing table that gateways serve from."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from standfast.plans.inspection import Inspection
from standfast.plans.records import Generation

GenerationPhase = Literal["preparing", "starting", "validating", "serving", "draining", "retired", "failed"]
BackendState = Literal["down", "starting", "ready", "draining"]
AttemptPhase = Literal["launching", "starting", "ready", "stopping", "ended"]
LeaseKind = Literal["gpu", "memory", "ports"]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredDeployment:
    """A deployment that was asked for. ``current_generation`` is the one with the traffic; ``retired_at`` is set once
    it is deprecated.
    """

    name: str
    served_name: str
    target: str
    visible: bool
    current_generation: str | None
    created_at: datetime
    updated_at: datetime
    retired_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredGeneration:
    """A generation with its phase; ``failure`` is the JSON object given with the phase, if any."""

    id: str
    deployment: str
    digest: str
    record: Generation
    phase: GenerationPhase
    failure: Mapping[str, Any] | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredBackend:
    """One replica as the frontend sees it: where it answers (``url``), and whether it may get requests (``state``)."""

    id: str
    generation: str
    replica: int
    attempt: str | None
    url: str | None
    state: BackendState
    host: str
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredRoute:
    """Where the requests for one served name go. ``generation`` None: the name is known, and nothing serves it yet."""

    served_name: str
    deployment: str
    generation: str | None
    visible: bool
    max_waiting: int
    retry_after_s: float
    updated_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Backend:
    """A backend in the routing table."""

    id: str
    url: str | None
    state: BackendState
    attempt: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Route:
    """A route in the routing table with the backends of its generation, ordered by replica (empty while ``generation``
    is None).
    """

    served_name: str
    deployment: str
    generation: str | None
    visible: bool
    max_waiting: int
    retry_after_s: float
    backends: tuple[Backend, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class RoutingTable:
    """All routes as of one ``revision``, ordered by served name. A served name that is missing here is unknown."""

    revision: int
    routes: tuple[Route, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredLease:
    """A claim on one resource of a host.

    ``resource`` is the GPU's index, the first port of a slot, or 0 for memory; ``count`` is 1, the ports used in the
    slot, or bytes; ``position`` is the ordinal of the GPU or of the port span in the owner's request.
    """

    id: int
    host: str
    kind: LeaseKind
    resource: int
    count: int
    position: int
    owner: str
    generation: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Reservation:
    """What one owner holds on one host: GPU indices, the first port of each span asked for, and bytes of memory."""

    owner: str
    host: str
    gpu_ids: tuple[int, ...]
    port_bases: tuple[int, ...]
    memory_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredAttempt:
    """One try to bring a replica up; ``number`` counts from 1 within the replica."""

    name: str
    deployment: str
    generation: str
    role: str
    replica: int
    number: int
    phase: AttemptPhase
    started_at: datetime
    ready_at: datetime | None
    ended_at: datetime | None
    failure: Mapping[str, Any] | None
    directory: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredImage:
    """A built image; ``used_at`` is when something last asked to run it."""

    digest: str
    name: str
    path: str
    inspection: Inspection
    built_at: datetime
    used_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredProof:
    """The report of one validation, passed or not, beside the ``inference_hash`` that it is about."""

    id: str
    deployment: str
    generation: str
    inference_hash: str
    passed: bool
    report: Mapping[str, Any]
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredKey:
    """An API key as it is kept: its SHA-256 and the first characters, never the key."""

    id: str
    label: str
    prefix: str
    sha256: str
    created_at: datetime
    revoked_at: datetime | None


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredGateway:
    """A gateway's last beat: which revision it serves from, and how many requests it has in flight per backend id."""

    id: str
    url: str
    revision_seen: int
    beat_at: datetime
    inflight: Mapping[str, int]
