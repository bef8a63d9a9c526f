"""Leases on one host: GPUs, memory and port spans that one attempt holds and no other gets."""

from standfast.plans.record import NonNegative, Positive, Record
from standfast.platforms.inventory import HostInventory
from standfast.platforms.ports import span_filter
from standfast.registry import CapacityError, Registry, Reservation


class LeaseRequest(Record):
    """What one attempt needs on one host. ``gpu`` is a type (see `Gpu.matches`); ``port_spans`` holds the number of
    ports of each rank on the host.
    """

    owner: str
    generation: str
    gpu: str | None = None
    gpus: NonNegative = 0
    memory_bytes: Positive
    port_spans: tuple[Positive, ...] = (1,)


async def reserve(registry: Registry, inventory: HostInventory, request: LeaseRequest) -> Reservation:
    """Reserve all of ``request`` for its owner, or nothing; asking again returns the same reservation.

    Only port spans on which nothing listens are taken, so that a port held by a stranger is passed over. Raises
    `CapacityError`; with ``never`` set if this host could not do it empty either.
    """
    candidates = tuple(gpu.index for gpu in inventory.gpus if request.gpu is not None and gpu.matches(request.gpu))
    if request.gpus > len(candidates):
        present = ", ".join(sorted({gpu.name for gpu in inventory.gpus})) or "no GPU"
        raise CapacityError(
            f"{request.owner} needs {request.gpus} GPUs of type {request.gpu} on host {inventory.host}, "
            f"which has {len(candidates)}.",
            kinds=("gpu",),
            never=True,
            help=f"The host has: {present}. Change Compute(gpu=..., gpus=...) or choose another target.",
        )
    return await registry.reserve(
        host=inventory.host,
        owner=request.owner,
        generation=request.generation,
        gpus=request.gpus,
        gpu_candidates=candidates,
        memory_bytes=request.memory_bytes,
        memory_total=inventory.memory_bytes,
        port_spans=request.port_spans,
        port_free=span_filter(),
    )


async def release(registry: Registry, owner: str) -> None:
    """Give back what ``owner`` holds; nothing happens when it holds nothing."""
    await registry.release(owner)
