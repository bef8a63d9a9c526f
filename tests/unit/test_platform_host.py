"""What a host has, and which of its ports are free."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.platforms.inventory import Gpu, read_inventory, visible_gpus
from standfast.platforms.ports import (
    FIRST_BASE,
    RANGE_VARIABLE,
    SPAN,
    engine_ports,
    is_free,
    read_ephemeral_low,
    span_bases,
    span_filter,
    span_is_free,
)
from standfast.problems import UserError
from tests.support.ports import free_port

GPUS = tuple(
    Gpu(index=index, uuid=f"GPU-{index}abc", name=name, memory_bytes=80 << 30)
    for index, name in enumerate(["NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3", "NVIDIA L4"])
)


#: Stands in for NVML: a module of its name that comes first on the path.
NVML = """
from types import SimpleNamespace
class NVMLError(Exception): pass
def nvmlInit(): pass
def nvmlShutdown(): pass
def nvmlDeviceGetCount(): return 2
def nvmlDeviceGetHandleByIndex(index): return index
def nvmlDeviceGetUUID(handle): return f"GPU-{handle}"
def nvmlDeviceGetName(handle): return b"NVIDIA H100 80GB HBM3"
def nvmlDeviceGetMemoryInfo(handle): return SimpleNamespace(total=80 << 30)
"""
GPU_NAMES = """
from standfast.platforms.inventory import read_inventory
print([(gpu.index, gpu.uuid, gpu.name, gpu.memory_bytes >> 30) for gpu in read_inventory({}).gpus])
"""


def run(script: str, path: Path | None = None) -> str:
    environment = os.environ | ({"PYTHONPATH": str(path)} if path is not None else {})
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment)
    return done.stdout


def indexes(visible: str | None) -> list[int]:
    return [gpu.index for gpu in visible_gpus(GPUS, visible)]


def test_this_host_has_a_name_processors_and_memory() -> None:
    inventory = read_inventory({})

    assert inventory.host == socket.gethostname()
    assert inventory.cpus == len(os.sched_getaffinity(0))
    assert 0 < inventory.memory_bytes <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def test_a_host_can_be_given_a_name() -> None:
    assert read_inventory({"STANDFAST_HOST": "node-7"}).host == "node-7"


def test_the_processors_are_those_this_process_may_use() -> None:
    script = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
        "from standfast.platforms.inventory import read_inventory; print(read_inventory({}).cpus)"
    )
    assert run(script) == "1\n"


def test_reading_the_inventory_module_loads_no_gpu_library() -> None:
    script = "import sys, standfast.platforms.inventory; print('pynvml' in sys.modules)"
    assert run(script) == "False\n"


def test_gpus_are_read_through_nvml(tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text(NVML)

    names = [(index, f"GPU-{index}", "NVIDIA H100 80GB HBM3", 80) for index in (0, 1)]
    assert run(GPU_NAMES, tmp_path) == f"{names}\n"


@pytest.mark.parametrize(
    "broken",
    [
        "raise ImportError('no library')",
        NVML.replace("def nvmlInit(): pass", "def nvmlInit(): raise NVMLError('no driver')"),
        NVML.replace("return 2", "raise NVMLError('lost')"),
    ],
    ids=["absent", "no driver", "lost"],
)
def test_a_host_on_which_nvml_fails_has_no_gpus(tmp_path: Path, broken: str) -> None:
    (tmp_path / "pynvml.py").write_text(broken)

    assert run(GPU_NAMES, tmp_path) == "[]\n"


def test_a_gpu_type_is_a_part_of_the_product_name_or_any() -> None:
    assert all(GPUS[0].matches(wanted) for wanted in ("H100", "h100", "any"))
    assert not any(GPUS[0].matches(wanted) for wanted in ("L4", "A100"))


def test_gpus_hidden_from_cuda_are_not_there() -> None:
    assert indexes(None) == [0, 1, 2]
    assert indexes("2,0") == [0, 2]
    assert indexes("GPU-1abc, 0") == [0, 1]
    assert indexes("GPU-2") == [2]
    assert indexes("") == []
    assert indexes("-1") == []
    assert indexes("0,9,1") == [0]
    assert indexes("GPU-") == []


def test_a_port_with_a_listener_is_not_free_whatever_its_address() -> None:
    for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::1")):
        try:
            server = socket.create_server((address, port := free_port()), family=family)
        except OSError:
            continue
        with server:
            assert not is_free(port)
            assert not span_is_free(port, 1)
        assert is_free(port)


def test_a_port_that_was_just_used_is_free() -> None:
    with socket.create_server(("127.0.0.1", port := free_port())) as server:
        client = socket.create_connection(("127.0.0.1", port))
        accepted, _ = server.accept()
        # The side that closes first keeps the port in TIME_WAIT.
        accepted.close()
        client.close()

    assert is_free(port)


def test_spans_lie_below_the_ephemeral_range() -> None:
    assert span_bases(32768)[0] == FIRST_BASE
    assert span_bases(32768)[-1] + SPAN == 29984
    assert span_bases(20100) == (20000, 20032, 20064)


def test_a_host_whose_ephemeral_range_covers_all_spans_has_them_nevertheless() -> None:
    assert span_bases(1024) == span_bases(32768)


def test_the_lowest_ephemeral_port_is_read_from_the_kernel(tmp_path: Path) -> None:
    (tmp_path / "range").write_text("15000\t60999\n")
    (tmp_path / "odd").write_text("")

    assert read_ephemeral_low(tmp_path / "range") == 15000
    assert read_ephemeral_low(tmp_path / "odd") == 32768
    assert read_ephemeral_low(tmp_path / "none") == 32768


def test_a_span_is_handed_out_only_below_the_ephemeral_range_and_when_free() -> None:
    own = engine_ports()
    usable = span_filter(own.start + 100)
    free = next(base for base in range(own.start, own.start + 65, SPAN) if span_is_free(base))

    assert usable(free, SPAN)
    assert not usable(own.start + 96, 1)
    assert not usable(own.start + 64, SPAN + 1)
    with socket.create_server(("127.0.0.1", free + 5)):
        assert not usable(free, 6)
        assert usable(free, 5)


def test_a_host_may_be_given_other_ports_for_its_replicas(monkeypatch: pytest.MonkeyPatch) -> None:
    first = engine_ports().start
    monkeypatch.setenv(RANGE_VARIABLE, f"{first + 1}-{first + 3 * SPAN}")
    usable = span_filter(32768)

    assert [base for base in range(first, first + 4 * SPAN, SPAN) if usable(base, 1)] == [
        first + SPAN,
        first + 2 * SPAN,
    ]
    assert not usable(first + SPAN, 2 * SPAN + 1)
    assert engine_ports({}) == range(FIRST_BASE, 29984)


@pytest.mark.parametrize(
    "text", ["20000", "20000-20030", "20001-20062", "30000-31000", "21000-20000", "a-b", "-1-30000"]
)
def test_a_range_without_a_whole_span_is_refused(text: str) -> None:
    with pytest.raises(UserError, match=f"{RANGE_VARIABLE}={text} holds no span") as refusal:
        engine_ports({RANGE_VARIABLE: text})
    assert "such as 20000-20999" in refusal.value.help


@pytest.mark.parametrize("port", [0, 70000, -1])
def test_a_number_that_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(ValueError, match="not a port"):
        is_free(port)


def test_the_memory_that_replicas_may_claim_can_be_set() -> None:
    assert read_inventory({"STANDFAST_HOST_MEMORY": "64GiB"}).memory_bytes == 64 * 2**30
