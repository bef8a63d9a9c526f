"""What the resolver asks of an engine: the rules of its topologies, the command of every rank, and how settings are
written.

An engine is one small strategy over engine-neutral records; `standfast.plans.strategies` lists them. It states the
flags it uses, so that they can be held against the option list of the image like any others.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from standfast.plans.arguments import Setting
from standfast.plans.options import OptionList
from standfast.plans.records import EnvironmentBinding, PortSpan, Topology
from standfast.problems import Problem
from standfast.spec import Inference, seconds


@dataclass(frozen=True, slots=True)
class Request:
    """One inference role, ready to be put into an engine's terms."""

    inference: Inference
    served_name: str
    topology: Topology
    accelerator: Literal["cpu", "cuda"]
    table: OptionList
    settings: tuple[Setting, ...] = ()
    """What the config sets by name or as an argument, in the order in which it is written."""

    @property
    def used(self) -> frozenset[str]:
        """The settings that the config makes, by destination."""
        return frozenset(setting.spec.dest for setting in self.settings)


@dataclass(frozen=True, slots=True)
class Command:
    """How one rank is started: ``argv`` without the config's settings, the engine's own variables, and the ports it
    claims, with the names of those that have a meaning.

    Whatever only the platform knows is a placeholder, see `standfast.plans.records.PLACEHOLDERS`.
    """

    argv: tuple[str, ...]
    environment: tuple[EnvironmentBinding, ...]
    ports: PortSpan
    problems: tuple[Problem, ...] = ()


def engine_misfit(field: str, message: str, help: str, *, value: object, limit: str) -> Problem:
    """A size in ``Parallelism`` that a rule of the engine refuses."""
    where = f"Deployment.inference.parallelism.{field}"
    return Problem(code="engine-topology", where=where, message=message, help=help, value=str(value), limit=limit)


def refused_name(name: str, message: str, instead: str, *, limit: str) -> Problem:
    """A served name that the engine would read as something else."""
    help = f"Write served_name={instead!r}."
    return Problem(
        code="served-name", where="Deployment.served_name", message=message, help=help, value=name, limit=limit
    )


def lacks_option(title: str, what: str) -> Problem:
    """The image's release of the engine does not have something that the plan needs."""
    return Problem(
        code="engine-lacks-option",
        where="Deployment.inference.image",
        message=f"The {title} of this image does not have {what}, which Standfast needs.",
        help=f"Choose an image with another release of {title}.",
    )


def meeting_seconds(inference: Inference) -> int:
    """For how many whole seconds the ranks of a replica wait for each other."""
    return max(1, round(seconds(inference.readiness.initialization_timeout)))


#: Which GPUs a process sees. The ids are NVML's, which counts by PCI bus; CUDA by default does not.
CUDA_DEVICES = {"CUDA_VISIBLE_DEVICES": "@{gpu_ids}", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


class Engine(Protocol):
    """A strategy for one kind of engine. Pure: equal requests give equal answers."""

    @property
    def title(self) -> str:
        """The engine's name as its makers write it."""
        ...

    @property
    def http_port(self) -> str:
        """The name of the port offset on which the head answers."""
        ...

    @property
    def rendezvous_port(self) -> str:
        """The name of the head's port offset at which the ranks of a replica meet."""
        ...

    @property
    def identity_path(self) -> str:
        """The page on which the head's answer holds the attempt's name, so that no other process is taken for it."""
        ...

    @property
    def by_name(self) -> bool:
        """Whether settings go to the engine by name, so that a switch can be set to False without a flag for it."""
        ...

    def topology_problems(self, inference: Inference, topology: Topology) -> Iterator[Problem]:
        """What the engine's own rules refuse of a topology; known from the config alone. Cite where a rule is from."""
        ...

    def command(self, request: Request, rank: int) -> Command:
        """The command of one rank of a replica, and whatever in the request the engine could not carry out."""
        ...

    def arguments(self, settings: Sequence[Setting]) -> tuple[str, ...]:
        """The tokens that follow the command and make the config's settings."""
        ...
