"""The quickstart, run once as a newcomer would, and shared by the tests that need a real engine."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from standfast.home import Home
from standfast.images.recipes import VLLM_CPU
from standfast.images.store import ImageStore, image_digest
from standfast.stack.record import read_api_key, read_record
from tests.e2e.tiny import MAKE_MODEL, run_in_image

STANDFAST = Path(sys.executable).parent / "standfast"


@dataclass(frozen=True)
class Quickstart:
    """A finished quickstart: its home, what it printed, and how to call its gateway."""

    home: Home
    output: str
    gateway: str
    api_key: str


def standfast(home: Path, *arguments: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    """Run the command line over one home, to its end."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TEMPORAL_")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    environment |= {"STANDFAST_HOME": str(home), "COLUMNS": "120"}
    return subprocess.run(
        [str(STANDFAST), *arguments], env=environment, text=True, capture_output=True, timeout=timeout_s, check=False
    )


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Quickstart]:
    """``standfast quickstart`` in an empty home: a real image, real weights, a real engine."""
    home = Home(root=tmp_path_factory.mktemp("quickstart") / "home")
    try:
        done = standfast(home.root, "quickstart", timeout_s=1500)
        assert done.returncode == 0, done.stdout + done.stderr
        record = read_record(home)
        key = read_api_key(home)
        assert record is not None and key is not None
        yield Quickstart(home=home, output=done.stdout, gateway=record.gateway, api_key=key)
    finally:
        standfast(home.root, "down")


@pytest.fixture(scope="session")
async def tiny_models(quickstart: Quickstart, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two small models with random weights, ``dense`` and ``experts``, made once."""
    image = ImageStore(quickstart.home.images).read(image_digest(VLLM_CPU))
    assert image is not None
    root = tmp_path_factory.mktemp("tiny")
    await run_in_image(image, MAKE_MODEL, str(root))
    return root
