"""The supervisor in the background: ``python -P -m standfast.stack``, started by ``standfast up --detach``."""

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path

from standfast.home import Home
from standfast.problems import UserError
from standfast.stack.record import LAST_WORD
from standfast.stack.supervisor import StackSettings, Supervisor, run_until_signalled


def main() -> int:
    """Run the settings given as one JSON argument; the caller reads the record, the log tells the rest."""
    given = json.loads(sys.argv[1])
    settings = StackSettings(**{**given, "home": Home(root=Path(given["home"]))})

    async def supervise() -> None:
        await run_until_signalled(Supervisor(settings))

    try:
        asyncio.run(supervise())
    except UserError as error:
        return _refused(error)
    except Exception as error:
        refusal = settings.home.refusal(error) if isinstance(error, OSError) else None
        if refusal is not None:
            return _refused(refusal)
        traceback.print_exc()
        return 1
    return 0


def _refused(error: UserError) -> int:
    word = {"message": error.message, "help": error.help, "tail": getattr(error, "tail", ())}
    print(f"{LAST_WORD}{json.dumps(word)}", file=sys.stderr)
    return error.exit_code


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # the Temporal client may abort an ordinary interpreter exit
