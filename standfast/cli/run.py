"""Run one command line and turn whatever happens into an exit code."""

from collections.abc import Sequence

from standfast.cli.errors import EXIT_INTERRUPTED, EXIT_OK, report


def run(arguments: Sequence[str]) -> int:
    """Carry a command line out; returns its exit code and never raises."""
    from standfast.cli.app import app

    try:
        app(args=list(arguments), prog_name="standfast")
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else EXIT_OK if ending.code is None else 1
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BaseException as error:  # the last resort: a person never sees a traceback
        return report(error, as_json="--json" in arguments)
    return EXIT_OK
