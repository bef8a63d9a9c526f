"""Weights in a repository of the Hugging Face hub."""

import asyncio
import json
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel

from standfast import subprocesses
from standfast.diskcache import human_bytes, size_of_tree
from standfast.plans.records import PinnedModel
from standfast.spec import HubSource
from standfast.weights import hub_download
from standfast.weights.errors import Kind, WeightsError
from standfast.weights.store import FileEntry

_COMMIT = re.compile(r"[0-9a-f]{40}")
_PIN_TIMEOUT_S = 30.0
_TICK_S = 1.0


async def pin_hub(source: HubSource, model_id: str) -> PinnedModel:
    """Pin a hub revision to its commit; one that is a commit already needs no network. Raises `WeightsError`."""
    commit = source.revision
    if _COMMIT.fullmatch(commit) is None:
        commit = await asyncio.to_thread(_resolve, source.repo, source.revision)
    return PinnedModel(id=model_id, source="hub", locator=source.repo, revision=commit)


def _resolve(repo: str, revision: str) -> str:
    from huggingface_hub import HfApi

    try:
        info = HfApi(endpoint=os.environ.get("HF_ENDPOINT")).model_info(repo, revision=revision, timeout=_PIN_TIMEOUT_S)
    except Exception as error:
        told = _Explanation.model_validate(hub_download.explain(error, repo, revision))
        raise told.error() from None
    if info.sha is None:
        raise WeightsError(f"The hub names no commit for {repo}.", "transient")
    return info.sha


class _Explanation(BaseModel):
    kind: Kind
    message: str
    help: str

    def error(self) -> WeightsError:
        return WeightsError(self.message, self.kind, self.help)


async def fetch_hub(
    pinned: PinnedModel, directory: Path, *, lock: int, on_progress: Callable[[str], None]
) -> tuple[FileEntry, ...]:
    """Bring the files of the pinned commit into ``directory``. Raises `WeightsError`."""
    directory.mkdir(parents=True, exist_ok=True)
    told: list[dict[str, object]] = []
    total: str | None = None

    def hear(line: str) -> None:
        nonlocal total
        try:
            message = json.loads(line)
        except ValueError:
            return
        if "total_bytes" in message:
            total = human_bytes(message["total_bytes"])
            say()
        else:
            told.append(message)

    def say() -> None:
        here = human_bytes(size_of_tree(directory))
        on_progress(
            f"listing {pinned.locator}" if total is None else f"downloading {pinned.locator}: {here} of {total}"
        )

    finished = await subprocesses.run(
        [sys.executable, "-P", hub_download.__file__, pinned.locator, pinned.revision, str(directory)],
        environ={**os.environ, "HF_HUB_DISABLE_PROGRESS_BARS": "1"},
        cwd=directory,
        lock=lock,
        on_line=hear,
        on_tick=say,
        tick_s=_TICK_S,
    )
    match told:
        case [{"done": list(files)}]:
            return tuple(FileEntry(name=name, size=size) for name, size in files)
        case [{"kind": _} as explanation]:
            raise _Explanation.model_validate(explanation).error()
        case _:
            last = finished.tail[-1] if finished.tail else "it said nothing"
            raise WeightsError(
                f"The download of {pinned.locator} ended early (exit code {finished.returncode}): {last}", "transient"
            )
