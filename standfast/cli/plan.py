"""``standfast plan``."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from standfast.cli.loading import Selection, select
from standfast.cli.output import print_json, quiet_logs, stdout_console, text
from standfast.client.preview import PlanComparison, PlanPreview, preview
from standfast.problems import Problem, ProblemsError

if TYPE_CHECKING:
    from standfast.plans.diff import Change


def plan(*, file: Path, names: tuple[str, ...], target: str, as_json: bool, diff: bool = False) -> int:
    """Show plans; see ``standfast plan --help``. Problems of all deployments are reported together."""
    selection = select(file, names, target)
    shown: Sequence[PlanPreview | PlanComparison]
    if diff:
        quiet_logs()
        shown = asyncio.run(_compare(selection))
    else:
        shown = selection.each(lambda deployment: preview(deployment, target=selection.target))
    if as_json:
        print_json([one.document() for one in shown])
        return 0
    console = stdout_console()
    for index, one in enumerate(shown):
        if index:
            console.print()
        if isinstance(one, PlanComparison):
            _print_difference(one)
        else:
            _print(one)
    return 0


async def _compare(selection: Selection) -> list[PlanComparison]:
    from standfast.client import Client

    compared: list[PlanComparison] = []
    problems: list[Problem] = []
    async with Client.connect() as client:
        for deployment in selection:
            try:
                compared.append(await client.compare(deployment, target=selection.target))
            except ProblemsError as error:
                problems += selection.catalog.locate(deployment.name, error.problems)
    if problems:
        raise ProblemsError(tuple(problems))
    return compared


def _print(one: PlanPreview) -> None:
    console = stdout_console()
    for index, line in enumerate(one.lines()):
        heading = index == 0 or (line and not line.startswith(" "))
        label, rest = line[:18], line[18:]
        if heading:
            console.print(text((line, "bold")))
        elif line.startswith("  ") and line[2:3] != " " and label.rstrip() and rest and label.endswith(" "):
            console.print(text((label, "dim"), rest))
        else:
            console.print(text(line))
    _print_notes(one)


def _print_difference(one: PlanComparison) -> None:
    console = stdout_console()
    found, planned = one.difference, one.preview
    against = f"against {found.before}, which serves" if found.before is not None else "nothing serves yet"
    console.print(text((f"{planned.deployment} on {planned.target}", "bold"), f"  ({against})"))
    if found.before is None or found.identical:
        console.print(text(f"  {found.lines()[0]}"))
    for title, changes in (("settings", found.settings), ("plan", found.plan)):
        _print_changes(title, changes)
    if found.worker_apps:
        console.print(text(("worker apps", "bold")))
    for app in found.worker_apps:
        console.print(text(("  " + app.render(), "green" if app.reused else "")))
    _print_notes(planned)


def _print_changes(title: str, changes: Sequence["Change"]) -> None:
    console = stdout_console()
    if changes:
        console.print(text((title, "bold")))
    for change in changes:
        console.print(text(("  " + change.render(), "")))


def _print_notes(one: PlanPreview) -> None:
    for note in one.notes:
        stdout_console().print(text(("  note: ", "bold yellow"), note))
