"""Weights in a directory: read where they are, named by what is in them."""

import hashlib
import os
from pathlib import Path

from standfast.plans.record import digest_of
from standfast.plans.records import PinnedModel
from standfast.spec import DirectorySource
from standfast.weights.errors import WeightsError

_HASHED_BELOW = 1 << 20


def manifest_digest(directory: Path) -> str:
    """A digest over the names and contents below ``directory``.

    Files under 1 MiB count by content; larger ones by size and modification time, since hashing hundreds of gigabytes
    would take minutes. Hidden files and directories do not count. Raises ``OSError``.
    """
    listing: list[list[str | int]] = []
    for root, directories, names in os.walk(directory, followlinks=True):
        directories[:] = sorted(name for name in directories if not name.startswith("."))
        for name in sorted(names):
            if name.startswith("."):
                continue
            path = Path(root, name)
            status = path.stat()
            relative = path.relative_to(directory).as_posix()
            if status.st_size < _HASHED_BELOW:
                listing.append([relative, status.st_size, hashlib.sha256(path.read_bytes()).hexdigest()])
            else:
                listing.append([relative, status.st_size, status.st_mtime_ns])
    return digest_of(listing)


def pin_directory(source: DirectorySource, model_id: str) -> PinnedModel:
    """Pin a directory by its manifest digest. Raises `WeightsError`."""
    path = Path(source.path)
    if not path.is_absolute():
        raise WeightsError(
            f"{source.path!r} is a relative path.",
            "permanent",
            "Write an absolute path: the model is read by processes that start in other directories.",
        )
    if not path.is_dir():
        raise WeightsError(
            f"The model directory {path} does not exist.",
            "permanent",
            "Correct Model.source, or make the directory visible on every node of the target.",
        )
    if not (path / "config.json").is_file():
        raise WeightsError(
            f"{path} holds no config.json, so it is no model directory.",
            "permanent",
            "Point DirectorySource at the directory that holds config.json, the tokenizer and the weights.",
        )
    try:
        revision = manifest_digest(path)
    except OSError as error:
        raise WeightsError(
            f"{error.filename or path} cannot be read: {error.strerror}.", "permanent", "Give the stack's user access."
        ) from error
    return PinnedModel(id=model_id, source="directory", locator=str(path), revision=revision)
