"""Builds images: a virtual environment per content, once, under a lock, then inspected.

The environment lies at its final place from the start (its scripts name their interpreter by path); ``image.json``
makes it count and is written last. A build that was cut off anywhere leaves a directory that does not count and is
removed by the next one.
"""

import importlib.metadata
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from standfast.diskcache import locked, remove_tree, write_whole
from standfast.images import inspector, uv
from standfast.images.store import MARKER, BuiltImage, ImageStore, additions, image_digest, inspector_digest
from standfast.images.uv import Kind, Narrator
from standfast.plans.inspection import Inspection
from standfast.spec import Image
from standfast.subprocesses import Finished

__all__ = ["ImageBuildError", "build", "image_digest"]

_ALIAS = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*)==([A-Za-z0-9.!+_-]+)")
#: What an engine's process gets by itself on a node; the inspector sees the engine in the same surroundings.
_BASE_ENVIRONMENT = ("PATH", "HOME", "LANG", "TMPDIR", "LD_LIBRARY_PATH")
_SHOWN_LINES = 40


class ImageBuildError(Exception):
    """An image could not be built. ``permanent``: the recipe or this machine must change first; ``transient``: trying
    again may help. ``log_tail`` holds the last lines that the builder's tools wrote."""

    def __init__(self, message: str, log_tail: tuple[str, ...], kind: Kind) -> None:
        super().__init__(message)
        self.message = message
        self.log_tail = log_tail
        self.kind: Kind = kind

    def __reduce__(self) -> tuple[Any, ...]:
        return (ImageBuildError, (self.message, self.log_tail, self.kind))


async def build(image: Image, store: ImageStore, *, on_progress: Callable[[str], None]) -> BuiltImage:
    """The built image, built now unless it exists.

    One process builds at a time; others wait for it and find its result. ``on_progress`` gets human sentences.
    Raises `ImageBuildError`.
    """
    _check_recipe(image)
    digest = image_digest(image)
    existing = store.read(digest)
    if existing is not None:
        return existing
    began = time.monotonic()
    try:
        async with locked(
            store.lock_path(digest),
            on_wait=lambda: on_progress(
                f"waiting for another build of {image.name} ({time.monotonic() - began:.0f} s)"
            ),
        ) as lock:
            return store.read(digest) or await _Build(image, digest, store, lock, on_progress).run()
    except OSError as error:
        raise ImageBuildError(_os_error(error, store.root), (), "permanent") from error


def _check_recipe(image: Image) -> None:
    for token in (*image.requirements, *image.overrides):
        if token.strip().startswith("-") or "\n" in token:
            raise ImageBuildError(
                f"{token!r} is not a requirement. Image takes requirements such as 'vllm==0.32.0'; package indexes are "
                "settings of the machine (PIP_... or UV_... variables).",
                (),
                "permanent",
            )
    for alias in image.distribution_aliases:
        if _ALIAS.fullmatch(alias) is None:
            raise ImageBuildError(f"The alias {alias!r} is not of the form name==version.", (), "permanent")


