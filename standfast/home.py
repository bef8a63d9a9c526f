"""Where the embedded stack keeps its state."""

import os
from dataclasses import dataclass
from pathlib import Path


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
