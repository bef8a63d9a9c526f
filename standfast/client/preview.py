"""What a deploy would run, worked out here and now: nothing is asked of Temporal or a hub, nothing is written."""

from typing import Any

from standfast.home import Home
from standfast.images.recipes import choose
from standfast.images.store import ImageStore, image_digest
from standfast.plans import check, difference, resolution_inputs, resolve
from standfast.plans.arguments import managed_by_name
from standfast.plans.diff import GenerationDiff, settings_difference
from standfast.plans.identity import read_settings
from standfast.plans.record import Digest, Record
from standfast.plans.records import Generation, PinnedModel, Topology
from standfast.plans.render import plan_document, plan_lines, size_line
from standfast.plans.topology import divide
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
    replicas: int
    topology: Topology
    generation: Generation | None
    notes: tuple[str, ...] = ()

    def document(self) -> dict[str, Any]:
        """The preview as JSON values."""
        return {
            "deployment": self.deployment,
            "target": self.target,
            "image": {"name": self.image_name, "digest": self.image_digest, "built": self.generation is not None},
            "replicas": self.replicas,
            "topology": self.topology.model_dump(mode="json"),
            "generation": plan_document(self.generation) if self.generation is not None else None,
            "notes": list(self.notes),
        }

    def lines(self) -> tuple[str, ...]:
        """The plan as a person reads it; its outline without a generation."""
        if self.generation is not None:
            return plan_lines(self.generation)
        return (
            f"{self.deployment} on {self.target}",
            f"  image           {self.image_name} {self.image_digest[:12]} (not built yet)",
            f"  inference       {size_line(self.replicas, self.topology)}",
        )


class PlanComparison(Record):
    """A preview, and what it would change of what is serving."""

    preview: PlanPreview
    difference: GenerationDiff

    def document(self) -> dict[str, Any]:
        """The preview and the difference as JSON values."""
        found = self.difference
        apps = [{**app.model_dump(mode="json"), "reused": app.reused} for app in found.worker_apps]
        return {
            **self.preview.document(),
            "diff": {**found.model_dump(mode="json"), "identical": found.identical, "worker_apps": apps},
        }


def preview(
    deployment: Deployment, *, target: str = "local", home: Home | None = None, serving: Generation | None = None
) -> PlanPreview:
    """Plan a deployment as far as this machine knows. Raises `ProblemsError` with every problem that can be found.

    Weights that only a deploy can pin are taken to be those of ``serving``, if it has the same source.
    """
    problems = check(deployment)
    if problems:
        raise ProblemsError(problems)
    inference = deployment.inference
    assert inference is not None, "check() refuses deployments without an inference role"
    image = choose(inference.image, inference.engine, gpu=inference.compute.gpus > 0)
    digest = image_digest(image)
    topology = divide(inference).topology
    assert topology is not None, "check() refuses sizes that cannot be divided"
    built = ImageStore((home or Home.default()).images).read(digest)
    model, notes = _pinned_before(deployment, serving) or _provisional(deployment)
    generation = None
    if built is None:
        managed = tuple(managed_by_name(inference.options, inference.extra_args, where="Deployment.inference"))
        if managed:
            raise ProblemsError(managed)
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
        replicas=inference.scaling.min_replicas,
        topology=topology,
        generation=generation,
        notes=notes,
    )


def compare(
    deployment: Deployment, serving: Generation | None, *, target: str = "local", home: Home | None = None
) -> PlanComparison:
    """Plan a deployment and hold it against what serves; the settings alone while the image is not built. Raises
    `ProblemsError`.
    """
    planned = preview(deployment, target=target, home=home, serving=serving)
    if planned.generation is None:
        return PlanComparison(preview=planned, difference=settings_difference(serving, deployment))
    return PlanComparison(preview=planned, difference=difference(serving, planned.generation))


def _pinned_before(deployment: Deployment, serving: Generation | None) -> tuple[PinnedModel, tuple[str, ...]] | None:
    """The pinned model of what serves, when a deploy of the same source would most likely pin the same."""
    if serving is None or serving.inference is None:
        return None
    _, notes = _provisional(deployment)
    source = deployment.model.resolved_source
    if not notes or read_settings(serving.settings).model.resolved_source != source:
        return None
    model = serving.inference.model.model_copy(update={"id": deployment.model.id})
    what = f"The files in {source.path}" if isinstance(source, DirectorySource) else "The weights"
    return model, (f"{what} are taken to be those of {serving.id} ({model.revision[:12]}); a deploy looks again.",)


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
