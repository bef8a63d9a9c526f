"""What every platform does with an attempt: launch it, hand it its commands, look at it, stop it, read its logs.

An *attempt* is one try to bring a replica up. Its name is the key of everything: launching twice under one name finds
the first launch, stopping twice is stopping once. An attempt has one launcher per rank; the launchers are the
platform's, the engines are the launchers'.
"""

from pathlib import Path
from typing import Literal, Protocol

from standfast.plans.facts import BoundReplica
from standfast.plans.record import NonNegative, Record
from standfast.problems import UserError

RankPhase = Literal["absent", "waiting", "running", "stopping", "ended"]
"""``absent``: no launcher has reported yet; ``waiting``: for its command; ``ended``: every process of the rank is
confirmed gone.
"""


class Launch(Record):
    """A request to start the launchers of one attempt. They wait for `Platform.start` before they run anything.

    ``secrets`` names the secrets that the engines' environments refer to; ``ports`` are all the ports the attempt's
    lease holds, which `stop` checks at the end.
    """

    attempt: str
    ranks: tuple[NonNegative, ...] = (0,)
    secrets: tuple[str, ...] = ()
    ports: tuple[int, ...] = ()


class LaunchedRank(Record):
    """Where one rank's launcher runs, as the launcher itself reported (its facts)."""

    rank: NonNegative
    host: str
    address: str
    pid: int
    start_ticks: int


Outcome = Literal["started", "adopted", "finished"]


class LaunchedAttempt(Record):
    """What a launch found or made.

    ``started``: at least one launcher is new; ``adopted``: all were there already and live; ``finished``: the attempt
    under this name has ended, was told to stop, or lost its launcher: it is never started again, look at it with
    `Platform.observe` and stop it. A finished attempt may lack ranks that never reported.
    """

    attempt: str
    directory: Path
    outcome: Outcome
    ranks: tuple[LaunchedRank, ...]

    @property
    def finished(self) -> bool:
        """Whether this name is used up."""
        return self.outcome == "finished"


class ProcessRef(Record):
    """One process, named so that a reused pid is not mistaken for it: ``start_ticks`` is field 22 of
    ``/proc/PID/stat``.
    """

    pid: int
    start_ticks: int
    name: str


class ExitRecord(Record):
    """How a rank ended. One of ``code`` and ``signal`` is set when the engine's first process had run.

    ``exited``: by itself, whatever the code; ``stopped``: on request; ``lost``: its launcher died, so that the way it
    ended is unknown. ``survivors`` outlived the engine's first process and had to be killed; they are gone by the
    time the record is written. Codes of the launcher's own: 125 the bound command is unusable, 126 not executable,
    127 not found; the last log line says why.
    """

    code: int | None
    signal: int | None
    reason: Literal["exited", "stopped", "lost"]
    at: float
    survivors: tuple[ProcessRef, ...] = ()


class RankObservation(Record):
    """One look at one rank. ``beat_age_s`` is None until the launcher's first beat; ``processes`` are the live ones
    of the engine.
    """

    rank: NonNegative
    phase: RankPhase
    launcher_alive: bool
    beat_age_s: float | None
    processes: tuple[ProcessRef, ...] = ()
    exit: ExitRecord | None = None
    tail: tuple[str, ...] = ()
    log_dropped_bytes: int = 0
    log_error: str | None = None


class Observation(Record):
    """One look at an attempt; the properties sum its ranks up."""

    attempt: str
    ranks: tuple[RankObservation, ...]

    @property
    def phase(self) -> RankPhase:
        """The phase of the rank that is furthest from running: a gang runs when all its ranks do."""
        order: tuple[RankPhase, ...] = ("ended", "stopping", "absent", "waiting", "running")
        return min((rank.phase for rank in self.ranks), key=order.index, default="absent")

    @property
    def launcher_alive(self) -> bool:
        """Whether every rank has a live launcher."""
        return bool(self.ranks) and all(rank.launcher_alive for rank in self.ranks)

    @property
    def beat_age_s(self) -> float | None:
        """The age of the oldest beat; None while a rank has not beaten."""
        ages = [rank.beat_age_s for rank in self.ranks]
        return None if not ages or None in ages else max(age for age in ages if age is not None)

    @property
    def processes(self) -> tuple[ProcessRef, ...]:
        """The live engine processes of all ranks."""
        return tuple(process for rank in self.ranks for process in rank.processes)

    @property
    def exit(self) -> ExitRecord | None:
        """The first exit among the ranks: the one that took the gang down."""
        return min((rank.exit for rank in self.ranks if rank.exit is not None), key=lambda exit: exit.at, default=None)

    @property
    def tail(self) -> tuple[str, ...]:
        """The last log lines of the rank that ended first, or of the head."""
        ended = [rank for rank in self.ranks if rank.exit is not None]
        blamed = min(ended, key=lambda rank: rank.exit.at if rank.exit else 0.0) if ended else None
        chosen = blamed or (self.ranks[0] if self.ranks else None)
        return chosen.tail if chosen is not None else ()


