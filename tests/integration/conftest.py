"""Fixtures of the integration tests: a whole stack per test, and one scripted image for all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from standfast.home import Home
from standfast.images.builder import build
from standfast.images.store import ImageStore
from standfast.registry import Registry
from standfast.spec import Image
from tests.scripted_engine import build_wheel, scripted_image
from tests.support.ports import free_port
from tests.support.scripted_deployments import Scripted, scripted
from tests.support.stack import TestStack


@pytest.fixture(scope="session")
def shared_images(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One image store for all homes: images are addressed by content."""
    return tmp_path_factory.mktemp("images")


@pytest.fixture(scope="session")
async def image(shared_images: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    """The scripted engine's image, built once by the real builder."""
    recipe = scripted_image(build_wheel(tmp_path_factory.mktemp("wheel")))
    await build(recipe, ImageStore(shared_images), on_progress=lambda _: None)
    return recipe


@pytest.fixture
async def bare_stack(tmp_path: Path, shared_images: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[TestStack]:
    """A home with Temporal, and no control worker or gateway yet."""
    home = Home(root=tmp_path / "home")
    home.root.mkdir()
    home.images.symlink_to(shared_images)
    stack = TestStack(home=home, temporal_port=free_port(), gateway_port=free_port())
    monkeypatch.setenv("TEMPORAL_ADDRESS", f"127.0.0.1:{stack.temporal_port}")
    try:
        async with await Registry.open(home.registry_url) as registry:
            _, stack.api_key = await registry.create_api_key("test")
        await stack.start_temporal()
        yield stack
    finally:
        await stack.close()


@pytest.fixture
async def stack(bare_stack: TestStack) -> TestStack:
    """A whole stack: Temporal, one control worker, the gateway."""
    await asyncio.gather(bare_stack.start_worker(), bare_stack.start_gateway())
    return bare_stack


@pytest.fixture
def engine(tmp_path: Path, bare_stack: TestStack, image: Image) -> Callable[..., Scripted]:
    """Make deployments of the scripted engine: ``engine("name", behaviour={...}, ...)``."""

    def make(name: str = "m", **settings: Any) -> Scripted:
        return scripted(tmp_path / "engines", bare_stack.home.root, settings.pop("image", image), name, **settings)

    return make
