"""The local platform: launchers as detached processes of this host."""

import sys
from collections.abc import Mapping
from pathlib import Path

from standfast.plans.records import BoundReplica
from standfast.platforms.base import AttemptSummary, Launch, LaunchedAttempt, Observation, StopReport

#: How a launcher is started: isolated, so that neither the current directory nor PYTHON* variables choose its code.
LAUNCHER = (sys.executable, "-I", "-m", "workers.launcher")


class LocalPlatform:
    """Launchers as detached processes of this host, found again by attempt name after any restart.

    ``root`` is `standfast.home.Home.attempts`; ``environment`` (default: this process's) is where secrets are read.
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

    async def launch(self, launch: Launch) -> LaunchedAttempt:
        """See `standfast.platforms.base.Platform.launch`."""
        raise NotImplementedError

    async def start(
        self, attempt: str, bound: BoundReplica, *, stop_grace_s: float, working_directory: Path | None = None
    ) -> None:
        """See `standfast.platforms.base.Platform.start`."""
        raise NotImplementedError

    async def observe(self, attempt: str) -> Observation:
        """See `standfast.platforms.base.Platform.observe`."""
        raise NotImplementedError

    async def stop(self, attempt: str, reason: str, grace_s: float) -> StopReport:
        """See `standfast.platforms.base.Platform.stop`."""
        raise NotImplementedError

    def read_log(self, attempt: str, rank: int, offset: int, limit: int = 1 << 20) -> tuple[bytes, int]:
        """See `standfast.platforms.base.Platform.read_log`."""
        raise NotImplementedError

    async def list_attempts(self) -> tuple[AttemptSummary, ...]:
        """See `standfast.platforms.base.Platform.list_attempts`."""
        raise NotImplementedError

    async def remove(self, attempt: str) -> None:
        """See `standfast.platforms.base.Platform.remove`."""
        raise NotImplementedError
