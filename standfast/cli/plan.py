"""``standfast plan``."""

from pathlib import Path

from standfast.cli.loading import select
from standfast.cli.output import print_json, stdout_console, text
from standfast.client.preview import PlanPreview, preview


def plan(*, file: Path, names: tuple[str, ...], target: str, as_json: bool) -> int:
    """Show plans; see ``standfast plan --help``. Problems of all deployments are reported together."""
    selection = select(file, names, target)
    previews = selection.each(lambda deployment: preview(deployment, target=selection.target))
    if as_json:
        print_json([one.document() for one in previews])
        return 0
    console = stdout_console()
    for index, one in enumerate(previews):
        if index:
            console.print()
        _print(one)
    return 0


def _print(one: PlanPreview) -> None:
    console = stdout_console()
    lines = one.lines() or (
        f"{one.deployment} on {one.target}",
        f"  image           {one.image_name} {one.image_digest[:12]} (not built yet)",
    )
    for index, line in enumerate(lines):
        heading = index == 0 or (line and not line.startswith(" "))
        label, rest = line[:18], line[18:]
        if heading:
            console.print(text((line, "bold")))
        elif line.startswith("  ") and line[2:3] != " " and label.rstrip() and rest and label.endswith(" "):
            console.print(text((label, "dim"), rest))
        else:
            console.print(text(line))
    for note in one.notes:
        console.print(text(("  note: ", "bold yellow"), note))
