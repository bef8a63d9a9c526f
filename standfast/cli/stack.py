"""``standfast up`` and ``standfast down``."""

import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from standfast.cli.output import print_json, print_json_line, quiet_logs, stderr_console, stdout_console, text
from standfast.home import Home
from standfast.stack.record import (
    LAST_WORD,
    PartRecord,
    StackRecord,
    api_key_path,
    is_running,
    read_api_key,
    running_stack,
)

if TYPE_CHECKING:
    from rich.console import Console

    from standfast.stack.supervisor import StackFailedError, StackSettings

POLL_S = 0.1
_LOG = "stack.log"


def up(
    *,
    detach: bool,
    gateway_port: int | None,
    gateway_host: str,
    temporal_port: int | None,
    ui_port: int | None,
    as_json: bool,
) -> int:
    """Start the stack; see ``standfast up --help``."""
    from standfast.stack.supervisor import StackSettings

    settings = StackSettings(
        home=Home.default(),
        temporal_port=temporal_port,
        ui_port=ui_port,
        gateway_port=gateway_port,
        gateway_host=gateway_host,
    )
    if detach:
        record, started = start_detached(settings, None if as_json else Reporter(stdout_console()))
        if as_json:
            print_json(_document(settings.home, record))
        else:
            _print_ready(settings.home, record, started=started)
        return 0
    return _up_foreground(settings, as_json=as_json)


def _up_foreground(settings: "StackSettings", *, as_json: bool) -> int:
    from standfast.stack.supervisor import StackRunningError, Supervisor, run_until_signalled

    reporter = Reporter(stdout_console())
    announced = False

    def observe(record: StackRecord) -> None:
        nonlocal announced
        if as_json:
            print_json_line(record.model_dump(mode="json"))
            return
        reporter(record)
        if record.state == "ready" and not announced:
            announced = True
            _print_ready(settings.home, record, started=True)
            stdout_console().print(
                text(("\n  Ctrl-C stops the stack. Models keep running and are taken over by the next `up`;", "dim")),
                text(("\n  `standfast down` stops them too.", "dim")),
                sep="",
            )

    async def supervise() -> None:
        await run_until_signalled(Supervisor(settings, observe))

    try:
        asyncio.run(supervise())
    except StackRunningError as error:
        return _already_running(settings.home, error.record, as_json=as_json)
    return 0


def start_detached(
    settings: "StackSettings", reporter: "Reporter | None" = None, *, patience_s: float = 180.0
) -> tuple[StackRecord, bool]:
    """The running stack of a home, started in the background if need be; returns when everything answers.

    The flag says whether it was started now. Raises `UserError` when it does not come up.
    """
    from standfast.stack.child import log_tail
    from standfast.stack.supervisor import StackFailedError

    home = settings.home
    started = not is_running(home)
    log = home.logs / _LOG
    process = _spawn(settings) if started else None
    began = time.time()
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        record = running_stack(home)
        if record is not None and (not started or record.started_at >= began - 1.0):
            if reporter is not None:
                reporter(record)
            if record.state == "ready":
                return record, started
        if process is not None and process.poll() is not None:
            if not is_running(home):
                raise _failure_of(log, process.returncode)
            started, process = False, None  # another `up` was quicker: its stack is the one to wait for
        if process is None and record is None:
            started, process, began = True, _spawn(settings), time.time()  # the one we saw was on its way out
        time.sleep(POLL_S)
    raise StackFailedError(
        f"the stack did not answer within {patience_s:.0f} s.", tail=log_tail(log), help=f"Its log is {log}."
    )


def _spawn(settings: "StackSettings") -> "subprocess.Popen[bytes]":
    home = settings.home
    for directory in (home.root, home.logs):
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    given = {
        "home": str(home.root),
        "temporal_port": settings.temporal_port,
        "ui_port": settings.ui_port,
        "gateway_port": settings.gateway_port,
        "gateway_host": settings.gateway_host,
    }
    with (home.logs / _LOG).open("ab") as log:  # appended to, since another `up` may write to it at this moment
        log.truncate(0)
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "standfast.stack", json.dumps(given)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd="/",
        )


def _failure_of(log: Path, returncode: int) -> "StackFailedError":
    """Why a background supervisor ended: its own last word, else the end of its log."""
    from standfast.stack.child import exit_text, log_tail
    from standfast.stack.supervisor import StackFailedError

    lines = log_tail(log, 30)
    if lines and lines[-1].startswith(LAST_WORD):
        word = json.loads(lines[-1].removeprefix(LAST_WORD))
        return StackFailedError(word["message"], tail=tuple(word["tail"]), help=word["help"], exit_code=returncode)
    return StackFailedError(
        f"the stack ended with {exit_text(returncode)} before it answered.", tail=lines, help=f"Its log is {log}."
    )


