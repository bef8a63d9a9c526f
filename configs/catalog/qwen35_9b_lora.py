"""LoRA on Qwen3.5-9B: the base model with contexts from 2K to 64K, and the instruction-tuned model with 16K."""

from dataclasses import replace

from _parts import LAYERS_AND_HEAD, LORA_TRAINER, SAMPLER, lora_options

from standfast import Adapters, Compute, Deployment, HubSource, Model, Parallelism

BASE_MODEL = Model(
    id="Qwen/Qwen3.5-9B-Base",
    source=HubSource(repo="Qwen/Qwen3.5-9B-Base", revision="68c46c4b3498877f3ef123c856ecfde50c39f404"),
)
INSTRUCT_MODEL = Model(id="Qwen/Qwen3.5-9B", source=HubSource(repo="Qwen/Qwen3.5-9B", revision="main"))

# -- the base model: the output layer gets adapters too ----------------------------------------------------------------

_TRAINER = replace(
    LORA_TRAINER,
    architecture="qwen3.5-9B",
    compute=Compute(gpu="H100", gpus=4, cpus=16, memory="64GiB"),
    adapters=Adapters(rank=32, alpha=32, dropout=0.0, targets=LAYERS_AND_HEAD, slots=6),
    context_length=16_384,
    tokens_per_gpu=16_384,
)
_SAMPLER = replace(SAMPLER, context_length=16_384, options=lora_options(loaded=64))

QWEN35_9B_LORA_16K = Deployment(
    name="qwen35-9b-lora-16k",
    description="Qwen3.5-9B-Base, LoRA, 16K, six clients",
    model=BASE_MODEL,
    trainer=_TRAINER,
    inference=_SAMPLER,
)

QWEN35_9B_LORA_2K = replace(
    QWEN35_9B_LORA_16K,
    name="qwen35-9b-lora-2k",
    description="Qwen3.5-9B-Base, LoRA, 2K, four clients",
    visible=False,
    trainer=replace(
        _TRAINER,
        compute=Compute(gpu="H200", gpus=4, cpus=8, memory="32GiB"),
        adapters=Adapters(rank=32, alpha=32, dropout=0.0, targets=LAYERS_AND_HEAD, slots=4),
        max_clients=4,
        context_length=2_048,
        tokens_per_gpu=2_048,
    ),
    inference=replace(
        SAMPLER,
        context_length=2_048,
        parallelism=Parallelism(tensor=1, expert=1),
        options=lora_options(loaded=32, policy="lpm"),
    ),
)

# One client at a time; the slots stay, so that the backend's settings equal those of the shared deployment.
QWEN35_9B_LORA_16K_SINGLE = replace(
    QWEN35_9B_LORA_16K,
    name="qwen35-9b-lora-16k-single",
    description="Qwen3.5-9B-Base, LoRA, 16K, one client",
    visible=False,
    trainer=replace(_TRAINER, max_clients=1),
)

QWEN35_9B_LORA_64K = replace(
    QWEN35_9B_LORA_16K,
    name="qwen35-9b-lora-64k",
    description="Qwen3.5-9B-Base, LoRA, 64K, six clients",
    visible=False,
    trainer=replace(
        _TRAINER,
        compute=Compute(gpu="H200", gpus=8, cpus=16, memory="64GiB"),
        parallelism=replace(_TRAINER.parallelism, tensor=8),
        context_length=65_536,
        tokens_per_gpu=65_536,
    ),
    inference=replace(_SAMPLER, context_length=65_536),
)

# -- the instruction-tuned model ---------------------------------------------------------------------------------------

_INSTRUCT_TRAINER = replace(
    LORA_TRAINER,
    architecture="qwen3.5-9B",
    compute=Compute(gpu="H100", gpus=8, cpus=8, memory="32GiB"),
    parallelism=replace(LORA_TRAINER.parallelism, tensor=8),
    context_length=16_384,
    tokens_per_gpu=16_384,
)

QWEN35_9B_INSTRUCT_LORA_16K = Deployment(
    name="qwen35-9b-instruct-lora-16k",
    description="Qwen3.5-9B, LoRA, 16K, six clients",
    model=INSTRUCT_MODEL,
    trainer=_INSTRUCT_TRAINER,
    inference=replace(
        SAMPLER,
        context_length=16_384,
        parallelism=Parallelism(tensor=1, expert=1),
        options=lora_options(loaded=256, policy="lpm"),
    ),
)

QWEN35_9B_INSTRUCT_LORA_16K_DP2 = replace(
    QWEN35_9B_INSTRUCT_LORA_16K,
    name="qwen35-9b-instruct-lora-16k-dp2",
    description="Qwen3.5-9B, LoRA, 16K, six clients, batches divided over two data-parallel ranks",
    visible=False,
    trainer=replace(_INSTRUCT_TRAINER, parallelism=replace(LORA_TRAINER.parallelism, tensor=4, data=2)),
)
