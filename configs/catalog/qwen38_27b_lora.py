"""LoRA on Qwen3.8-27B with contexts from 16K to 256K.

The longer the context, the more GPUs divide it: tokens per GPU times the context-parallel size is the context.
"""

from dataclasses import replace

from _parts import LORA_TRAINER, SAMPLER, lora_options

from standfast import Compute, Deployment, HubSource, Model, Parallelism, Scaling

_TRAINER = replace(
    LORA_TRAINER,
    architecture="qwen3.8-27B",
    compute=Compute(gpu="H200", gpus=8, cpus=8, memory="32GiB"),
    parallelism=replace(LORA_TRAINER.parallelism, tensor=4, data=2),
    context_length=16_384,
    tokens_per_gpu=16_384,
)
_SAMPLER = replace(
    SAMPLER,
    context_length=16_384,
    parallelism=Parallelism(tensor=1, expert=1),
    options=lora_options(loaded=256, policy="lpm"),
)

QWEN38_27B_LORA_16K = Deployment(
    name="qwen38-27b-lora-16k",
    description="Qwen3.8-27B, LoRA, 16K, six clients, batches divided over two data-parallel ranks",
    model=Model(id="Qwen/Qwen3.8-27B", source=HubSource(repo="Qwen/Qwen3.8-27B", revision="main")),
    trainer=_TRAINER,
    inference=_SAMPLER,
)

QWEN38_27B_LORA_64K = replace(
    QWEN38_27B_LORA_16K,
    name="qwen38-27b-lora-64k",
    description="Qwen3.8-27B, LoRA, 64K, six clients",
    visible=False,
    trainer=replace(
        _TRAINER,
        parallelism=replace(_TRAINER.parallelism, tensor=4, context=2, data=1),
        context_length=65_536,
        tokens_per_gpu=32_768,
    ),
    inference=replace(
        _SAMPLER,
        context_length=65_536,
        scaling=replace(_SAMPLER.scaling, target_concurrency=8),
        options=lora_options(running=16, loaded=256, policy="lpm"),
    ),
)

QWEN38_27B_LORA_128K = replace(
    QWEN38_27B_LORA_64K,
    name="qwen38-27b-lora-128k",
    description="Qwen3.8-27B, LoRA, 128K, six clients",
    trainer=replace(
        _TRAINER,
        parallelism=replace(_TRAINER.parallelism, tensor=2, context=4, data=1),
        context_length=131_072,
        tokens_per_gpu=32_768,
    ),
    inference=replace(
        _SAMPLER,
        context_length=131_072,
        compute=replace(_SAMPLER.compute, gpus=2),
        parallelism=Parallelism(tensor=2, expert=1),
        scaling=replace(_SAMPLER.scaling, max_replicas=4, target_concurrency=4),
        options=lora_options(running=8, loaded=256, policy="lpm"),
    ),
)

# The only trainer over two nodes. Its ranks may take long to meet, hence the time-out in minutes. Not proven live.
QWEN38_27B_LORA_256K = replace(
    QWEN38_27B_LORA_64K,
    name="qwen38-27b-lora-256k",
    description="Qwen3.8-27B, LoRA, 256K, six clients, two nodes",
    trainer=replace(
        _TRAINER,
        compute=replace(_TRAINER.compute, nodes=2),
        parallelism=replace(_TRAINER.parallelism, tensor=2, context=8, data=1),
        context_length=262_144,
        tokens_per_gpu=32_768,
        options={**_TRAINER.options, "distributed_timeout_minutes": 120},
    ),
    inference=replace(
        _SAMPLER,
        context_length=262_144,
        compute=replace(_SAMPLER.compute, gpus=4),
        parallelism=Parallelism(tensor=4, expert=1),
        scaling=Scaling(min_replicas=2, max_replicas=2, target_concurrency=2, scale_down_after="300s"),
        options=lora_options(running=4, loaded=256, policy="lpm"),
    ),
)
