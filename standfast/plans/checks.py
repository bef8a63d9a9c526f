"""What cannot be carried out, found from the config alone: no file is read, nothing is asked of an image or a
machine.
"""

from collections.abc import Iterator

from standfast.plans.credentials import literal_secrets
from standfast.plans.environment import bindings, environment_problems
from standfast.plans.strategies import ENGINES
from standfast.plans.topology import divide
from standfast.problems import Problem
from standfast.spec import Deployment, Image, Inference, Scaling

#: Fields of `Parallelism` that serving has no use for, each with what to write instead.
_FOR_TRAINERS = {
    "expert_tensor": "Leave it out: the experts are divided by Parallelism(expert=...).",
    "sequence": "Leave it out: it divides the activations of a trainer.",
}


def check(deployment: Deployment) -> tuple[Problem, ...]:
    """Everything in the config that is not carried out yet or cannot work; empty when it can be resolved.

    A part that is not carried out yet loads and validates, and is refused here by name: no field is silently ignored.
    """
    return tuple(_problems(deployment))


def _problems(deployment: Deployment) -> Iterator[Problem]:
    variables = tuple(_variables(deployment.inference)) if deployment.inference is not None else ()
    told = {problem.where for problem in variables}
    yield from (problem for problem in literal_secrets(deployment) if problem.where not in told)
    if deployment.trainer is not None:
        yield _later(
            "trainer",
            "The trainer role",
            f"trainer=Trainer(backend={deployment.trainer.backend!r})",
            "Leave trainer out to serve the model meanwhile.",
        )
    if deployment.inference is None:
        return
    inference = deployment.inference
    yield from variables
    yield from _engine(inference)
    yield from _scaling(inference.scaling)
    yield from _parallelism(inference)
    yield from topology_problems(inference)


def _variables(inference: Inference) -> Iterator[Problem]:
    yield from environment_problems(bindings(inference.environment), where="Deployment.inference.environment")


def topology_problems(inference: Inference) -> Iterator[Problem]:
    """What the sizes of a role contradict: each other, its compute, or the rules of its engine."""
    division = divide(inference)
    yield from division.problems
    if division.topology is not None:
        yield from ENGINES[inference.engine].topology_problems(inference, division.topology)


def _engine(inference: Inference) -> Iterator[Problem]:
    image = inference.image
    if isinstance(image, Image):
        if image.engine != inference.engine:
            yield Problem(
                code="image-engine",
                where="Deployment.inference.image",
                message=f"The image {image.name} runs {image.engine}, and the role asks for {inference.engine}.",
                help=f"Set Inference(engine={image.engine!r}) or choose an image that runs {inference.engine}.",
                value=image.engine,
                limit=inference.engine,
            )
        yield from image_accelerator(inference, image.accelerator, image.name)


def image_accelerator(inference: Inference, accelerator: str, image: str) -> Iterator[Problem]:
    """An image for the CPU cannot use GPUs, and one for CUDA cannot do without."""
    if (accelerator == "cuda") != (inference.compute.gpus > 0):
        held = "no GPU" if inference.compute.gpus == 0 else f"gpu={inference.compute.gpu!r}"
        wanted = "Compute(gpu='any', gpus=1)" if accelerator == "cuda" else "an image with accelerator='cuda'"
        yield Problem(
            code="image-accelerator",
            where="Deployment.inference.image",
            message=f"The image {image} is made for {accelerator}, and the role's compute has {held}.",
            help=f"Choose {wanted}, or leave image out to have one chosen.",
            value=accelerator,
            limit="cuda" if inference.compute.gpus else "cpu",
        )


def _scaling(scaling: Scaling) -> Iterator[Problem]:
    if scaling.min_replicas == 0:
        yield _later(
            "inference.scaling.min_replicas", "Scaling to zero", "min_replicas=0", "Set min_replicas to 1 or more."
        )
    if scaling.max_replicas > scaling.min_replicas:
        yield _later(
            "inference.scaling.max_replicas",
            "Autoscaling",
            f"max_replicas={scaling.max_replicas} above min_replicas={scaling.min_replicas}",
            "Set min_replicas and max_replicas to the same number.",
        )
    for name in ("target_concurrency", "scale_down_after"):
        if getattr(scaling, name) != getattr(Scaling(), name):
            yield _later(
                f"inference.scaling.{name}", "Autoscaling", name, "Leave it out; the number of replicas is fixed."
            )


def _parallelism(inference: Inference) -> Iterator[Problem]:
    context = inference.parallelism.context
    if context is not None and context > 1:
        yield _later("inference.parallelism.context", "Context parallelism", f"context={context}", "Leave it out.")
    for name, help in _FOR_TRAINERS.items():
        value = getattr(inference.parallelism, name)
        if value is True or (value is not None and value > 1):
            part = f"{name.replace('_', ' ').capitalize()} parallelism of a served model"
            yield _later(f"inference.parallelism.{name}", part, f"{name}={value}", help)


def _later(field: str, part: str, given: str, help: str) -> Problem:
    return Problem(
        code="not-carried-out",
        where=f"Deployment.{field}",
        message=f"{part} ({given}) loads and validates but is not carried out yet.",
        help=help,
        value=given,
    )
