"""What the registry refuses, and why."""

from standfast.problems import UserError
from standfast.registry.rows import LeaseKind, StoredLease


class RegistryError(UserError):
    """The registry cannot do what was asked: it cannot be reached, is too new, or the request contradicts what it
    holds.
    """

    def __init__(self, message: str, *, help: str = "", exit_code: int = 1) -> None:
        super().__init__(message, help=help, exit_code=exit_code)


class RegistryUnavailable(RegistryError):
    """The database cannot be reached or opened."""

    def __init__(self, message: str, *, help: str = "") -> None:
        super().__init__(message, help=help, exit_code=3)


class NotFound(RegistryError):
    """No such row."""


class ServedNameTaken(RegistryError):
    """Another standing deployment already answers under this served name."""


class RouteConflict(RegistryError):
    """The compare-and-set of a route failed: it does not point where the caller expected. ``current`` is where it
    points.
    """

    def __init__(self, message: str, *, current: str | None, help: str = "") -> None:
        super().__init__(message, help=help)
        self.current = current


class CapacityError(RegistryError):
    """A host has not enough of something free.

    ``kinds`` names what is short; ``holders`` are the leases that hold the rest. ``never`` says that even the empty
    host would not do, so that waiting cannot help.
    """

    def __init__(
        self,
        message: str,
        *,
        kinds: tuple[LeaseKind, ...],
        holders: tuple[StoredLease, ...] = (),
        never: bool = False,
        help: str = "",
    ) -> None:
        super().__init__(message, help=help)
        self.kinds = kinds
        self.holders = holders
        self.never = never
