"""Where the embedded stack keeps its state."""

import errno
import os
from dataclasses import dataclass
from pathlib import Path

from standfast.problems import UserError

_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, kw_only=True)
class Home:
    """The state directory of one embedded stack; every path below it is derived here and nowhere else."""

    root: Path

    @classmethod
    def default(cls) -> "Home":
        """``$STANDFAST_HOME``, or ``~/.standfast``."""
        given = os.environ.get("STANDFAST_HOME")
        return cls(root=Path(given).expanduser().absolute() if given else Path.home() / ".standfast")

    @property
    def images(self) -> Path:
        return self.root / "images"

    @property
    def weights(self) -> Path:
        return self.root / "weights"

    @property
    def attempts(self) -> Path:
        return self.root / "attempts"

    @property
    def logs(self) -> Path:
        return self.root / "logs"

    @property
    def run(self) -> Path:
        """Addresses and locks of the running stack."""
        return self.root / "run"

    @property
    def registry_db(self) -> Path:
        return self.root / "registry.db"

    @property
    def temporal_db(self) -> Path:
        return self.root / "temporal.db"

    @property
    def registry_url(self) -> str:
        """``$STANDFAST_REGISTRY_URL``, or the SQLite file of this home."""
        return os.environ.get("STANDFAST_REGISTRY_URL") or f"sqlite+aiosqlite:///{self.registry_db}"

    def refusal(self, error: OSError) -> UserError | None:
        """An error of the file system as a refusal of this home; None when it is about something else."""
        if error.errno in _FULL:
            return UserError(
                f"the disk is full: {error.filename or self.root}.",
                help=f"Free some space, or set STANDFAST_HOME to a larger disk (now {self.root}).",
                exit_code=1,
            )
        if not isinstance(error.filename, str):
            return None
        place = Path(error.filename)
        if not (place.is_relative_to(self.root) or self.root.is_relative_to(place)):
            return None
        return UserError(
            f"the home directory {self.root} cannot be used: {place}: {os.strerror(error.errno or 0)}.",
            help="Set STANDFAST_HOME to a directory that you may write to.",
        )
