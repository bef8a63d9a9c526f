"""A deploy on the screen: one line per step, and one per replica under the step that waits for it."""

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from standfast.cli.output import clock, stderr_console, stdout_console, text, took, words
from standfast.client import Client, DeployHandle
from standfast.contracts import DeployResult, DeployStatus, ReplicaStatus, StepProgress, attempt_name
from standfast.problems import ProblemsError, UserError

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

TITLES = {
    "resolve": "Pin the settings",
    "image": "Build the image",
    "plan": "Resolve the plan",
    "weights": "Fetch the weights",
    "launch": "Launch the replicas",
    "ready": "Wait for the model",
    "validate": "Prove that it answers",
    "traffic": "Switch the traffic",
    "retire": "Retire the previous one",
}
_MARKS = {
    "pending": ("·", "dim"),
    "running": ("▸", "cyan"),
    "done": ("✓", "green"),
    "failed": ("✗", "bold red"),
    "skipped": ("–", "dim"),
}
LISTEN_S = 0.5
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_TITLE_WIDTH = max(map(len, TITLES.values())) + 2


class DeployView:
    """What is known of one deploy; renders itself with the time that passes."""

    def __init__(self, name: str, target: str) -> None:
        self.name = name
        self.target = target
        self.status: DeployStatus | None = None
        self.notice = ""
        self.said: dict[int, str] = {}
        """The last log line of each replica's engine, while it starts."""

    def update(self, status: DeployStatus) -> None:
        """Take a new status in."""
        self.status = status
        self.notice = ""

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        now = time.time()
        generation = self.status.generation if self.status is not None else None
        yield text(
            (self.name, "bold"), (f" to {self.target}", "dim"), (f"   {generation}" if generation else "", "dim")
        )
        for line in self._lines(now):
            line.truncate(options.max_width, overflow="ellipsis")
            yield line

    def _lines(self, now: float) -> Iterator[Any]:
        if self.status is None:
            yield text((f"  {_frame(now)} ", "cyan"), ("waiting for the control worker to take it up", "dim"))
        else:
            for step in self.status.steps:
                yield step_line(step, now)
                if step.name == "ready" and step.state in ("running", "failed"):
                    for replica in self.status.replicas:
                        yield replica_line(replica)
                        if replica.state == "starting" and self.said.get(replica.replica):
                            yield text(("        │ " + self.said[replica.replica], "dim"))
        if self.notice:
            yield text(("  ! ", "yellow"), self.notice)


def step_line(step: StepProgress, now: float) -> Any:
    """A step with its mark, what it works on, and its time."""
    mark, style = _MARKS[step.state]
    if step.state == "running":
        mark = _frame(now)
    time_taken = ""
    if step.started_at is not None and step.state != "skipped":
        time_taken = took((step.ended_at or now) - step.started_at)
    title_style = "bold" if step.state == "running" else "dim" if step.state in ("pending", "skipped") else ""
    return text(
        (f"  {mark} ", style),
        (f"{TITLES[step.name]:<{_TITLE_WIDTH}}", title_style),
        (f"{time_taken:>12}  ", "dim"),
        _first_line(step.detail) if step.state != "skipped" else "",
    )


def replica_line(replica: ReplicaStatus) -> Any:
    """A replica's attempt: what it does, why the last one failed, when the next one comes."""
    parts: list[str | tuple[str, str]] = [
        (f"      {replica.role}/{replica.replica}  ", "dim"),
        f"attempt {replica.attempt}, {words(replica.state)}" if replica.attempt else words(replica.state),
    ]
    if replica.next_try_at is not None and replica.state != "waiting_for_capacity":
        parts.append((f", next try at {clock(replica.next_try_at)}", "yellow"))
    if replica.detail:
        parts.append((f": {_first_line(replica.detail)}", "red" if replica.state == "failed" else "dim"))
    if replica.failure is not None and replica.state not in ("failed", "backing_off", "budget_spent"):
        parts.append((f"   (before: {replica.failure.code})", "dim"))
    return text(*parts)


def _first_line(sentence: str) -> str:
    return sentence.partition("\n")[0]


def _frame(now: float) -> str:
    return _FRAMES[int(now * 10) % len(_FRAMES)]


