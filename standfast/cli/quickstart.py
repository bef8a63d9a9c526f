"""``standfast quickstart``: from nothing to an answer of a real model."""

import asyncio
import json
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import standfast
from standfast.cli.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, report
from standfast.cli.loading import select
from standfast.cli.output import print_hints, quiet_logs, stderr_console, stdout_console, text, took
from standfast.cli.progress import DeployView, follow
from standfast.cli.stack import Reporter, print_where, start_detached
from standfast.client import Client
from standfast.contracts import DeployResult
from standfast.home import Home
from standfast.problems import UserError
from standfast.spec import Deployment
from standfast.stack.record import read_api_key
from standfast.stack.supervisor import StackSettings

ANSWER_TOKENS = 48
ANSWER_TIMEOUT_S = 120.0
READY_TIMEOUT_S = 300.0
"""How long a model that was deployed before may take to come back up."""


def quickstart(*, file: Path | None, question: str) -> int:
    """Start, deploy, ask, show; see ``standfast quickstart --help``."""
    quiet_logs()
    began = time.monotonic()
    chosen = file or shipped_config()
    deployment = select(chosen, ()).deployments[0]
    home = Home.default()
    command = f"standfast deploy {shlex.quote(str(chosen))}"
    try:
        record, started = start_detached(StackSettings(home=home), Reporter(stdout_console()))
        if not started:
            stdout_console().print(text(("● ", "green"), "the stack is running"))
        stdout_console().print()
        result, url = asyncio.run(_deploy(deployment, chosen))
        if result is None:
            return EXIT_FAILED
        stdout_console().print()
        key = read_api_key(home)
        answer = _ask(record.gateway, key, result.served_name, question)
    except KeyboardInterrupt:
        _print_interrupted(deployment.name, command)
        return EXIT_INTERRUPTED
    _print_answer(question, answer, took(time.monotonic() - began))
    print_where(home, record)
    if url is not None:
        stdout_console().print(text((f"  {'workflow':<13}", "dim"), url))
    _print_snippets(record.gateway, key, result.served_name, question)
    return EXIT_OK


def shipped_config() -> Path:
    """``configs/quickstart.py`` of this checkout, else the one below the current directory. Raises `UserError`."""
    assert standfast.__file__ is not None
    relative = Path("configs") / "quickstart.py"
    for place in (Path(standfast.__file__).resolve().parent.parent, Path.cwd()):
        if (place / relative).is_file():
            return place / relative
    raise UserError(
        f"{relative} was not found.",
        help="Run this in a checkout of Standfast, or name a config: `standfast quickstart FILE`.",
    )


async def _deploy(deployment: Deployment, file: Path) -> tuple[DeployResult | None, str | None]:
    async with Client.connect() as client:
        handle = await client.deploy(deployment, wait=False, config_file=file)
        if handle.url is not None:
            stdout_console().print(text(("  watch it in the Temporal UI: ", "dim"), handle.url))
        view = DeployView(deployment.name, "local")
        (outcome,) = await follow(client, [handle], [view], timeout_s=None, as_json=False)
    if isinstance(outcome, DeployResult):
        return outcome, handle.url
    report(outcome, as_json=False)
    return None, handle.url


def _ask(gateway: str, key: str | None, model: str, question: str) -> Iterator[str]:
    """The pieces of the model's answer as they stream in through the gateway. Raises `UserError`."""
    import httpx

    body = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "max_tokens": ANSWER_TOKENS,
        "temperature": 0,
        "stream": True,
    }
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    deadline = time.monotonic() + READY_TIMEOUT_S
    waiting = False
    try:
        with httpx.Client(timeout=ANSWER_TIMEOUT_S, trust_env=False) as http:
            while True:
                with http.stream("POST", f"{gateway}/v1/chat/completions", json=body, headers=headers) as response:
                    if response.status_code == 200:
                        for line in response.iter_lines():
                            if piece := _piece(line):
                                yield piece
                        return
                    response.read()
                if response.status_code != 503 or time.monotonic() > deadline:
                    raise UserError(
                        f"the gateway answered {response.status_code}: {response.text[:300]}",
                        help="`standfast status` and `standfast doctor` tell more.",
                        exit_code=EXIT_FAILED,
                    )
                if not waiting:
                    waiting = True
                    notice = "the model is coming back up; waiting for it (`standfast status` tells more)"
                    stderr_console().print(text(("! ", "yellow"), notice))
                time.sleep(min(float(response.headers.get("Retry-After", "1")), 5.0))
    except httpx.HTTPError as error:
        raise UserError(
            f"the gateway at {gateway} did not answer: {error}",
            help="`standfast doctor` checks it.",
            exit_code=EXIT_FAILED,
        ) from None


def _piece(line: str) -> str:
    """The text in one server-sent event of a chat completion."""
    data = line.removeprefix("data: ")
    if data == line or data == "[DONE]":
        return ""
    event: dict[str, Any] = json.loads(data)
    choices = event.get("choices") or [{}]
    return str(choices[0].get("delta", {}).get("content") or "")


def _print_answer(question: str, pieces: Iterator[str], took_so_far: str) -> None:
    console = stdout_console()
    console.print(text(("? ", "bold cyan"), (question, "bold")))
    indent = "  "
    for piece in pieces:
        sys.stdout.write(indent + piece.replace("\n", "\n  "))
        sys.stdout.flush()
        indent = ""
    print()
    console.print(text((f"  (from the command to the question: {took_so_far})", "dim")))


def _print_snippets(gateway: str, key: str | None, model: str, question: str) -> None:
    console = stdout_console()
    body = json.dumps(
        {"model": model, "messages": [{"role": "user", "content": question}], "max_tokens": ANSWER_TOKENS}
    )
    console.print(text(("\nWith curl", "bold")))
    print(f"curl -s {gateway}/v1/chat/completions \\")
    print(f"  -H 'Authorization: Bearer {key or 'KEY'}' \\")
    print("  -H 'Content-Type: application/json' \\")
    print(f"  -d {shlex.quote(body)}")
    console.print(text(("\nWith the OpenAI client", "bold"), ("  pip install openai", "dim")))
    print("from openai import OpenAI")
    print()
    print(f'client = OpenAI(base_url="{gateway}/v1", api_key="{key or "KEY"}")')
    print("answer = client.chat.completions.create(")
    print(f"    model={json.dumps(model)},")
    print(f'    messages=[{{"role": "user", "content": {json.dumps(question)}}}],')
    print(f"    max_tokens={ANSWER_TOKENS},")
    print(")")
    print("print(answer.choices[0].message.content)")
    console.print(
        text(
            ("\nstandfast status", "bold"),
            ("  what stands     ", "dim"),
            ("standfast down", "bold"),
            ("  stop it all", "dim"),
        )
    )


def _print_interrupted(name: str, command: str) -> None:
    console = stderr_console()
    console.print(text(("\nInterrupted. ", "bold"), "The stack stays up, and a deploy that was accepted goes on."))
    hints = [
        (f"standfast status {name} --watch", "watch it"),
        (command, "join it again"),
        (f"standfast deploy --cancel {name}", "cancel it"),
        ("standfast down", "stop everything"),
    ]
    print_hints(console, hints)
