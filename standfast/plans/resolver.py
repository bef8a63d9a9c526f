"""`resolve`: one deployment and what is known about its image and model become one generation."""

from collections.abc import Iterator

from standfast.plans.arguments import ArgumentReader
from standfast.plans.checks import check, image_accelerator
from standfast.plans.engines import Engine, Request
from standfast.plans.environment import bindings, environment_problems, merge
from standfast.plans.identity import generation_digest, inference_hash, settings_of
from standfast.plans.inspection import Inspection
from standfast.plans.options import OptionList
from standfast.plans.records import (
    BackendPlan,
    Claim,
    EndpointPlan,
    EngineIdentity,
    EnvironmentBinding,
    Generation,
    PinnedModel,
    Placement,
    RankPlan,
    ReadinessPlan,
    RendezvousPlan,
    ReplicaPlan,
    ResolutionInputs,
    RetryPlan,
    RolePlan,
    Topology,
    ValidationPlan,
)
from standfast.plans.strategies import ENGINES
from standfast.plans.topology import divide, no_room
from standfast.problems import Problem, ProblemsError
from standfast.spec import (
    Deployment,
    Image,
    Inference,
    Readiness,
    RetryBudget,
    Validation,
    memory_bytes,
    seconds,
)

_WHERE = "Deployment.inference"
_NO_DIGEST = "0" * 64


def resolution_inputs(
    *,
    target: str,
    model: PinnedModel,
    image: Image,
    inspection: Inspection,
    releases: tuple[tuple[str, str], ...] = (),
    placement: Placement | None = None,
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
        placement=placement or Placement(),
    )


def resolve(deployment: Deployment, inputs: ResolutionInputs) -> Generation:
    """Plan a deployment. Pure and deterministic: equal settings give an equal generation, in any order of keys, in
    any process.

    Raises `ProblemsError` with every problem that can be found, not only the first.
    """
    problems = list(check(deployment))
    inference = deployment.inference
    if inference is None:
        raise ProblemsError(tuple(problems))
    problems += _input_problems(deployment, inference, inputs)
    if inputs.inspection.engine != inference.engine:
        raise ProblemsError(tuple(problems))
    role, more = _role(deployment, inference, inputs)
    if problems or more or role is None:
        raise ProblemsError(_once(problems, more))
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


def _once(first: list[Problem], later: list[Problem]) -> tuple[Problem, ...]:
    """Every problem once. What is found again with the image in hand is told in the words of then; so is a credential
    in an option that turns out to be managed, which has no place for any value.
    """
    again: dict[tuple[str, str], list[Problem]] = {}
    for problem in later:
        for code in {problem.code, "literal-secret"} if problem.code == "managed-option" else {problem.code}:
            again.setdefault((code, problem.where), []).append(problem)
    told = [better for problem in first for better in again.get((problem.code, problem.where), [problem])]
    return tuple(dict.fromkeys((*told, *later)))


def _input_problems(deployment: Deployment, inference: Inference, inputs: ResolutionInputs) -> Iterator[Problem]:
    inspection = inputs.inspection
    if inspection.engine != inference.engine:
        yield Problem(
            code="image-engine",
            where=f"{_WHERE}.image",
            message=f"The image {inputs.image_name} runs {inspection.engine}; the role asks for {inference.engine}.",
            help=f"Choose an image that runs {inference.engine}.",
            value=inspection.engine,
            limit=inference.engine,
        )
    if inputs.model.id != deployment.model.id:
        yield Problem(
            code="input-mismatch",
            where="Deployment.model.id",
            message=f"The pinned model is {inputs.model.id}, and the deployment names {deployment.model.id}.",
            help="Pin the model that the deployment names.",
            value=inputs.model.id,
            limit=deployment.model.id,
        )
    wanted = inference.image.name if isinstance(inference.image, Image) else inference.image
    if wanted is not None and inputs.image_name != wanted:
        yield Problem(
            code="input-mismatch",
            where=f"{_WHERE}.image",
            message=f"The inspected image is {inputs.image_name}, and the role names {wanted}.",
            help="Inspect the image that the role names.",
            value=inputs.image_name,
            limit=wanted,
        )
    if inputs.accelerator is not None and not isinstance(inference.image, Image):
        yield from image_accelerator(inference, inputs.accelerator, inputs.image_name)


# -- the inference role ------------------------------------------------------------------------------------------------


