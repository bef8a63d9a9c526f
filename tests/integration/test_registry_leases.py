"""Reservations of several processes never overlap, on either database."""

import asyncio
import json
import sys
from typing import Any

import pytest

from standfast.registry import CapacityError, Registry, RegistryError

pytest_plugins = ("tests.support.registry",)


async def test_a_reservation_is_all_of_what_was_asked(registry: Registry) -> None:
    got = await registry.reserve(
        host="host",
        owner="a#1",
        generation="g",
        gpus=2,
        gpu_candidates=[3, 1, 0],
        memory_bytes=40,
        memory_total=100,
        port_spans=[3, 40],
    )
    assert (got.owner, got.host, got.gpu_ids, got.memory_bytes) == ("a#1", "host", (3, 1), 40)
    assert len(got.port_bases) == 2
    assert await registry.get_reservation("a#1") == got
    leases = await registry.list_leases("host")
    assert {lease.kind for lease in leases} == {"gpu", "memory", "ports"}
    assert {lease.owner for lease in leases} == {"a#1"}
    assert await registry.list_leases("elsewhere") == []


async def test_the_same_owner_gets_the_same_reservation_again(registry: Registry) -> None:
    async def reserve() -> Any:
        return await registry.reserve(
            host="host",
            owner="a#1",
            generation="g",
            gpus=1,
            gpu_candidates=[0, 1],
            memory_bytes=60,
            memory_total=100,
            port_spans=[5],
        )

    outcomes = await asyncio.gather(*(reserve() for _ in range(5)))
    assert len(set(outcomes)) == 1
    assert len(await registry.list_leases()) == 3


async def test_an_owner_that_asks_for_something_else_is_refused(registry: Registry) -> None:
    await registry.reserve(host="host", owner="a#1", generation="g", gpus=1, gpu_candidates=[0])
    with pytest.raises(RegistryError, match="already holds another reservation"):
        await registry.reserve(host="host", owner="a#1", generation="g", gpus=2, gpu_candidates=[0, 1])


async def test_a_refused_reservation_holds_nothing(registry: Registry) -> None:
    await registry.reserve(
        host="host", owner="a#1", generation="g", gpus=1, gpu_candidates=[0, 1], memory_bytes=60, memory_total=100
    )
    with pytest.raises(CapacityError, match=r"asked for 41B of memory, 40B of 100B free \(a#1 holds 60B\)") as refused:
        await registry.reserve(
            host="host",
            owner="b#1",
            generation="g",
            gpus=1,
            gpu_candidates=[0, 1],
            memory_bytes=41,
            memory_total=100,
            port_spans=[1],
        )
    assert not refused.value.never
    assert [lease.owner for lease in refused.value.holders] == ["a#1"]
    assert await registry.get_reservation("b#1") is None


async def test_what_is_released_can_be_reserved_again(registry: Registry) -> None:
    for number in range(3):
        await registry.reserve(
            host="host",
            owner=f"a#{number}",
            generation="g",
            gpus=2,
            gpu_candidates=[0, 1],
            memory_bytes=100,
            memory_total=100,
        )
        assert await registry.release(f"a#{number}")
        assert not await registry.release(f"a#{number}")
    assert await registry.list_leases() == []


async def test_hosts_do_not_share_what_they_have(registry: Registry) -> None:
    for host in ("host-1", "host-2"):
        got = await registry.reserve(
            host=host, owner=f"a@{host}", generation="g", gpus=1, gpu_candidates=[0], memory_bytes=9, memory_total=10
        )
        assert got.gpu_ids == (0,)


async def test_a_reservation_of_nothing_is_still_one(registry: Registry) -> None:
    got = await registry.reserve(host="host", owner="a#1", generation="g")
    assert (got.gpu_ids, got.port_bases, got.memory_bytes) == ((), (), 0)
    assert await registry.get_reservation("a#1") == got


async def test_reservations_of_several_processes_never_overlap(registry: Registry, registry_url: str) -> None:
    processes = [
        await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.support.registry_process",
            "reserve",
            registry_url,
            f"process-{number}",
            "12",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        for number in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert json.loads(await process.stdout.readline()) == "ready"
    outputs = await asyncio.gather(*(process.communicate(b"go\n") for process in processes))
    assert [process.returncode for process in processes] == [0] * len(processes)
    lines = [[json.loads(line) for line in output.splitlines()] for output, _ in outputs]
    refused = {kind for of_one in lines for line in of_one[:-1] for kind in line["refused"]}
    assert refused == {"gpu"}
    kept = [reservation for of_one in lines for reservation in of_one[-1]["kept"]]
    gpus = [gpu for _owner, gpu_ids, _bases, _memory in kept for gpu in gpu_ids]
    assert len(gpus) == len(set(gpus))
    assert 0 < len(kept) <= 8
    ports = [
        port
        for _owner, _gpus, bases, _memory in kept
        for base, count in zip(bases, (5, 40), strict=True)
        for port in range(base, base + count)
    ]
    assert len(ports) == len(set(ports))
    leases = await registry.list_leases("host")
    assert {lease.owner for lease in leases} == {owner for owner, *_rest in kept}
    assert sum(lease.count for lease in leases if lease.kind == "memory") == 3 * len(kept)
