"""Builds images: a virtual environment per content, once, under a lock, then inspected."""

from collections.abc import Callable
from typing import Literal

from standfast.images.store import BuiltImage, ImageStore, image_digest
from standfast.spec import Image

__all__ = ["ImageBuildError", "build", "image_digest"]


class ImageBuildError(Exception):
    """An image could not be built. ``permanent``: the recipe or this machine must change first; ``transient``: trying
    again may help. ``log_tail`` holds the last lines of what the builder wrote."""

    def __init__(self, message: str, log_tail: tuple[str, ...], kind: Literal["permanent", "transient"]) -> None:
        super().__init__(message)
        self.message = message
        self.log_tail = log_tail
        self.kind: Literal["permanent", "transient"] = kind


async def build(image: Image, store: ImageStore, *, on_progress: Callable[[str], None]) -> BuiltImage:
    """The built image, built now unless it exists. Raises `ImageBuildError`."""
    raise NotImplementedError
