"""`resolve`: one deployment and what is known about its image and model become one generation."""

from collections.abc import Iterator

from standfast.plans.arguments import ArgumentReader
from standfast.plans.checks import PLANNED_ENGINES, check, image_accelerator
from standfast.plans.engines import Engine, Request
from standfast.plans.environment import bindings, environment_problems, merge
from standfast.plans.identity import generation_digest, inference_hash, settings_of
from standfast.plans.options import OptionList
from standfast.plans.records import (
    Claim,
    EndpointPlan,
    EngineIdentity,
    EnvironmentBinding,
    Generation,
    Inspection,
    PinnedModel,
    RankPlan,
    ReadinessPlan,
    ReplicaPlan,
    ResolutionInputs,
    RetryPlan,
    RolePlan,
    Topology,
    ValidationPlan,
)
from standfast.plans.topology import divide
from standfast.plans.vllm import Vllm
from standfast.problems import Problem, ProblemsError
from standfast.spec import (
    Deployment,
    Image,
    Inference,
    Launch,
    Readiness,
    RetryBudget,
    Validation,
    memory_bytes,
    seconds,
)

_ENGINES: dict[str, Engine] = {"vllm": Vllm()}
assert tuple(_ENGINES) == PLANNED_ENGINES
_WHERE = "Deployment.inference"
_NO_DIGEST = "0" * 64


def resolution_inputs(
    *, target: str, model: PinnedModel, image: Image, inspection: Inspection, releases: tuple[tuple[str, str], ...] = ()
) -> ResolutionInputs:
    """The inputs of `resolve` for an image as it was built and inspected."""
    return ResolutionInputs(
        target=target,
        model=model,
        image_name=image.name,
        inspection=inspection,
        releases=releases,
        accelerator=image.accelerator,
        image_environment=bindings(image.environment),
    )


def resolve(deployment: Deployment, inputs: ResolutionInputs) -> Generation:
    """Plan a deployment. Pure and deterministic: equal settings give an equal generation, in any order of keys, in
    any process.

    Raises `ProblemsError` with every problem that can be found, not only the first.
    """
    problems = list(check(deployment))
    inference = deployment.inference
    if inference is None or inference.engine not in _ENGINES:
        raise ProblemsError(tuple(problems))
    problems += _input_problems(deployment, inference, inputs)
    if inputs.inspection.engine != inference.engine:
        raise ProblemsError(tuple(problems))
    role, more = _role(deployment, inference, inputs)
    problems += more
    if problems or role is None:
        raise ProblemsError(tuple({(problem.code, problem.where): problem for problem in problems}.values()))
    generation = Generation(
        deployment=deployment.name,
        target=inputs.target,
        digest=_NO_DIGEST,
        settings=settings_of(deployment),
        inference=role,
        inference_hash=role.hash,
        trainer_hash=None,
        retry=_retry(deployment.retry),
        validation=_validation(deployment.validation),
    )
    return generation.model_copy(update={"digest": generation_digest(generation)})


def _input_problems(deployment: Deployment, inference: Inference, inputs: ResolutionInputs) -> Iterator[Problem]:
    inspection = inputs.inspection
    if inspection.engine != inference.engine:
        yield Problem(
            code="image-engine",
            where=f"{_WHERE}.image",
            message=f"The image {inputs.image_name} runs {inspection.engine}; the role asks for {inference.engine}.",
            help=f"Choose an image that runs {inference.engine}.",
        )
    if inputs.model.id != deployment.model.id:
        yield Problem(
            code="input-mismatch",
            where="Deployment.model.id",
            message=f"The pinned model is {inputs.model.id}, and the deployment names {deployment.model.id}.",
            help="Pin the model that the deployment names.",
        )
    wanted = inference.image.name if isinstance(inference.image, Image) else inference.image
    if wanted is not None and inputs.image_name != wanted:
        yield Problem(
            code="input-mismatch",
            where=f"{_WHERE}.image",
            message=f"The inspected image is {inputs.image_name}, and the role names {wanted}.",
            help="Inspect the image that the role names.",
        )
    if inputs.accelerator is not None and not isinstance(inference.image, Image):
        yield from image_accelerator(inference, inputs.accelerator, inputs.image_name)


# -- the inference role ------------------------------------------------------------------------------------------------


