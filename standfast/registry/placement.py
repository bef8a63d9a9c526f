"""Which GPUs, ports and memory a request gets, decided over what is held already. Pure but for ``port_free``.

Ports are handed out in slots of `PORT_SLOT` from `PORTS_FROM` up to (not including) `PORTS_TO`; a span takes as many
consecutive slots as it needs. Slots have fixed places, so that the unique index of the table alone keeps spans apart.
"""

import itertools
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from standfast.registry.errors import CapacityError
from standfast.registry.rows import LeaseKind, Reservation, StoredLease
from standfast.values import show_memory

PORT_SLOT = 32
PORTS_FROM = 20000
PORTS_TO = 29984
SLOTS = (PORTS_TO - PORTS_FROM) // PORT_SLOT


@dataclass(frozen=True, kw_only=True, slots=True)
class LeaseRequest:
    """What one owner asks of one host.

    ``gpu_candidates`` are the indices that may be used, best first, and ``gpus`` how many of them; ``memory_total`` is
    what all owners together may hold, in bytes; ``port_spans`` counts the consecutive ports of each span;
    ``port_free(base, count)`` says whether the host itself can spare these ports.
    """

    host: str
    owner: str
    generation: str
    gpus: int = 0
    gpu_candidates: tuple[int, ...] = ()
    memory_bytes: int = 0
    memory_total: int | None = None
    port_spans: tuple[int, ...] = ()
    port_free: Callable[[int, int], bool] | None = None

    def __post_init__(self) -> None:
        if self.gpus < 0 or self.memory_bytes < 0 or any(count < 1 for count in self.port_spans):
            raise ValueError("a reservation cannot ask for less than nothing")
        if len(set(self.gpu_candidates)) != len(self.gpu_candidates):
            raise ValueError(f"the GPU candidates {self.gpu_candidates} name one GPU twice")


@dataclass(frozen=True, kw_only=True, slots=True)
class NewLease:
    """A row to be written: see `standfast.registry.rows.StoredLease`."""

    kind: LeaseKind
    resource: int
    count: int
    position: int


def place(request: LeaseRequest, held: Sequence[StoredLease], *, salt: str = "") -> tuple[NewLease, ...]:
    """The leases that carry out ``request`` beside those ``held`` on its host. Raises `CapacityError` with everything
    that is short at once.

    ``salt`` moves the place where the search for ports begins, so that registries on one machine keep out of each
    other's way and a port that was just given back is seldom the next one handed out.
    """
    shortages: list[_Shortage] = []
    leases = [
        NewLease(kind="memory", resource=0, count=request.memory_bytes, position=0),
        *_place_gpus(request, held, shortages),
        *_place_ports(request, held, shortages, zlib.crc32(f"{salt}\n{request.owner}".encode()) % SLOTS),
    ]
    _check_memory(request, held, shortages)
    if shortages:
        raise _capacity_error(request, held, shortages)
    return tuple(leases)


def reservation_of(owner: str, leases: Sequence[StoredLease]) -> Reservation:
    """The reservation that the leases of one owner make up."""
    spans: dict[int, int] = {}
    for lease in leases:
        if lease.kind == "ports":
            spans[lease.position] = min(spans.get(lease.position, lease.resource), lease.resource)
    gpus = sorted((lease for lease in leases if lease.kind == "gpu"), key=lambda lease: lease.position)
    return Reservation(
        owner=owner,
        host=leases[0].host,
        gpu_ids=tuple(lease.resource for lease in gpus),
        port_bases=tuple(base for _position, base in sorted(spans.items())),
        memory_bytes=sum(lease.count for lease in leases if lease.kind == "memory"),
    )


