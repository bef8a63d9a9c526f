"""Fetched weights on disk.

``<root>/<source>-<name>-<12 digits>/files/`` is the model directory that an engine reads; ``manifest.json`` beside it
is written last and lists every file with its size, so that a cut-off fetch, or a file that was cut short, never counts
as complete.
"""

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from standfast.plans.record import NonNegative, Record, digest_of
from standfast.plans.records import PinnedModel
from standfast.weights.directory import manifest_digest


class FileEntry(Record):
    """One file of a model directory; ``sha256`` where its content is known to be right."""

    name: str
    size: NonNegative
    sha256: str | None = None


class Manifest(Record):
    """Everything that one fetch brought."""

    schema_version: Literal[1] = 1
    model: PinnedModel
    files: tuple[FileEntry, ...]

    @property
    def total_bytes(self) -> int:
        """The size of the model on disk."""
        return sum(entry.size for entry in self.files)

    def matches(self, directory: Path) -> bool:
        """Whether the files in ``directory`` have the recorded contents, as far as those were recorded; reads them."""
        try:
            return all(one.sha256 is None or one.sha256 == _content_digest(directory / one.name) for one in self.files)
        except OSError:
            return False


def describe_files(directory: Path) -> tuple[FileEntry, ...]:
    """Every file below ``directory``, with size and content digest."""
    return tuple(
        FileEntry(name=path.relative_to(directory).as_posix(), size=path.stat().st_size, sha256=_content_digest(path))
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    )


def _content_digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@dataclass(frozen=True)
class WeightsStore:
    """The weights below one directory; many processes may share it."""

    root: Path

    def entry(self, pinned: PinnedModel) -> Path:
        """The cache entry of these weights (not of a directory source, which stays where it is)."""
        identity = digest_of([pinned.source, pinned.locator, pinned.revision, pinned.file])
        name = re.sub(r"[^A-Za-z0-9._-]+", "--", pinned.locator).strip(".-")[:80]
        return self.root.absolute() / f"{pinned.source}-{name}-{identity[:12]}"

    def path(self, pinned: PinnedModel) -> Path:
        """The model directory that an engine reads, whether it is there yet or not."""
        return Path(pinned.locator) if pinned.source == "directory" else self.entry(pinned) / "files"

    def lock_path(self, pinned: PinnedModel) -> Path:
        """The file whose lock a fetch of these weights holds."""
        return self.root.absolute() / "locks" / f"{self.entry(pinned).name}.lock"

    def manifest(self, pinned: PinnedModel) -> Manifest | None:
        """What was fetched, or ``None`` when nothing complete is there."""
        if pinned.source == "directory":
            return None
        entry = self.entry(pinned)
        try:
            manifest = Manifest.model_validate_json((entry / "manifest.json").read_text(encoding="utf-8"))
            whole = all((entry / "files" / one.name).stat().st_size == one.size for one in manifest.files)
        except (OSError, ValidationError):
            return None
        return manifest if whole else None

    def read(self, pinned: PinnedModel) -> Path | None:
        """The model directory, or ``None`` when it is missing, incomplete or (a directory source) has changed."""
        if pinned.source != "directory":
            return self.path(pinned) if self.manifest(pinned) is not None else None
        try:
            unchanged = manifest_digest(Path(pinned.locator)) == pinned.revision
        except OSError:
            return None
        return Path(pinned.locator) if unchanged else None
