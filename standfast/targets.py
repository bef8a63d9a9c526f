"""Targets: where deployments go. The command chooses one; a config never names it.

``local`` is built in. Another one is an object in a Python file, given as ``--target file.py`` or
``--target file.py:NAME``::

    from standfast import LocalTarget

    LAB = LocalTarget(name="lab", nodes=2)
"""

import difflib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from standfast.fields import Name, Options, Positive, Text, config, matching
from standfast.loading import load_file
from standfast.problems import Problem, UserError
from standfast.values import FrozenMapping

_Url = Annotated[str, matching(r"https?://\S+", "must be an http or https URL")]


@config()
class LocalTarget:
    """This machine: engines run as processes under the control worker's host."""

    platform: Literal["local"] = "local"
    name: Name = "local"
    nodes: Positive | None = None
    """Logical nodes that the host stands for, to try gangs of several nodes (``None``: as many as replicas span)."""
    gateway: _Url | None = None
    """The frontend's address (``None``: the embedded stack's)."""


@config()
class SlurmTarget:
    """A Slurm cluster: one job per replica, one launcher per node."""

    platform: Literal["slurm"] = "slurm"
    name: Name
    directory: Annotated[str, matching(r"/\S.*", "must be an absolute path")]
    """The directory for images, weights and attempts, on a file system that every node sees."""
    login: Text | None = None
    """The host to submit from over SSH (``None``: this one)."""
    partition: Text | None = None
    account: Text | None = None
    options: Options = Field(default_factory=FrozenMapping)
    """Further ``sbatch`` options by name."""
    gateway: _Url | None = None


@config()
class ModalTarget:
    """Modal: one deployed app per worker app."""

    platform: Literal["modal"] = "modal"
    name: Name
    environment: Text | None = None
    """The Modal environment (``None``: the workspace's default)."""
    region: Text | None = None
    options: Options = Field(default_factory=FrozenMapping)
    gateway: _Url | None = None


Target = LocalTarget | SlurmTarget | ModalTarget

LOCAL = LocalTarget()
_BUILT_IN = {LOCAL.name: LOCAL}


def load_target(given: str) -> Target:
    """The target that ``--target`` names: a built-in name, or ``file.py`` or ``file.py:NAME``.

    Raises `UserError` or `ProblemsError`.
    """
    if given in _BUILT_IN:
        return _BUILT_IN[given]
    path, colon, variable = given.rpartition(":")
    if not colon:
        path, variable = given, ""
    if not path.endswith(".py"):
        close = difflib.get_close_matches(given, _BUILT_IN, n=1, cutoff=0.5)
        meant = f"Did you mean {close[0]!r}? " if close else ""
        raise UserError(
            f"There is no target {given!r}.",
            help=f"{meant}Built in: {', '.join(_BUILT_IN)}; others are objects in a file: --target file.py:NAME",
        )
    loaded = load_file(Path(path), purpose="target file")
    found = {name: value for name, value in loaded.names.items() if isinstance(value, Target)}
    if variable:
        if variable not in found:
            raise UserError(f"{loaded.shown} has no target {variable!r}.", help=_those(found, variable))
        return found[variable]
    exported = [value for name, value in found.items() if not name.startswith("_")]
    if len(exported) != 1:
        count = "no target" if not exported else f"{len(exported)} targets"
        raise UserError(f"{loaded.shown} has {count}.", help=_those(found, ""))
    return exported[0]


def check(target: Target) -> tuple[Problem, ...]:
    """What of a target is not carried out yet; empty when deployments can go there."""
    problems = []
    if not isinstance(target, LocalTarget):
        problems.append(_later("platform", f"The platform {target.platform}", "Use --target local meanwhile."))
        return tuple(problems)
    if target.nodes is not None:
        problems.append(_later("nodes", f"A local target of just {target.nodes} logical nodes", "Leave nodes out."))
    if target.gateway is not None:
        problems.append(_later("gateway", "A gateway outside the embedded stack", "Leave gateway out."))
    return tuple(problems)


def _later(field: str, part: str, help: str) -> Problem:
    message = f"{part} loads and validates but is not carried out yet."
    return Problem(code="not-carried-out", where=f"Target.{field}", message=message, help=help)


def _those(found: dict[str, Target], wanted: str) -> str:
    if not found:
        return "Define one at the top level: NAME = LocalTarget(name=...)."
    close = difflib.get_close_matches(wanted, found, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else f"Choose one with file.py:NAME: {', '.join(found)}."
