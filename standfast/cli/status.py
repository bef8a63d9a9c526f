"""``standfast status``."""

import asyncio
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from standfast.cli.errors import log_command
from standfast.cli.output import ago, clock, print_json, print_json_line, quiet_logs, stdout_console, text, took, words
from standfast.cli.progress import replica_line, step_line
from standfast.client import AttemptView, Client, DeploymentStatus
from standfast.contracts import Failure, ReplicaStatus

if TYPE_CHECKING:
    from rich.console import Console, Group

WATCH_S = 1.0
SHOWN_ATTEMPTS = 8
SHOWN_EVIDENCE = 6
_STYLES = {
    "serving": "green",
    "ready": "green",
    "deploying": "cyan",
    "degraded": "yellow",
    "recovering": "yellow",
    "failed": "bold red",
    "retired": "dim",
    "budget_spent": "bold yellow",
    "backing_off": "yellow",
    "waiting_for_capacity": "yellow",
    "draining": "yellow",
}


def status(*, name: str | None, watch: bool, retired: bool, as_json: bool) -> int:
    """Show deployments; see ``standfast status --help``."""
    quiet_logs()
    if watch:
        return asyncio.run(_watch(name, retired=retired, as_json=as_json))
    found = asyncio.run(_once(name, retired=retired))
    if as_json:
        documents = [one.model_dump(mode="json") for one in found]
        print_json(documents[0] if name is not None else documents)
    else:
        stdout_console().print(_picture(found, detailed=name is not None))
    return 0


async def _once(name: str | None, *, retired: bool) -> tuple[DeploymentStatus, ...]:
    async with Client.connect() as client:
        return await client.status(name, retired=retired)