def answers(request: LeaseRequest, leases: Sequence[StoredLease]) -> bool:
    """Whether leases that the owner holds already are what ``request`` asks for."""
    spans: dict[int, int] = {}
    for lease in leases:
        if lease.kind == "ports":
            spans[lease.position] = spans.get(lease.position, 0) + lease.count
    return (
        all(lease.host == request.host for lease in leases)
        and sum(lease.kind == "gpu" for lease in leases) == request.gpus
        and sum(lease.count for lease in leases if lease.kind == "memory") == request.memory_bytes
        and tuple(count for _position, count in sorted(spans.items())) == request.port_spans
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Shortage:
    kind: LeaseKind
    text: str
    never: bool


def _place_gpus(request: LeaseRequest, held: Sequence[StoredLease], shortages: list[_Shortage]) -> Iterator[NewLease]:
    taken = {lease.resource for lease in held if lease.kind == "gpu"}
    free = [gpu for gpu in request.gpu_candidates if gpu not in taken]
    if len(free) < request.gpus:
        total = len(request.gpu_candidates)
        shortages.append(
            _Shortage(
                kind="gpu",
                text=f"asked for {request.gpus} GPU{'s' * (request.gpus != 1)}, {len(free)} of {total} free",
                never=total < request.gpus,
            )
        )
        return
    for position, gpu in enumerate(free[: request.gpus]):
        yield NewLease(kind="gpu", resource=gpu, count=1, position=position)


def _check_memory(request: LeaseRequest, held: Sequence[StoredLease], shortages: list[_Shortage]) -> None:
    if request.memory_total is None:
        return
    free = max(0, request.memory_total - sum(lease.count for lease in held if lease.kind == "memory"))
    if request.memory_bytes > free:
        shortages.append(
            _Shortage(
                kind="memory",
                text=f"asked for {show_memory(request.memory_bytes)} of memory, {show_memory(free)} of "
                f"{show_memory(request.memory_total)} free",
                never=request.memory_bytes > request.memory_total,
            )
        )


def _place_ports(
    request: LeaseRequest, held: Sequence[StoredLease], shortages: list[_Shortage], start: int
) -> Iterator[NewLease]:
    taken = {(lease.resource - PORTS_FROM) // PORT_SLOT for lease in held if lease.kind == "ports"}
    for position, count in enumerate(request.port_spans):
        slots = -(-count // PORT_SLOT)
        for first in itertools.chain(range(start, SLOTS - slots + 1), range(min(start, SLOTS - slots + 1))):
            wanted = range(first, first + slots)
            base = PORTS_FROM + first * PORT_SLOT
            if taken.isdisjoint(wanted) and (request.port_free is None or request.port_free(base, count)):
                break
        else:
            shortages.append(
                _Shortage(
                    kind="ports",
                    text=f"asked for {count} consecutive ports, no such span is free",
                    never=slots > SLOTS,
                )
            )
            return
        taken.update(wanted)
        for slot in wanted:
            used = min(PORT_SLOT, count - (slot - first) * PORT_SLOT)
            yield NewLease(kind="ports", resource=PORTS_FROM + slot * PORT_SLOT, count=used, position=position)


def _capacity_error(
    request: LeaseRequest, held: Sequence[StoredLease], shortages: Sequence[_Shortage]
) -> CapacityError:
    kinds = tuple(shortage.kind for shortage in shortages)
    holders = tuple(lease for lease in held if lease.kind in kinds and lease.count > 0)
    shares = [
        f"{owner} holds {_share(list(leases))}"
        for owner, leases in itertools.groupby(sorted(holders, key=_by_owner), key=lambda lease: lease.owner)
    ]
    asked = "; ".join(shortage.text for shortage in shortages)
    held_text = "; ".join(shares) if shares else "no other attempt holds any"
    never = any(shortage.never for shortage in shortages)
    return CapacityError(
        f"{request.host} cannot hold {request.owner}: {asked} ({held_text}).",
        kinds=kinds,
        holders=holders,
        never=never,
        help=f"{request.host} is too small even when nothing else runs: ask for less, or use a larger host."
        if never
        else "It starts as soon as enough is free; deprecate a deployment to make room, or ask for less.",
    )


def _by_owner(lease: StoredLease) -> tuple[str, str, int]:
    return (lease.owner, lease.kind, lease.resource)


def _share(leases: Sequence[StoredLease]) -> str:
    parts = []
    gpus = [str(lease.resource) for lease in leases if lease.kind == "gpu"]
    if gpus:
        parts.append(f"GPU{'s' * (len(gpus) != 1)} {', '.join(gpus)}")
    memory = sum(lease.count for lease in leases if lease.kind == "memory")
    if memory:
        parts.append(show_memory(memory))
    ports = sum(lease.count for lease in leases if lease.kind == "ports")
    if ports:
        parts.append(f"{ports} ports")
    return " and ".join(parts)
