"""What Standfast manages, by meaning: settings, arguments and variables that a config states elsewhere or not at all.

The tables name canonical flags of the engines' command lines, grouped by what they decide. A pattern covers a family, so that a flag that a later
engine adds to the family is covered too. There are no versions here: an option that the image does not have is refused as unknown anyway.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import lru_cache

from standfast.plans.records import OptionSpec


@dataclass(frozen=True, slots=True)
class Owned:
    """A meaning, the names that carry it, and what a config says instead (``{value}`` becomes the value that was given)."""

    meaning: str
    names: tuple[str, ...]
    instead: str


_OPTIONS = (
    Owned("the model", ("model", "model-path", "model-tag"), "set Model(id=..., source=...)"),
    Owned("the served model name", ("served-model-name",), "set Deployment(served_name=...)"),
    Owned(
        "the model's identity",
        (
            "revision",
            "code-revision",
            "tokenizer",
            "tokenizer-path",
            "tokenizer-revision",
            "hf-config-path",
            "download-dir",
            "weight-version",
        ),
        "set Model(source=...), whose revision is pinned",
    ),
    Owned(
        "further weights",
        ("lora-modules", "lora-paths", "default-mm-loras", "spec-model", "speculative-draft-model-*")
        + tuple(
            f"speculative-config.{key}"
            for key in ("model", "tokenizer", "revision", "code_revision", "tokenizer_revision")
        ),
        "name only the pinned weights of Model(source=...)",
    ),
    Owned("the context length", ("max-model-len", "context-length"), "set Inference(context_length={value})"),
    Owned("the configuration", ("config", "config-file"), "write the settings in Inference(options={{...}})"),
    Owned(
        "the address and ports",
        (
            "host",
            "port",
            "uds",
            "fd",
            "grpc",
            "grpc-*",
            "smg-grpc-*",
            "nccl-port",
            "*-bootstrap-port",
            "root-path",
            "fastapi-root-path",
        ),
        "leave it out; the platform chooses addresses and ports, and clients reach the model through the gateway",
    ),
    Owned(
        "transport security",
        ("ssl-*", "enable-ssl-*"),
        "leave it out; the gateway ends TLS and the engine listens on the node only",
    ),
    Owned("access", ("api-key", "admin-api-key"), "leave it out; the gateway holds the API keys"),
    Owned("a credential", ("hf-token",), "set Inference(environment={{'HF_TOKEN': Secret('HF_TOKEN')}})"),
    Owned(
        "tensor parallelism",
        ("tensor-parallel-size", "tp-size", "speculative-config.draft_tensor_parallel_size"),
        "set Compute(gpus={value}), or Parallelism(tensor={value}) to divide the GPUs otherwise",
    ),
    Owned("pipeline parallelism", ("pipeline-parallel-size", "pp-size"), "set Parallelism(pipeline={value})"),
    Owned(
        "data parallelism",
        ("data-parallel-*", "dp-*", "dp", "enable-dp-*", "moe-dp-size", "load-balance-method", "api-server-count"),
        "set Parallelism(data=...)",
    ),
    Owned(
        "expert parallelism",
        (
            "enable-expert-parallel",
            "expert-parallel-size",
            "ep-size",
            "enable-eplb",
            "eplb-*",
            "enable-elastic-ep",
            "elastic-ep-*",
        )
        + ("enable-ep-*", "expert-placement-strategy", "ep-num-redundant-experts"),
        "set Parallelism(expert=...)",
    ),
    Owned(
        "context parallelism",
        ("*-context-parallel-size", "dcp-*", "cp-*", "attn-cp-size", "enable-prefill-context-parallel"),
        "set Parallelism(context=...)",
    ),
    Owned("the number of nodes", ("nnodes",), "set Compute(nodes={value})"),
    Owned(
        "the place of a rank",
        ("node-rank", "headless", "device-ids", "base-gpu-id", "gpu-id-step", "numa-*", "device", "moe-dense-tp-size"),
        "leave it out; the plan places ranks and GPUs",
    ),
    Owned(
        "the rendezvous", ("master-*", "dist-init-addr", "nccl-init-addr"), "leave it out; the plan sets the rendezvous"
    ),
    Owned(
        "launch timing",
        (
            "distributed-timeout-seconds",
            "cpu-distributed-timeout-seconds",
            "dist-timeout",
            "watchdog-timeout",
            "soft-watchdog-timeout",
        ),
        "set Readiness(initialization_timeout=...)",
    ),
    Owned("the shutdown", ("shutdown-timeout",), "set Launch(stop_grace=...)"),
    Owned(
        "recovery",
        ("enable-fault-tolerance", "fault-tolerance-config"),
        "leave it out; a failed rank restarts its replica, under RetryBudget(...)",
    ),
    Owned(
        "workers and executors",
        (
            "distributed-executor-backend",
            "worker-cls",
            "worker-extension-cls",
            "scheduler-cls",
            "ray-*",
            "custom-*-cls",
        ),
        "leave it out; Standfast starts the engine's own workers",
    ),
    Owned(
        "code that is loaded into the engine",
        (
            "middleware",
            "*-plugin",
            "plugins",
            "logits-processors",
            "model-class-overrides",
            "enable-custom-logit-processor",
        ),
        "put the code into the image: Image(requirements=[...])",
    ),
    Owned(
        "transfers between engines",
        ("kv-transfer-config", "ec-*-config", "weight-transfer-config", "kv-events-config", "disaggregation-*"),
        "leave it out; nothing connects replicas yet",
    ),
    Owned(
        "what the command does", ("help", "version", "enable-scale-out"), "leave it out; the engine is started to serve"
    ),
)

_ENVIRONMENT = (
    Owned(
        "the place of a rank",
        (
            "RANK",
            "LOCAL_RANK",
            "GROUP_RANK",
            "ROLE_RANK",
            "NODE_RANK",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            "NNODES",
            "VLLM_DP_*",
        )
        + ("SLURM_*", "PMI_*", "PMIX_*", "OMPI_*", "TORCHELASTIC_*", "VLLM_RAY_*", "RAY_*"),
        "leave it out; the plan places ranks",
    ),
    Owned("the rendezvous", ("MASTER_*",), "leave it out; the plan sets the rendezvous"),
    Owned(
        "the address and ports",
        (
            "VLLM_PORT",
            "VLLM_HOST_IP",
            "VLLM_LOOPBACK_IP",
            "VLLM_*_PORT",
            "VLLM_*_HOST",
            "SGLANG_HOST_IP",
            "SGLANG_PORT",
            "HOST_IP",
        ),
        "leave it out; the platform chooses addresses and ports",
    ),
    Owned(
        "the choice of GPUs",
        (
            "CUDA_VISIBLE_DEVICES",
            "NVIDIA_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "CUDA_DEVICE_ORDER",
        ),
        "set Compute(gpu=..., gpus=...)",
    ),
    Owned("access", ("VLLM_API_KEY",), "leave it out; the gateway holds the API keys"),
    Owned("Standfast's own variables", ("STANDFAST_*",), "choose another name"),
    Owned(
        "code that is loaded into the engine",
        ("VLLM_PLUGINS", "SGLANG_PLUGINS", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"),
        "put the code into the image: Image(requirements=[...]), or Image(environment={{...}}) for a path inside it",
    ),
)

#: Variables of `_ENVIRONMENT` that belong to an image, which owns its code, and therefore may stand in ``Image.environment``.
_OF_IMAGES = ("PYTHONPATH", "VLLM_PLUGINS", "SGLANG_PLUGINS")
_SECRET_NAME = re.compile(r"(?i)(^|_)(token|api_?key|secret|secret_access_key|password|passwd|credentials?)$")


def owner_of(spec: OptionSpec, path: Iterable[str] = ()) -> Owned | None:
    """Who manages an option (or, with a ``path``, one key of a JSON setting); None: the config may set it."""
    return _owner_of(spec.flags, spec.negations, spec.dest, tuple(path))


@lru_cache(maxsize=4096)
def _owner_of(flags: tuple[str, ...], negations: tuple[str, ...], dest: str, path: tuple[str, ...]) -> Owned | None:
    names = [flag.lstrip("-").removeprefix("no-") for flag in (*flags, *negations) if flag.startswith("--")]
    names.append(dest.replace("_", "-"))
    owned = _match(_OPTIONS, names)
    if owned is None and path:
        owned = _match(_OPTIONS, [f"{name}.{'.'.join(path)}" for name in names])
    return owned


@lru_cache(maxsize=4096)
def owner_of_variable(name: str, *, image: bool = False) -> Owned | None:
    """Who manages an environment variable; None: the config may set it. An image may also set what points into itself."""
    return None if image and name in _OF_IMAGES else _match(_ENVIRONMENT, [name])


def names_a_secret(variable: str) -> bool:
    """Whether a variable's name says that its value is a credential, so that a literal value has no place in a plan."""
    return _SECRET_NAME.search(variable) is not None


def _match(table: tuple[Owned, ...], names: list[str]) -> Owned | None:
    return next(
        (owned for owned in table for pattern in owned.names for name in names if fnmatchcase(name, pattern)), None
    )
