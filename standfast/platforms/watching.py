"""Decide from a look at an attempt whether it still stands. Pure: the caller looks, repeats and acts.

An engine's own health can stay green after one of its processes died, so what is watched is the set of processes that
stood when the replica became ready. Helpers that come and go later (compilers, downloads) do not matter.
"""

from collections.abc import Sequence
from typing import Literal

from standfast.plans.record import NonNegative, Record
from standfast.platforms.base import Observation, ProcessRef, RankObservation

#: Beats come every 0.5 s; a launcher that is silent for this long is stuck (or its host is), even on a loaded machine.
BEAT_LIMIT_S = 15.0


class StandingProcess(Record):
    """A process that must stay for its replica to stand."""

    rank: NonNegative
    process: ProcessRef

    def to_text(self) -> str:
        """``rank:pid:start_ticks:name``, as workflow inputs carry it."""
        return f"{self.rank}:{self.process.pid}:{self.process.start_ticks}:{self.process.name}"

    @classmethod
    def from_text(cls, text: str) -> "StandingProcess":
        """The reverse of `to_text`. Raises ValueError for anything else."""
        rank, pid, ticks, name = text.split(":", 3)
        return cls(rank=int(rank), process=ProcessRef(pid=int(pid), start_ticks=int(ticks), name=name))


class Fault(Record):
    """Why an attempt no longer stands, and the rank that it happened to first."""

    kind: Literal["launcher-lost", "engine-exited", "process-lost", "beat-lost", "attempt-unknown"]
    rank: NonNegative
    message: str


def standing_set(looks: Sequence[Observation]) -> tuple[StandingProcess, ...]:
    """The processes present in every one of ``looks``: take the first before the readiness probes and the last after.

    A helper that ends between two looks is left out, so that its end is no fault later.
    """
    if not looks:
        raise ValueError("a standing set needs at least one observation")
    present = [
        {(rank.rank, process.pid, process.start_ticks) for rank in look.ranks for process in rank.processes}
        for look in looks
    ]
    always = set.intersection(*present)
    return tuple(
        StandingProcess(rank=rank.rank, process=process)
        for rank in looks[-1].ranks
        for process in rank.processes
        if (rank.rank, process.pid, process.start_ticks) in always
    )


def find_fault(
    observation: Observation, standing: Sequence[StandingProcess] = (), *, beat_limit_s: float = BEAT_LIMIT_S
) -> Fault | None:
    """The first reason why the attempt does not stand, or None. With an empty standing set it serves the time before
    ready.

    An exit comes before a lost process, and that before silence: the reason closest to the cause is named.
    """
    if not observation.ranks:
        return Fault(
            kind="attempt-unknown", rank=0, message=f"attempt {observation.attempt} left no trace on its platform"
        )
    exited = [rank for rank in observation.ranks if rank.exit is not None]
    if exited:
        return _exited(min(exited, key=lambda rank: rank.exit.at if rank.exit else 0.0))
    for rank in observation.ranks:
        if rank.phase != "absent" and not rank.launcher_alive:
            return Fault(
                kind="launcher-lost", rank=rank.rank, message=f"the launcher of rank {rank.rank} died ({rank.phase})"
            )
    for rank in observation.ranks:
        lost = _lost(rank, standing)
        if lost is not None:
            return lost
    for rank in observation.ranks:
        if rank.beat_age_s is not None and rank.beat_age_s > beat_limit_s:
            age = f"{rank.beat_age_s:.1f} s"
            return Fault(
                kind="beat-lost", rank=rank.rank, message=f"no beat from the launcher of rank {rank.rank} for {age}"
            )
    return None


def _exited(rank: RankObservation) -> Fault:
    assert rank.exit is not None
    if rank.exit.signal is not None:
        how = f"was ended by signal {rank.exit.signal}"
    elif rank.exit.code is not None:
        how = f"exited with code {rank.exit.code}"
    else:
        how = f"ended ({rank.exit.reason})"
    return Fault(kind="engine-exited", rank=rank.rank, message=f"the engine of rank {rank.rank} {how}")


def _lost(rank: RankObservation, standing: Sequence[StandingProcess]) -> Fault | None:
    present = {(process.pid, process.start_ticks) for process in rank.processes}
    for stood in standing:
        process = stood.process
        if stood.rank == rank.rank and (process.pid, process.start_ticks) not in present:
            message = f"the process {process.name} (pid {process.pid}) of rank {rank.rank} disappeared"
            return Fault(kind="process-lost", rank=rank.rank, message=message)
    return None
