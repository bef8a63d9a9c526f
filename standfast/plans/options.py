"""An engine's command line, read the way its own parser reads it.

An `OptionList` indexes the options that were inspected inside an image. `OptionList.find` says which option a token
means, in any spelling that an ``argparse`` parser with ``_`` and ``-`` alike accepts: abbreviations, short flags with
their value attached, ``--flag=value``, and dotted paths into a JSON setting (``--json-arg.key value``). Engines
differ only in the list: nothing here knows an engine or a version.
"""

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass

from standfast.plans.inspection import OptionSpec

_NEGATIVE_NUMBER = re.compile(r"^-\d+$|^-\d*\.\d+$")
_ASSIGNMENT = re.compile(r"[a-z_][a-z0-9_]*:?=")
#: ``-O3`` is understood by an engine that has this option, although no flag ``-O`` is declared.
_LEVEL = "--optimization-level"


@dataclass(frozen=True, slots=True)
class Found:
    """What a token means: one option, through ``flag`` as the parser declares it.

    ``attached`` is the value written in the same token; ``path`` the dotted path into a JSON setting; ``exact`` is
    False for an abbreviation.
    """

    spec: OptionSpec
    flag: str
    attached: str | None = None
    path: tuple[str, ...] = ()
    exact: bool = True
    written: str = ""
    """How the config spells it."""

    @property
    def negated(self) -> bool:
        """True for a ``--no-...`` spelling."""
        return self.flag in self.spec.negations

    @property
    def values(self) -> tuple[int, int | None]:
        """How many values may follow: at least, and at most (None: any number)."""
        if self.negated:
            return (0, 0)
        return (self.spec.minimum, self.spec.maximum)


class OptionList:
    """The inspected options of one image, indexed by every spelling."""

    def __init__(self, options: Iterable[OptionSpec]) -> None:
        self.by_flag: dict[str, OptionSpec] = {}
        self.positionals: list[OptionSpec] = []
        for spec in options:
            if not spec.flags:
                self.positionals.append(spec)
            for flag in (*spec.flags, *spec.negations):
                self.by_flag.setdefault(flag, spec)

    def find(self, token: str) -> tuple[Found, ...]:
        """Every option that the token can mean: none for an unknown one, several for an ambiguous one."""
        name, equals, value = token.partition("=")
        attached = value if equals else None
        written = name
        name, *path = name.split(".") if not _NEGATIVE_NUMBER.match(name) else [name]
        keys = tuple(key.removesuffix("+") for key in path)
        if name.startswith("--"):
            name = canonical(name)
        if (spec := self.by_flag.get(name)) is not None:
            return (Found(spec, name, attached, keys, written=written),)
        if not name.startswith("--"):
            return self._short(name, token, attached, keys, written)
        if len(name) <= len("--"):
            return ()
        return tuple(
            Found(spec, flag, attached, keys, exact=False, written=written)
            for flag, spec in self.by_flag.items()
            if flag.startswith(name)
        )

    def _short(
        self, name: str, token: str, attached: str | None, keys: tuple[str, ...], written: str
    ) -> tuple[Found, ...]:
        if name.startswith("-O") and "-O" not in self.by_flag and (level := self.by_flag.get(_LEVEL)) is not None:
            return (Found(level, _LEVEL, token[2:].removeprefix("=") or None, written=written),)
        if len(name) < 2:
            return ()
        found = []
        if (spec := self.by_flag.get(name[:2])) is not None:
            found.append(Found(spec, name[:2], token[2:], written=written))
        for flag, spec in self.by_flag.items():
            if flag.startswith(name):
                found.append(Found(spec, flag, attached, keys, exact=False, written=written))
        return tuple(found)

    def named(self, key: str) -> Found | None:
        """The option that a settings key names in full: ``max_num_seqs``, ``max-num-seqs``, a short flag such as
        ``tp``, ``no-...`` included.
        """
        dashed = canonical(f"--{key}")
        for flag in (dashed, f"-{key}"):
            if (spec := self.by_flag.get(flag)) is not None:
                return Found(spec, flag, written=key)
        return None

    def nearest(self, name: str) -> Found | None:
        """The real option whose spelling is closest to ``name``, or None when nothing is close."""
        wanted = canonical(name if name.startswith("-") else f"--{name}")
        close = difflib.get_close_matches(wanted, self.by_flag, n=1, cutoff=0.72)
        return Found(self.by_flag[close[0]], close[0]) if close else None

    def is_value(self, token: str) -> bool:
        """Whether the parser takes the token for a value and not for an option."""
        if not token.startswith("-") or token == "-":
            return True
        if _NEGATIVE_NUMBER.match(token):
            return True
        return " " in token and not self.find(token)


def begins_option(token: str) -> bool:
    """Whether a token of a command begins an option rather than being a value: a flag, or ``name=text`` or
    ``name:=json`` as commands without flags have them.
    """
    if token.startswith("-"):
        return len(token) > 1 and not token[1].isdigit()
    return _ASSIGNMENT.match(token) is not None


def canonical(flag: str) -> str:
    """A long flag as parsers declare it: dashes, not underscores."""
    return f"--{flag[2:].replace('_', '-')}"


def long_flag(spec: OptionSpec) -> str:
    """The spelling of an option that people should read: its first long flag."""
    return next((flag for flag in spec.flags if flag.startswith("--") and flag not in spec.negations), spec.flags[0])


def negation(spec: OptionSpec) -> str | None:
    """The ``--no-...`` spelling of a switch, if it has one."""
    return spec.negations[0] if spec.negations else None


def takes_keys(spec: OptionSpec) -> bool:
    """Whether an option can be a JSON object, so that dotted keys may follow its flag."""
    return (spec.minimum, spec.maximum) == (1, 1) and spec.choices is None and spec.type not in ("int", "float")


def misfit(spec: OptionSpec, value: str) -> tuple[str, str] | None:
    """Why ``value`` cannot be a value of the option, as the end of a sentence, and what can; None when it can be."""
    if spec.choices is not None and value not in spec.choices:
        choices = ", ".join(spec.choices)
        return f"accepts {choices}", choices
    if spec.type == "loads":
        try:
            json.loads(value)
        except ValueError:
            return "takes JSON", "JSON"
    if spec.type in ("int", "float"):
        try:
            (int if spec.type == "int" else float)(value)
        except ValueError:
            kind = "a whole number" if spec.type == "int" else "a number"
            return f"takes {kind}", kind
    return None


def arity(least: int, most: int | None) -> str:
    """How many values an option takes, in words."""
    if most == 0:
        return "no value"
    if most is None:
        return "any number of values" if least == 0 else f"{least} or more values"
    if least == most:
        return "one value" if least == 1 else f"{least} values"
    return f"{least} to {most} values"
