"""All weights of Qwen models trained at 64K: dense ones from 4B to 27B, and mixtures of experts of 35B with 3B active.

Each serves one client.
"""

from dataclasses import replace

from _parts import FULL_TRAINER, RECOMPUTE_LAYERS, SAMPLER, full_options

from standfast import Compute, Deployment, HubSource, Model, Parallelism

_SAMPLER = replace(SAMPLER, context_length=65_536)

# -- 4B and 9B: the language head computes in fp32 -------------------------------------------------------------------

_SMALL_TRAINER = replace(
    FULL_TRAINER,
    compute=Compute(gpu="H200", gpus=4, cpus=8, memory="32GiB"),
    parallelism=replace(FULL_TRAINER.parallelism, tensor=2, context=2),
    optimizer=replace(FULL_TRAINER.optimizer, loss_scale=1.0),
    options={
        "micro_batch_size": 1,
        "defer_fp32_logits": True,
        "fp32_lm_head": True,
        "provider": {**RECOMPUTE_LAYERS, "mtp_num_layers": 0},
    },
)

QWEN35_4B_FFT_64K = Deployment(
    name="qwen35-4b-fft-64k",
    description="Qwen3.5-4B, all weights, 64K",
    model=Model(
        id="Qwen/Qwen3.5-4B",
        source=HubSource(repo="Qwen/Qwen3.5-4B", revision="851bf6e806efd8d0a36b00ddf55e13ccb7b8cd0a"),
    ),
    trainer=replace(_SMALL_TRAINER, compute=replace(_SMALL_TRAINER.compute, gpu="H100"), environment={}),
    inference=replace(
        _SAMPLER,
        compute=replace(_SAMPLER.compute, gpu="H100"),
        options=full_options(memory=0.85, compile_group_gb=16),
    ),
)

# Four GPUs and no data parallelism, as the smallest allocation that holds the model; a published run of this model took
# eight GPUs with data=2. Hidden until a run on GPUs has decided.
QWEN35_9B_FFT_64K = Deployment(
    name="qwen35-9b-fft-64k",
    description="Qwen3.5-9B, all weights, 64K",
    visible=False,
    model=Model(id="Qwen/Qwen3.5-9B", source=HubSource(repo="Qwen/Qwen3.5-9B", revision="main")),
    trainer=_SMALL_TRAINER,
    inference=replace(
        _SAMPLER,
        parallelism=Parallelism(tensor=1, expert=1),
        options=full_options(memory=0.85, compile_group_gb=16),
    ),
)

# -- 27B ---------------------------------------------------------------------------------------------------------------

_LARGE_SAMPLER = replace(
    _SAMPLER,
    compute=replace(_SAMPLER.compute, gpus=4),
    parallelism=Parallelism(tensor=4, expert=1),
    options=full_options(memory=0.9, compile_group_gb=32),
)

QWEN36_27B_FFT_64K = Deployment(
    name="qwen36-27b-fft-64k",
    description="Qwen3.6-27B, all weights, 64K",
    model=Model(id="Qwen/Qwen3.6-27B", source=HubSource(repo="Qwen/Qwen3.6-27B", revision="main")),
    trainer=replace(
        FULL_TRAINER,
        options={"gpu_memory_fraction": 0.9, "provider": {**RECOMPUTE_LAYERS, "mtp_num_layers": 0}},
    ),
    inference=_LARGE_SAMPLER,
)

# -- mixtures of experts -----------------------------------------------------------------------------------------------

_EXPERTS_TRAINER = replace(
    FULL_TRAINER,
    parallelism=replace(FULL_TRAINER.parallelism, expert=8, expert_tensor=1),
    options={
        "gpu_memory_fraction": 0.9,
        "provider": {
            "recompute_granularity": "selective",
            "moe_layer_recompute": True,
            "moe_token_dispatcher_type": "alltoall",
            "moe_router_fusion": True,
            "moe_permute_fusion": True,
            "moe_grouped_gemm": True,
            "moe_shared_expert_overlap": False,
            "moe_aux_loss_coeff": 0.0,
            "mtp_num_layers": 0,
        },
    },
)

QWEN35_35B_A3B_FFT_64K = Deployment(
    name="qwen35-35b-a3b-fft-64k",
    description="Qwen3.5-35B-A3B, all weights, 64K",
    model=Model(id="Qwen/Qwen3.5-35B-A3B", source=HubSource(repo="Qwen/Qwen3.5-35B-A3B", revision="main")),
    trainer=_EXPERTS_TRAINER,
    inference=replace(
        _LARGE_SAMPLER,
        parallelism=Parallelism(tensor=1, expert=4, data=4, data_parallel_attention=True),
    ),
)

# Attention is divided by heads here. Hidden until a run on GPUs has shown that it stands.
QWEN36_35B_A3B_FFT_64K = replace(
    QWEN35_35B_A3B_FFT_64K,
    name="qwen36-35b-a3b-fft-64k",
    description="Qwen3.6-35B-A3B, all weights, 64K",
    visible=False,
    model=Model(id="Qwen/Qwen3.6-35B-A3B", source=HubSource(repo="Qwen/Qwen3.6-35B-A3B", revision="main")),
    inference=replace(
        _LARGE_SAMPLER,
        parallelism=Parallelism(tensor=4, expert=4, data=1, data_parallel_attention=False),
    ),
)
