"""How the command line prints: people read lines, programs read JSON."""

import json
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

WIDTH_WITHOUT_TERMINAL = 120


def stdout_console() -> "Console":
    """Where results go."""
    return _console(stderr=False)


def stderr_console() -> "Console":
    """Where errors and notices go."""
    return _console(stderr=True)


def _console(*, stderr: bool) -> "Console":
    from rich.console import Console

    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() else WIDTH_WITHOUT_TERMINAL
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=width, emoji=False)


def print_json(document: Any) -> None:
    """One JSON document, readable."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_json_line(document: Any) -> None:
    """One JSON document on one line, at once."""
    print(json.dumps(document, ensure_ascii=False, separators=(",", ":")), flush=True)


def quiet_logs() -> None:
    """Keep the library's own log lines off the screen, but for warnings, which go to stderr."""
    import structlog

    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(30),
        logger_factory=lambda *_: structlog.PrintLogger(sys.stderr),
    )


def text(*parts: str | tuple[str, str]) -> "Any":
    """A line of plain parts and ``(text, style)`` parts; nothing in it is read as markup."""
    from rich.text import Text

    return Text.assemble(*parts)


def took(seconds: float) -> str:
    """A length of time for people: ``0.4 s``, ``12 s``, ``2 min 05 s``, ``3 h 20 min``."""
    seconds = max(0.0, seconds)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def ago(moment: float, now: float | None = None) -> str:
    """How long ago a moment (Unix seconds) was."""
    return f"{took((time.time() if now is None else now) - moment)} ago"


def clock(moment: float) -> str:
    """A moment (Unix seconds) in local time; the date too when it is not today."""
    local = datetime.fromtimestamp(moment).astimezone()
    today = datetime.now().astimezone().date()
    return f"{local:%H:%M:%S}" if local.date() == today else f"{local:%Y-%m-%d %H:%M:%S}"


def words(state: str) -> str:
    """``waiting_for_capacity`` as people write it."""
    return state.replace("_", " ")


def print_hints(console: "Console", hints: list[tuple[str, str]]) -> None:
    """Commands, each with what it does."""
    width = max(len(command) for command, _ in hints) + 2
    for command, does in hints:
        console.print(text(f"  {command:<{width}}", (does, "dim")))