async def _watch(name: str | None, *, retired: bool, as_json: bool) -> int:
    async with Client.connect() as client:
        if as_json:
            last: Any = None
            while True:
                documents = [one.model_dump(mode="json") for one in await client.status(name, retired=retired)]
                if documents != last:
                    last = documents
                    print_json_line(documents[0] if name is not None else documents)
                await asyncio.sleep(WATCH_S)
        found = await client.status(name, retired=retired)
        console = stdout_console()
        if not console.is_terminal:
            return await _print_changes(console, client, found, name, retired=retired)
        from rich.live import Live

        with Live(_picture(found, detailed=name is not None), console=console, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(WATCH_S)
                found = await client.status(name, retired=retired)
                live.update(_picture(found, detailed=name is not None), refresh=True)


async def _print_changes(
    console: "Console", client: Client, found: tuple[DeploymentStatus, ...], name: str | None, *, retired: bool
) -> int:
    """A watch into a pipe or a file: the picture, and again whenever something changed."""
    shown: tuple[DeploymentStatus, ...] | None = None
    while True:
        if found != shown:
            shown = found
            console.print(_picture(found, detailed=name is not None), "")
            console.file.flush()
        await asyncio.sleep(WATCH_S)
        found = await client.status(name, retired=retired)


def _picture(found: tuple[DeploymentStatus, ...], *, detailed: bool) -> "Group":
    from rich.console import Group

    if detailed:
        return Group(*_details(found[0]))
    if not found:
        return Group(text("Nothing is deployed. ", ("standfast deploy FILE  deploys a config.", "dim")))
    notices = {notice for one in found for notice in one.notices}
    return Group(_table(found), *(text(("! ", "yellow"), notice) for notice in sorted(notices)))


def _table(found: tuple[DeploymentStatus, ...]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    for heading in ("DEPLOYMENT", "MODEL NAME", "GENERATION", "PHASE", "READY", "LAST PROOF", "NEXT"):
        table.add_column(heading, no_wrap=heading != "NEXT", overflow="fold")
    for one in found:
        table.add_row(
            text((one.name, "bold")),
            one.served_name,
            short_generation(one.generation or (one.generations[0].id if one.generations else None)),
            text((words(one.phase), _STYLES.get(one.phase, ""))),
            text((f"{one.replicas_ready}/{one.replicas_wanted}", _ready_style(one))),
            _proof(one),
            one.next_step,
        )
    return table


def _details(one: DeploymentStatus) -> Iterator[Any]:
    yield text((one.name, "bold"), "  ", (words(one.phase), _STYLES.get(one.phase, "")))
    rows: list[tuple[str, Any]] = [
        ("served name", one.served_name),
        ("target", one.target),
        ("generation", one.generation or "none has the traffic"),
        ("replicas", f"{one.replicas_ready} of {one.replicas_wanted} ready"),
        ("last proof", _proof(one)),
        ("endpoint", one.endpoint or "-"),
        ("next", one.next_step),
    ]
    for label, value in rows:
        yield text((f"  {label:<13}", "dim"), value)
    for notice in one.notices:
        yield text(("  ! ", "yellow"), notice)
    if one.deploy is not None:
        yield text()
        yield text(("deploy", "bold"), (f"  {one.deploy_url}" if one.deploy_url else "", "dim"))
        now = time.time()
        for step in one.deploy.steps:
            yield step_line(step, now)
    if one.replicas:
        yield text()
        yield text(("replicas", "bold"))
        for replica in one.replicas:
            yield replica_line(replica)
            yield from _budget(replica)
    if one.attempts:
        yield text()
        yield text(("attempts", "bold"), ("  newest first", "dim"))
        for attempt in one.attempts[:SHOWN_ATTEMPTS]:
            yield _attempt(attempt)
        if len(one.attempts) > SHOWN_ATTEMPTS:
            yield text((f"      … and {len(one.attempts) - SHOWN_ATTEMPTS} earlier", "dim"))
    failure, of = _last_failure(one)
    if failure is not None:
        yield text()
        yield from _why(one.name, failure, of)


def _budget(replica: ReplicaStatus) -> Iterator[Any]:
    if replica.budget and replica.spent:
        left = replica.budget - replica.spent
        yield text((f"        retry budget: {left} of {replica.budget} attempts left", "dim"))


def _attempt(attempt: AttemptView) -> Any:
    ready = f"ready after {took(attempt.ready_at - attempt.started_at)}" if attempt.ready_at is not None else ""
    if attempt.ended_at is not None:
        span = f"ended after {took(attempt.ended_at - attempt.started_at)}"
    elif attempt.ready_at is not None:
        span = f"up for {took(time.time() - attempt.ready_at)}"
    else:
        span = f"since {took(time.time() - attempt.started_at)}"
    mark, style = ("✓", "green") if attempt.phase == "ready" else ("✗", "red") if attempt.failure else ("·", "dim")
    cause = f"{attempt.failure.kind}: {attempt.failure.code}" if attempt.failure is not None else ""
    return text(
        (f"    {mark} ", style),
        f"{short_generation(attempt.generation)} {attempt.role}/{attempt.replica} attempt {attempt.number}  ",
        (f"{clock(attempt.started_at)}  ", "dim"),
        ", ".join(part for part in (ready, span) if part),
        (f"  {cause}" if cause else "", "red"),
    )


def _last_failure(one: DeploymentStatus) -> tuple[Failure | None, str | None]:
    """The failure that explains why things are not as they should be, with the attempt it is about."""
    for replica in one.replicas:
        if replica.failure is not None:
            return replica.failure, replica.failure.attempt
    if one.phase == "failed" and one.generations and one.generations[0].failure is not None:
        return one.generations[0].failure, one.generations[0].failure.attempt
    return None, None


def _why(name: str, failure: Failure, attempt: str | None) -> Iterator[Any]:
    yield text(("why the last one failed", "bold"), (f"  {failure.kind}: {failure.code}", "dim"))
    yield text(f"  {failure.message}")
    for line in failure.evidence[-SHOWN_EVIDENCE:]:
        yield text(("    │ ", "dim"), line)
    if failure.help:
        yield text(("   = help: ", "bold cyan"), failure.help)
    if attempt is not None:
        yield text(("   = log: ", "bold cyan"), log_command(name, attempt))


def short_generation(generation: str | None) -> str:
    """The digest of a generation, without its name."""
    return "-" if generation is None else generation.rpartition("@")[2]


def _proof(one: DeploymentStatus) -> Any:
    proof = one.last_proof
    if proof is None:
        return text(("none yet", "dim"))
    word, style = ("passed", "green") if proof.passed else ("failed", "bold red")
    return text((word, style), (f" {ago(proof.created_at)}", "dim"))


def _ready_style(one: DeploymentStatus) -> str:
    return "green" if one.replicas_ready >= one.replicas_wanted > 0 else "yellow"
