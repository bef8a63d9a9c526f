"""``standfast logs``."""

import asyncio

from standfast.cli.output import print_json_line, quiet_logs, stderr_console, text
from standfast.client import Client


def logs(
    *,
    name: str,
    replica: int,
    attempt: str | None,
    rank: int,
    follow: bool,
    tail: int | None,
    as_json: bool,
) -> int:
    """Print an engine's log; see ``standfast logs --help``. With JSON each line of the log is one line."""
    quiet_logs()

    async def read() -> None:
        shown: str | None = None
        async with Client.connect() as client:
            async for line in client.logs(name, replica=replica, attempt=attempt, rank=rank, follow=follow, tail=tail):
                if as_json:
                    print_json_line(line.model_dump(mode="json"))
                    continue
                if line.attempt != shown:
                    shown = line.attempt
                    stderr_console().print(text((f"── {line.attempt} rank {line.rank}", "dim")))
                print(line.text, flush=follow)
        if shown is None and tail != 0 and not as_json:
            stderr_console().print(text((f"── rank {rank} has written nothing", "dim")))

    asyncio.run(read())
    return 0
