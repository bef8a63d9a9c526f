"""The current-details pages of the workflows: small Markdown tables for somebody who has never seen the code.
Pure.
"""

import re
from datetime import UTC, datetime

from standfast.contracts import Failure, ReplicaStatus, StepProgress

_STEP_WORDS = {
    "resolve": "Pin the settings",
    "image": "Build the image",
    "plan": "Resolve the plan",
    "weights": "Fetch the weights",
    "launch": "Launch the replicas",
    "ready": "Wait until they answer",
    "validate": "Prove the generation",
    "traffic": "Switch the traffic",
    "retire": "Retire the previous generation",
}
_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|(-+\|)+")
_MARK = {"pending": "·", "running": "▶", "done": "✓", "failed": "✗", "skipped": "–"}


def clock(moment: float) -> str:
    """A moment (Unix seconds) as UTC time of day."""
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def deploy_page(
    deployment: str, generation: str | None, steps: tuple[StepProgress, ...], replicas: tuple[ReplicaStatus, ...]
) -> str:
    """The page of a deploy: its steps, then its replicas."""
    lines = [
        f"## {deployment}",
        "",
        f"Generation: `{generation or 'not resolved yet'}`",
        "",
        "| | step | |",
        "|---|---|---|",
    ]
    lines += [f"| {_MARK[step.state]} | {_STEP_WORDS[step.name]} | {_cell(step.detail)} |" for step in steps]
    if replicas:
        lines += ["", "| replica | state | attempt | |", "|---|---|---|---|"]
        lines += [f"| {r.role}/{r.replica} | {_words(r.state)} | {r.attempt} | {_cell(r.detail)} |" for r in replicas]
    return "\n".join(lines)


def replica_page(status: ReplicaStatus) -> str:
    """The page of one replica: where it is, what failed last, what comes next."""
    lines = [
        f"## {status.generation} · {status.role}/{status.replica}",
        "",
        "| | |",
        "|---|---|",
        f"| state | **{_words(status.state)}** |",
        f"| attempt | {status.attempt} |",
        f"| retry budget | {status.budget - status.spent} of {status.budget} left |",
        f"| next | {_cell(next_step(status))} |",
    ]
    if status.detail:
        lines.append(f"| detail | {_cell(status.detail)} |")
    if status.failure is not None:
        lines += ["", *_failure(status.failure)]
    return "\n".join(lines)


def plain(page: str) -> list[str]:
    """A page as lines without markup, for where Markdown is shown as it is: a row of a table is a line, its cells two
    spaces apart; the heads of tables and empty lines are left out.
    """
    lines = page.splitlines()
    kept: list[str] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if line.startswith("|"):
            if _RULE.fullmatch(line) or _RULE.fullmatch(below):
                continue
            cells = (cell.strip().replace("\\|", "|") for cell in _BAR.split(line)[1:-1])
            kept.append("  ".join(cell for cell in cells if cell))
        else:
            kept.append(line.lstrip("#").strip())
    return [line.replace("**", "").replace("`", "") for line in kept if line.strip("`")]


def next_step(status: ReplicaStatus) -> str:
    """What happens next, as a sentence."""
    when = f" at {clock(status.next_try_at)}" if status.next_try_at is not None else ""
    match status.state:
        case "placing":
            return "finding room on a host"
        case "waiting_for_capacity":
            return f"look for room again{when}; no retry is spent"
        case "launching":
            return "start the launcher"
        case "starting":
            return "wait until the model answers"
        case "ready":
            return "watch every process"
        case "stopping":
            return "confirm that everything is gone"
        case "backing_off":
            return f"next attempt{when}"
        case "budget_spent":
            return f"the budget refills{when}; `standfast retry` refills it at once"
        case "failed":
            return "nothing until `standfast retry` or a new deploy: this failure does not go away by itself"
        case "stopped":
            return "nothing: it was taken down"


def _failure(failure: Failure) -> list[str]:
    lines = [f"### Last failure: {failure.code} ({failure.kind})", "", failure.message]
    if failure.help:
        lines += ["", failure.help]
    if failure.evidence:
        lines += ["", "```", *failure.evidence[-12:], "```"]
    return lines


def _words(state: str) -> str:
    return state.replace("_", " ")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
