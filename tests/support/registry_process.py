"""Another process that uses a registry; prints JSON lines.

``python -m tests.support.registry_process COMMAND URL ARGUMENTS...``
"""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any

import sqlalchemy as sa

from standfast.registry import CapacityError, Registry
from standfast.registry.tables import deployments


def _say(value: Any) -> None:
    print(json.dumps(value), flush=True)


async def _wait_for_go() -> None:
    """Wait until the test writes a line, so that several processes begin at once."""
    _say("ready")
    await asyncio.to_thread(sys.stdin.readline)


async def open_registry(url: str) -> None:
    """Open and close; tell whether Alembic was needed."""
    await _wait_for_go()
    async with await Registry.open(url) as registry:
        _say({"alembic": "alembic" in sys.modules, "revision": await registry.revision()})


async def reserve(url: str, prefix: str, rounds: str) -> None:
    """Reserve and release in turns, keeping every second reservation; tell what is kept."""
    kept = []
    async with await Registry.open(url) as registry:
        await _wait_for_go()
        for number in range(int(rounds)):
            owner = f"{prefix}/{number}"
            try:
                got = await registry.reserve(
                    host="host",
                    owner=owner,
                    generation="g",
                    gpus=1 + number % 2,
                    gpu_candidates=range(16),
                    memory_bytes=3,
                    memory_total=100,
                    port_spans=[5, 40],
                )
            except CapacityError as error:
                _say({"refused": list(error.kinds)})
                continue
            if number % 2:
                kept.append([owner, got.gpu_ids, got.port_bases, got.memory_bytes])
            else:
                await registry.release(owner)
    _say({"kept": kept})


async def hold(url: str) -> None:
    """Change a row in a transaction that never ends."""
    async with await Registry.open(url) as registry, registry._database.write_routing() as connection:
        await connection.execute(sa.update(deployments).values(target="never committed"))
        await _wait_for_go()


if __name__ == "__main__":
    commands: dict[str, Callable[..., Coroutine[Any, Any, None]]] = {
        "open": open_registry,
        "reserve": reserve,
        "hold": hold,
    }
    asyncio.run(commands[sys.argv[1]](*sys.argv[2:]))
