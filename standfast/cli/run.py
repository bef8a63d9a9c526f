"""Run one command line and turn whatever happens into an exit code."""

from collections.abc import Sequence

INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """Carry a command line out; returns its exit code and never raises."""
    try:
        from standfast.cli.app import app

        app(args=list(arguments), prog_name="standfast")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else 0 if ending.code is None else 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BaseException as error:  # the last resort: a person never sees a traceback
        from standfast.cli.errors import report

        return report(error, as_json="--json" in arguments)
    return 0
