"""The variables of a role's processes: the engine's own, the image's, and the config's, which come last."""

from collections.abc import Iterable, Iterator, Mapping

from standfast.plans.ownership import names_a_secret, owner_of_variable
from standfast.plans.records import EnvironmentBinding
from standfast.problems import Problem, redact
from standfast.spec import Secret


def bindings(environment: Mapping[str, str | Secret]) -> tuple[EnvironmentBinding, ...]:
    """The records of a config's ``environment``."""
    return tuple(
        EnvironmentBinding(name=name, secret=bound.name)
        if isinstance(bound, Secret)
        else EnvironmentBinding(name=name, value=bound)
        for name, bound in environment.items()
    )


def merge(*layers: Iterable[EnvironmentBinding]) -> tuple[EnvironmentBinding, ...]:
    """One binding per variable, sorted by name; a later layer wins over an earlier one."""
    merged = {binding.name: binding for layer in layers for binding in layer}
    return tuple(merged[name] for name in sorted(merged))


def environment_problems(
    environment: Iterable[EnvironmentBinding], *, where: str, image: bool = False
) -> Iterator[Problem]:
    """What may not be bound: variables that Standfast manages, literal secrets, and text that looks like a
    placeholder.
    """
    for binding in environment:
        place = f"{where}[{binding.name!r}]"
        if (owned := owner_of_variable(binding.name, image=image)) is not None:
            yield Problem(
                code="managed-variable",
                where=place,
                message=f"{binding.name} decides {owned.meaning}, and Standfast manages that.",
                help=f"{owned.advice()[:1].upper()}{owned.advice()[1:]}.",
                value=None if names_a_secret(binding.name) else binding.value,
            )
        elif binding.value is not None and (names_a_secret(binding.name) or redact(binding.value) != binding.value):
            yield Problem(
                code="literal-secret",
                where=place,
                message=f"the value of {binding.name} looks like a secret, and plans are kept and shown.",
                help=f"Write Secret({binding.name!r}) and keep the value in the target's secret store.",
            )
        elif binding.value is not None and "@{" in binding.value:
            yield Problem(
                code="placeholder",
                where=place,
                message="'@{' marks what Standfast fills in and cannot be part of a value.",
                help="Write the value without it.",
                value=binding.value,
            )
