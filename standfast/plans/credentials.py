"""Credentials written out anywhere in a config: they are refused before the settings travel anywhere."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from standfast.fields import FrozenEnvironment
from standfast.plans.ownership import names_a_secret
from standfast.problems import Problem, redact
from standfast.spec import Deployment

_BY_NAME = "Bind it by name: environment={'NAME': Secret('NAME')}."
_ELSEWHERE = "Leave it out: credentials of indexes and hubs belong in the environment that the stack runs in."
_KEPT = "Leave it out: what a config says is kept and shown."

#: Options whose value is a credential whatever it looks like. (Not every ``..._token`` is: ``eos_token``.)
_OPTION = re.compile(
    r"(?i)(^|[_-])((hf|hub|auth|access|api|bearer)[_-]token|(api|access|secret)[_-]?key|secret|passw(or)?d)s?$"
)


def literal_secrets(deployment: Deployment) -> Iterator[Problem]:
    """A problem for every text of the config that looks like a credential, or stands where one is expected.

    The whole deployment is walked, whatever fields it has.
    """
    yield from _within(deployment, "Deployment")


def _within(value: Any, where: str) -> Iterator[Problem]:
    if isinstance(value, str):
        if redact(value) != value:
            yield _refusal("the value", where)
    elif isinstance(value, FrozenEnvironment):
        for name, bound in value.items():
            yield from _within(name, f"{where} (a name)")
            place = f"{where}[{name!r}]"
            if not isinstance(bound, str):
                yield from _within(bound, place)
            elif names_a_secret(name) or redact(bound) != bound:
                help = f"Write Secret({name!r}) and keep the value in the target's secret store."
                yield _refusal(f"the value of {name}", place, help)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _within(key, f"{where} (a name)")
            if isinstance(item, str) and item and _OPTION.search(key):
                yield _refusal(f"the value of {key}", f"{where}[{key!r}]")
            else:
                yield from _within(item, f"{where}[{key!r}]")
    elif isinstance(value, list | tuple):
        option = ""
        for index, item in enumerate(value):
            flag, _, attached = item.partition("=") if isinstance(item, str) and item.startswith("-") else ("", "", "")
            given = attached if flag else item
            if isinstance(given, str) and given and _OPTION.search(flag or option):
                yield _refusal(f"the value of {flag or option}", f"{where}[{index if flag else index - 1}]")
            else:
                yield from _within(item, f"{where}[{index}]")
            option = flag if not attached else ""
    elif is_dataclass(value):
        for field in fields(value):
            yield from _within(getattr(value, field.name), f"{where}.{field.name}")


def _refusal(what: str, where: str, help: str = "") -> Problem:
    return Problem(
        code="literal-secret",
        where=where,
        message=f"{what} looks like a secret, and plans are kept and shown.",
        help=help or next((said for part, said in _HELP if part in where), _KEPT),
    )


_HELP = (
    (".environment", _BY_NAME),
    (".options", _BY_NAME),
    (".extra_args", _BY_NAME),
    (".image", _ELSEWHERE),
    (".model", _ELSEWHERE),
)
