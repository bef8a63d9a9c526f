"""What the resolver asks of an engine: the command, the variables and the ports of every rank.

An engine is one small strategy over engine-neutral records. It states the flags it uses, so that the resolver can
hold them against the option list of the image like any others.
"""

from dataclasses import dataclass
from typing import Literal, Protocol

from standfast.plans.options import OptionList
from standfast.plans.records import EnvironmentBinding, PortSpan, Topology
from standfast.problems import Problem
from standfast.spec import Inference


@dataclass(frozen=True, slots=True)
class Request:
    """One inference role, ready to be put into an engine's terms. ``used`` are the settings that the config makes, by
    destination.
    """

    inference: Inference
    served_name: str
    topology: Topology
    accelerator: Literal["cpu", "cuda"]
    table: OptionList
    used: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Command:
    """How one rank is started: ``argv`` without the config's options, the engine's own variables, and the ports it
    claims.
    """

    argv: tuple[str, ...]
    environment: tuple[EnvironmentBinding, ...]
    ports: PortSpan
    problems: tuple[Problem, ...] = ()


class Engine(Protocol):
    """A strategy for one kind of engine."""

    @property
    def title(self) -> str:
        """The engine's name as its makers write it."""
        ...

    def command(self, request: Request, rank: int) -> Command:
        """The command of one rank of a replica."""
        ...
