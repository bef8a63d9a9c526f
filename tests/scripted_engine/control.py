"""The test's side of the script file."""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.scripted_engine.vllm.scripted.script import Behaviour


@dataclass(frozen=True)
class Start:
    """One start of an engine: its process id, the attempt it belongs to, and when (unix seconds)."""

    pid: int
    attempt: str
    at: float


@dataclass(frozen=True)
class Script:
    """A script file. Its fields are those of `Behaviour`; a misspelt one is a ``TypeError`` here, not in the engine."""

    path: Path

    @classmethod
    def create(cls, directory: Path, **fields: Any) -> "Script":
        """Write ``engine.json`` into ``directory``."""
        script = cls(directory.resolve() / "engine.json")
        script._write(Behaviour(**fields))
        return script

    def update(self, **fields: Any) -> None:
        """Change some fields. A serving engine follows at its next request; start-up fields wait for the next start."""
        self._write(Behaviour(**{**json.loads(self.path.read_text()), **fields}))

    @property
    def environment(self) -> dict[str, str]:
        """The variable that names this script to an engine."""
        return {"SCRIPTED_ENGINE": str(self.path)}

    def starts(self) -> list[Start]:
        """Every start so far, oldest first."""
        record = self.path.with_name(f"{self.path.name}.starts")
        return [Start(**json.loads(line)) for line in record.read_text().splitlines()] if record.exists() else []

    def _write(self, behaviour: Behaviour) -> None:
        draft = self.path.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(behaviour), indent=1))
        draft.replace(self.path)


def argv(model: str, *options: str) -> list[str]:
    """The command that serves ``model`` out of this source tree with our own Python; use with `source_environment`."""
    return [sys.executable, "-S", "-m", "vllm.entrypoints.cli.main", "serve", model, *options]


def source_environment(script: Script | None = None, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for `argv`."""
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parent)}
    return {**base, **(script.environment if script else {}), **(extra or {})}
