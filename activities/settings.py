"""From a config to a recorded generation: pin, build, resolve, fetch."""

import json
import os
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError
from temporalio import activity
from temporalio.exceptions import ApplicationError

from activities.context import Services, failed, misused, progress, refused
from standfast import contracts as c
from standfast.images.builder import ImageBuildError, build
from standfast.images.recipes import choose
from standfast.images.store import image_digest
from standfast.plans import check, difference, resolution_inputs, resolve
from standfast.plans.records import Generation
from standfast.problems import Problem, ProblemsError
from standfast.registry import ServedNameTaken
from standfast.spec import Deployment, Image, Inference, Secret
from standfast.weights import WeightsError, fetch, pin

_DEPLOYMENT = TypeAdapter(Deployment)
_IMAGE = TypeAdapter(Image)


class SettingsActivities:
    """The activities that prepare a generation. Only they read the config; launchers run what the plan says."""

    def __init__(self, services: Services) -> None:
        self._services = services

    @activity.defn(name="pin_settings")
    async def pin_settings(self, start: c.DeployInput) -> c.PinnedSettings:
        """Refuse what cannot work, and pin the rest: the model's revision and the image's recipe."""
        try:
            deployment = parse(start.settings)
            problems = (*check(deployment), *_missing_secrets(deployment), *_unknown_target(start.target))
            if problems:
                raise ProblemsError(problems)
            inference = _inference(deployment)
            image = choose(inference.image, inference.engine, gpu=inference.compute.gpus > 0)
        except ProblemsError as error:
            raise refused(error) from None
        try:
            model = await pin(deployment.model.resolved_source, deployment.model.id)
        except WeightsError as error:
            raise failed(_weights_failure(error)) from None
        return c.PinnedSettings(
            model=model,
            image=_IMAGE.dump_python(image, mode="json"),
            image_name=image.name,
            image_digest=image_digest(image),
        )

    @activity.defn(name="build_image")
    async def build_image(self, pinned: c.PinnedSettings) -> c.Nothing:
        """Build the image unless it exists, and inspect it."""
        existing = self._services.images.read(pinned.image_digest)
        if existing is not None:
            built, detail = existing, "reused"
        else:
            image = _IMAGE.validate_json(json.dumps(pinned.image))
            async with progress() as say:
                try:
                    built = await build(image, self._services.images, on_progress=say)
                except ImageBuildError as error:
                    raise _retryable(_build_failure(error)) from None
            detail = "built"
        if existing is None or await self._services.registry.get_image(built.digest) is None:
            await self._services.registry.put_image(
                built.digest, name=pinned.image_name, path=str(built.path), inspection=built.inspection
            )
        return c.Nothing(detail=detail)

    @activity.defn(name="resolve_plan")
    async def resolve_plan(self, start: c.ResolveInput) -> c.GenerationRef:
        """Resolve the generation against what the image really has, and record it."""
        services, registry = self._services, self._services.registry
        deployment = parse(start.deploy.settings)
        built = services.images.read(start.pinned.image_digest)
        if built is None:
            raise ApplicationError("the image disappeared after it was built", type="image-missing")
        inputs = resolution_inputs(
            target=start.deploy.target,
            model=start.pinned.model,
            image=_IMAGE.validate_json(json.dumps(start.pinned.image)),
            inspection=built.inspection,
        )
        try:
            generation = resolve(deployment, inputs)
        except ProblemsError as error:
            raise refused(error) from None
        try:
            stored = await registry.put_deployment(
                deployment.name,
                served_name=deployment.resolved_served_name,
                target=start.deploy.target,
                visible=deployment.visible,
            )
            previous = stored.current_generation
            unchanged = previous == generation.id
            if not unchanged:
                await registry.put_generation(generation)
            plan = generation.inference
            assert plan is not None
        except ServedNameTaken as error:
            raise misused(error, "served-name-taken") from None
        return c.GenerationRef(
            id=generation.id,
            deployment=deployment.name,
            target=generation.target,
            served_name=plan.endpoint.served_name,
            inference_hash=plan.hash,
            replicas=len(plan.replicas),
            launch_delays_s=tuple(replica.launch_delay_s for replica in plan.replicas),
            attempts_so_far=await self._attempts_so_far(generation),
            retry=generation.retry,
            validation=generation.validation,
            previous=previous,
            unchanged=unchanged,
            changes=await self._changes(previous, generation),
        )

    @activity.defn(name="fetch_weights")
    async def fetch_weights(self, of: c.GenerationInput) -> c.Nothing:
        """Bring the weights to this target, unless they are complete here."""
        services = self._services
        plan = await services.inference_plan(of.generation)
        if services.weights.read(plan.model) is not None:
            return c.Nothing(detail="reused")
        built = services.images.read(plan.engine.image_digest)
        async with progress() as say:
            try:
                await fetch(
                    plan.model,
                    store=services.weights,
                    python=built.python if built is not None else None,
                    on_progress=say,
                )
            except WeightsError as error:
                raise _retryable(_weights_failure(error)) from None
        return c.Nothing(detail="fetched")

    @activity.defn(name="set_phase")
    async def set_phase(self, change: c.PhaseInput) -> c.Nothing:
        """Record the phase of a generation."""
        failure = change.failure.model_dump(mode="json") if change.failure is not None else None
        await self._services.registry.set_generation_phase(change.generation, change.phase, failure=failure)
        return c.Nothing()

    async def _attempts_so_far(self, generation: Generation) -> tuple[int, ...]:
        """The attempt number after which each replica goes on: names of attempts that ended are never used again.

        An attempt that has not ended is left to be found by its name, whatever became of the workflow that started it.
        """
        assert generation.inference is not None
        so_far = dict.fromkeys(range(len(generation.inference.replicas)), 0)
        for attempt in await self._services.registry.list_attempts(generation=generation.id):
            if attempt.replica in so_far:
                used = attempt.number if attempt.phase == "ended" else attempt.number - 1
                so_far[attempt.replica] = max(so_far[attempt.replica], used)
        return tuple(so_far.values())

    async def _changes(self, previous: str | None, generation: Generation) -> tuple[str, ...]:
        if previous is None or previous == generation.id:
            return ()
        before = await self._services.registry.get_generation(previous)
        if before is None:
            return ()
        return tuple(difference(before.record, generation).lines())


