"""The verbs and their options. Each verb's work is in a module of its own, imported when it runs."""

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

EXIT_CODES = (
    "Exit codes: 0 done; 1 the operation failed (the verdict is printed); 2 wrong use or a refused config; "
    "3 Temporal or the stack is not reachable; 4 timed out; 130 interrupted or detached with Ctrl-C."
)
EPILOG = (
    f"{EXIT_CODES}\n\nState is kept in ~/.standfast, or in $STANDFAST_HOME. "
    "TEMPORAL_* variables and profiles point at another Temporal."
)

DEPLOYMENTS = "Deployments"
STACK = "This machine"

app = typer.Typer(
    name="standfast",
    help="Keeps model deployments standing: typed configs in, proven and standing model endpoints out.",
    epilog=EPILOG,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The deployment.")]
File = Annotated[Path, typer.Argument(metavar="FILE", help="A Python config file.", show_default=False)]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="NAME", help="Which deployments of the file; default: all.", show_default=False),
]
Target = Annotated[
    str, typer.Option("--target", metavar="TARGET", help="Where to: local, or FILE[:NAME] with a Target.")
]
Timeout = Annotated[
    str | None,
    typer.Option("--timeout", metavar="TIME", help="Wait at most this long (such as 90s or 15m); it goes on then."),
]


