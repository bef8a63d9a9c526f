"""Load a config file and find the deployments in it.

A deployment is exported when a module-level name without a leading underscore holds it, alone or in a list, tuple or
mapping; ``__all__`` decides where it is defined. Imported names are not exported, as in Python's own convention: a
file that passes deployments on says so with ``__all__``, ``from .. import *`` or ``from .. import NAME as NAME``.
"""

import dataclasses
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from standfast.loading import LoadedFile, load_file, shown_path
from standfast.problems import Problem, ProblemsError, UserError
from standfast.sources import assignment_line, field_line, imported_names
from standfast.spec import Deployment, DirectorySource


@dataclass(frozen=True, kw_only=True)
class Entry:
    """One deployment of a catalog, and where it is written: the expression ``variable`` (``QWEN``, ``FAMILY[0]``)."""

    deployment: Deployment
    variable: str
    line: int | None


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """The deployments of one config file, in the order of the file."""

    file: Path
    source: str
    entries: tuple[Entry, ...]

    def __iter__(self) -> Iterator[Deployment]:
        return (entry.deployment for entry in self.entries)

    def __len__(self) -> int:
        return len(self.entries)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the deployments."""
        return tuple(entry.deployment.name for entry in self.entries)

    def locate(self, deployment: str, problems: Iterable[Problem]) -> tuple[Problem, ...]:
        """Problems of one of the deployments (found by a plan, say) with the file, line and variable they are about."""
        entry = next((entry for entry in self.entries if entry.deployment.name == deployment), None)
        if entry is None:
            return tuple(problems)
        variable = entry.variable.partition("[")[0]
        file = shown_path(self.file)
        return tuple(
            problem
            if problem.file is not None
            else problem.at(file, field_line(self.source, variable, problem.where) or entry.line).model_copy(
                update={"where": f"{entry.variable}{problem.where.removeprefix('Deployment')}"}
                if problem.where == "Deployment" or problem.where.startswith("Deployment.")
                else {}
            )
            for problem in problems
        )


def load(path: Path | str) -> Catalog:
    """Load a config file. Raises `UserError` or `ProblemsError`, with the file and line that are at fault.

    A `DirectorySource` with a relative path is made absolute here: it is relative to the config file.
    """
    loaded = load_file(path, purpose="config file")
    entries: list[Entry] = []
    for variable, deployment in _exported(loaded):
        line = assignment_line(loaded.source, variable.partition("[")[0])
        entry = Entry(deployment=_absolute(deployment, loaded.path.parent), variable=variable, line=line)
        twin = next((other for other in entries if other.deployment.name == entry.deployment.name), None)
        if twin is None:
            entries.append(entry)
        elif twin.deployment != entry.deployment:
            raise ProblemsError((_twins(twin, entry, loaded),))
    if not entries:
        raise _empty(loaded)
    return Catalog(file=loaded.path, source=loaded.source, entries=tuple(entries))


def select(catalog: Catalog, names: Iterable[str] = ()) -> tuple[Deployment, ...]:
    """The deployments of these names, in the order of ``names``; all of them without names. Raises `UserError`."""
    wanted = list(dict.fromkeys(names))
    known = {deployment.name: deployment for deployment in catalog}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        file = shown_path(catalog.file)
        raise UserError(
            f"{file} has no deployment {' and no '.join(map(repr, unknown))}.",
            help=" ".join(_nearest(name, catalog) for name in unknown),
        )
    return tuple(known[name] for name in wanted) if wanted else tuple(catalog)


def _nearest(name: str, catalog: Catalog) -> str:
    for entry in catalog.entries:
        if entry.variable == name:
            return f"{name} is the variable; its deployment is called {entry.deployment.name!r}."
    close = difflib.get_close_matches(name, catalog.names, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"It has {', '.join(catalog.names)}."


def _exported(loaded: LoadedFile) -> Iterator[tuple[str, Deployment]]:
    listed = loaded.names.get("__all__")
    if listed is None:
        imported = imported_names(loaded.source)
        names = [name for name in loaded.names if not name.startswith("_") and name not in imported]
    else:
        names = list(listed)
        missing = [name for name in names if name not in loaded.names]
        if missing:
            line = assignment_line(loaded.source, "__all__")
            raise UserError(
                f"__all__ names {', '.join(map(repr, missing))}, which the file does not define.",
                where=f"{loaded.shown}:{line}" if line else loaded.shown,
            )
    for name in names:
        yield from _deployments(name, loaded.names[name])


def _deployments(place: str, value: Any) -> Iterator[tuple[str, Deployment]]:
    if isinstance(value, Deployment):
        yield place, value
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from _deployments(f"{place}[{index}]", item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _deployments(f"{place}[{key!r}]", item)


def _absolute(deployment: Deployment, directory: Path) -> Deployment:
    source = deployment.model.source
    if not isinstance(source, DirectorySource):
        return deployment
    path = os.path.normpath(directory / Path(source.path).expanduser())
    if path == source.path:
        return deployment
    model = dataclasses.replace(deployment.model, source=dataclasses.replace(source, path=path))
    return dataclasses.replace(deployment, model=model)


def _twins(first: Entry, second: Entry, loaded: LoadedFile) -> Problem:
    name = second.deployment.name
    return Problem(
        code="duplicate-name",
        where=f"{second.variable}.name",
        message=f"Two different deployments are called {name!r}: {first.variable} and {second.variable}.",
        help=f"Give one of them another name, such as {name + '-2'!r}.",
        file=loaded.shown,
        line=second.line,
    )


def _empty(loaded: LoadedFile) -> UserError:
    exported = "Assign one to a name at the top level: NAME = Deployment(name=..., model=..., inference=...)."
    private = [place for name, value in loaded.names.items() for place, _ in _deployments(name, value)]
    if private:
        why = "is imported" if private[0] in imported_names(loaded.source) else "is not exported"
        exported = f"{private[0]} {why}: give it a name without an underscore, or list it in __all__."
    return UserError("The config file defines no deployment.", help=exported, where=loaded.shown)
