"""``standfast retry``, ``validate`` and ``deprecate``."""

import asyncio

from standfast.cli.errors import EXIT_FAILED, EXIT_OK
from standfast.cli.options import seconds
from standfast.cli.output import print_json, quiet_logs, stdout_console, text, took
from standfast.client import Client, RetryOutcome, ValidationOutcome
from standfast.contracts import DeprecateResult


def retry(*, name: str, replica: int | None, as_json: bool) -> int:
    """Refill budgets and try again; see ``standfast retry --help``."""
    quiet_logs()

    async def ask() -> tuple[RetryOutcome, ...]:
        async with Client.connect() as client:
            return await client.retry(name, replica=replica)

    outcomes = asyncio.run(ask())
    if as_json:
        print_json([outcome.model_dump(mode="json") for outcome in outcomes])
        return EXIT_OK
    console = stdout_console()
    for outcome in outcomes:
        where = f"{outcome.generation} {outcome.role}/{outcome.replica}"
        mark = ("✓ ", "green") if outcome.outcome == "retrying" else ("· ", "dim")
        console.print(text(mark, f"{where}: {outcome.message}"))
    if any(outcome.outcome == "retrying" for outcome in outcomes):
        console.print(text((f"  standfast status {name} --watch  shows it", "dim")))
    return EXIT_OK


def validate(*, name: str, timeout: str | None, as_json: bool) -> int:
    """Prove again; see ``standfast validate --help``."""
    quiet_logs()
    timeout_s = seconds("--timeout", timeout)

    async def ask() -> ValidationOutcome:
        async with Client.connect() as client:
            return await client.validate(name, timeout_s=timeout_s)

    if as_json:
        outcome = asyncio.run(ask())
        print_json(outcome.model_dump(mode="json"))
        return EXIT_OK if outcome.report.passed else EXIT_FAILED
    console = stdout_console()
    if console.is_terminal:
        with console.status(f"proving {name}", spinner="dots"):
            outcome = asyncio.run(ask())
    else:
        outcome = asyncio.run(ask())
    report = outcome.report
    for probe in report.probes:
        mark = ("  ✓ ", "green") if probe.passed else ("  ✗ ", "bold red")
        console.print(
            text(
                mark,
                f"{probe.probe:<12}",
                (f"replica {probe.replica}  {took(probe.took_s):>8}  ", "dim"),
                probe.message,
            )
        )
        if not probe.passed:
            console.print(text(("      asked: ", "dim"), probe.request))
            console.print(text(("      got:   ", "dim"), probe.response))
    verdict = ("✓ proof passed", "bold green") if report.passed else ("✗ proof failed", "bold red")
    console.print(text(verdict, f"  {report.generation}", (f"  {took(report.took_s)}", "dim")))
    if outcome.workflow_url is not None:
        console.print(text(("  Temporal UI  ", "dim"), outcome.workflow_url))
    return EXIT_OK if report.passed else EXIT_FAILED


def deprecate(*, name: str, generation: str | None, reason: str, drain: str, timeout: str | None, as_json: bool) -> int:
    """Retire; see ``standfast deprecate --help``."""
    quiet_logs()
    drain_s = seconds("--drain", drain)
    timeout_s = seconds("--timeout", timeout)
    assert drain_s is not None

    async def ask() -> DeprecateResult:
        async with Client.connect() as client:
            return await client.deprecate(
                name, generation=generation, reason=reason, drain_timeout_s=drain_s, timeout_s=timeout_s
            )

    console = stdout_console()
    if console.is_terminal and not as_json:
        with console.status(f"retiring {generation or name}: open requests finish first", spinner="dots"):
            result = asyncio.run(ask())
    else:
        result = asyncio.run(ask())
    if as_json:
        print_json(result.model_dump(mode="json"))
    else:
        console.print(text(("✓ ", "green"), result.message))
    return EXIT_OK
