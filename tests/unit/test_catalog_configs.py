"""The configs that ship: the quickstart, and fifteen deployments of a comparable service with all their figures."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from standfast.catalog import load
from standfast.plans import check
from standfast.spec import Deployment, HubSource, Inference, Trainer, WheelSource, memory_bytes, seconds
from standfast.targets import LOCAL
from standfast.targets import check as check_target

CONFIGS = Path(__file__).parents[2] / "configs"
FILES = sorted((CONFIGS / "catalog").glob("[!_]*.py"))
CATALOG = {deployment.name: deployment for file in FILES for deployment in load(file)}
K = 1024


@dataclass(frozen=True)
class Training:
    """A row of the trainers: sizes are tensor/context/expert/data."""

    name: str
    model: str
    context: int
    gpus: str
    sizes: str
    clients: str
    tokens: int


TRAINING = [
    Training("qwen35-9b-lora-2k", "Qwen/Qwen3.5-9B-Base", 2 * K, "4xH200x1", "4/1/1/1", "4/4", 2 * K),
    Training("qwen35-9b-lora-16k", "Qwen/Qwen3.5-9B-Base", 16 * K, "4xH100x1", "4/1/1/1", "6/6", 16 * K),
    Training("qwen35-9b-lora-16k-single", "Qwen/Qwen3.5-9B-Base", 16 * K, "4xH100x1", "4/1/1/1", "6/1", 16 * K),
    Training("qwen35-9b-lora-64k", "Qwen/Qwen3.5-9B-Base", 64 * K, "8xH200x1", "8/1/1/1", "6/6", 64 * K),
    Training("qwen35-9b-instruct-lora-16k", "Qwen/Qwen3.5-9B", 16 * K, "8xH100x1", "8/1/1/1", "6/6", 16 * K),
    Training("qwen35-9b-instruct-lora-16k-dp2", "Qwen/Qwen3.5-9B", 16 * K, "8xH100x1", "4/1/1/2", "6/6", 16 * K),
    Training("qwen38-27b-lora-16k", "Qwen/Qwen3.8-27B", 16 * K, "8xH200x1", "4/1/1/2", "6/6", 16 * K),
    Training("qwen38-27b-lora-64k", "Qwen/Qwen3.8-27B", 64 * K, "8xH200x1", "4/2/1/1", "6/6", 32 * K),
    Training("qwen38-27b-lora-128k", "Qwen/Qwen3.8-27B", 128 * K, "8xH200x1", "2/4/1/1", "6/6", 32 * K),
    Training("qwen38-27b-lora-256k", "Qwen/Qwen3.8-27B", 256 * K, "8xH200x2", "2/8/1/1", "6/6", 32 * K),
    Training("qwen35-4b-fft-64k", "Qwen/Qwen3.5-4B", 64 * K, "4xH100x1", "2/2/1/1", "-/1", 64 * K),
    Training("qwen35-9b-fft-64k", "Qwen/Qwen3.5-9B", 64 * K, "4xH200x1", "2/2/1/1", "-/1", 64 * K),
    Training("qwen36-27b-fft-64k", "Qwen/Qwen3.6-27B", 64 * K, "8xH200x1", "4/2/1/1", "-/1", 64 * K),
    Training("qwen35-35b-a3b-fft-64k", "Qwen/Qwen3.5-35B-A3B", 64 * K, "8xH200x1", "4/2/8/1", "-/1", 64 * K),
    Training("qwen36-35b-a3b-fft-64k", "Qwen/Qwen3.6-35B-A3B", 64 * K, "8xH200x1", "4/2/8/1", "-/1", 64 * K),
]
#: Replica, tensor/expert/data, replicas, concurrency, memory fraction, running/queued, loaded/per batch, more.
SAMPLING = {
    "qwen35-9b-lora-2k": ("1xH200", "1/1/-", "0-8", 16, 0.8, "32/8", "32/8", "lpm"),
    "qwen35-9b-lora-16k": ("1xH200", "1/-/-", "0-8", 16, 0.8, "32/8", "64/8", None),
    "qwen35-9b-lora-16k-single": ("1xH200", "1/-/-", "0-8", 16, 0.8, "32/8", "64/8", None),
    "qwen35-9b-lora-64k": ("1xH200", "1/-/-", "0-8", 16, 0.8, "32/8", "64/8", None),
    "qwen35-9b-instruct-lora-16k": ("1xH200", "1/1/-", "0-8", 16, 0.8, "32/8", "256/8", "lpm"),
    "qwen35-9b-instruct-lora-16k-dp2": ("1xH200", "1/1/-", "0-8", 16, 0.8, "32/8", "256/8", "lpm"),
    "qwen38-27b-lora-16k": ("1xH200", "1/1/-", "0-8", 16, 0.8, "32/8", "256/8", "lpm"),
    "qwen38-27b-lora-64k": ("1xH200", "1/1/-", "0-8", 8, 0.8, "16/8", "256/8", "lpm"),
    "qwen38-27b-lora-128k": ("2xH200", "2/1/-", "0-4", 4, 0.8, "8/8", "256/8", "lpm"),
    "qwen38-27b-lora-256k": ("4xH200", "4/1/-", "2-2", 2, 0.8, "4/8", "256/8", "lpm"),
    "qwen35-4b-fft-64k": ("1xH100", "1/-/-", "0-8", 16, 0.85, "32/4", "-/-", 16),
    "qwen35-9b-fft-64k": ("1xH200", "1/1/-", "0-8", 16, 0.85, "32/4", "-/-", 16),
    "qwen36-27b-fft-64k": ("4xH200", "4/1/-", "0-8", 16, 0.9, "32/4", "-/-", 32),
    "qwen35-35b-a3b-fft-64k": ("4xH200", "4/4/4", "0-8", 16, 0.9, "32/4", "-/-", 32),
    "qwen36-35b-a3b-fft-64k": ("4xH200", "4/4/1", "0-8", 16, 0.9, "32/4", "-/-", 32),
}
HIDDEN = {row.name for row in TRAINING} - {
    "qwen35-9b-lora-16k",
    "qwen35-9b-instruct-lora-16k",
    "qwen38-27b-lora-16k",
    "qwen35-4b-fft-64k",
    "qwen36-27b-fft-64k",
    "qwen35-35b-a3b-fft-64k",
}
PINNED = {
    "Qwen/Qwen3.5-9B-Base": "68c46c4b3498877f3ef123c856ecfde50c39f404",
    "Qwen/Qwen3.5-4B": "851bf6e806efd8d0a36b00ddf55e13ccb7b8cd0a",
}


def trainer_of(name: str) -> Trainer:
    trainer = CATALOG[name].trainer
    assert trainer is not None
    return trainer


def inference_of(name: str) -> Inference:
    inference = CATALOG[name].inference
    assert inference is not None
    return inference


def sizes(*values: int | None) -> str:
    return "/".join("-" if value is None else str(value) for value in values)


def lora(name: str) -> bool:
    return "-lora-" in name


def test_the_catalog_has_exactly_the_fifteen_deployments() -> None:
    assert set(CATALOG) == {row.name for row in TRAINING} == set(SAMPLING)
    assert {name for name, deployment in CATALOG.items() if not deployment.visible} == HIDDEN


@pytest.mark.parametrize("row", TRAINING, ids=lambda row: row.name)
def test_a_trainer_states_its_figures(row: Training) -> None:
    trainer, compute, split = trainer_of(row.name), trainer_of(row.name).compute, trainer_of(row.name).parallelism
    slots = trainer.adapters.slots if trainer.adapters else None
    tokens = trainer.tokens_per_gpu if trainer.adapters else trainer.tokens_per_microbatch
    stated = Training(
        row.name,
        CATALOG[row.name].model.id,
        trainer.context_length or 0,
        f"{compute.gpus}x{compute.gpu}x{compute.nodes}",
        sizes(split.tensor, split.context, split.expert, split.data),
        sizes(slots, trainer.max_clients),
        tokens or 0,
    )
    assert stated == row
    assert (split.pipeline, split.expert_tensor) == (1, 1)
    assert trainer.backend == ("miles" if lora(row.name) else "megatron")
    assert trainer.persistence_concurrency == (8 if lora(row.name) else 1)
    assert inference_of(row.name).context_length == row.context
    wide = row.name in ("qwen35-9b-lora-16k", "qwen35-9b-lora-16k-single", "qwen35-9b-lora-64k")
    assert (compute.cpus, memory_bytes(compute.memory) // 2**20) == ((16, 65536) if wide else (8, 32768))


@pytest.mark.parametrize("row", TRAINING, ids=lambda row: row.name)
def test_the_sizes_of_a_trainer_make_up_its_gpus_and_its_context(row: Training) -> None:
    trainer = trainer_of(row.name)
    tensor, context, expert, data = (int(size) for size in row.sizes.split("/"))
    world = trainer.compute.gpus * trainer.compute.nodes
    assert tensor * context * data == world
    assert world % expert == 0
    if lora(row.name):
        assert (trainer.tokens_per_gpu or 0) * context == trainer.context_length


@pytest.mark.parametrize("name", [row.name for row in TRAINING if lora(row.name)])
def test_a_lora_trainer_states_its_adapters_and_its_settings(name: str) -> None:
    trainer = trainer_of(name)
    assert trainer.adapters is not None
    base = CATALOG[name].model.id.endswith("-Base")
    head = ("output_layer",) if base else ()
    assert trainer.adapters.targets == ("linear_qkv", "linear_proj", "linear_fc1", "linear_fc2", *head)
    assert (trainer.adapters.rank, trainer.adapters.alpha, trainer.adapters.dropout) == (32, 32, 0.0)
    assert trainer.architecture == ("qwen3.8-27B" if name.startswith("qwen38") else "qwen3.5-9B")
    timeout = {"distributed_timeout_minutes": 120} if name == "qwen38-27b-lora-256k" else {}
    assert trainer.options == {
        "recompute_granularity": "full",
        "recompute_method": "uniform",
        "recompute_num_layers": 1,
        **timeout,
    }


@pytest.mark.parametrize("name", [row.name for row in TRAINING if not lora(row.name)])
def test_a_trainer_of_all_weights_states_its_optimizer_and_its_settings(name: str) -> None:
    trainer = trainer_of(name)
    optimizer, provider = trainer.optimizer, trainer.options["provider"]
    assert trainer.adapters is None
    assert (trainer.precision, trainer.parallelism.sequence, optimizer.distributed) == ("bf16", True, True)
    assert (optimizer.learning_rate, optimizer.min_learning_rate) == (1e-4, 1e-4)
    assert provider["mtp_num_layers"] == 0
    others = {key: value for key, value in trainer.options.items() if key != "provider"}
    if name in ("qwen35-4b-fft-64k", "qwen35-9b-fft-64k"):
        assert others == {"micro_batch_size": 1, "defer_fp32_logits": True, "fp32_lm_head": True}
        assert optimizer.loss_scale == 1.0
    else:
        assert others == {"gpu_memory_fraction": 0.9}
        assert optimizer.loss_scale is None
    if "a3b" in name:
        assert (provider["recompute_granularity"], provider["moe_layer_recompute"]) == ("selective", True)
        assert provider["moe_token_dispatcher_type"] == "alltoall"
        assert (provider["moe_shared_expert_overlap"], provider["moe_aux_loss_coeff"]) == (False, 0.0)
        assert all(provider[f"moe_{what}"] for what in ("router_fusion", "permute_fusion", "grouped_gemm"))
    else:
        assert (provider["recompute_granularity"], provider["recompute_num_layers"]) == ("full", 1)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_sampler_states_its_figures(name: str) -> None:
    inference = inference_of(name)
    scaling, options, split = inference.scaling, inference.options, inference.parallelism
    # The figures are in the engine's words, which counts the workers that share attention as tensor-parallel.
    tensor = (split.tensor or 1) * (split.data or 1) if split.data_parallel_attention else split.tensor
    more: Any = options.get("schedule-policy" if lora(name) else "cpu-weight-cache-max-compile-group-gb")
    assert SAMPLING[name] == (
        f"{inference.compute.gpus}x{inference.compute.gpu}",
        sizes(tensor, split.expert, split.data),
        f"{scaling.min_replicas}-{scaling.max_replicas}",
        scaling.target_concurrency,
        options["mem-fraction-static"],
        sizes(options["max-running-requests"], options["max-queued-requests"]),
        sizes(options.get("max-loaded-loras"), options.get("max-loras-per-batch")),
        more,
    )
    assert tensor == inference.compute.gpus
    assert split.data_parallel_attention == (name == "qwen35-35b-a3b-fft-64k")
    assert (inference.engine, inference.compute.cpus) == ("sglang", 8)
    assert memory_bytes(inference.compute.memory) == 32768 * 2**20
    assert (seconds(inference.readiness.startup_timeout), seconds(scaling.scale_down_after)) == (1200, 300)
    assert options["weight-loader-disable-mmap"] is True


@pytest.mark.parametrize("row", TRAINING, ids=lambda row: row.name)
def test_a_model_is_pinned_where_a_revision_is_known(row: Training) -> None:
    assert CATALOG[row.name].model.source == HubSource(repo=row.model, revision=PINNED.get(row.model, "main"))


@pytest.mark.parametrize("row", TRAINING, ids=lambda row: row.name)
def test_the_trainers_environment_is_the_usual_one_but_for_the_smallest(row: Training) -> None:
    usual = {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
    assert trainer_of(row.name).environment == ({} if row.name == "qwen35-4b-fft-64k" else usual)


def test_one_client_or_six_leave_the_backend_as_it_is() -> None:
    shared, single = trainer_of("qwen35-9b-lora-16k"), trainer_of("qwen35-9b-lora-16k-single")
    for field in ("compute", "parallelism", "adapters", "options", "tokens_per_gpu", "environment", "optimizer"):
        assert getattr(shared, field) == getattr(single, field)


@pytest.mark.parametrize("name", SAMPLING)
def test_a_deployment_of_the_catalog_survives_json_and_is_refused_by_what_is_not_carried_out(name: str) -> None:
    adapter = TypeAdapter(Deployment)
    assert adapter.validate_json(adapter.dump_json(CATALOG[name])) == CATALOG[name]
    refused = {(problem.code, problem.where) for problem in check(CATALOG[name])}
    assert ("not-carried-out", "Deployment.trainer") in refused


def test_the_quickstart_is_carried_out_here_and_now() -> None:
    (quickstart,) = load(CONFIGS / "quickstart.py")
    assert check(quickstart) == () == check_target(LOCAL)
    assert isinstance(quickstart.model.source, WheelSource)
    assert quickstart.inference is not None
    assert quickstart.inference.compute.gpus == 0
    assert quickstart.validation.expect == "Paris"