class ScreenProgress:
    """Deploys drawn in place on a terminal."""

    def __init__(self, views: list[DeployView]) -> None:
        self._views = views

    def progress(self, view: DeployView) -> Callable[[DeployStatus], None]:
        """What to call with each new status of one deploy."""
        return view.update

    def notice(self, view: DeployView) -> Callable[[str], None]:
        """What to call with a sentence about one deploy."""

        def show(sentence: str) -> None:
            view.notice = sentence

        return show

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Draw while the block runs; the last picture stays."""
        from rich.console import Group
        from rich.live import Live

        with Live(
            Group(*self._views),
            console=stdout_console(),
            refresh_per_second=8,
            vertical_overflow="visible",
            redirect_stdout=False,
            redirect_stderr=False,
        ):
            yield


class LineProgress:
    """A line per change, for logs and pipes."""

    def __init__(self, views: list[DeployView], console: "Console") -> None:
        self._console = console
        self._several = len(views) > 1
        self._steps: dict[tuple[str, str], str] = {}
        self._replicas: dict[tuple[str, int], tuple[str, int]] = {}
        self._notices: dict[str, str] = {}

    def progress(self, view: DeployView) -> Callable[[DeployStatus], None]:
        """What to call with each new status of one deploy."""

        def changed(status: DeployStatus) -> None:
            view.update(status)
            self._notices.pop(view.name, None)
            for step in status.steps:
                self._print_step(view, step)
            for replica in status.replicas:
                self._print_replica(view, replica)

        return changed

    def notice(self, view: DeployView) -> Callable[[str], None]:
        """What to call with a sentence about one deploy."""

        def show(sentence: str) -> None:
            if self._notices.get(view.name) == sentence:
                return
            self._notices[view.name] = sentence
            self._print(view, text(("  ! ", "yellow"), sentence))

        return show

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Nothing to set up: lines are printed as they come."""
        yield

    def _print_step(self, view: DeployView, step: StepProgress) -> None:
        if step.state in ("pending", "skipped") or self._steps.get((view.name, step.name)) == step.state:
            return
        self._steps[view.name, step.name] = step.state
        mark, style = _MARKS[step.state]
        title = f"{TITLES[step.name]:<{_TITLE_WIDTH}}"
        time_taken = ""
        if step.started_at is not None and step.ended_at is not None and step.state in ("done", "failed"):
            time_taken = took(step.ended_at - step.started_at)
        self._print(view, text((f"  {mark} ", style), title, (f"{time_taken:>12}  ", "dim"), _first_line(step.detail)))

    def _print_replica(self, view: DeployView, replica: ReplicaStatus) -> None:
        seen = (replica.state, replica.attempt)
        if self._replicas.get((view.name, replica.replica)) != seen:
            self._replicas[view.name, replica.replica] = seen
            self._print(view, replica_line(replica))

    def _print(self, view: DeployView, line: Any) -> None:
        self._console.print(text((f"{view.name}: ", "dim")) + line if self._several else line)


async def listen(client: Client, views: list[DeployView]) -> None:
    """Keep the last log lines of starting engines in the views, until cancelled."""
    while True:
        for view in views:
            for replica in view.status.replicas if view.status is not None else ():
                if replica.state == "starting" and replica.attempt:
                    attempt = attempt_name(replica.generation, replica.role, replica.replica, replica.attempt)
                    view.said[replica.replica] = await client.last_log_line(attempt)
                else:
                    view.said.pop(replica.replica, None)
        await asyncio.sleep(LISTEN_S)


async def follow(
    client: Client, handles: list[DeployHandle], views: list[DeployView], *, timeout_s: float | None, as_json: bool
) -> list[DeployResult | UserError | ProblemsError]:
    """Show deploys until all of them have ended; how each one did."""
    progress = make_progress(views, as_json=as_json)

    async def one(handle: DeployHandle, view: DeployView) -> DeployResult | UserError | ProblemsError:
        try:
            return await handle.result(
                timeout_s=timeout_s, on_progress=progress.progress(view), on_notice=progress.notice(view)
            )
        except (UserError, ProblemsError) as error:
            return error

    listening = asyncio.create_task(listen(client, views)) if isinstance(progress, ScreenProgress) else None
    try:
        with progress.shown():
            return await asyncio.gather(*(one(handle, view) for handle, view in zip(handles, views, strict=True)))
    finally:
        if listening is not None:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


def make_progress(views: list[DeployView], *, as_json: bool) -> ScreenProgress | LineProgress:
    """The way to show deploys that fits where the output goes; with JSON on stdout it goes to stderr."""
    if as_json:
        return LineProgress(views, stderr_console())
    return ScreenProgress(views) if sys.stdout.isatty() else LineProgress(views, stdout_console())