def _verb(panel: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Register a verb; its help is its docstring with paragraphs as single lines, which the terminal wraps."""

    def register(function: Callable[..., None]) -> Callable[..., None]:
        paragraphs = inspect.cleandoc(function.__doc__ or "").split("\n\n")
        text = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
        return app.command(rich_help_panel=panel, help=text, epilog=EXIT_CODES)(function)

    return register


def _end(status: int) -> None:
    if status:
        raise typer.Exit(status)


# -- this machine


@_verb(STACK)
def up(
    detach: Annotated[bool, typer.Option("--detach", "-d", help="Return when everything answers.")] = False,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=0, max=65535, metavar="PORT", help="The gateway's port (8080 or the next free one; 0: any)."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="The address on which the gateway listens.")
    ] = "127.0.0.1",
    temporal_port: Annotated[
        int | None,
        typer.Option(
            "--temporal-port", min=0, max=65535, metavar="PORT", help="Temporal's port (7233 or the next free one)."
        ),
    ] = None,
    ui_port: Annotated[
        int | None,
        typer.Option(
            "--ui-port", min=0, max=65535, metavar="PORT", help="The Temporal UI's port (8233 or the next free one)."
        ),
    ] = None,
    json: Json = False,
) -> None:
    """Start the embedded stack: Temporal with its UI, the control worker and the gateway.

    Stays in the foreground until Ctrl-C, unless detached. With TEMPORAL_ADDRESS or TEMPORAL_PROFILE set that Temporal
    is used and none is started.
    """
    from standfast.cli.stack import up as run

    _end(
        run(
            detach=detach,
            gateway_port=port,
            gateway_host=host,
            temporal_port=temporal_port,
            ui_port=ui_port,
            as_json=json,
        )
    )


@_verb(STACK)
def down(
    keep_models: Annotated[
        bool, typer.Option("--keep-models", help="Leave model processes running; the next `up` takes them over.")
    ] = False,
    json: Json = False,
) -> None:
    """Stop the stack and the model processes of this machine.

    Nothing is retired: what is deployed comes back with the next `up`.
    """
    from standfast.cli.stack import down as run

    _end(run(keep_models=keep_models, as_json=json))


@_verb(STACK)
def doctor(json: Json = False) -> None:
    """Check the stack, Temporal, the registry, the gateway, this machine and the packages; say what to fix."""
    from standfast.cli.doctor import doctor as run

    _end(run(as_json=json))


@_verb(STACK)
def quickstart(
    file: Annotated[Path | None, typer.Argument(metavar="FILE", help="Default: configs/quickstart.py.")] = None,
    question: Annotated[
        str, typer.Option("--ask", metavar="TEXT", help="What to ask the model.")
    ] = "What is the capital of France?",
) -> None:
    """Start the stack, deploy a small real model, ask it a question, and show how to call it."""
    from standfast.cli.quickstart import quickstart as run

    _end(run(file=file, question=question))


@_verb(STACK)
def version(json: Json = False) -> None:
    """Print the version."""
    from standfast.cli.version import version as run

    _end(run(as_json=json))


# -- deployments


@_verb(DEPLOYMENTS)
def plan(
    file: File,
    names: Names = None,
    target: Target = "local",
    diff: Annotated[bool, typer.Option("--diff", help="Show what would change of what is serving instead.")] = False,
    json: Json = False,
) -> None:
    """Show what a deploy would run. Changes nothing, and asks nobody but, with --diff, the registry."""
    from standfast.cli.plan import plan as run

    _end(run(file=file, names=tuple(names or ()), target=target, diff=diff, as_json=json))


@_verb(DEPLOYMENTS)
def deploy(
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="A Python config file.", show_default=False)
    ] = None,
    names: Names = None,
    target: Target = "local",
    no_wait: Annotated[bool, typer.Option("--no-wait", help="Return once the deploys are accepted.")] = False,
    timeout: Timeout = None,
    cancel: Annotated[
        str | None, typer.Option("--cancel", metavar="NAME", help="Cancel the running deploy of NAME instead.")
    ] = None,
    json: Json = False,
) -> None:
    """Bring deployments to what their config says, and wait until they serve.

    Ctrl-C detaches: the deploy goes on, and the same command joins it again. The generation that serves keeps its
    traffic until the new one has proven itself.
    """
    from standfast.cli.deploy import cancel as run_cancel
    from standfast.cli.deploy import deploy as run

    if cancel is not None:
        if file is not None or no_wait or timeout is not None:
            raise typer.BadParameter("give --cancel alone, or a FILE to deploy", param_hint="--cancel")
        _end(run_cancel(cancel, as_json=json))
        return
    if file is None:
        raise typer.BadParameter("a config file is needed, such as configs/quickstart.py", param_hint="FILE")
    _end(run(file=file, names=tuple(names or ()), target=target, wait=not no_wait, timeout=timeout, as_json=json))


@_verb(DEPLOYMENTS)
def status(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="One deployment, in detail.")] = None,
    watch: Annotated[
        bool, typer.Option("--watch", "-w", help="Keep it on screen; with --json a line per look.")
    ] = False,
    everything: Annotated[bool, typer.Option("--all", "-a", help="Retired deployments too.")] = False,
    json: Json = False,
) -> None:
    """Show what stands, what is being tried, why it failed, and what comes next."""
    from standfast.cli.status import status as run

    _end(run(name=name, watch=watch, retired=everything, as_json=json))


@_verb(DEPLOYMENTS)
def logs(
    name: Name,
    replica: Annotated[int, typer.Option("--replica", "-r", metavar="N", min=0, help="Which replica.")] = 0,
    attempt: Annotated[
        str | None, typer.Option("--attempt", metavar="ATTEMPT", help="Its number or full name (the newest).")
    ] = None,
    rank: Annotated[int, typer.Option("--rank", metavar="N", min=0, help="Which rank of the replica.")] = 0,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on with what comes, later attempts too.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", "-n", metavar="N", min=0, help="Only the last lines.")] = None,
    json: Json = False,
) -> None:
    """Print what an engine wrote."""
    from standfast.cli.logs import logs as run

    _end(run(name=name, replica=replica, attempt=attempt, rank=rank, follow=follow, tail=tail, as_json=json))


@_verb(DEPLOYMENTS)
def retry(
    name: Name,
    replica: Annotated[
        int | None, typer.Option("--replica", "-r", metavar="N", min=0, help="Only this replica.")
    ] = None,
    json: Json = False,
) -> None:
    """Refill the retry budget and try again at once."""
    from standfast.cli.operations import retry as run

    _end(run(name=name, replica=replica, as_json=json))


@_verb(DEPLOYMENTS)
def validate(name: Name, timeout: Timeout = None, json: Json = False) -> None:
    """Prove again that the serving generation answers."""
    from standfast.cli.operations import validate as run

    _end(run(name=name, timeout=timeout, as_json=json))


@_verb(DEPLOYMENTS)
def deprecate(
    name: Name,
    generation: Annotated[
        str | None,
        typer.Option("--generation", "-g", metavar="ID", help="Only this generation, not the whole deployment."),
    ] = None,
    reason: Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for those who look later.")] = "",
    drain: Annotated[str, typer.Option("--drain", metavar="TIME", help="How long open requests may take.")] = "5m",
    timeout: Timeout = None,
    json: Json = False,
) -> None:
    """Retire a deployment: no new requests, open ones finish, then it stops and its resources are free."""
    from standfast.cli.operations import deprecate as run

    _end(run(name=name, generation=generation, reason=reason, drain=drain, timeout=timeout, as_json=json))
