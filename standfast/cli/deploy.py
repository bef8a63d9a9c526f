"""``standfast deploy``."""

import asyncio
from pathlib import Path
from typing import Any

from standfast.cli.errors import (
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    error_document,
    exit_code,
    report,
)
from standfast.cli.loading import Selection, select
from standfast.cli.options import seconds
from standfast.cli.output import print_hints, print_json, quiet_logs, stderr_console, stdout_console, text
from standfast.cli.progress import DeployView, follow
from standfast.client import Client, DeployHandle
from standfast.contracts import DeployResult
from standfast.problems import ProblemsError, UserError
from standfast.spec import Deployment
from standfast.stack.record import running_stack


def deploy(*, file: Path, names: tuple[str, ...], target: str, wait: bool, timeout: str | None, as_json: bool) -> int:
    """Deploy from a config file; see ``standfast deploy --help``."""
    quiet_logs()
    selection = select(file, names, target)
    timeout_s = seconds("--timeout", timeout)
    command = " ".join(["standfast deploy", str(file), *names])
    try:
        return asyncio.run(_deploy(selection, wait=wait, timeout_s=timeout_s, as_json=as_json))
    except KeyboardInterrupt:
        if as_json:
            print_json({"detached": [d.name for d in selection], "exit_code": EXIT_INTERRUPTED})
        else:
            _print_detached(selection.deployments, command)
        return EXIT_INTERRUPTED


async def _deploy(selection: Selection, *, wait: bool, timeout_s: float | None, as_json: bool) -> int:
    async with Client.connect() as client:
        handles = [
            await client.deploy(deployment, target=selection.target, wait=False, config_file=selection.file)
            for deployment in selection
        ]
        if not wait:
            return _print_accepted(handles, as_json=as_json)
        views = [DeployView(handle.deployment, selection.target) for handle in handles]
        if not as_json:
            _print_started(handles)
        outcomes = await follow(client, handles, views, timeout_s=timeout_s, as_json=as_json)
        for index, (handle, outcome) in enumerate(zip(handles, outcomes, strict=True)):
            if isinstance(outcome, ProblemsError):
                outcomes[index] = ProblemsError(selection.catalog.locate(handle.deployment, outcome.problems))
        status = _print_outcomes(client, handles, outcomes, as_json=as_json)
        if not as_json:
            await _tell_what_is_missing(client, outcomes)
        return status


def cancel(name: str, *, as_json: bool) -> int:
    """Cancel the running deploy of a name."""

    async def ask() -> DeployHandle:
        async with Client.connect() as client:
            return await client.cancel_deploy(name)

    handle = asyncio.run(ask())
    if as_json:
        print_json({"deployment": name, "cancelled": True, "workflow_url": handle.url})
        return 0
    stdout_console().print(
        text(("✓ ", "green"), f"the deploy of {name} was asked to end; it takes down what it started")
    )
    stdout_console().print(text((f"  standfast status {name} --watch", "dim"), ("  shows it", "dim")))
    return 0


def _print_started(handles: list[DeployHandle]) -> None:
    console = stdout_console()
    for handle in handles:
        if handle.attached:
            console.print(text(("● ", "cyan"), f"joined the running deploy of {handle.deployment}"))
        if handle.url is not None:
            console.print(text(("  Temporal UI  ", "dim"), handle.url))


def _print_accepted(handles: list[DeployHandle], *, as_json: bool) -> int:
    if as_json:
        print_json({"exit_code": EXIT_OK, "deployments": [_handle_document(handle) for handle in handles]})
        return EXIT_OK
    console = stdout_console()
    for handle in handles:
        what = "is running already" if handle.attached else "is accepted"
        console.print(text(("✓ ", "green"), f"the deploy of {handle.deployment} {what}"))
        if handle.url is not None:
            console.print(text(("  Temporal UI  ", "dim"), handle.url))
    console.print(text(("  standfast status --watch  shows how it goes on", "dim")))
    return 0


def _handle_document(handle: DeployHandle) -> dict[str, Any]:
    return {
        "deployment": handle.deployment,
        "attached": handle.attached,
        "workflow_id": handle.workflow_id,
        "run_id": handle.run_id,
        "workflow_url": handle.url,
    }


def _print_outcomes(
    client: Client,
    handles: list[DeployHandle],
    outcomes: list[DeployResult | UserError | ProblemsError],
    *,
    as_json: bool,
) -> int:
    stack = running_stack(client.home)
    endpoint = f"{stack.gateway}/v1" if stack is not None else None
    documents: list[dict[str, Any]] = []
    codes: set[int] = set()
    for handle, outcome in zip(handles, outcomes, strict=True):
        if isinstance(outcome, DeployResult):
            documents.append({**outcome.model_dump(mode="json"), "endpoint": endpoint, "workflow_url": handle.url})
            if not as_json:
                _print_result(outcome, endpoint)
            continue
        error = outcome
        documents.append({"deployment": handle.deployment, **error_document(error), "workflow_url": handle.url})
        codes.add(exit_code(error))
        if not as_json:
            report(error, as_json=False)
            if isinstance(error, ProblemsError) and handle.url is not None:
                stderr_console().print(text(("   = UI: ", "bold cyan"), handle.url))
    status = EXIT_OK if not codes else codes.pop() if len(codes) == 1 else EXIT_FAILED
    if as_json:
        print_json({"exit_code": status, "deployments": documents})
    return status


def _print_result(result: DeployResult, endpoint: str | None) -> None:
    console = stdout_console()
    console.print(text(("✓ ", "bold green"), (result.message, "bold")))
    if endpoint is not None:
        console.print(text(("  endpoint  ", "dim"), endpoint, ("   model  ", "dim"), result.served_name))


async def _tell_what_is_missing(client: Client, outcomes: list[DeployResult | UserError | ProblemsError]) -> None:
    """An unchanged deployment may be short of replicas at the moment; its deploy does not wait for them."""
    for outcome in outcomes:
        if isinstance(outcome, DeployResult) and not outcome.changed:
            (now,) = await client.status(outcome.deployment)
            if now.replicas_ready < now.replicas_wanted:
                ready = f"{now.replicas_ready} of {now.replicas_wanted} replicas of {now.name} are ready"
                stdout_console().print(text(("! ", "yellow"), f"{ready}: {now.next_step}"))


def _print_detached(deployments: tuple[Deployment, ...], command: str) -> None:
    console = stderr_console()
    names = ", ".join(deployment.name for deployment in deployments)
    console.print(text(("\nDetached. ", "bold"), f"The deploy of {names} goes on."))
    first = deployments[0].name
    hints = [
        (f"standfast status {first} --watch", "watch it"),
        (command, "join it again"),
        (f"standfast deploy --cancel {first}", "cancel it"),
    ]
    print_hints(console, hints)
