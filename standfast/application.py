"""The application's own packages beside the library: `workflows`, `activities`, `workers`.

Their names are common words. Entry points check that the packages Python would import are ours before they import any
of them.
"""

import importlib.machinery
import importlib.util
from pathlib import Path

from standfast.problems import UserError

OWN_PACKAGES = ("workflows", "activities", "workers")


def require_own_packages(names: tuple[str, ...] = OWN_PACKAGES, *, beside: Path | None = None) -> None:
    """Refuse to go on when a package of one of these names comes from anywhere but beside ``standfast``.

    Nothing is imported. ``beside`` is the directory that holds them all (default: the one that holds the ``standfast``
    package). Raises `UserError`.
    """
    root = beside if beside is not None else Path(__file__).resolve().parent.parent
    for name in names:
        found = _location(name)
        if found is None:
            raise UserError(
                f"Standfast's own package {name!r} is not installed: Python does not find {root / name}.",
                help="Install Standfast again: `uv pip install --no-deps -e .` in its checkout, or `make quickstart`.",
            )
        if found.parent != root:
            raise UserError(
                f"Another package named {name!r} hides Standfast's own: Python imports {found}, not {root / name}.",
                help=f"Start Python with -P and without {found.parent} in PYTHONPATH, or rename that package.",
            )


def _location(name: str) -> Path | None:
    """The directory of a top-level package as Python would find it, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    if spec.origin is not None and spec.origin != "namespace":
        origin = Path(spec.origin).resolve()
        return origin.parent if origin.name.startswith("__init__.") else origin
    locations = list(spec.submodule_search_locations or ())
    return Path(locations[0]).resolve() if locations else None