class _Build:
    """One build, under the lock."""

    def __init__(
        self, image: Image, digest: str, store: ImageStore, lock: int, on_progress: Callable[[str], None]
    ) -> None:
        self._image = image
        self._digest = digest
        self._root = store.path(digest)
        self._log = store.log_path(digest)
        self._lock = lock
        self._on_progress = on_progress
        self._environment = uv.environment(os.environ)

    async def run(self) -> BuiltImage:
        self._log.parent.mkdir(parents=True, exist_ok=True)
        self._log.write_text(f"{self._image.name} {self._digest}\n", encoding="utf-8")
        if self._root.exists():
            self._on_progress("removing an incomplete build")
            await remove_tree(self._root)
        try:
            await self._make_environment()
            await self._install()
            self._write_aliases()
            for name, source in additions(self._image).items():
                (self._site_packages / name).write_bytes(source.read_bytes())
            inspection = await self._inspect()
        except (ImageBuildError, OSError):
            # What was written of it is of no use, and a full disk needs the room.
            await remove_tree(self._root)
            raise
        built = BuiltImage(
            digest=self._digest,
            path=self._root,
            python=self._python,
            inspection=inspection,
            built_at=datetime.now(UTC).isoformat(timespec="seconds"),
            packages=tuple(sorted(f"{found.name}=={found.version}" for found in self._distributions())),
        )
        write_whole(self._root / MARKER, built.model_dump_json(indent=1))
        return built

    @property
    def _python(self) -> Path:
        return self._root / "bin" / "python"

    @property
    def _site_packages(self) -> Path:
        [found] = self._root.glob("lib/python3*/site-packages")
        return found

    def _distributions(self) -> Iterable[importlib.metadata.Distribution]:
        return importlib.metadata.distributions(path=[str(self._site_packages)])

    async def _make_environment(self) -> None:
        made = await self._uv(
            "making a virtual environment",
            uv.command("venv", "--no-project", "--python", sys.executable, str(self._root)),
        )
        if made.returncode:
            self._fail(made)

    async def _install(self) -> None:
        # Without uv's --compile-bytecode: of vLLM's 21 000 modules an engine loads 5 000, and the inspector's load
        # compiles nearly all of these, at a quarter of the time.
        recipe = self._root / "recipe"
        recipe.mkdir()
        requirements, overrides = recipe / "requirements.txt", recipe / "overrides.txt"
        requirements.write_text("\n".join([*self._image.requirements, ""]), encoding="utf-8")
        overrides.write_text("\n".join([*self._image.overrides, ""]), encoding="utf-8")
        arguments = ["--python", str(self._python), "--requirements", str(requirements)]
        if self._image.overrides:
            arguments += ["--overrides", str(overrides)]
        installed = await self._uv("resolving requirements", uv.install(os.environ, *arguments))
        if (
            installed.returncode
            and uv.misses_torch(installed.log)
            and self._image.accelerator == "cpu"
            and "UV_TORCH_BACKEND" not in self._environment
            and not uv.no_index(os.environ)
        ):
            installed = await self._uv(
                "the CPU build of PyTorch is not on this machine's indexes: asking PyTorch's own",
                uv.install(os.environ, *arguments, "--torch-backend", "cpu"),
            )
        if installed.returncode:
            self._fail(installed)

    def _write_aliases(self) -> None:
        """Let the engine find itself under the name that it looks for; see `standfast.spec.Image`."""
        installed = {_canonical(found.name) for found in self._distributions()}
        for alias in self._image.distribution_aliases:
            name, _, version = alias.partition("==")
            if _canonical(name) in installed:
                raise ImageBuildError(
                    f"The alias {alias} names a distribution that the requirements install.", (), "permanent"
                )
            info = self._site_packages / f"{_canonical(name).replace('-', '_')}-{version}.dist-info"
            info.mkdir()
            files = {
                "METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
                "INSTALLER": "standfast\n",
                "RECORD": "".join(f"{info.name}/{file},,\n" for file in ("METADATA", "INSTALLER", "RECORD")),
            }
            for file, text in files.items():
                (info / file).write_text(text, encoding="utf-8")

    async def _inspect(self) -> Inspection:
        output = self._root / "inspection.json"
        found = await uv.run(
            [str(self._python), "-I", inspector.__file__, self._image.engine, str(output)],
            Narrator(f"reading the options of {self._image.engine} inside the image"),
            environ={name: os.environ[name] for name in _BASE_ENVIRONMENT if name in os.environ},
            cwd=self._root,
            lock=self._lock,
            on_progress=self._on_progress,
            log=self._log,
        )
        try:
            if found.returncode:
                raise OSError
            text = output.read_text(encoding="utf-8")
        except OSError:
            killed = found.returncode == -9
            raise ImageBuildError(
                f"{self._image.engine} does not load in the image {self._image.name!r}"
                + (": its process was killed." if killed else f" (exit code {found.returncode})."),
                found.tail[-_SHOWN_LINES:],
                "transient" if killed else "permanent",
            ) from None
        try:
            bound = {**json.loads(text), "image_digest": self._digest, "inspector": inspector_digest()[:16]}
            read = Inspection.model_validate_json(json.dumps(bound))
        except ValueError as error:
            raise ImageBuildError(f"The inspector wrote what cannot be read: {error}", (), "permanent") from error
        self._on_progress(f"{read.engine} {read.version}: {len(read.options)} options")
        return read

    async def _uv(self, sentence: str, argv: Sequence[str]) -> Finished:
        return await uv.run(
            argv,
            Narrator(sentence),
            environ=self._environment,
            cwd=self._root.parent,
            lock=self._lock,
            on_progress=self._on_progress,
            log=self._log,
        )

    def _fail(self, finished: Finished) -> None:
        kind, reason = uv.verdict(finished.log, finished.returncode)
        raise ImageBuildError(
            f"The image {self._image.name!r} could not be built. {reason}", finished.tail[-_SHOWN_LINES:], kind
        )


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _os_error(error: OSError, root: Path) -> str:
    where = error.filename or root
    return f"The image could not be built at {where}: {error.strerror or error}. Free space or give access there."
