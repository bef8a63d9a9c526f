"""What the families of this catalog share. The underscore keeps it out of the catalog itself.

Every family trains with a trainer role and samples with an inference role of the same deployment.
"""

from standfast import Adapters, Compute, Inference, Optimizer, Parallelism, Readiness, Scaling, Trainer

#: Layers that get adapters, by Megatron's names.
LAYERS = ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2")
LAYERS_AND_HEAD = (*LAYERS, "output_layer")

TRAINER_ENVIRONMENT = {
    "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True",
    "TORCHINDUCTOR_COMPILE_THREADS": "1",
}

#: Keep one layer's activations and compute the others again.
RECOMPUTE_LAYERS = {
    "recompute_granularity": "full",
    "recompute_method": "uniform",
    "recompute_num_layers": 1,
}

LORA_TRAINER = Trainer(
    backend="miles",
    compute=Compute(gpu="H100", gpus=4, cpus=8, memory="32GiB"),
    parallelism=Parallelism(tensor=4, context=1, expert=1, data=1, pipeline=1, expert_tensor=1),
    adapters=Adapters(rank=32, alpha=32, dropout=0.0, targets=LAYERS, slots=6),
    max_clients=6,
    persistence_concurrency=8,
    options=RECOMPUTE_LAYERS,
    environment=TRAINER_ENVIRONMENT,
)

#: All weights: one client, one save at a time. A microbatch is one sequence of up to 64K tokens.
FULL_TRAINER = Trainer(
    backend="megatron",
    compute=Compute(gpu="H200", gpus=8, cpus=8, memory="32GiB"),
    parallelism=Parallelism(tensor=4, context=2, expert=1, data=1, pipeline=1, expert_tensor=1, sequence=True),
    optimizer=Optimizer(learning_rate=1e-4, min_learning_rate=1e-4, distributed=True),
    precision="bf16",
    context_length=65_536,
    tokens_per_microbatch=65_536,
    max_clients=1,
    persistence_concurrency=1,
    environment=TRAINER_ENVIRONMENT,
)

#: SGLang with one GPU per replica, from nothing to eight replicas.
SAMPLER = Inference(
    engine="sglang",
    compute=Compute(gpu="H200", gpus=1, cpus=8, memory="32GiB"),
    parallelism=Parallelism(tensor=1),
    scaling=Scaling(min_replicas=0, max_replicas=8, target_concurrency=16, scale_down_after="300s"),
    readiness=Readiness(startup_timeout="1200s"),
)


def lora_options(*, running: int = 32, loaded: int, policy: str | None = None) -> dict[str, object]:
    """SGLang for adapters: requests that run at once, adapters loaded, and how the queue is ordered."""
    options: dict[str, object] = {
        "mem-fraction-static": 0.8,
        "max-running-requests": running,
        "max-queued-requests": 8,
        "max-loaded-loras": loaded,
        "max-loras-per-batch": 8,
        "weight-loader-disable-mmap": True,
    }
    return options if policy is None else {**options, "schedule-policy": policy}


def full_options(*, memory: float, compile_group_gb: int) -> dict[str, object]:
    """SGLang for whole models that are exchanged while it serves: its share of GPU memory, and the size of the groups
    in which new weights are prepared on the CPU."""
    return {
        "mem-fraction-static": memory,
        "max-running-requests": 32,
        "max-queued-requests": 4,
        "cpu-weight-cache-max-compile-group-gb": compile_group_gb,
        "weight-loader-disable-mmap": True,
    }
