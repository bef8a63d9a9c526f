"""Looking at attempts of this host, cheaply enough to look at many of them several times a second."""

import time
from dataclasses import dataclass, replace
from pathlib import Path

from standfast.platforms import processes
from standfast.platforms.attempts import AttemptFiles, RankState, parse_state, read_bytes
from standfast.platforms.base import Launch, Observation, RankObservation

#: A difference between clocks that is a step of one of them, not the time that a beat takes.
_CLOCK_STEP_S = 2.0


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the last look at a rank found; a look that finds the same state file again parses nothing.

    The beat's age is counted by this process's clock for as long as it watched, so that a step of the host's clock does
    not make a live launcher look stuck.
    """

    signature: tuple[int, int, int]
    state: RankState
    observation: RankObservation
    beat: float
    age_s: float
    at: float


@dataclass(frozen=True, slots=True)
class _RankFiles:
    """A rank's files, named once: to put a path together takes longer than to look at it."""

    rank: int
    state: Path
    beat: Path


class Observer:
    """Looks at attempts under ``root`` and remembers the last look at each, to save work and to tell beats apart."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._boot = processes.boot_id()
        self._launches: dict[str, tuple[_RankFiles, ...]] = {}
        self._seen: dict[tuple[str, int], _Seen] = {}

    def observe(self, attempt: str) -> Observation:
        """The attempt now; without ranks if it was never launched."""
        known = self._launches.get(attempt)
        if known is None:
            files = AttemptFiles(self._root, attempt)
            text = read_bytes(files.launch)
            if text is None:
                return Observation(attempt=attempt, ranks=())
            launch = Launch.model_validate_json(text)
            known = tuple(_RankFiles(rank, files.state(rank), files.beat(rank)) for rank in launch.ranks)
            self._launches[attempt] = known
        return Observation(attempt=attempt, ranks=tuple(self._observe_rank(attempt, files) for files in known))

    def forget(self, attempt: str) -> None:
        """Drop what is remembered of an attempt that is over."""
        self._launches.pop(attempt, None)
        for key in [key for key in self._seen if key[0] == attempt]:
            del self._seen[key]

    def launcher_alive(self, state: RankState) -> bool:
        """Whether the launcher that wrote ``state`` still runs."""
        return state.boot_id == self._boot and processes.is_alive(state.launcher_pid, state.launcher_start_ticks)

    def _observe_rank(self, attempt: str, files: _RankFiles) -> RankObservation:
        key = (attempt, files.rank)
        seen = _look(files, self._seen.get(key))
        if seen is None:
            return RankObservation(rank=files.rank, phase="absent", launcher_alive=False, beat_age_s=None)
        self._seen[key] = seen
        changes = {"launcher_alive": self.launcher_alive(seen.state), "beat_age_s": seen.age_s}
        return seen.observation.model_copy(update=changes)


def _look(files: _RankFiles, before: _Seen | None) -> _Seen | None:
    # The beat first: it is touched after the state is written, so that the state is at least as new as the beat.
    touched = _touched(files.beat)
    try:
        status = files.state.stat()
        signature = (status.st_ino, status.st_mtime_ns, status.st_size)
        if before is not None and before.signature == signature:
            seen = before
        else:
            state = parse_state(files.state.read_bytes())
            if state is None:
                return before
            seen = _Seen(signature, state, _observation(files.rank, state), 0.0, 0.0, 0.0)
    except FileNotFoundError:
        return None
    now = time.monotonic()
    beat = max(seen.state.beat, touched)
    age_s = max(0.0, time.time() - beat)
    if before is not None:
        since = now - before.at
        if beat == before.beat:
            age_s = before.age_s + since
        elif age_s > since + _CLOCK_STEP_S:
            # A beat that came since the last look cannot be older than that.
            age_s = since
    return replace(seen, beat=beat, age_s=age_s, at=now)


def _touched(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _observation(rank: int, state: RankState) -> RankObservation:
    return RankObservation(
        rank=rank,
        phase=state.phase,
        launcher_alive=False,
        beat_age_s=None,
        processes=state.processes,
        exit=state.exit,
        tail=state.tail,
        log_dropped_bytes=state.log.dropped_bytes,
        log_error=state.log.error,
    )
