"""``standfast doctor``."""

import asyncio
import dataclasses

from standfast.cli.errors import EXIT_FAILED, EXIT_OK, EXIT_UNREACHABLE
from standfast.cli.output import print_json, quiet_logs, stdout_console, text
from standfast.client.checkup import Finding, check_everything
from standfast.home import Home

_MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "bold red"), "skipped": ("–", "dim")}


def doctor(*, as_json: bool) -> int:
    """Check every part; see ``standfast doctor --help``. 3 when Temporal or the stack is not reachable."""
    quiet_logs()
    home = Home.default()
    findings = asyncio.run(check_everything(home))
    status = _status(findings)
    if as_json:
        print_json(
            {"home": str(home.root), "exit_code": status, "findings": [dataclasses.asdict(one) for one in findings]}
        )
        return status
    console = stdout_console()
    console.print(text(("Standfast ", "bold"), (str(home.root), "dim")))
    for one in findings:
        mark, style = _MARKS[one.verdict]
        console.print(text((f"  {mark} ", style), f"{one.part:<18}", one.message))
        if one.help and one.verdict in ("warning", "failed"):
            console.print(text(" " * 22, ("fix: ", "bold cyan"), one.help))
    broken = sum(one.verdict == "failed" for one in findings)
    console.print(
        text(("All is well.", "green")) if not broken else text((f"{broken} to fix.", "bold red"), " The rest works.")
    )
    return status


def _status(findings: tuple[Finding, ...]) -> int:
    failed = [one for one in findings if one.verdict == "failed"]
    if not failed:
        return EXIT_OK
    return EXIT_UNREACHABLE if any(one.unreachable for one in failed) else EXIT_FAILED
