"""What Standfast manages, by meaning: settings, arguments and variables that a config states elsewhere or not at all.

The tables name canonical flags of the engines' command lines, grouped by what they decide. A pattern covers a family,
so that a flag that a later engine adds to the family is covered too. There are no versions here: an option that the
image does not have is refused as unknown anyway.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import NamedTuple

from standfast.plans.inspection import OptionSpec


class Owned(NamedTuple):
    """A meaning, the names that carry it (words, with ``*`` for a family), and what a config says instead.

    ``{value}`` in ``instead`` becomes the value that was given.
    """

    meaning: str
    names: str
    instead: str

    def advice(self, value: object = None) -> str:
        """What to write instead of giving ``value`` here, as the middle of a sentence."""
        plain = isinstance(value, int | str) and not isinstance(value, bool) and str(value).isdecimal()
        return self.instead.replace("{value}", str(value) if plain else "...")


_OPTIONS = (
    Owned("the model", "model model-path model-tag", "set Model(id=..., source=...)"),
    Owned("the served model name", "served-model-name", "set Deployment(served_name=...)"),
    Owned(
        "the identity of the weights",
        "revision code-revision tokenizer tokenizer-path tokenizer-revision hf-config-path download-dir weight-version "
        "decrypted-config-file decrypted-draft-config-file delete-ckpt-after-loading",
        "set Model(source=...), which is pinned when the deployment is resolved",
    ),
    Owned(
        "further weights",
        "lora-modules lora-paths uno-lora-path default-mm-loras spec-model speculative-draft-model-path "
        "speculative-draft-model-revision kt-weight-path modelopt-checkpoint-restore-path "
        "speculative-config.model speculative-config.*tokenizer* speculative-config.*revision",
        "leave it out, since only the weights of Model(source=...) are pinned",
    ),
    Owned("the context length", "max-model-len context-length", "set Inference(context_length={value})"),
    Owned("all settings at once", "config config-file", "write them in Inference(options={...})"),
    Owned(
        "addresses and ports",
        "host port uds fd grpc grpc-* smg-grpc-* smg-http-sidecar-port nccl-port *-bootstrap-port gated-launch-port "
        "load-publish-endpoint forward-pass-metrics-ipc-name weight-cache-socket enable-http-worker-reuseport "
        "root-path fastapi-root-path",
        "leave it out, since the platform chooses them and clients come through the gateway",
    ),
    Owned(
        "how clients connect",
        "ssl-* enable-ssl-* enable-http2 http2-*",
        "leave it out, since clients come through the gateway",
    ),
    Owned("access", "api-key admin-api-key", "leave it out, since the gateway holds the API keys"),
    Owned("a credential", "hf-token", "set Inference(environment={'HF_TOKEN': Secret('HF_TOKEN')})"),
    Owned(
        "tensor parallelism",
        "tensor-parallel-size tp-size shared-experts-tp-size speculative-config.draft_tensor_parallel_size",
        "set Compute(gpus={value}), or Parallelism(tensor={value})",
    ),
    Owned("pipeline parallelism", "pipeline-parallel-size pp-size", "set Parallelism(pipeline={value})"),
    Owned(
        "data parallelism",
        "data-parallel-* dp dp-* enable-dp-attention* enable-dp-lm-head attn-dp-size moe-dp-size dwdp-size "
        "load-balance-method",
        "set Parallelism(data={value})",
    ),
    Owned(
        "expert parallelism",
        "enable-expert-parallel expert-parallel-size ep-size enable-ep-* enable-eplb eplb-* enable-elastic-ep "
        "elastic-ep-* max-ep-size expert-placement-strategy ep-num-redundant-experts",
        "set Parallelism(expert=...)",
    ),
    Owned(
        "context parallelism",
        "*-context-parallel-size enable-prefill-context-parallel enable-prefill-cp enable-cp-* dcp-* cp-* attn-cp-size",
        "set Parallelism(context={value})",
    ),
    Owned("the number of nodes", "nnodes", "set Compute(nodes={value})"),
    Owned(
        "the place of a rank",
        "node-rank headless device device-ids base-gpu-id gpu-id-step moe-dense-tp-size numa-node",
        "leave it out, since the plan places ranks and GPUs",
    ),
    Owned("the rendezvous", "master-* dist-init-addr nccl-init-addr", "leave it out, since the plan sets it"),
    Owned(
        "how long start-up may take",
        "distributed-timeout-seconds cpu-distributed-timeout-seconds dist-timeout *watchdog-timeout",
        "set Readiness(initialization_timeout=...)",
    ),
    Owned("how long a stop may take", "shutdown-timeout", "set Launch(stop_grace=...)"),
    Owned(
        "recovery",
        "enable-fault-tolerance fault-tolerance-config enable-elastic-expert-backup",
        "leave it out, since a failed rank restarts its replica under RetryBudget(...)",
    ),
    Owned(
        "workers and executors",
        "distributed-executor-backend worker-cls worker-extension-cls scheduler-cls ray-* use-ray api-server-count "
        "tokenizer-worker-num detokenizer-worker-num sidecar sidecar-args",
        "leave it out, since the plan decides which processes run",
    ),
    Owned(
        "code that the engine loads",
        "middleware *-plugin plugins logits-processors model-class-overrides enable-custom-logit-processor "
        "forward-hooks custom-weight-loader custom-sigquit-handler stat-loggers "
        "compilation-config.inductor_passes hicache-storage-backend-extra-config.module_path "
        "hicache-storage-backend-extra-config.class_name",
        "put the code into the image with Image(requirements=[...])",
    ),
    Owned(
        "transfers between engines",
        "kv-transfer-config ec-*-config weight-transfer-config kv-events-config disaggregation-* enable-pd-role-switch "
        "encoder-only encoder-urls encoder-register-urls encoder-transfer-backend language-only remote-instance-* "
        "modelexpress-config checkpoint-engine-* decoupled-spec-*",
        "leave it out, since replicas are not connected to each other",
    ),
    Owned(
        "what the command does", "help version enable-scale-out", "leave it out, since the engine is started to serve"
    ),
)

_VARIABLES = (
    Owned(
        "the place of a rank",
        "RANK LOCAL_RANK GROUP_RANK ROLE_RANK NODE_RANK WORLD_SIZE LOCAL_WORLD_SIZE NNODES VLLM_DP_* SLURM_* PMI_* "
        "PMIX_* OMPI_* TORCHELASTIC_* RAY_* VLLM_RAY_*",
        "leave it out, since the plan places ranks",
    ),
    Owned(
        "the rendezvous",
        "MASTER_* NCCL_COMM_ID SGLANG_DISTRIBUTED_INIT_METHOD_OVERRIDE",
        "leave it out, since the plan sets it",
    ),
    Owned(
        "the model",
        "VLLM_MODEL_REDIRECT_PATH VLLM_USE_MODELSCOPE SGLANG_USE_MODELSCOPE VLLM_ALLOW_RUNTIME_LORA_UPDATING",
        "leave it out, since only the weights of Model(source=...) are pinned",
    ),
    Owned("how long start-up may take", "VLLM_ENGINE_READY_TIMEOUT_S", "set Readiness(initialization_timeout=...)"),
    Owned(
        "addresses and ports",
        "VLLM_PORT VLLM_HOST_IP VLLM_LOOPBACK_IP VLLM_*_PORT VLLM_*_HOST SGLANG_HOST_IP SGLANG_LOCAL_IP_NIC "
        "SGLANG_PORT SGLANG_*_PORT SGLANG_*_PORT_BASE HOST_IP",
        "leave it out, since the platform chooses them",
    ),
    Owned(
        "the choice of GPUs",
        "CUDA_VISIBLE_DEVICES CUDA_DEVICE_ORDER NVIDIA_VISIBLE_DEVICES HIP_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES",
        "set Compute(gpu=..., gpus=...)",
    ),
    Owned(
        "which server runs",
        "SGLANG_RUST_SERVER WEB_CONCURRENCY",
        "leave it out, since the plan decides which processes run",
    ),
    Owned("access", "VLLM_API_KEY", "leave it out, since the gateway holds the API keys"),
    Owned("Standfast's own state", "STANDFAST_*", "choose another name"),
    Owned(
        "code that the engine loads",
        "PYTHONPATH PYTHONHOME PYTHONSTARTUP VLLM_PLUGINS SGLANG_PLUGINS SGLANG_EXTERNAL_*",
        "put the code into the image with Image(requirements=[...], environment={...})",
    ),
)

#: Variables that belong to an image, which owns its code, and therefore may stand in ``Image.environment``.
_OF_IMAGES = frozenset({"PYTHONPATH", "VLLM_PLUGINS", "SGLANG_PLUGINS"})
_SECRET_NAME = re.compile(
    r"(?i)(^|_)(token|api_?key|secret|(secret|private|access|auth)_key|secret_access_key|passw(or)?d|pwd|credentials?)$"
)


def owner_of(spec: OptionSpec, path: Iterable[str] = ()) -> Owned | None:
    """Who manages an option (or, with a ``path``, one key of a JSON setting); None: the config may set it."""
    return _owner_of(spec.flags, spec.negations, spec.dest, tuple(path))


def owner_of_name(name: str) -> Owned | None:
    """Who manages an option, judged by its full name alone: for a config whose image nobody has looked into yet."""
    return _match(_OPTIONS, [name.lstrip("-").replace("_", "-").removeprefix("no-")])


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
    """Who manages an environment variable; None: the config may set it. An image may also set what points into
    itself.
    """
    return None if image and name in _OF_IMAGES else _match(_VARIABLES, [name])


def names_a_secret(variable: str) -> bool:
    """Whether a variable's name says that its value is a credential, so that a literal value has no place in a plan."""
    return _SECRET_NAME.search(variable) is not None


def _match(table: tuple[Owned, ...], names: list[str]) -> Owned | None:
    for owned in table:
        if any(fnmatchcase(name, pattern) for pattern in owned.names.split() for name in names):
            return owned
    return None
