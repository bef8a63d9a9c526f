"""When fetched weights count as complete, and which files of a repository are fetched."""

import subprocess
import sys
from pathlib import Path

import pytest

from standfast.plans.records import PinnedModel
from standfast.weights import WeightsStore
from standfast.weights.hub_download import wanted
from standfast.weights.store import Manifest, describe_files

PINNED = PinnedModel(id="m", source="hub", locator="org/model", revision="0" * 40)


@pytest.fixture
def store(tmp_path: Path) -> WeightsStore:
    return WeightsStore(tmp_path)


def put(store: WeightsStore) -> Path:
    directory = store.path(PINNED)
    (directory / "sub").mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    (directory / "sub" / "weights").write_bytes(b"12345")
    manifest = Manifest(model=PINNED, files=describe_files(directory))
    (store.entry(PINNED) / "manifest.json").write_text(manifest.model_dump_json())
    return directory


def test_complete_weights_are_found(store: WeightsStore) -> None:
    assert store.read(PINNED) is None
    assert put(store) == store.read(PINNED)
    manifest = store.manifest(PINNED)
    assert manifest is not None
    assert manifest.total_bytes == 7


def test_weights_without_a_manifest_do_not_count(store: WeightsStore) -> None:
    put(store)
    (store.entry(PINNED) / "manifest.json").unlink()
    assert store.read(PINNED) is None


def test_a_file_that_was_cut_short_does_not_count(store: WeightsStore) -> None:
    directory = put(store)
    (directory / "sub" / "weights").write_bytes(b"123")
    assert store.read(PINNED) is None


def test_a_missing_file_does_not_count(store: WeightsStore) -> None:
    directory = put(store)
    (directory / "config.json").unlink()
    assert store.read(PINNED) is None


def test_changed_content_of_the_same_size_is_seen_where_it_was_recorded(store: WeightsStore) -> None:
    directory = put(store)
    manifest = store.manifest(PINNED)
    assert manifest is not None
    assert manifest.matches(directory)
    (directory / "sub" / "weights").write_bytes(b"54321")
    assert not manifest.matches(directory)


def test_every_revision_and_file_has_its_own_entry(store: WeightsStore) -> None:
    others = [
        PINNED.model_copy(update=change)
        for change in ({"revision": "1" * 40}, {"locator": "org--model"}, {"file": "a.gguf"}, {"source": "wheel"})
    ]
    assert len({store.entry(one) for one in (PINNED, *others)}) == 5
    assert store.entry(PINNED.model_copy(update={"id": "another name"})) == store.entry(PINNED)


@pytest.mark.parametrize(
    ("names", "left_out"),
    [
        (["config.json", "model.safetensors", "pytorch_model.bin", "model.gguf"], {"pytorch_model.bin", "model.gguf"}),
        (["model.safetensors", "original/a.pth", "original/params.json"], {"original/a.pth", "original/params.json"}),
        (["pytorch_model.bin", "tf_model.h5", "flax_model.msgpack"], {"tf_model.h5", "flax_model.msgpack"}),
        (
            ["pytorch_model.bin", "onnx/model.onnx", "onnx/model.safetensors"],
            {"onnx/model.onnx", "onnx/model.safetensors"},
        ),
        (["tokenizer.json", "tokenizer.model", "merges.txt", "modeling.py"], set()),
        (["model.safetensors", ".gitattributes", "README.md"], {".gitattributes"}),
        (["model-Q4.gguf", "model-Q8.gguf"], set()),
    ],
)
def test_one_format_of_the_weights_is_wanted(names: list[str], left_out: set[str]) -> None:
    assert set(wanted(names)) == set(names) - left_out


def test_looking_loads_neither_a_hub_client_nor_an_installer() -> None:
    look = (
        "import sys, standfast.images.builder, standfast.images.recipes, standfast.images.store, standfast.weights; "
        "print(sorted({'huggingface_hub', 'httpx', 'uv', 'tqdm', 'temporalio'} & set(sys.modules)))"
    )
    assert subprocess.check_output([sys.executable, "-c", look], text=True) == "[]\n"
