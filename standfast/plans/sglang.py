"""SGLang's terms: settings of ``ServerArgs``, one server per node.

A rank is started with settings, ``name=text`` or ``name:=json``, out of which ``standfast_sglang`` in the image makes
``ServerArgs(**settings)``. Rank 0 is the head: it answers HTTP; the other ranks serve a health page of their own and
nothing else. All of them meet at a port of the head (``dist_init_addr``), from which the engine derives further ports
(``PortArgs`` in ``sglang/srt/server_args.py``), so that a rank claims a span with room for all of them.

Rules of the engine are cited by the place in its source (``sglang/srt/arg_groups``).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from standfast.plans.arguments import Setting
from standfast.plans.engines import (
    CUDA_DEVICES,
    Command,
    Request,
    engine_misfit,
    lacks_option,
    meeting_seconds,
    refused_name,
)
from standfast.plans.inspection import OptionSpec
from standfast.plans.record import canonical_json
from standfast.plans.records import EnvironmentBinding, PortSpan, Topology
from standfast.problems import Problem
from standfast.spec import Inference

_SPAN = 32
_HTTP, _NCCL = ("http", 0), ("nccl", 1)
#: With attention data parallelism the engine opens the six ports after the rendezvous (``PortArgs.init_new``), and
#: the thirteenth after it (``DP_ATTENTION_HANDSHAKE_PORT_DELTA``).
_RENDEZVOUS, _DERIVED, _HANDSHAKE = ("rendezvous", 2), ("derived", 3), ("handshake", 15)


class Sglang:
    """The strategy for SGLang."""

    title = "SGLang"
    http_port = "http"
    rendezvous_port = "rendezvous"
    identity_path = "/model_info"
    by_name = True

    def topology_problems(self, inference: Inference, topology: Topology) -> Iterator[Problem]:
        """See `standfast.plans.engines.Engine.topology_problems`."""
        copies = topology.data > 1 and not topology.data_parallel_attention
        if copies and topology.nodes > 1:
            # ``check_server_args``: replicas by data parallelism stay on one node.
            yield engine_misfit(
                "data",
                f"SGLang's data-parallel copies (data={topology.data}) stay on one node, and the replica spans "
                f"{topology.nodes}.",
                "Set data_parallel_attention=True to divide the attention over the nodes, or leave data out and ask "
                f"for {topology.data} replicas: Scaling(min_replicas=...).",
                value=topology.data,
                limit="1 over several nodes",
            )
        stage = topology.tensor if copies else topology.tensor * topology.data
        if stage % topology.expert:
            # ``initialize_model_parallel``: a stage's workers are divided into expert groups of equal size.
            yield engine_misfit(
                "expert",
                f"SGLang divides the experts within its tensor-parallel group of {stage}, which expert="
                f"{topology.expert} does not divide.",
                f"Choose a divisor of {stage}.",
                value=topology.expert,
                limit=f"a divisor of {stage}",
            )
        if topology.pipeline > 1 and topology.data_parallel_attention:
            yield engine_misfit(
                "data_parallel_attention",
                f"SGLang does not divide attention by requests inside a pipeline (pipeline={topology.pipeline}).",
                "Set Parallelism(pipeline=1), with tensor * data over all nodes, or leave data_parallel_attention out.",
                value=True,
                limit="pipeline of 1",
            )

    def command(self, request: Request, rank: int) -> Command:
        """The settings that Standfast decides; the config's follow."""
        settings = dict(_settings(request, rank))
        problems = [
            *_refusals(request),
            *(lacks_option(self.title, f"the parameter {name}") for name in settings if _find(request, name) is None),
        ]
        environment = _environment(request)
        return Command(
            argv=("@{executable}", *(_token(name, value) for name, value in settings.items())),
            environment=tuple(EnvironmentBinding(name=name, value=value) for name, value in environment.items()),
            ports=PortSpan(count=_SPAN, offsets=tuple(_offsets(request.topology, rank))),
            problems=tuple(problems),
        )

    def arguments(self, settings: Sequence[Setting]) -> tuple[str, ...]:
        """The config's settings by their parameters' names."""
        merged: dict[str, Any] = {}
        for setting in settings:
            value = _value(setting.spec, setting.value)
            before = merged.get(setting.spec.dest)
            if isinstance(before, list) and isinstance(value, list):
                value = [*before, *value]
            elif isinstance(before, Mapping) and isinstance(value, Mapping):
                value = {**before, **value}
            merged[setting.spec.dest] = value
        return tuple(_token(name, value) for name, value in merged.items())


