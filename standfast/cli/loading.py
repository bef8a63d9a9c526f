"""From the arguments ``FILE [NAME...]`` and ``--target`` to deployments that may be planned."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from standfast import catalog, targets
from standfast.catalog import Catalog
from standfast.plans import check
from standfast.problems import Problem, ProblemsError
from standfast.spec import Deployment

_T = TypeVar("_T")


@dataclass(frozen=True, kw_only=True)
class Selection:
    """The chosen deployments of a config file, and the name of the target they go to."""

    catalog: Catalog
    deployments: tuple[Deployment, ...]
    target: str

    def __iter__(self) -> Iterator[Deployment]:
        return iter(self.deployments)

    @property
    def file(self) -> Path:
        """The config file, absolute."""
        return self.catalog.file

    def each(self, make: Callable[[Deployment], _T]) -> list[_T]:
        """``make`` of every deployment; the problems of all of them, with file and line, in one `ProblemsError`."""
        made: list[_T] = []
        problems: list[Problem] = []
        for deployment in self.deployments:
            try:
                made.append(make(deployment))
            except ProblemsError as error:
                problems += self.catalog.locate(deployment.name, error.problems)
        if problems:
            raise ProblemsError(tuple(problems))
        return made


def select(file: Path, names: tuple[str, ...], target: str = "local") -> Selection:
    """Load a config file and choose from it.

    Raises `UserError` or `ProblemsError`, also for what is not carried out.
    """
    chosen = targets.load_target(target)
    problems = targets.check(chosen)
    if problems:
        raise ProblemsError(problems)
    loaded = catalog.load(file)
    selection = Selection(catalog=loaded, deployments=catalog.select(loaded, names), target=chosen.name)
    selection.each(_refuse_what_cannot_be)
    return selection


def _refuse_what_cannot_be(deployment: Deployment) -> None:
    problems = check(deployment)
    if problems:
        raise ProblemsError(problems)
