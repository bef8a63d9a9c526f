"""Fetching: from a pinned model to a directory that an engine can read."""

from collections.abc import Callable
from pathlib import Path

from standfast.plans.records import PinnedModel
from standfast.weights.store import WeightsStore


async def fetch(
    pinned: PinnedModel, *, store: WeightsStore, python: Path | None = None, on_progress: Callable[[str], None]
) -> Path:
    """The model directory, fetched now unless it is complete. Raises `WeightsError`."""
    raise NotImplementedError
