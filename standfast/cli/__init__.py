"""The command line. `main` is the entry point of the ``standfast`` command."""

import contextlib
import os
import sys
from typing import NoReturn


def main() -> NoReturn:
    """Run the command of this process and end it."""
    try:
        from standfast.cli.run import run

        status = run(sys.argv[1:])
    except KeyboardInterrupt:  # so early, or so late, that nobody else minds it
        status = 130
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BrokenPipeError):
            stream.flush()
    os._exit(status)  # threads of the Temporal client may abort an ordinary interpreter exit


if __name__ == "__main__":
    main()
