"""One tick looks at all the attempts that are watched."""

import asyncio

import pytest

from activities.watching import Rounds
from standfast.platforms.base import Observation, ProcessRef, RankObservation
from standfast.platforms.watching import StandingProcess

PROCESS = ProcessRef(pid=10, start_ticks=1, name="engine")
STANDING = (StandingProcess(rank=0, process=PROCESS),)


class Host:
    """Attempts as a platform sees them: each with its processes, or an error."""

    def __init__(self, *attempts: str) -> None:
        self.processes: dict[str, tuple[ProcessRef, ...]] = dict.fromkeys(attempts, (PROCESS,))
        self.broken: set[str] = set()
        self.looks: list[str] = []

    async def observe(self, attempt: str) -> Observation:
        self.looks.append(attempt)
        if attempt in self.broken:
            raise OSError("the disk is gone")
        rank = RankObservation(
            rank=0, phase="running", launcher_alive=True, beat_age_s=0.1, processes=self.processes[attempt]
        )
        return Observation(attempt=attempt, ranks=(rank,))


async def test_the_attempt_that_falls_is_told_and_the_others_are_still_watched() -> None:
    host = Host("one", "two")
    rounds = Rounds(host.observe, every_s=0.001)
    with rounds.watched("one", STANDING) as one, rounds.watched("two", STANDING) as two:
        host.processes["one"] = ()
        fault, observation = await asyncio.wait_for(one, 30)
        assert (fault.kind, observation.attempt) == ("process-lost", "one")
        assert not two.done()
        host.processes["two"] = ()
        fault, observation = await asyncio.wait_for(two, 30)
        assert (fault.kind, observation.attempt) == ("process-lost", "two")


async def test_a_look_that_fails_concerns_its_own_attempt_only() -> None:
    host = Host("one", "two")
    host.broken.add("one")
    rounds = Rounds(host.observe, every_s=0.001)
    with rounds.watched("one", STANDING) as one, rounds.watched("two", STANDING) as two:
        with pytest.raises(OSError, match="the disk is gone"):
            await asyncio.wait_for(one, 30)
        host.processes["two"] = ()
        await asyncio.wait_for(two, 30)


async def test_nothing_is_looked_at_once_nobody_watches_and_a_new_watch_begins_anew() -> None:
    host = Host("one")
    rounds = Rounds(host.observe, every_s=0.001)
    with rounds.watched("one", STANDING):
        pass
    host.processes["one"] = ()
    with rounds.watched("one", STANDING) as again:
        fault, _ = await asyncio.wait_for(again, 30)
        assert fault.kind == "process-lost"
    seen = len(host.looks)
    for _ in range(50):
        await asyncio.sleep(0.001)
    assert len(host.looks) <= seen + 1


async def test_a_watch_that_ends_is_forgotten_while_a_look_is_under_way() -> None:
    looking, go_on = asyncio.Event(), asyncio.Event()
    host = Host("one")

    async def slow(attempt: str) -> Observation:
        looking.set()
        await go_on.wait()
        return await host.observe(attempt)

    rounds = Rounds(slow, every_s=0.001)
    with rounds.watched("one", STANDING) as falls:
        await asyncio.wait_for(looking.wait(), 30)
        host.processes["one"] = ()
    go_on.set()
    for _ in range(20):
        await asyncio.sleep(0)
    assert falls.cancelled()


async def test_rounds_that_end_are_an_error_of_every_watch() -> None:
    async def cancelled(attempt: str) -> Observation:
        raise asyncio.CancelledError

    rounds = Rounds(cancelled, every_s=0.001)
    with rounds.watched("one", STANDING) as one, rounds.watched("two", STANDING) as two:
        for falls in (one, two):
            with pytest.raises(RuntimeError, match="ended"):
                await asyncio.wait_for(falls, 30)
