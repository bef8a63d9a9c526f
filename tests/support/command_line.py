"""The ``standfast`` command as a person runs it: a process over a home directory of its own."""

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from standfast.home import Home
from standfast.platforms.ports import RANGE_VARIABLE
from standfast.spec import Deployment
from tests.support.ports import any_ports, engine_ports


@dataclass(frozen=True)
class Ran:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """Standard output as one JSON document."""
        return json.loads(self.out)


@dataclass(frozen=True)
class CommandLine:
    """Commands over one home. Nothing of the caller's own stack or Temporal reaches them."""

    home: Home
    environment: Mapping[str, str] = field(default_factory=dict)

    async def start(self, *arguments: str) -> asyncio.subprocess.Process:
        """Start a command with pipes."""
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("TEMPORAL_", "STANDFAST_"))}
        return await asyncio.create_subprocess_exec(
            str(Path(sys.executable).with_name("standfast")),
            *arguments,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={
                **inherited,
                "STANDFAST_HOME": str(self.home.root),
                RANGE_VARIABLE: engine_ports(),
                **self.environment,
            },
        )

    async def run(self, *arguments: str, within_s: float = 120.0) -> Ran:
        """Run a command to its end."""
        process = await self.start(*arguments)
        ending = asyncio.create_task(process.communicate())
        done, _ = await asyncio.wait({ending}, timeout=within_s)
        if not done:
            process.kill()
        out, err = await ending
        assert done, f"standfast {' '.join(arguments)} did not end:\n{out.decode()}{err.decode()}"
        assert process.returncode is not None
        ran = Ran(process.returncode, out.decode(), err.decode())
        assert "Traceback" not in ran.err + ran.out, ran.err + ran.out
        return ran

    async def up(self, *arguments: str) -> dict[str, Any]:
        """Start the stack in the background on free ports; its record."""
        ran = await self.run("up", "--detach", "--json", *any_ports(), *arguments)
        assert ran.code == 0, ran.out + ran.err
        record: dict[str, Any] = ran.document
        return record


def write_config(file: Path, *deployments: Deployment) -> Path:
    """A config file that exports these deployments."""
    data = file.with_suffix(".json")
    data.write_bytes(TypeAdapter(list[Deployment]).dump_json(list(deployments)))
    file.write_text(
        "from pathlib import Path\n"
        "from pydantic import TypeAdapter\n"
        "from standfast import Deployment\n"
        f"ALL = TypeAdapter(list[Deployment]).validate_json(Path({str(data)!r}).read_bytes())\n"
    )
    return file
