"""Pytest fixtures for tests of the registry. A plugin, like `tests.support.postgres`, which it brings along."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standfast.registry import Registry

pytest_plugins = ("tests.support.postgres",)


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def registry_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty database, of each kind in turn."""
    if request.param == "sqlite":
        return f"sqlite+aiosqlite:///{tmp_path / 'registry.db'}"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
async def registry(registry_url: str) -> AsyncIterator[Registry]:
    """An open registry, migrated and empty."""
    async with await Registry.open(registry_url) as opened:
        yield opened
