"""Records to keep in a registry under test."""

import hashlib

from standfast.plans.inspection import Inspection, OptionSpec
from standfast.plans.records import (
    BackendPlan,
    Claim,
    EndpointPlan,
    EngineIdentity,
    Generation,
    PinnedModel,
    Placement,
    PortSpan,
    RankPlan,
    ReadinessPlan,
    ReplicaPlan,
    RetryPlan,
    RolePlan,
    Topology,
    ValidationPlan,
)
from standfast.registry import Registry


def digest(text: str) -> str:
    """Sixty-four hexadecimal digits that stand for ``text``."""
    return hashlib.sha256(text.encode()).hexdigest()


def an_inspection() -> Inspection:
    """What an inspector might have read in an image."""
    option = OptionSpec(
        dest="max_model_len", flags=("--max-model-len",), minimum=1, maximum=1, choices=None, type="int"
    )
    return Inspection(
        image_digest=digest("image"),
        engine="vllm",
        version="0.1",
        executable=("vllm", "serve"),
        inspector="1",
        options=(option,),
    )


def a_generation(
    deployment: str = "qwen",
    variant: str = "first",
    *,
    served_name: str | None = None,
    visible: bool = True,
    max_waiting: int = 8,
    retry_after_s: float = 2.5,
    inference: bool = True,
) -> Generation:
    """A generation of ``deployment``; another ``variant`` has another digest."""
    rank = RankPlan(
        rank=0,
        node=0,
        argv=("serve",),
        environment=(),
        claim=Claim(gpu=None, gpus=0, cpus=1, memory_bytes=1, ports=PortSpan(count=1, offsets=(("http", 0),))),
    )
    backend = BackendPlan(id="inference/0", port="http", served_name=served_name or deployment, health_path="/health")
    replica = ReplicaPlan(index=0, group=0, lane=0, gpu_slots=(), launch_delay_s=0.0, rendezvous=None, backend=backend)
    plan = RolePlan(
        role="inference",
        model=PinnedModel(id="m", source="wheel", locator="w", revision="w==1"),
        engine=EngineIdentity(
            name="vllm",
            version="0.1",
            executable=("vllm", "serve"),
            image_name="vllm-cpu",
            image_digest=digest("image"),
            options_digest=an_inspection().options_digest,
        ),
        topology=Topology(nodes=1, tensor=1, pipeline=1, data=1, expert=1),
        placement=Placement(),
        ranks=(rank,),
        replicas=(replica,),
        readiness=ReadinessPlan(
            startup_timeout_s=1.0, initialization_timeout_s=1.0, generation_timeout_s=1.0, health_path="/health"
        ),
        endpoint=EndpointPlan(
            served_name=backend.served_name,
            visible=visible,
            backends=(backend.id,),
            max_waiting=max_waiting,
            retry_after_s=retry_after_s,
        ),
        standoff_s=0.0,
        stagger_s=0.0,
        stop_grace_s=1.0,
        hash=digest(f"plan of {deployment} {variant}"),
    )
    return Generation(
        deployment=deployment,
        target="local",
        digest=digest(f"{deployment} {variant}"),
        settings="{}",
        inference=plan if inference else None,
        inference_hash=plan.hash if inference else None,
        trainer_hash=None,
        retry=RetryPlan(attempts=1, window_s=1.0, initial_backoff_s=1.0, backoff_multiplier=1.0, max_backoff_s=1.0),
        validation=ValidationPlan(prompt="?", expect=None, max_tokens=1, timeout_s=1.0),
    )


async def put_generations(registry: Registry, *generations: Generation) -> None:
    """Record deployments under their own names, and these generations of them."""
    for generation in generations:
        await registry.put_deployment(generation.deployment, served_name=generation.deployment, target="local")
        await registry.put_generation(generation)
