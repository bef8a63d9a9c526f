"""What a deploy would run, worked out here and now: nothing is asked of Temporal, the registry or a hub, nothing is
written.
"""

from typing import Any

from standfast.home import Home
from standfast.images.recipes import choose
from standfast.images.store import ImageStore, image_digest
from standfast.plans import check, resolution_inputs, resolve
from standfast.plans.records import Digest, Generation, PinnedModel, Record
from standfast.plans.render import plan_document, plan_lines
from standfast.problems import ProblemsError
from standfast.spec import Deployment, DirectorySource, HubSource, WheelSource

PINNED_AT_DEPLOY = "pinned when deployed"


class PlanPreview(Record):
    """The plan of one deployment. ``generation`` is None until the image is built: only then its options are known.

    ``notes`` say what a deploy may still change.
    """

    deployment: str
    target: str
    image_name: str
    image_digest: Digest
    generation: Generation | None
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The preview as JSON values."""
        return {
            "deployment": self.deployment,
            "target": self.target,
            "image": {"name": self.image_name, "digest": self.image_digest, "built": self.generation is not None},
            "generation": plan_document(self.generation) if self.generation is not None else None,
            "notes": list(self.notes),
        }

    def lines(self) -> tuple[str, ...]:
        """The plan as a person reads it; empty without a generation."""
        return plan_lines(self.generation) if self.generation is not None else ()


def preview(deployment: Deployment, *, target: str = "local", home: Home | None = None) -> PlanPreview:
    """Plan a deployment as far as this machine knows. Raises `ProblemsError` with every problem that can be found."""
    problems = check(deployment)
    if problems:
        raise ProblemsError(problems)
    inference = deployment.inference
    assert inference is not None, "check() refuses deployments without an inference role"
    image = choose(inference.image, inference.engine, gpu=inference.compute.gpus > 0)
    digest = image_digest(image)
    built = ImageStore((home or Home.default()).images).read(digest)
    model, notes = _provisional(deployment)
    generation = None
    if built is None:
        notes = (
            f"The image {image.name} is not built yet: the deploy builds it, then checks every option against it.",
            *notes,
        )
    else:
        generation = resolve(
            deployment, resolution_inputs(target=target, model=model, image=image, inspection=built.inspection)
        )
    return PlanPreview(
        deployment=deployment.name,
        target=target,
        image_name=image.name,
        image_digest=digest,
        generation=generation,
        notes=notes,
    )


def _provisional(deployment: Deployment) -> tuple[PinnedModel, tuple[str, ...]]:
    """The model, pinned as far as that needs no look outside, and what is still open."""
    id, source = deployment.model.id, deployment.model.resolved_source
    open_digest = "so that the generation's digest is not final"
    if isinstance(source, WheelSource):
        name = source.requirement.partition("==")[0]
        return PinnedModel(id=id, source="wheel", locator=name, revision=source.requirement, file=source.file), ()
    if isinstance(source, DirectorySource):
        model = PinnedModel(id=id, source="directory", locator=source.path, revision=PINNED_AT_DEPLOY)
        return model, (f"The files in {source.path} are read when it is deployed, {open_digest}.",)
    assert isinstance(source, HubSource)
    model = PinnedModel(id=id, source="hub", locator=source.repo, revision=source.revision)
    if len(source.revision) == 40:
        return model, ()
    return model, (f"The revision {source.revision!r} is pinned to a commit when it is deployed, {open_digest}.",)
