"""Which backend a request goes to. Pure: tables and counts in, a backend or the reason for a refusal out."""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from standfast.registry.rows import RoutingTable


@dataclass(frozen=True, slots=True)
class Target:
    """A backend that may get requests. ``attempt`` tells two lives of one replica apart."""

    id: str
    url: str
    attempt: str | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One served name: the generation behind it and its ready backends (none while it is starting)."""

    served_name: str
    generation: str | None
    visible: bool
    max_waiting: int
    retry_after: bytes
    """``Retry-After`` in whole seconds."""
    ready: tuple[Target, ...]
    header: bytes = b""
    """The response header line that names the generation."""


@dataclass(frozen=True, slots=True)
class Table:
    """The routing table, indexed by served name, as of ``revision``."""

    revision: int = -1
    entries: Mapping[str, Entry] = field(default_factory=lambda: MappingProxyType({}))
    targets: frozenset[Target] = frozenset()

    def visible_ready(self) -> list[Entry]:
        """The entries that a client may be told of: visible, with at least one ready backend; by name."""
        return [entry for _, entry in sorted(self.entries.items()) if entry.visible and entry.ready]

    def visible_names(self) -> list[str]:
        """Every visible served name, ready or starting; sorted."""
        return sorted(name for name, entry in self.entries.items() if entry.visible)


class Refusal(Enum):
    """Why no backend gets the request now."""

    NOT_READY = "not_ready"
    FULL = "full"


def whole_seconds(seconds: float) -> bytes:
    """A ``Retry-After`` value: whole seconds, rounded up, at least one."""
    return b"%d" % max(1, math.ceil(seconds))


def index(table: RoutingTable) -> Table:
    """The registry's table in the form that requests are routed by."""
    entries: dict[str, Entry] = {}
    for route in table.routes:
        ready = tuple(
            Target(backend.id, backend.url, backend.attempt)
            for backend in route.backends
            if backend.state == "ready" and backend.url and route.generation is not None
        )
        header = (
            f"x-standfast-generation: {route.generation}\r\n"
            if route.generation and route.generation.isprintable()
            else ""
        )
        entries[route.served_name] = Entry(
            served_name=route.served_name,
            generation=route.generation,
            visible=route.visible,
            max_waiting=route.max_waiting,
            retry_after=whole_seconds(route.retry_after_s),
            ready=ready,
            header=header.encode("ascii", "replace"),
        )
    targets = frozenset(target for entry in entries.values() for target in entry.ready)
    return Table(table.revision, MappingProxyType(entries), targets)


def choose(
    entry: Entry,
    inflight: Mapping[str, int],
    held: Collection[str],
    pick: Callable[[int], int],
    tried: Collection[str] = (),
) -> Target | Refusal:
    """The ready backend with the fewest requests in flight; ties are broken by ``pick(number of ties)``.

    ``held`` are ids that could not be connected to a moment ago: they are passed over while another backend is ready,
    and tried all the same when none is, since a refused connection costs nothing and a single replica must not be
    locked out by one lost packet. ``tried`` are ids that this very request has failed on. A backend with
    ``max_waiting`` requests in flight takes no more.
    """
    candidates = entry.ready
    if len(candidates) == 1 and not tried:
        only = candidates[0]
        return only if inflight.get(only.id, 0) < entry.max_waiting else Refusal.FULL
    if held:
        candidates = tuple(target for target in candidates if target.id not in held) or candidates
    if tried:
        candidates = tuple(target for target in candidates if target.id not in tried)
    if not candidates:
        return Refusal.NOT_READY
    best: list[Target] = []
    least = -1
    for target in candidates:
        count = inflight.get(target.id, 0)
        if count < least or least < 0:
            least = count
            best = [target]
        elif count == least:
            best.append(target)
    if least >= entry.max_waiting:
        return Refusal.FULL
    return best[0] if len(best) == 1 else best[pick(len(best))]
