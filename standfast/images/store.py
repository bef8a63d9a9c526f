"""Built images on disk, addressed by content.

``<root>/<first 16 digits of the digest>/`` is a virtual environment; ``image.json`` in it is written last, so that a
directory without it is a build that was cut off. Reading is cheap and needs neither ``uv`` nor a network.
"""

import functools
import hashlib
import platform
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from standfast.images import inspector
from standfast.plans.inspection import Inspection
from standfast.plans.record import Digest, Record, digest_of
from standfast.spec import Image

MARKER = "image.json"


class BuiltImage(Record):
    """An image that is ready to run: its virtual environment, and what was read inside it."""

    digest: Digest
    path: Path
    """Root of the virtual environment."""
    python: Path
    inspection: Inspection
    built_at: str
    """ISO 8601, UTC."""
    packages: tuple[str, ...]
    """Every installed distribution as ``name==version``, sorted."""


def image_digest(image: Image) -> str:
    """What an image is addressed by: everything that decides its content.

    That is the recipe (without its name and its ``environment``, which reaches the processes through the plan), the
    Python version and machine it is built for, the inspector that reads it, and what is added to it.
    """
    recipe = _recipe_type().dump_python(image, mode="json")
    content = {name: value for name, value in recipe.items() if name not in ("name", "environment")}
    return digest_of(
        {
            "recipe": content,
            "python": f"{sys.implementation.name}-{sys.version_info.major}.{sys.version_info.minor}",
            "machine": f"{sys.platform}-{platform.machine()}",
            "inspector": inspector_digest(),
            **{name: _digest_of_file(path) for name, path in additions(image).items()},
        }
    )


def additions(image: Image) -> dict[str, Path]:
    """Our own modules that the image needs beside its requirements: the module's file name, and its source."""
    if image.engine == "sglang":
        return {"standfast_sglang.py": Path(__file__).with_name("sglang_server.py")}
    return {}


@functools.cache
def _recipe_type() -> TypeAdapter[Any]:
    return TypeAdapter(Image)


@functools.cache
def inspector_digest() -> str:
    """The identity of the inspector's source: a changed inspector reads images anew."""
    return _digest_of_file(Path(inspector.__file__))


@functools.cache
def _digest_of_file(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@dataclass(frozen=True)
class ImageStore:
    """The images below one directory; many processes may share it."""

    root: Path

    def path(self, digest: str) -> Path:
        """Where the image with this digest is, or would be."""
        return self.root.absolute() / digest[:16]

    def lock_path(self, digest: str) -> Path:
        """The file whose lock a builder of this image holds."""
        return self.root.absolute() / "locks" / f"{digest[:16]}.lock"

    def log_path(self, digest: str) -> Path:
        """What the tools wrote during the last build of this image."""
        return self.root.absolute() / "logs" / f"{digest[:16]}.log"

    def read(self, digest: str) -> BuiltImage | None:
        """The image, or ``None`` when it was not built, not completely, or can no longer run."""
        directory = self.path(digest)
        try:
            built = BuiltImage.model_validate_json((directory / MARKER).read_text(encoding="utf-8"))
        except (OSError, ValidationError):
            return None
        whole = built.digest == digest and built.path.resolve() == directory.resolve() and built.python.exists()
        runs = directory.joinpath(built.inspection.executable[0]).exists()
        return built if whole and runs else None
