"""Leases of this host in a real registry, beside what really listens on it."""

import asyncio
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from standfast.platforms.inventory import Gpu, HostInventory
from standfast.platforms.leasing import LeaseRequest, release, reserve
from standfast.platforms.ports import SPAN
from standfast.registry import CapacityError, Registry

HOST = HostInventory(
    host="here",
    cpus=8,
    memory_bytes=64 << 30,
    gpus=tuple(
        Gpu(index=index, uuid=f"GPU-{index}", name=name, memory_bytes=80 << 30)
        for index, name in enumerate(["NVIDIA H100", "NVIDIA L4", "NVIDIA H100"])
    ),
)


@pytest.fixture
async def registry(tmp_path: Path) -> AsyncIterator[Registry]:
    async with await Registry.open(f"sqlite+aiosqlite:///{tmp_path / 'registry.db'}") as opened:
        yield opened


def request(
    owner: str, *, gpu: str | None = None, gpus: int = 0, memory: int = 1 << 30, spans: tuple[int, ...] = (4,)
) -> LeaseRequest:
    return LeaseRequest(owner=owner, generation="g@1", gpu=gpu, gpus=gpus, memory_bytes=memory, port_spans=spans)


async def test_attempts_at_the_same_time_get_different_ports(registry: Registry) -> None:
    leases = await asyncio.gather(
        *(reserve(registry, HOST, request(f"a/{number}", spans=(4, 2))) for number in range(5))
    )

    bases = [base for lease in leases for base in lease.port_bases]
    assert len(set(bases)) == 10
    assert all(base % SPAN == 20000 % SPAN for base in bases)


async def test_asking_again_returns_the_same_and_releasing_frees_it(registry: Registry) -> None:
    first = await reserve(registry, HOST, request("a/1", gpu="H100", gpus=2))

    assert await reserve(registry, HOST, request("a/1", gpu="H100", gpus=2)) == first
    assert first.gpu_ids == (0, 2)
    with pytest.raises(CapacityError):
        await reserve(registry, HOST, request("a/2", gpu="H100", gpus=1))
    await release(registry, "a/1")
    await release(registry, "a/1")
    assert (await reserve(registry, HOST, request("a/2", gpu="H100", gpus=1))).gpu_ids == (0,)


async def test_ports_that_somebody_listens_on_are_passed_over(registry: Registry) -> None:
    expected = (await reserve(registry, HOST, request("a/1"))).port_bases[0]
    await release(registry, "a/1")

    with socket.create_server(("127.0.0.1", expected + 1)):
        busy = await reserve(registry, HOST, request("a/1"))
    await release(registry, "a/1")

    assert busy.port_bases[0] != expected
    assert (await reserve(registry, HOST, request("a/1"))).port_bases[0] == expected


async def test_a_type_that_the_host_does_not_have_is_refused_for_good(registry: Registry) -> None:
    with pytest.raises(CapacityError, match="needs 1 GPUs of type A100") as refusal:
        await reserve(registry, HOST, request("a/1", gpu="A100", gpus=1))

    assert refusal.value.never
    assert "NVIDIA H100, NVIDIA L4" in refusal.value.help


async def test_memory_is_shared_out_once(registry: Registry) -> None:
    await reserve(registry, HOST, request("a/1", memory=40 << 30))

    with pytest.raises(CapacityError) as refusal:
        await reserve(registry, HOST, request("a/2", memory=40 << 30))
    with pytest.raises(CapacityError) as impossible:
        await reserve(registry, HOST, request("a/3", memory=65 << 30))

    assert not refusal.value.never
    assert impossible.value.never
