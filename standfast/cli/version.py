"""``standfast version``."""

from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as installed

from standfast.cli.output import print_json


def version(*, as_json: bool) -> int:
    """Print the version of the installed distribution."""
    try:
        found = installed("standfast")
    except PackageNotFoundError:
        found = "unknown"
    if as_json:
        print_json({"version": found})
    else:
        print(f"standfast {found}")
    return 0
