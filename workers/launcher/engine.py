"""The engine's command: read from ``bound.json``, completed with secrets, started in its own session."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.launcher import linux
from workers.launcher.processes import ATTEMPT_VARIABLE, RANK_VARIABLE

#: What an engine gets from the launcher's own environment; everything else comes from the plan.
BASE_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

#: Exit codes for engines that never ran, as shells and ``env`` use them.
UNUSABLE, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127


class CommandError(Exception):
    """The engine cannot be started: ``code`` stands in for its exit code."""

    def __init__(self, message: str, code: int = UNUSABLE) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Command:
    """What one rank runs. ``secrets`` maps variables of the engine to names of secrets."""

    attempt: str
    rank: int
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    secrets: Mapping[str, str]
    working_directory: str | None
    stop_grace_s: float


def parse_command(bound: Mapping[str, Any], rank: int) -> Command:
    """The command of ``rank`` in ``bound.json``. Raises `CommandError` naming the field that is wrong."""
    if bound.get("schema_version") != 1:
        raise CommandError(f"bound.json: schema_version is {bound.get('schema_version')!r}; this launcher knows 1")
    attempt = bound.get("attempt")
    if not isinstance(attempt, str) or not attempt:
        raise CommandError("bound.json: attempt must be text")
    ranks = bound.get("ranks")
    entry = ranks.get(str(rank)) if isinstance(ranks, dict) else None
    if not isinstance(entry, dict):
        raise CommandError(f"bound.json: ranks has no entry {rank}")
    where = f"bound.json: ranks.{rank}"
    argv = entry.get("argv")
    if not isinstance(argv, list) or not argv or not all(isinstance(token, str) for token in argv):
        raise CommandError(f"{where}.argv must be a list of text that is not empty")
    directory = entry.get("working_directory")
    if directory is not None and not isinstance(directory, str):
        raise CommandError(f"{where}.working_directory must be text or null")
    grace = entry.get("stop_grace_s", 30.0)
    if isinstance(grace, bool) or not isinstance(grace, (int, float)) or grace < 0:
        raise CommandError(f"{where}.stop_grace_s must be a number of seconds")
    secrets = entry.get("secrets", {})
    if isinstance(secrets, list):
        secrets = {name: name for name in secrets}
    return Command(
        attempt=attempt,
        rank=rank,
        argv=tuple(argv),
        environment=_texts(entry.get("environment", {}), f"{where}.environment"),
        secrets=_texts(secrets, f"{where}.secrets"),
        working_directory=directory,
        stop_grace_s=float(grace),
    )


def _texts(value: object, where: str) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(k, str) and isinstance(v, str) for k, v in value.items()):
        raise CommandError(f"{where} must map text to text")
    return value


def secret_values(command: Command, own: Mapping[str, str]) -> dict[str, str]:
    """The engine's secret variables, read from the launcher's ``own`` environment. Raises `CommandError` naming one
    missing.
    """
    for variable, name in command.secrets.items():
        if name not in own:
            raise CommandError(f"the secret {name} (variable {variable}) is not in the launcher's environment")
    return {variable: own[name] for variable, name in command.secrets.items()}


def build_environment(command: Command, own: Mapping[str, str]) -> dict[str, str]:
    """The engine's whole environment: base variables, the plan's, secrets, and the marks by which its processes are
    found.
    """
    environment = {name: own[name] for name in BASE_VARIABLES if name in own}
    # Keeps setproctitle from overwriting the memory that /proc/PID/environ shows, and with it the marks.
    environment["SPT_NOENV"] = "1"
    environment.update(command.environment)
    environment.update(secret_values(command, own))
    environment[ATTEMPT_VARIABLE] = command.attempt
    environment[RANK_VARIABLE] = str(command.rank)
    return environment


def spawn(
    command: Command, environment: Mapping[str, str], output: int, working_directory: str
) -> subprocess.Popen[bytes]:
    """Start the engine: leader of its own session, output to ``output``, killed by the kernel should this process die.

    Raises `CommandError` if it cannot be executed.
    """
    directory = command.working_directory or working_directory
    try:
        return subprocess.Popen(
            command.argv,
            executable=_find(command.argv[0], environment.get("PATH", os.defpath), directory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=dict(environment),
            cwd=directory,
            start_new_session=True,
            preexec_fn=linux.die_with(os.getpid()),
        )
    except FileNotFoundError as error:
        raise CommandError(f"cannot start {command.argv[0]}: {error.strerror}: {error.filename}", NOT_FOUND) from error
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise CommandError(f"cannot start {command.argv[0]}: {reason}", NOT_EXECUTABLE) from error


def _find(program: str, path: str, directory: str) -> str:
    """``program`` as the engine's own PATH finds it, not the launcher's."""
    if "/" in program:
        return program
    for entry in path.split(os.pathsep):
        candidate = Path(directory, entry, program)
        if candidate.is_file() and os.access(candidate, os.X_OK):
            return str(candidate)
    raise FileNotFoundError(2, "No such file in PATH", program)
