"""Weights from a hub, spoken to over HTTP."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from standfast.plans.records import PinnedModel
from standfast.spec import HubSource
from standfast.weights import WeightsError, WeightsStore, fetch, pin
from tests.support.hub import COMMIT, Hub, serving
from tests.support.stack import until

FILES = {
    "config.json": b'{"model_type": "llama"}',
    "model-00001-of-00002.safetensors": b"first" * 1000,
    "model-00002-of-00002.safetensors": b"second" * 1000,
    "pytorch_model.bin": b"pickled",
    "original/consolidated.00.pth": b"pickled too",
    "odd[name]*.txt": b"odd",
}
WANTED = {name for name in FILES if not name.endswith((".bin", ".pth"))}
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
PINNED = PinnedModel(id="org/model", source="hub", locator="org/model", revision=COMMIT)

FETCH_SCRIPT = """
import asyncio, sys
from pathlib import Path
from standfast.plans.records import PinnedModel
from standfast.weights import WeightsStore, fetch

pinned = PinnedModel.model_validate_json(sys.argv[1])
print(asyncio.run(fetch(pinned, store=WeightsStore(Path(sys.argv[2])), on_progress=lambda line: None)))
"""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving(Hub(files=FILES)) as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf-home"))
        monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield served


@pytest.fixture
def store(tmp_path: Path) -> WeightsStore:
    return WeightsStore(tmp_path / "weights")


async def pin_refusal(repo: str = "org/model", revision: str = "main") -> WeightsError:
    with pytest.raises(WeightsError) as caught:
        await pin(HubSource(repo=repo, revision=revision), repo)
    return caught.value


async def fetched(store: WeightsStore, said: list[str] | None = None) -> Path:
    return await fetch(PINNED, store=store, on_progress=(said if said is not None else []).append)


def fetch_elsewhere(store: WeightsStore) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", FETCH_SCRIPT, PINNED.model_dump_json(), str(store.root)])


# -- pinning -------------------------------------------------------------------------------------------------------


async def test_a_branch_is_pinned_to_its_commit(hub: Hub) -> None:
    assert await pin(HubSource(repo="org/model"), "org/model") == PINNED


async def test_a_commit_is_pinned_without_asking(hub: Hub) -> None:
    assert await pin(HubSource(repo="org/model", revision=COMMIT), "org/model") == PINNED
    assert not hub.asked


async def test_a_missing_repository_is_permanent(hub: Hub) -> None:
    error = await pin_refusal(repo="org/modle")
    assert (error.kind, "org/modle" in error.message, "Model.id" in error.help) == ("permanent", True, True)


async def test_a_missing_revision_is_permanent(hub: Hub) -> None:
    error = await pin_refusal(revision="v9")
    assert (error.kind, "'v9'" in error.message) == ("permanent", True)


async def test_a_gated_repository_is_permanent_and_says_how_to_get_in(hub: Hub) -> None:
    hub.gated = True
    error = await pin_refusal()
    assert error.kind == "permanent"
    assert "HF_TOKEN" in error.help
    assert "terms" in error.help


async def test_a_private_repository_needs_the_token_and_never_shows_it(
    hub: Hub, store: WeightsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_rightrightright"
    monkeypatch.setenv("HF_TOKEN", "hf_wrongwrongwrong")
    error = await pin_refusal()
    assert error.kind == "permanent"
    assert "hf_wrong" not in error.message + error.help
    monkeypatch.setenv("HF_TOKEN", hub.token)
    assert await pin(HubSource(repo="org/model"), "org/model") == PINNED
    said: list[str] = []
    await fetched(store, said)
    kept = [path.read_text() for path in store.root.rglob("*.json")]
    assert hub.token not in "".join([*said, *kept])


async def test_a_hub_that_fails_is_transient(hub: Hub) -> None:
    hub.status = 500
    error = await pin_refusal()
    assert (error.kind, "HTTP 500" in error.message) == ("transient", True)


async def test_a_hub_that_is_not_there_is_transient(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert (await pin_refusal()).kind == "transient"


# -- fetching ------------------------------------------------------------------------------------------------------


async def test_a_model_is_fetched_with_a_manifest(hub: Hub, store: WeightsStore) -> None:
    said: list[str] = []
    directory = await fetched(store, said)
    assert {path.relative_to(directory).as_posix() for path in directory.rglob("*")} == WANTED
    assert all((directory / name).read_bytes() == FILES[name] for name in WANTED)
    assert store.read(PINNED) == directory
    manifest = store.manifest(PINNED)
    assert manifest is not None
    assert {one.name: one.size for one in manifest.files} == {name: len(FILES[name]) for name in WANTED}
    assert any("of 11 kB" in line for line in said)


async def test_one_format_of_the_weights_is_fetched(hub: Hub, store: WeightsStore) -> None:
    await fetched(store)
    assert "pytorch_model.bin" not in hub.served


async def test_a_second_fetch_asks_nothing(hub: Hub, store: WeightsStore) -> None:
    await fetched(store)
    asked = hub.asked.total()
    await fetched(store)
    assert hub.asked.total() == asked


async def test_two_processes_fetch_once(hub: Hub, store: WeightsStore) -> None:
    fetchers = [fetch_elsewhere(store) for _ in range(2)]
    assert [await asyncio.to_thread(fetcher.wait, 60) for fetcher in fetchers] == [0, 0]
    assert hub.served == dict.fromkeys(WANTED, 1)
    assert store.read(PINNED) is not None


async def test_a_killed_fetch_leaves_nothing_that_counts_and_goes_on_where_it_was(
    hub: Hub, store: WeightsStore
) -> None:
    held = hub.hold(SECOND)
    fetcher = fetch_elsewhere(store)
    assert await asyncio.to_thread(held.wait, 60)

    async def first_is_there() -> bool:
        return len(list((store.path(PINNED) / ".cache").rglob("*.metadata"))) == len(WANTED) - 1

    await until(first_is_there, what="the other files")
    children = psutil.Process(fetcher.pid).children(recursive=True)
    for process in (fetcher, *children):
        process.kill()
    fetcher.wait()
    psutil.wait_procs(children, timeout=20)
    assert store.read(PINNED) is None

    hub.release()
    directory = await fetched(store)
    assert (directory / SECOND).read_bytes() == FILES[SECOND]
    assert hub.served == {**dict.fromkeys(WANTED, 1), SECOND: 2}
    assert not list(directory.rglob("*.incomplete"))


async def test_what_a_killed_fetch_had_started_is_waited_for(hub: Hub, store: WeightsStore) -> None:
    held = hub.hold(SECOND)
    fetcher = fetch_elsewhere(store)
    assert await asyncio.to_thread(held.wait, 60)
    fetcher.kill()
    fetcher.wait()
    said: list[str] = []
    again = asyncio.create_task(fetched(store, said))

    async def waits() -> bool:
        return any(line.startswith("waiting for another fetch") for line in said)

    await until(waits, what="the wait for the orphan")
    hub.release()
    directory = await asyncio.wait_for(again, 60)
    assert all((directory / name).read_bytes() == FILES[name] for name in WANTED)


async def test_a_cancelled_fetch_ends_its_download(hub: Hub, store: WeightsStore) -> None:
    held = hub.hold(SECOND)
    fetching = asyncio.create_task(fetched(store))
    assert await asyncio.to_thread(held.wait, 60)
    children = psutil.Process(os.getpid()).children()
    fetching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await fetching
    downloads = [child for child in children if not child.is_running()]
    assert len(downloads) == 1
    assert store.read(PINNED) is None


async def test_a_file_that_was_cut_short_is_fetched_again_and_the_others_are_not(hub: Hub, store: WeightsStore) -> None:
    directory = await fetched(store)
    (directory / FIRST).write_bytes(b"first")
    assert store.read(PINNED) is None
    await fetched(store)
    assert (directory / FIRST).read_bytes() == FILES[FIRST]
    assert store.read(PINNED) == directory
    assert hub.served == {**dict.fromkeys(WANTED, 1), FIRST: 2}


async def test_a_lost_manifest_does_not_cost_the_files(hub: Hub, store: WeightsStore) -> None:
    await fetched(store)
    (store.entry(PINNED) / "manifest.json").unlink()
    assert store.read(PINNED) is None
    await fetched(store)
    assert hub.served == dict.fromkeys(WANTED, 1)


async def test_a_hub_that_fails_while_fetching_is_transient(hub: Hub, store: WeightsStore) -> None:
    hub.status = 520
    with pytest.raises(WeightsError) as caught:
        await fetched(store)
    assert caught.value.kind == "transient"
    hub.status = None
    assert await fetched(store)


async def test_access_that_was_withdrawn_is_permanent(hub: Hub, store: WeightsStore) -> None:
    hub.gated = True
    with pytest.raises(WeightsError) as caught:
        await fetched(store)
    assert (caught.value.kind, "restricted" in caught.value.message) == ("permanent", True)


async def test_a_hub_that_must_not_be_asked_is_permanent(
    hub: Hub, store: WeightsStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(WeightsError) as caught:
        await fetched(store)
    assert (caught.value.kind, "HF_HUB_OFFLINE" in caught.value.message) == ("permanent", True)


async def test_weights_that_cannot_be_written_are_permanent(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "weights").write_text(json.dumps("a file, not a directory"))
    with pytest.raises(WeightsError) as caught:
        await fetched(WeightsStore(tmp_path / "weights"))
    assert caught.value.kind == "permanent"