def parse(settings: Mapping[str, Any]) -> Deployment:
    """The deployment that JSON settings describe. Raises `ProblemsError`."""
    try:
        return _DEPLOYMENT.validate_json(json.dumps(settings))
    except ValidationError as error:
        problems = tuple(
            Problem(
                code="invalid-settings", where=".".join(["Deployment", *map(str, detail["loc"])]), message=detail["msg"]
            )
            for detail in error.errors()
        )
        raise ProblemsError(problems) from None


def _inference(deployment: Deployment) -> Inference:
    assert deployment.inference is not None, "check() refuses deployments without an inference role"
    return deployment.inference


def _missing_secrets(deployment: Deployment) -> tuple[Problem, ...]:
    bound = deployment.inference.environment if deployment.inference is not None else {}
    return tuple(
        Problem(
            code="secret-missing",
            where=f"Deployment.inference.environment[{variable!r}]",
            message=f"The secret {value.name} is not set in the control worker's environment.",
            help=f"Set {value.name} where the stack runs, then `standfast down --keep-models` and `standfast up`.",
        )
        for variable, value in bound.items()
        if isinstance(value, Secret) and value.name not in os.environ
    )


def _unknown_target(target: str) -> tuple[Problem, ...]:
    if target == "local":
        return ()
    return (
        Problem(
            code="target-not-carried-out",
            where="--target",
            message=f"The target {target!r} is not carried out yet.",
            help="Use --target local, the default.",
        ),
    )


def _retryable(failure: c.Failure) -> ApplicationError:
    """A verdict on a step that Temporal itself retries while it is transient."""
    return ApplicationError(failure.message, failure, type=failure.code, non_retryable=failure.kind == "permanent")


def _weights_failure(error: WeightsError) -> c.Failure:
    return c.Failure(kind=error.kind, code="weights", message=str(error), help=error.help)


def _build_failure(error: ImageBuildError) -> c.Failure:
    return c.Failure(
        kind=error.kind,
        code="image-build",
        message=error.message,
        help="Its requirements come from Inference.image, or from the recipe that was chosen.",
        evidence=tuple(error.log_tail[-15:]),
    )
