"""vLLM's terms: ``vllm serve`` on one node.

A rank is one ``vllm serve``, which starts its own workers. It listens on its HTTP port and opens further ports by
scanning upward from ``VLLM_PORT``, so a rank claims a span and ``VLLM_PORT`` is set inside it.
"""

from collections.abc import Iterator, Sequence

from standfast.plans.arguments import Setting
from standfast.plans.engines import Command, Request
from standfast.plans.records import EnvironmentBinding, PortSpan, Topology
from standfast.problems import Problem
from standfast.spec import Inference, Secret, memory_bytes

GIB = 2**30
#: The HTTP port first, then the engine's internal ports from an offset on.
PORTS = PortSpan(count=32, offsets=(("http", 0), ("internal", 8)))
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

    def topology_problems(self, inference: Inference, topology: Topology) -> Iterator[Problem]:
        """See `standfast.plans.engines.Engine.topology_problems`."""
        yield from ()

    def command(self, request: Request, rank: int) -> Command:
        """``vllm serve`` with everything that Standfast decides; the config's options follow it."""
        flags = dict(_flags(request))
        problems = [_lacks(f"the flag {flag}") for flag in flags if flag not in request.table.by_flag]
        model: tuple[str, ...] = ("@{model_path}",)
        if not request.table.positionals:
            model = ("--model", "@{model_path}")
            if "--model" not in request.table.by_flag:
                problems.append(_lacks("an argument for the model"))
        environment, more = _environment(request)
        return Command(
            argv=("@{executable}", *model, *(token for flag, values in flags.items() for token in (flag, *values))),
            environment=tuple(EnvironmentBinding(name=name, value=value) for name, value in environment.items()),
            ports=PORTS,
            problems=(*problems, *more),
        )

    def arguments(self, settings: Sequence[Setting]) -> tuple[str, ...]:
        """Flags, as the settings say them."""
        return tuple(token for setting in settings for token in setting.tokens)


def _flags(request: Request) -> Iterator[tuple[str, tuple[str, ...]]]:
    # The second name tells probes that the process on the port is this attempt and not a stranger.
    yield "--served-model-name", (request.served_name, "@{attempt}")
    yield "--host", ("@{address}",)
    yield "--port", ("@{http_port}",)
    yield "--tensor-parallel-size", (str(request.topology.tensor),)
    if request.topology.pipeline > 1:
        yield "--pipeline-parallel-size", (str(request.topology.pipeline),)
    if request.inference.context_length is not None:
        yield "--max-model-len", (str(request.inference.context_length),)


def _environment(request: Request) -> tuple[dict[str, str], list[Problem]]:
    environment = {
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_HOST_IP": "@{address}",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_PORT": "@{internal_port}",
    }
    if request.accelerator == "cuda":
        environment["CUDA_VISIBLE_DEVICES"] = "@{gpu_ids}"
        # The ids are NVML's, which counts by PCI bus; CUDA by default does not.
        environment["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return environment, []
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
            return kv_gib, [Problem(code="wrong-value", where=where, message=message)]
        kv_gib = int(own)
    needed = _PROCESSES_BYTES + workers * kv_gib * GIB
    if memory >= needed:
        return kv_gib, []
    message = (
        f"{memory / GIB:.1f} GiB cannot hold vLLM on the CPU: its processes take about {_PROCESSES_BYTES // GIB} GiB, "
        f"and the KV cache {kv_gib} GiB for each of {workers} worker{'s' if workers > 1 else ''}, besides the weights."
    )
    help = f"Set Compute(memory='{-(-needed // GIB)}GiB') or more."
    return kv_gib, [Problem(code="memory-misfit", where=where, message=message, help=help)]


def _lacks(what: str) -> Problem:
    return Problem(
        code="engine-lacks-option",
        where="Deployment.inference.image",
        message=f"The vLLM of this image does not have {what}, which Standfast needs.",
        help="Choose an image with another release of vLLM.",
    )