class StopReport(Record):
    """What a stop found: every process of the attempt is gone when it is returned.

    ``outcome``: ``stopped`` now, ``already-ended`` before, ``never-started`` (the name is used up all the same: no
    launcher will start under it), ``taken-over`` (a launcher was dead or stuck, and the platform killed what was
    left, listed in ``killed``). ``open_ports`` are ports of the attempt that something else listens on: the attempt
    has no process left that could.
    """

    attempt: str
    outcome: Literal["stopped", "already-ended", "never-started", "taken-over"]
    exits: tuple[ExitRecord, ...] = ()
    killed: tuple[ProcessRef, ...] = ()
    open_ports: tuple[int, ...] = ()


class AttemptSummary(Record):
    """One attempt that the platform knows, for sweeps."""

    attempt: str
    directory: Path
    phase: RankPhase
    launcher_alive: bool


class LaunchError(Exception):
    """A launcher could not be started. The cause is the platform's or the host's, never the engine's; trying again
    may help.
    """


class AttemptConflictError(Exception):
    """An attempt's name was used for something else: one name, one launch, one command."""


class StopUnconfirmedError(Exception):
    """Processes of an attempt could not be seen gone in time (they do not react to SIGKILL). Nothing of the attempt
    may be used again.
    """

    def __init__(self, attempt: str, survivors: tuple[ProcessRef, ...]) -> None:
        named = ", ".join(f"{process.name} (pid {process.pid})" for process in survivors) or "its launcher"
        super().__init__(f"attempt {attempt} could not be confirmed gone: {named} still there after SIGKILL")
        self.attempt = attempt
        self.survivors = survivors


class MissingSecretError(UserError):
    """A secret that a plan names is not known to the target."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"the secret {name} is not set",
            help=f"Locally, secrets come from the control worker's environment: set {name} there and start it again.",
        )
        self.name = name


class Platform(Protocol):
    """Places launchers on nodes and speaks to them through attempt directories."""

    async def launch(self, launch: Launch) -> LaunchedAttempt:
        """Start the attempt's launchers, or find them. Raises `MissingSecretError`, `AttemptConflictError`,
        `LaunchError`.
        """
        ...

    async def start(
        self, attempt: str, bound: BoundReplica, *, stop_grace_s: float, working_directory: Path | None = None
    ) -> None:
        """Hand the launchers their commands; the engines start within a moment. Idempotent; another command is an
        `AttemptConflictError`.
        """
        ...

    async def observe(self, attempt: str) -> Observation:
        """Look at the attempt. Cheap enough for several looks a second; an unknown attempt has no ranks."""
        ...

    async def stop(self, attempt: str, reason: str, grace_s: float) -> StopReport:
        """End the attempt and return when its processes are gone and its ports closed. Idempotent. Raises
        `StopUnconfirmedError`.
        """
        ...

    def read_log(self, attempt: str, rank: int, offset: int, limit: int = 1 << 20) -> tuple[bytes, int]:
        """Up to ``limit`` bytes of a rank's log from ``offset``, and the offset to go on from. Offsets count from the
        attempt's first byte; what rotation has removed is skipped.
        """
        ...

    async def list_attempts(self) -> tuple[AttemptSummary, ...]:
        """Every attempt that left a trace."""
        ...

    async def remove(self, attempt: str) -> None:
        """Delete the traces of an attempt that has ended. Raises `AttemptConflictError` while it has not."""
        ...