def down(*, keep_models: bool, as_json: bool) -> int:
    """Stop the stack; see ``standfast down --help``."""
    from standfast.stack.shutdown import stop_stack

    quiet_logs()
    home = Home.default()
    notes = stderr_console()
    report = asyncio.run(
        stop_stack(
            home,
            keep_models=keep_models,
            tell=lambda line: None if as_json else notes.print(text((f"  {line}", "dim"))),
        )
    )
    failed = [model for model in report.stopped if model.problem is not None]
    if as_json:
        print_json(report.model_dump(mode="json"))
        return 1 if failed else 0
    console = stdout_console()
    console.print(
        text(("✓ ", "green"), "the stack is stopped")
        if report.was_running
        else text(f"the stack of {home.root} was not running")
    )
    for model in report.stopped:
        console.print(
            text(("✓ ", "green"), f"stopped {model.attempt}")
            if model.problem is None
            else text(("✗ ", "bold red"), f"{model.attempt}: {model.problem}")
        )
    for attempt in report.kept:
        console.print(text(("● ", "green"), f"{attempt} keeps running"))
    if report.kept:
        console.print(text(("  `standfast up` takes them over; `standfast down` stops them.", "dim")))
    elif report.stopped:
        console.print(
            text(("  They come back with the next `standfast up`; `standfast deprecate NAME` retires one.", "dim"))
        )
    return 1 if failed else 0


def _already_running(home: Home, record: StackRecord | None, *, as_json: bool) -> int:
    if as_json:
        print_json(_document(home, record) if record is not None else {"state": "running"})
        return 0
    console = stdout_console()
    console.print(text(("● ", "green"), f"the stack of {home.root} is already running"))
    if record is not None:
        for part in record.parts:
            console.print(_part_line(record, part))
        _print_ready(home, record, started=False)
    return 0


def _document(home: Home, record: StackRecord) -> dict[str, Any]:
    return {**record.model_dump(mode="json"), "api_key_file": str(api_key_path(home))}


class Reporter:
    """Prints a line for every part that starts to answer, dies or comes back."""

    def __init__(self, console: "Console") -> None:
        self._console = console
        self._shown: dict[str, tuple[str, int]] = {}
        self._notices: set[str] = set()
        self._begun = False

    def __call__(self, record: StackRecord) -> None:
        if not self._begun:
            self._begun = True
            self._console.print(text(("Standfast ", "bold"), ("starting the stack", "dim")))
        for notice in record.notices:
            if notice not in self._notices:
                self._notices.add(notice)
                self._console.print(text(("  ! ", "yellow"), notice))
        for part in record.parts:
            seen = (part.state, part.restarts)
            if self._shown.get(part.name) != seen:
                self._shown[part.name] = seen
                if part.state in ("ready", "restarting") or (part.state == "stopped" and record.state == "stopping"):
                    self._console.print(_part_line(record, part))


def _part_line(record: StackRecord, part: PartRecord) -> Any:
    where = {
        "temporal": record.temporal.address + (f"   UI {record.temporal.ui}" if record.temporal.ui else ""),
        "worker": "runs workflows and this machine's activities",
        "gateway": record.gateway,
    }[part.name]
    mark, style = {
        "ready": ("✓", "green"),
        "restarting": ("↻", "yellow"),
        "stopped": ("·", "dim"),
        "stopping": ("·", "dim"),
    }.get(part.state, ("…", "dim"))
    if part.state == "restarting":
        where = part.detail
    elif part.state == "stopped":
        where = "stopped"
    extra = part.detail if part.state == "ready" else ""
    return text((f"  {mark} ", style), f"{part.name:<10}", where, (f"   {extra}" if extra else "", "dim"))


def _print_ready(home: Home, record: StackRecord, *, started: bool) -> None:
    console = stdout_console()
    if not started:
        console.print(text(("● ", "green"), "the stack is running"))
    console.print()
    print_where(home, record)


def print_where(home: Home, record: StackRecord) -> None:
    """Where the stack answers, and the key to it."""
    console = stdout_console()
    rows = [("gateway", f"{record.gateway}/v1"), ("Temporal UI", record.temporal.ui or "(not known)")]
    if not record.temporal.managed:
        rows.append(("Temporal", f"{record.temporal.address}, namespace {record.temporal.namespace} (not ours)"))
    key = read_api_key(home)
    if key is not None:
        rows += [("API key", key), ("", f"(kept in {api_key_path(home)})")]
    rows.append(("logs", str(home.logs)))
    for label, value in rows:
        console.print(text((f"  {label:<13}", "dim"), value))
