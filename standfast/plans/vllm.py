"""vLLM's terms: one ``vllm serve`` per node.

Rank 0 is the head: it answers HTTP and drives the others, which run ``--headless`` and have no HTTP port at all. All of
them meet at a port of the head (``--master-addr``, ``--master-port``); with data parallelism its engines report to
another one (``--data-parallel-rpc-port``). Further ports are found by scanning upward from ``VLLM_PORT``, so a rank
claims a span and ``VLLM_PORT`` is set inside it; the message queues between nodes bind ports that the kernel picks.

Rules of the engine are cited by the place in its source (``vllm/config/parallel.py``, ``vllm/engine/arg_utils.py``).
"""

from collections.abc import Iterator, Sequence

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
from standfast.plans.records import EnvironmentBinding, PortSpan, Topology
from standfast.problems import Problem
from standfast.spec import Inference, Secret, memory_bytes

GIB = 2**30
_SPAN = 32
_HTTP, _RENDEZVOUS, _DATA_PARALLEL, _INTERNAL = ("http", 0), ("rendezvous", 1), ("data_parallel", 2), ("internal", 8)
#: What the processes of one engine hold on the CPU besides weights and KV cache (three processes that import torch).
_PROCESSES_BYTES = 2 * GIB
_KV_SPACE = "VLLM_CPU_KVCACHE_SPACE"
#: Settings that size the KV cache themselves, by destination.
_KV_SETTINGS = frozenset({"kv_cache_memory_bytes", "gpu_memory_utilization"})


class Vllm:
    """The strategy for vLLM."""

    title = "vLLM"
    http_port = "http"
    rendezvous_port = "rendezvous"
    identity_path = "/v1/models"
    by_name = False

    def topology_problems(self, inference: Inference, topology: Topology) -> Iterator[Problem]:
        """See `standfast.plans.engines.Engine.topology_problems`."""
        stage = topology.tensor * topology.data
        if topology.expert not in (1, stage):
            # ``enable_expert_parallel`` is a switch: the experts are divided over all workers of a stage.
            yield engine_misfit(
                "expert",
                f"vLLM divides the experts over every worker of a pipeline stage (tensor * data = {stage}) or not at "
                f"all, and expert={topology.expert} is neither.",
                f"Set Parallelism(expert={stage}), or leave expert out.",
                value=topology.expert,
                limit=f"1 or {stage}",
            )
        copy, node = topology.tensor * topology.pipeline, topology.workers_per_node
        if topology.data == 1:
            return
        if copy % node and node % copy:
            # ``nnodes_within_dp``: nnodes must be divisible by the node groups of the data-parallel copies.
            yield engine_misfit(
                "data",
                f"A data-parallel copy has {copy} workers (tensor * pipeline), a node {node}: vLLM needs copies that "
                "fill whole nodes, or nodes that hold whole copies.",
                "Choose sizes so that one of tensor * pipeline and the workers of a node divides the other.",
                value=topology.data,
                limit=f"a multiple or a divisor of {node} workers in a copy",
            )
        elif copy > node and topology.expert == 1:
            # ``reconfigure_for_independent_dp_rank``: the copies of a dense model are engines of their own, which would
            # all meet at the one ``master_port``.
            yield engine_misfit(
                "data",
                f"Each of the {topology.data} data-parallel copies spans {copy // node} nodes, which vLLM carries out "
                "for mixture-of-experts models only.",
                f"Set Parallelism(expert={stage}) if the model has experts; else leave data out and ask for "
                f"{topology.data} replicas of {copy // node} nodes: Scaling(min_replicas=...).",
                value=topology.data,
                limit="1, or copies within a node",
            )

    def command(self, request: Request, rank: int) -> Command:
        """``vllm serve`` with everything that Standfast decides; the config's settings follow it."""
        flags = dict(_flags(request, rank))
        problems = [lacks_option(self.title, f"the flag {flag}") for flag in flags if flag not in request.table.by_flag]
        model: tuple[str, ...] = ("@{model_path}",)
        if not request.table.positionals:
            model = ("--model", "@{model_path}")
            if "--model" not in request.table.by_flag:
                problems.append(lacks_option(self.title, "an argument for the model"))
        if request.served_name.startswith("-"):
            problems.append(
                refused_name(
                    request.served_name,
                    "vLLM would read a name that starts with a dash as a flag.",
                    request.served_name.lstrip("-"),
                    limit="no dash at the start",
                )
            )
        environment, more = _environment(request)
        return Command(
            argv=("@{executable}", *model, *(token for flag, values in flags.items() for token in (flag, *values))),
            environment=tuple(EnvironmentBinding(name=name, value=value) for name, value in environment.items()),
            ports=PortSpan(count=_SPAN, offsets=tuple(_offsets(request.topology, rank))),
            problems=(*problems, *more),
        )

    def arguments(self, settings: Sequence[Setting]) -> tuple[str, ...]:
        """Flags, as the settings say them."""
        return tuple(token for setting in settings for token in setting.tokens)