def _settings(request: Request, rank: int) -> Iterator[tuple[str, Any]]:
    topology = request.topology
    yield "model_path", "@{model_path}"
    yield "served_model_name", request.served_name
    # Tells probes that the process on the port is this attempt and not a stranger.
    yield "weight_version", "@{attempt}"
    yield "host", "@{address}"
    yield "port", _Port("http")
    yield from _sizes(request)
    if topology.nodes > 1:
        yield "nnodes", topology.nodes
        yield "node_rank", rank
        yield "dist_timeout", meeting_seconds(request.inference)
    if topology.nodes > 1 or topology.data_parallel_attention:
        yield "dist_init_addr", "@{head_address}:@{head_rendezvous_port}"
    elif topology.data == 1:
        # Data-parallel copies on one node each take a free port of their own: one cannot be given to all of them.
        yield "nccl_port", _Port("nccl")
    if request.accelerator == "cpu":
        yield "device", "cpu"
    if request.inference.context_length is not None:
        yield "context_length", request.inference.context_length


def _sizes(request: Request) -> Iterator[tuple[str, int | bool]]:
    topology = request.topology
    if topology.data_parallel_attention:
        # ``tp_size`` counts all workers of a stage; the attention is divided inside it.
        yield "tp_size", topology.tensor * topology.data
        if _find(request, "attn_dp_size") is not None:
            yield "attn_dp_size", topology.data
        else:
            yield "dp_size", topology.data
            yield "enable_dp_attention", True
    else:
        yield "tp_size", topology.tensor
        if topology.data > 1:
            yield "dp_size", topology.data
    if topology.pipeline > 1:
        yield "pp_size", topology.pipeline
    if topology.expert > 1:
        yield "ep_size", topology.expert


def _offsets(topology: Topology, rank: int) -> Iterator[tuple[str, int]]:
    yield _HTTP
    if topology.nodes == 1 and topology.data == 1:
        yield _NCCL
    if rank == 0 and (topology.nodes > 1 or topology.data_parallel_attention):
        yield _RENDEZVOUS
    if rank == 0 and topology.data_parallel_attention:
        yield _DERIVED
        yield _HANDSHAKE


def _environment(request: Request) -> dict[str, str]:
    environment = {"DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "SGLANG_HOST_IP": "@{address}"}
    if request.accelerator == "cuda":
        return environment | CUDA_DEVICES
    topology, cpus = request.topology, request.inference.compute.cpus
    each = max(1, cpus // topology.workers_per_node)
    environment["OMP_NUM_THREADS"] = str(each)
    environment["SGLANG_USE_CPU_ENGINE"] = "1"
    if topology.workers > 1:
        # The engine gives each rank a NUMA node unless it is told which cores to take, all ranks of all nodes in order.
        node = [_cores(worker * each, each) for worker in range(topology.workers_per_node)]
        environment["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(node * topology.nodes)
    return environment


def _cores(first: int, count: int) -> str:
    return str(first) if count == 1 else f"{first}-{first + count - 1}"


def _refusals(request: Request) -> Iterator[Problem]:
    """What the engine refuses in combination with what else is asked for."""
    if ":" in request.served_name:
        # ``check_server_args``: the colon parts a model from an adapter.
        yield refused_name(
            request.served_name,
            "SGLang takes what follows a colon in a model's name for an adapter.",
            request.served_name.replace(":", "-"),
            limit="no colon",
        )
    if request.topology.pipeline == 1:
        return
    for setting in request.settings:
        # ``check_pipeline_parallel_compat``.
        speculates = setting.spec.dest == "speculative_algorithm" and str(setting.value).upper() != "EAGLE"
        if speculates or (setting.spec.dest == "disable_overlap_schedule" and setting.value is False):
            yield Problem(
                code="option-clash",
                where=setting.where,
                message=f"SGLang does not carry out {setting.spec.dest}={setting.value!r} in a pipeline "
                f"(pipeline={request.topology.pipeline}).",
                help="Leave it out, or set Parallelism(pipeline=1).",
                value=str(setting.value),
                limit="pipeline of 1",
            )


class _Port(str):
    """The name of one of the rank's ports; a number once it is bound."""


def _token(name: str, value: Any) -> str:
    if isinstance(value, _Port):
        return f"{name}:=@{{{value}_port}}"
    if isinstance(value, str):
        return f"{name}={value}"
    return f"{name}:={canonical_json(value).decode()}"


def _value(spec: OptionSpec, value: Any) -> Any:
    """A setting as the parameter takes it: a list where there may be several, JSON text where text is asked for."""
    if spec.maximum is None or spec.maximum > 1:
        return list(value) if isinstance(value, list | tuple) else [value]
    if spec.type == "str" and not isinstance(value, str):
        return canonical_json(value).decode()
    return value


def _find(request: Request, name: str) -> OptionSpec | None:
    found = request.table.named(name)
    return found.spec if found is not None and found.spec.dest == name else None