def _role(
    deployment: Deployment, inference: Inference, inputs: ResolutionInputs
) -> tuple[RolePlan | None, list[Problem]]:
    engine = _ENGINES[inference.engine]
    inspection = inputs.inspection
    table = OptionList(inspection.options)
    label = f"{engine.title} {inspection.version} (image {inspection.image_digest[:8]}…)"
    reader = ArgumentReader(table, engine=label, where=_WHERE)
    options = reader.options(inference.options)
    arguments = reader.arguments(inference.extra_args)
    own = bindings(inference.environment)
    problems = [
        *reader.problems,
        *environment_problems(own, where=f"{_WHERE}.environment"),
        *environment_problems(inputs.image_environment, where=f"{_WHERE}.image.environment", image=True),
    ]
    topology = divide(inference).topology
    if topology is None or topology.nodes > 1:
        return None, problems
    request = Request(
        inference=inference,
        served_name=deployment.resolved_served_name,
        topology=topology,
        accelerator=inputs.accelerator or ("cuda" if inference.compute.gpus else "cpu"),
        table=table,
        used=frozenset(reader.used),
    )
    ranks, more = _ranks(engine, request, (*options, *arguments), (inputs.image_environment, own))
    problems += more
    if problems:
        return None, problems
    return _plan(deployment, inference, inputs, topology, ranks), []


def _ranks(
    engine: Engine,
    request: Request,
    arguments: tuple[str, ...],
    layers: tuple[tuple[EnvironmentBinding, ...], ...],
) -> tuple[tuple[RankPlan, ...], list[Problem]]:
    compute = request.inference.compute
    problems: list[Problem] = []
    ranks = []
    for rank in range(request.topology.nodes):
        command = engine.command(request, rank)
        problems += command.problems
        claim = Claim(
            gpu=compute.gpu,
            gpus=compute.gpus,
            cpus=compute.cpus,
            memory_bytes=memory_bytes(compute.memory),
            ports=command.ports,
        )
        ranks.append((rank, (*command.argv, *arguments), merge(command.environment, *layers), claim))
    if problems:
        return (), problems
    return tuple(
        RankPlan(rank=rank, node=rank, argv=argv, environment=environment, claim=claim)
        for rank, argv, environment, claim in ranks
    ), []


def _plan(
    deployment: Deployment,
    inference: Inference,
    inputs: ResolutionInputs,
    topology: Topology,
    ranks: tuple[RankPlan, ...],
) -> RolePlan:
    inspection = inputs.inspection
    plan = RolePlan(
        role="inference",
        model=inputs.model,
        engine=EngineIdentity(
            name=inspection.engine,
            version=inspection.version,
            executable=inspection.executable,
            image_name=inputs.image_name,
            image_digest=inspection.image_digest,
            options_digest=inspection.options_digest,
        ),
        topology=topology,
        replicas=_replicas(inference.scaling.min_replicas, ranks, inference.launch),
        readiness=_readiness(inference.readiness),
        endpoint=EndpointPlan(
            served_name=deployment.resolved_served_name,
            visible=deployment.visible,
            max_waiting=inference.backpressure.max_waiting,
            retry_after_s=seconds(inference.backpressure.retry_after),
        ),
        stop_grace_s=seconds(inference.launch.stop_grace),
        release=dict(inputs.releases).get("inference", ""),
        hash=_NO_DIGEST,
    )
    launch = inference.launch
    named = inference_hash(plan, standoff_s=seconds(launch.standoff), stagger_s=seconds(launch.stagger))
    return plan.model_copy(update={"hash": named})


def _replicas(count: int, ranks: tuple[RankPlan, ...], launch: Launch) -> tuple[ReplicaPlan, ...]:
    # Replicas share their rank records: what tells them apart comes with the facts at binding.
    standoff, stagger = seconds(launch.standoff), seconds(launch.stagger)
    return tuple(
        ReplicaPlan(index=index, launch_delay_s=standoff + index * stagger if index else 0.0, ranks=ranks)
        for index in range(count)
    )


# -- policies ----------------------------------------------------------------------------------------------------------


def _readiness(readiness: Readiness) -> ReadinessPlan:
    return ReadinessPlan(
        startup_timeout_s=seconds(readiness.startup_timeout),
        initialization_timeout_s=seconds(readiness.initialization_timeout),
        generation_timeout_s=seconds(readiness.generation_timeout),
        health_path=readiness.health_path,
    )


def _retry(retry: RetryBudget) -> RetryPlan:
    return RetryPlan(
        attempts=retry.attempts,
        window_s=seconds(retry.window),
        initial_backoff_s=seconds(retry.initial_backoff),
        backoff_multiplier=retry.backoff_multiplier,
        max_backoff_s=seconds(retry.max_backoff),
    )


def _validation(validation: Validation) -> ValidationPlan:
    return ValidationPlan(
        prompt=validation.prompt,
        expect=validation.expect,
        max_tokens=validation.max_tokens,
        timeout_s=seconds(validation.timeout),
    )
