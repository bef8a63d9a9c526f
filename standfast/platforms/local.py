"""The local platform: launchers as detached processes of this host."""

import asyncio
import os
import shutil
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import structlog

from standfast.plans.facts import BoundReplica
from standfast.plans.record import canonical_json
from standfast.platforms.attempts import (
    AttemptFiles,
    attempt_of,
    create_json,
)
from standfast.platforms.base import (
    AttemptConflictError,
    AttemptSummary,
    Launch,
    LaunchedAttempt,
    LaunchError,
    MissingSecretError,
    Observation,
    Outcome,
    StopReport,
)
from standfast.platforms.logs import read_log
from standfast.platforms.observing import Observer
from standfast.platforms.stopping import Stop

#: How a launcher is started: isolated, so that neither the current directory nor PYTHON* variables choose its code.
LAUNCHER = (sys.executable, "-I", "-m", "workers.launcher")

#: What a launcher gets from this process's environment beside the secrets; engines get no more than that either.
BASE_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")

_START_TIMEOUT_S = 60.0
_FACTS_TIMEOUT_S = 20.0
_POLL_S = 0.05
_Standing = Literal["absent", "live", "finished"]
_log = structlog.get_logger(__name__)


class LocalPlatform:
    """Launchers as detached processes of this host, found again by attempt name after any restart.

    ``root`` is `standfast.home.Home.attempts`; ``environment`` (default: this process's) is where secrets are read.
    Nothing is kept in memory but what observations were last, so any number of these may serve one root.
    """

    def __init__(
        self,
        root: Path,
        *,
        host: str,
        address: str = "127.0.0.1",
        environment: Mapping[str, str] | None = None,
        launcher: tuple[str, ...] = LAUNCHER,
    ) -> None:
        self.root = root
        self._host = host
        self._address = address
        self._environment = os.environ if environment is None else environment
        self._launcher = launcher
        self._observer = Observer(root)

    # -- launch --------------------------------------------------------------------------------------------------

    async def launch(self, launch: Launch) -> LaunchedAttempt:
        """See `standfast.platforms.base.Platform.launch`."""
        files = AttemptFiles(self.root, launch.attempt)
        await asyncio.to_thread(self._claim_name, files, launch)
        standings = await asyncio.to_thread(self._standings, files, launch)
        missing = [rank for rank, standing in standings.items() if standing == "absent"]
        if missing and "finished" not in standings.values():
            environment = self._launcher_environment(launch.secrets)
            await asyncio.gather(*(self._start_launcher(files, rank, environment) for rank in missing))
        deadline = time.monotonic() + _FACTS_TIMEOUT_S
        while True:
            standings = await asyncio.to_thread(self._standings, files, launch)
            if "finished" in standings.values():
                return await asyncio.to_thread(self._describe, files, launch, "finished")
            if "absent" not in standings.values():
                outcome: Outcome = "started" if missing else "adopted"
                _log.info("launched", attempt=launch.attempt, outcome=outcome)
                return await asyncio.to_thread(self._describe, files, launch, outcome)
            if time.monotonic() >= deadline:
                raise LaunchError(f"a launcher of {launch.attempt} did not report within {_FACTS_TIMEOUT_S:.0f} s")
            await asyncio.sleep(_POLL_S)

    def _claim_name(self, files: AttemptFiles, launch: Launch) -> None:
        """Write down what is launched under the name. A stop that comes later finds it."""
        held = create_json(files.launch, launch.model_dump(mode="json"))
        if held != canonical_json(launch.model_dump(mode="json")):
            raise AttemptConflictError(
                f"attempt {launch.attempt} was launched before with other ranks, ports or secrets"
            )

    def _standings(self, files: AttemptFiles, launch: Launch) -> dict[int, _Standing]:
        # A request to stop uses the name up, whether or not a launcher has seen it yet.
        stopped = files.stop.exists()
        return {rank: "finished" if stopped else self._standing(files, rank) for rank in launch.ranks}

    def _standing(self, files: AttemptFiles, rank: int) -> _Standing:
        state = files.read_state(rank)
        if state is None or state.phase == "waiting":
            return "live" if state is not None and self._observer.launcher_alive(state) else "absent"
        # An engine may have run: whether it ended or its launcher was lost, this name is used up.
        return "live" if state.phase != "ended" and self._observer.launcher_alive(state) else "finished"

    def _describe(self, files: AttemptFiles, launch: Launch, outcome: Outcome) -> LaunchedAttempt:
        facts = [files.read_facts(rank) for rank in launch.ranks]
        return LaunchedAttempt(
            attempt=launch.attempt,
            directory=files.directory,
            outcome=outcome,
            ranks=tuple(rank for rank in facts if rank is not None),
        )

    def _launcher_environment(self, secrets: tuple[str, ...]) -> dict[str, str]:
        for name in secrets:
            if name not in self._environment:
                raise MissingSecretError(name)
        names = {*BASE_VARIABLES, *secrets}
        return {name: self._environment[name] for name in sorted(names) if name in self._environment}

    async def _start_launcher(self, files: AttemptFiles, rank: int, environment: Mapping[str, str]) -> None:
        arguments = (str(files.directory), "--rank", str(rank), "--host", self._host, "--address", self._address)
        process = await asyncio.create_subprocess_exec(
            *self._launcher,
            *arguments,
            "--detach",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
        )
        try:
            async with asyncio.timeout(_START_TIMEOUT_S):
                _, errors = await process.communicate()
        except TimeoutError:
            process.kill()
            raise LaunchError(f"the launcher of rank {rank} of {files.attempt} did not start in time") from None
        if process.returncode:
            lines = errors.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
            raise LaunchError(f"the launcher of rank {rank} of {files.attempt} did not start: {lines[-1]}")

    async def start(
        self, attempt: str, bound: BoundReplica, *, stop_grace_s: float, working_directory: Path | None = None
    ) -> None:
        """See `standfast.platforms.base.Platform.start`."""
        files = AttemptFiles(self.root, attempt)
        if bound.attempt != attempt:
            raise AttemptConflictError(f"the commands of {bound.attempt} cannot start attempt {attempt}")
        value = {
            "schema_version": 1,
            "attempt": attempt,
            "digest": bound.digest,
            "ranks": {
                str(rank.rank): {
                    "argv": list(rank.argv),
                    "environment": dict(rank.environment),
                    "secrets": dict(rank.secrets),
                    "working_directory": None if working_directory is None else str(working_directory),
                    "stop_grace_s": stop_grace_s,
                }
                for rank in bound.ranks
            },
        }
        held = await asyncio.to_thread(create_json, files.bound, value)
        if held != canonical_json(value):
            raise AttemptConflictError(f"attempt {attempt} was started before with another command")

    # -- observe -------------------------------------------------------------------------------------------------

    async def observe(self, attempt: str) -> Observation:
        """See `standfast.platforms.base.Platform.observe`."""
        # Not in another thread: a look is two calls of stat and one read of /proc, less than it costs to hand it over.
        return self._observer.observe(attempt)

    # -- stop ----------------------------------------------------------------------------------------------------

    async def stop(self, attempt: str, reason: str, grace_s: float) -> StopReport:
        """See `standfast.platforms.base.Platform.stop`."""
        files = AttemptFiles(self.root, attempt)
        report = await Stop(files, reason=reason, grace_s=grace_s).carry_out()
        self._observer.forget(attempt)
        _log.info("stopped", attempt=attempt, outcome=report.outcome, open_ports=report.open_ports)
        return report

    # -- what is left --------------------------------------------------------------------------------------------

    def read_log(self, attempt: str, rank: int, offset: int, limit: int = 1 << 20) -> tuple[bytes, int]:
        """See `standfast.platforms.base.Platform.read_log`."""
        return read_log(AttemptFiles(self.root, attempt).log(rank), offset, limit)

    async def list_attempts(self) -> tuple[AttemptSummary, ...]:
        """See `standfast.platforms.base.Platform.list_attempts`."""
        return await asyncio.to_thread(self._list_attempts)

    def _list_attempts(self) -> tuple[AttemptSummary, ...]:
        if not self.root.is_dir():
            return ()
        directories = sorted(entry for entry in self.root.iterdir() if entry.is_dir() and entry.name[0] != ".")
        return tuple(self._summary(attempt_of(directory)) for directory in directories)

    def _summary(self, attempt: str) -> AttemptSummary:
        observation = self._observer.observe(attempt)
        return AttemptSummary(
            attempt=attempt,
            directory=AttemptFiles(self.root, attempt).directory,
            phase=observation.phase,
            launcher_alive=observation.launcher_alive,
        )

    async def remove(self, attempt: str) -> None:
        """See `standfast.platforms.base.Platform.remove`."""
        files = AttemptFiles(self.root, attempt)
        observation = await self.observe(attempt)
        if observation.ranks and observation.phase != "ended":
            raise AttemptConflictError(f"attempt {attempt} has not ended ({observation.phase}): stop it first")
        self._observer.forget(attempt)
        await asyncio.to_thread(shutil.rmtree, files.directory, ignore_errors=True)