def _role(
    deployment: Deployment, inference: Inference, inputs: ResolutionInputs
) -> tuple[RolePlan | None, list[Problem]]:
    engine = ENGINES[inference.engine]
    inspection = inputs.inspection
    table = OptionList(inspection.options)
    label = f"{engine.title} {inspection.version} (image {inspection.image_digest[:8]}…)"
    reader = ArgumentReader(table, engine=label, where=_WHERE, by_name=engine.by_name)
    settings = (*reader.options(inference.options), *reader.arguments(inference.extra_args))
    own = bindings(inference.environment)
    problems = [
        *reader.problems,
        *environment_problems(own, where=f"{_WHERE}.environment"),
        *environment_problems(inputs.image_environment, where=f"{_WHERE}.image.environment", image=True),
    ]
    topology = divide(inference).topology
    if topology is None:
        return None, problems
    request = Request(
        inference=inference,
        served_name=deployment.resolved_served_name,
        topology=topology,
        accelerator=inputs.accelerator or ("cuda" if inference.compute.gpus else "cpu"),
        table=table,
        settings=settings,
    )
    ranks, more = _ranks(engine, request, (inputs.image_environment, own))
    problems += more
    problems += no_room(inference, topology, inputs.placement)
    if problems:
        return None, problems
    return _plan(deployment, inference, inputs, topology, engine, ranks), []


def _ranks(
    engine: Engine, request: Request, layers: tuple[tuple[EnvironmentBinding, ...], ...]
) -> tuple[tuple[RankPlan, ...], list[Problem]]:
    compute = request.inference.compute
    arguments = engine.arguments(request.settings)
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
        return (), list(dict.fromkeys(problems))
    return tuple(
        RankPlan(rank=rank, node=rank, argv=argv, environment=environment, claim=claim)
        for rank, argv, environment, claim in ranks
    ), []


def _plan(
    deployment: Deployment,
    inference: Inference,
    inputs: ResolutionInputs,
    topology: Topology,
    engine: Engine,
    ranks: tuple[RankPlan, ...],
) -> RolePlan:
    inspection, launch = inputs.inspection, inference.launch
    readiness = _readiness(inference.readiness, engine)
    served_name = deployment.resolved_served_name
    replicas = _replicas(inference, inputs.placement, engine, served_name, readiness)
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
        placement=inputs.placement,
        ranks=ranks,
        replicas=replicas,
        readiness=readiness,
        endpoint=EndpointPlan(
            served_name=served_name,
            visible=deployment.visible,
            backends=tuple(replica.backend.id for replica in replicas),
            max_waiting=inference.backpressure.max_waiting,
            retry_after_s=seconds(inference.backpressure.retry_after),
        ),
        standoff_s=seconds(launch.standoff),
        stagger_s=seconds(launch.stagger),
        stop_grace_s=seconds(launch.stop_grace),
        release=dict(inputs.releases).get("inference", ""),
        hash=_NO_DIGEST,
    )
    return plan.model_copy(update={"hash": inference_hash(plan)})


def _replicas(
    inference: Inference, placement: Placement, engine: Engine, served_name: str, readiness: ReadinessPlan
) -> tuple[ReplicaPlan, ...]:
    compute = inference.compute
    standoff, stagger = seconds(inference.launch.standoff), seconds(inference.launch.stagger)
    lanes = placement.lanes(compute.gpus)
    slots = [tuple(range(lane * compute.gpus, (lane + 1) * compute.gpus)) for lane in range(lanes)]
    rendezvous = None
    if compute.nodes > 1:
        rendezvous = RendezvousPlan(port=engine.rendezvous_port, timeout_s=readiness.initialization_timeout_s)
    return tuple(
        ReplicaPlan(
            index=index,
            group=index // lanes,
            lane=index % lanes,
            gpu_slots=slots[index % lanes],
            launch_delay_s=standoff + index * stagger if index else 0.0,
            rendezvous=rendezvous,
            backend=BackendPlan(
                id=f"inference/{index}",
                port=engine.http_port,
                served_name=served_name,
                health_path=readiness.health_path,
            ),
        )
        for index in range(inference.scaling.min_replicas)
    )


# -- policies ----------------------------------------------------------------------------------------------------------


def _readiness(readiness: Readiness, engine: Engine) -> ReadinessPlan:
    return ReadinessPlan(
        startup_timeout_s=seconds(readiness.startup_timeout),
        initialization_timeout_s=seconds(readiness.initialization_timeout),
        generation_timeout_s=seconds(readiness.generation_timeout),
        health_path=readiness.health_path,
        identity_path=engine.identity_path,
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