def _offsets(topology: Topology, rank: int) -> Iterator[tuple[str, int]]:
    if rank == 0:
        yield _HTTP
        if topology.nodes > 1:
            yield _RENDEZVOUS
        if topology.nodes > 1 and topology.data > 1:
            yield _DATA_PARALLEL
    yield _INTERNAL


def _flags(request: Request, rank: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    topology = request.topology
    # The second name tells probes that the process on the port is this attempt and not a stranger.
    yield "--served-model-name", (request.served_name, "@{attempt}")
    if rank == 0:
        yield "--host", ("@{address}",)
        yield "--port", ("@{http_port}",)
    yield "--tensor-parallel-size", (str(topology.tensor),)
    if topology.pipeline > 1:
        yield "--pipeline-parallel-size", (str(topology.pipeline),)
    if topology.data > 1:
        yield "--data-parallel-size", (str(topology.data),)
        yield "--data-parallel-backend", ("mp",)
    if topology.expert > 1:
        yield "--enable-expert-parallel", ()
    if topology.nodes > 1:
        yield from _over_nodes(request, rank)
    if request.inference.context_length is not None:
        yield "--max-model-len", (str(request.inference.context_length),)


def _over_nodes(request: Request, rank: int) -> Iterator[tuple[str, tuple[str, ...]]]:
    topology = request.topology
    yield "--nnodes", (str(topology.nodes),)
    yield "--node-rank", (str(rank),)
    yield "--master-addr", ("@{head_address}",)
    yield "--master-port", ("@{head_rendezvous_port}",)
    if topology.data > 1:
        yield "--data-parallel-address", ("@{head_address}",)
        yield "--data-parallel-rpc-port", ("@{head_data_parallel_port}",)
    yield "--distributed-executor-backend", ("mp",)
    yield "--distributed-timeout-seconds", (str(meeting_seconds(request.inference)),)
    if rank > 0:
        yield "--headless", ()


def _environment(request: Request) -> tuple[dict[str, str], list[Problem]]:
    environment = {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "@{address}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PORT": "@{internal_port}",
    }
    if request.accelerator == "cuda":
        return environment | CUDA_DEVICES, []
    workers = request.topology.workers_per_node
    environment["OMP_NUM_THREADS"] = str(max(1, request.inference.compute.cpus // workers))
    environment["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
    if request.used & _KV_SETTINGS:
        return environment, []
    kv_gib, problems = _kv_cache(request, workers)
    environment[_KV_SPACE] = str(kv_gib)
    return environment, problems


def _kv_cache(request: Request, workers: int) -> tuple[int, list[Problem]]:
    """GiB of KV cache per worker: a quarter of the memory over the workers, at least one; or what the config's
    environment says.

    Source: vLLM reads ``VLLM_CPU_KVCACHE_SPACE`` as whole GiB, per worker.
    """
    memory = memory_bytes(request.inference.compute.memory)
    where = "Deployment.inference.compute.memory"
    own = request.inference.environment.get(_KV_SPACE)
    kv_gib = max(1, memory // (4 * workers * GIB))
    if own is not None:
        where = f"Deployment.inference.environment[{_KV_SPACE!r}]"
        if isinstance(own, Secret) or not own.isdecimal() or int(own) < 1:
            message = f"{_KV_SPACE} must be a whole number of GiB, 1 or more."
            return kv_gib, [
                Problem(
                    code="wrong-value",
                    where=where,
                    message=message,
                    help=f"Write {_KV_SPACE!r}: '{kv_gib}', or leave it out.",
                    value="a secret" if isinstance(own, Secret) else own,
                    limit="1 or more",
                )
            ]
        kv_gib = int(own)
    needed = _PROCESSES_BYTES + workers * kv_gib * GIB
    if memory >= needed:
        return kv_gib, []
    message = (
        f"{memory / GIB:.1f} GiB cannot hold vLLM on the CPU: its processes take about {_PROCESSES_BYTES // GIB} GiB, "
        f"and the KV cache {kv_gib} GiB for each of {workers} worker{'s' if workers > 1 else ''}, besides the weights."
    )
    help = f"Set Compute(memory='{-(-needed // GIB)}GiB') or more."
    limit = f"{-(-needed // GIB)}GiB of memory or more"
    given = f"{memory / GIB:.1f}GiB"
    return kv_gib, [Problem(code="memory-misfit", where=where, message=message, help=help, value=given, limit=limit)]
