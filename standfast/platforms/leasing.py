"""Leases on one host: GPUs, memory and port spans that one attempt holds and no other gets."""

from standfast.plans.records import NonNegative, Positive, Record
from standfast.platforms.inventory import HostInventory
from standfast.registry import Registry


class LeaseRequest(Record):
    """What one attempt needs on one host. ``port_spans`` holds the port count of each rank on the host."""

    owner: str
    generation: str
    gpu: str | None = None
    gpus: NonNegative = 0
    memory_bytes: Positive
    port_spans: tuple[Positive, ...] = (1,)


class Lease(Record):
    """What an attempt holds: GPU indexes, and the base port of each rank's span in the order of the request."""

    owner: str
    host: str
    gpu_ids: tuple[int, ...]
    port_bases: tuple[int, ...]
    memory_bytes: int


async def reserve(registry: "Registry", inventory: HostInventory, request: LeaseRequest) -> Lease:
    """Reserve all of ``request`` or nothing. Asking again under the same owner returns the same lease."""
    raise NotImplementedError


async def release(registry: "Registry", owner: str) -> None:
    """Give back what ``owner`` holds; nothing happens when it holds nothing."""
    raise NotImplementedError
