"""How the command line refuses: every error in three parts, never a traceback."""

import os
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from standfast.cli.output import print_json, stderr_console, text
from standfast.contracts import Failure
from standfast.home import Home
from standfast.problems import ProblemsError, UserError, redact

EXIT_OK = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_TIMED_OUT = 4
EXIT_INTERRUPTED = 130

_LABELS = {"error:": "bold red", "  -->": "blue", "   = help:": "bold cyan", "   = given:": "bold cyan", "    │": "dim"}


def report(error: BaseException, *, as_json: bool) -> int:
    """Print an error; returns the exit code that goes with it."""
    error = in_our_words(error)
    if as_json:
        print_json(error_document(error))
    elif isinstance(error, ProblemsError):
        _print_problems(error)
    else:
        _print_refusal(error)
    return exit_code(error)


def in_our_words(error: BaseException) -> UserError | ProblemsError:
    """Any error as one that can be shown. The traceback of an unexpected one is kept in a log."""
    if isinstance(error, UserError | ProblemsError):
        return error
    if _is_from_temporal(error):
        return _temporal_error(error)
    refusal = Home.default().refusal(error) if isinstance(error, OSError) else None
    if refusal is not None:
        return refusal
    if os.environ.get("STANDFAST_DEBUG") == "1":
        traceback.print_exception(error)
    log = _keep_traceback(error)
    where = f"The traceback is in {log}." if log is not None else "STANDFAST_DEBUG=1 shows the traceback."
    return UserError(
        f"unexpected {type(error).__name__}: {_first_line(error)}",
        help=f"This is a fault of Standfast. {where}",
        exit_code=EXIT_FAILED,
    )


def exit_code(error: UserError | ProblemsError) -> int:
    """The exit code of an error."""
    return error.exit_code if isinstance(error, UserError) else EXIT_USAGE


def error_document(error: UserError | ProblemsError) -> dict[str, Any]:
    """An error as JSON values."""
    if isinstance(error, ProblemsError):
        return {"error": "refused", "exit_code": EXIT_USAGE, "problems": error.to_json()}
    document: dict[str, Any] = {
        "error": redact(error.message),
        "help": redact(error.help),
        "exit_code": error.exit_code,
    }
    if error.where:
        document["where"] = error.where
    failure = getattr(error, "failure", None)
    if isinstance(failure, Failure):
        shown = failure.model_copy(update={"evidence": tuple(redact(line) for line in failure.evidence)})
        document["failure"] = shown.model_dump(mode="json")
    for extra in ("tail", "workflow_url"):
        if value := getattr(error, extra, None):
            document[extra] = value
    return document


def print_failure(failure: Failure, *, deployment: str | None = None) -> None:
    """A verdict: what failed, what the log said, what to do, and where the rest is."""
    console = stderr_console()
    console.print(text("  ", (redact(failure.message), "bold")))
    if failure.evidence:
        of = f" of {failure.attempt}" if failure.attempt else ""
        console.print(text((f"  the log{of} says:", "dim")))
        for line in failure.evidence:
            console.print(text(("    │ ", "dim"), redact(line)))
    if failure.help:
        console.print(text(("   = help: ", "bold cyan"), failure.help))
    if deployment is not None and failure.attempt:
        console.print(text(("   = log: ", "bold cyan"), log_command(deployment, failure.attempt)))


def log_command(deployment: str, attempt: str) -> str:
    """The command that prints an attempt's whole log."""
    return f"standfast logs {deployment} --attempt {attempt}"


def _print_problems(error: ProblemsError) -> None:
    for problem in error.problems:
        _print_rendered(problem.render())
    count = len(error.problems)
    stderr_console().print(text((f"{count} problem{'s' if count != 1 else ''}; nothing was started.", "dim")))


def _print_rendered(rendered: str) -> None:
    """Add colour to what `Problem.render` and `UserError.render` wrote."""
    console = stderr_console()
    for line in rendered.splitlines():
        for label, style in _LABELS.items():
            if line.startswith(label):
                console.print(text((label, style), (line.removeprefix(label), "bold" if label == "error:" else "")))
                break
        else:
            console.print(text(line))


def _print_refusal(error: UserError) -> None:
    console = stderr_console()
    failure: Failure | None = getattr(error, "failure", None)
    if failure is not None:
        deployment: str | None = getattr(error, "deployment", None)
        what = f"{getattr(error, 'operation', 'operation')} {deployment} failed"
        console.print(text((f"✗ {what}", "bold red"), (f"  {failure.kind}: {failure.code}", "dim")))
        print_failure(failure, deployment=deployment)
    else:
        tail: tuple[str, ...] = getattr(error, "tail", ())
        first, *rest = error.render().splitlines()
        _print_rendered("\n".join([first, *(f"    │ {redact(line)}" for line in tail), *rest]))
    url: str | None = getattr(error, "workflow_url", None)
    if url is not None:
        console.print(text(("   = UI: ", "bold cyan"), url))


def _keep_traceback(error: BaseException) -> Path | None:
    log = Home.default().logs / "cli.log"
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("a") as file:
            file.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S%z')} {' '.join(map(redact, sys.argv[1:]))}\n")
            traceback.print_exception(error, file=file)
    except OSError:
        return None
    return log


def _is_from_temporal(error: BaseException) -> bool:
    """A refused or failed call to Temporal, recognised without importing its client."""
    return type(error).__module__.startswith("temporalio.") and hasattr(error, "status")


def _temporal_error(error: BaseException) -> UserError:
    status = str(getattr(getattr(error, "status", None), "name", ""))
    if status in ("UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED"):
        return UserError(
            f"Temporal does not answer: {_first_line(error)}",
            help="`standfast doctor` checks each part; `standfast up` starts the stack.",
            exit_code=EXIT_UNREACHABLE,
        )
    return UserError(
        f"Temporal refused: {_first_line(error)}",
        help="The Temporal UI shows the workflow; `standfast doctor` checks namespace and workers.",
        exit_code=EXIT_FAILED,
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return lines[0][:300] if lines else type(error).__name__
