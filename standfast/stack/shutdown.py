"""Taking the stack down, and the models of this host with it."""

import asyncio
from collections.abc import Callable

from standfast.home import Home
from standfast.plans.record import Record
from standfast.stack.processes import ProcessRef, end
from standfast.stack.record import StackRecord, is_running, read_record

SHUTDOWN_LIMIT_S = 60.0
STOP_REASON = "interrupted: stack stopped"
STOP_GRACE_S = 30.0


class StoppedModel(Record):
    """One attempt whose processes are gone, or ``problem`` says why not."""

    attempt: str
    problem: str | None = None


class DownReport(Record):
    """What ``down`` found and did. ``kept`` are attempts that were left running."""

    was_running: bool
    stopped: tuple[StoppedModel, ...] = ()
    kept: tuple[str, ...] = ()


async def stop_stack(home: Home, *, keep_models: bool, tell: Callable[[str], None] = lambda line: None) -> DownReport:
    """Stop the supervisor with its parts, then (unless kept) every model process of this host.

    In this order: with the control worker gone nothing is started again. The workflows still want their replicas, so
    that the next ``up`` brings them back.
    """
    was_running = is_running(home)
    record = read_record(home)
    processes = _processes_of(record) if record is not None else ()
    if was_running or any(process.alive() for process in processes):
        tell("stopping worker, gateway and Temporal")
        for process in processes:
            await end(process, grace_s=SHUTDOWN_LIMIT_S)
    running = await _running_attempts(home)
    if keep_models:
        return DownReport(was_running=was_running, kept=running)
    if running:
        tell(f"stopping {len(running)} model process{'es' if len(running) != 1 else ''}")
    stopped = await asyncio.gather(*(_stop_attempt(home, attempt) for attempt in running))
    return DownReport(was_running=was_running, stopped=tuple(stopped))


def _processes_of(record: StackRecord) -> tuple[ProcessRef, ...]:
    """The supervisor, which stops its parts in order; then parts that it may have left behind."""
    return (record.supervisor, *(part.process for part in record.parts if part.process is not None))


async def _running_attempts(home: Home) -> tuple[str, ...]:
    from standfast.platforms.local import LocalPlatform

    if not home.attempts.exists():
        return ()
    summaries = await LocalPlatform(home.attempts, host="local").list_attempts()
    return tuple(summary.attempt for summary in summaries if summary.phase not in ("ended", "absent"))


async def _stop_attempt(home: Home, attempt: str) -> StoppedModel:
    from standfast.platforms.base import StopUnconfirmedError
    from standfast.platforms.local import LocalPlatform

    try:
        await LocalPlatform(home.attempts, host="local").stop(attempt, STOP_REASON, STOP_GRACE_S)
    except (StopUnconfirmedError, OSError) as error:
        return StoppedModel(attempt=attempt, problem=str(error))
    return StoppedModel(attempt=attempt)
