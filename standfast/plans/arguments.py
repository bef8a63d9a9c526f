"""Turn a config's ``options`` and ``extra_args`` into settings that the inspected engine will accept, or say why not.

Every token is read the way the engine's parser would read it, so that what Standfast manages is found in any
spelling, and what the image does not have is refused with the nearest option that it has.
"""

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from standfast.plans.inspection import OptionSpec
from standfast.plans.options import Found, OptionList, arity, canonical, long_flag, misfit, negation, takes_keys
from standfast.plans.ownership import Owned, names_a_secret, owner_of, owner_of_name
from standfast.plans.record import canonical_json
from standfast.problems import Problem, redact
from standfast.values import unwritable


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a config, checked against the image's option list.

    ``value`` is a JSON value: as written in ``options``; read from ``extra_args`` it is True or False for a switch,
    else text, or a number where ``spec.type`` is one, a list where the option may be given several values, and a
    mapping for dotted keys (``--flag.key value``). ``tokens`` say the same as flags: those of all settings together are
    what the engine's own command line would be given.
    """

    spec: OptionSpec
    value: Any
    tokens: tuple[str, ...]
    where: str
    """The place in the config, for problems."""


class ArgumentReader:
    """Reads the settings of one role against one option list, and collects every problem.

    ``engine`` is how messages call the engine, such as ``vLLM 0.32.0 (image 9c1f04aa…)``; ``where`` is the path of
    the role's config. ``by_name``: the engine takes settings by name, so that any switch can be set to False.
    """

    def __init__(self, table: OptionList, *, engine: str, where: str, by_name: bool = False) -> None:
        self.table = table
        self.by_name = by_name
        self.engine = engine
        self.where = where
        self.problems: list[Problem] = []
        self._places: dict[str, list[tuple[Found, str]]] = {}

    # -- options -------------------------------------------------------------------------------------------------------

    def options(self, options: Mapping[str, Any]) -> tuple[Setting, ...]:
        """The settings of an ``options`` mapping, in the order of its keys. What is refused is left out."""
        settings: list[Setting] = []
        for key in sorted(options):
            where, value = f"{self.where}.options[{key!r}]", options[key]
            found = self.table.named(key)
            if found is None or key.startswith("-"):
                self._unknown(key, where, value)
            elif self._may_set(found, where, value) and (tokens := self._rendered(found, value, where)):
                meant = False if found.negated else _alone(found.spec, value)
                settings.append(Setting(spec=found.spec, value=meant, tokens=tuple(tokens), where=where))
        return tuple(settings)

    def _rendered(self, found: Found, value: Any, where: str) -> list[str]:
        spec, flag = found.spec, long_flag(found.spec)
        if found.negated:
            if value is True:
                return [found.flag]
            self._refuse(
                "wrong-arity",
                where,
                f"{found.flag} is a switch and takes True only.",
                value,
                help=f"Set {_key(spec)!r} instead.",
                limit="True",
            )
            return []
        if isinstance(value, bool):
            return self._switch(spec, flag, value, where)
        if value is None:
            self._refuse(
                "no-value",
                where,
                f"None is no value for {flag}.",
                help="Leave the option out to keep the engine's default.",
            )
            return []
        items = _items(spec, value)
        texts = [_text(item) for item in items]
        if not self._nested(found, texts, where) or not self._values_fit(found, flag, texts, where, value):
            return []
        return self._tokens(spec, flag, items, where)

    def _switch(self, spec: OptionSpec, flag: str, value: bool, where: str) -> list[str]:
        if spec.minimum > 0 or (self.by_name and spec.maximum != 0):
            self._refuse(
                "wrong-arity",
                where,
                f"{flag} takes {arity(spec.minimum, spec.maximum)}, not True or False.",
                value,
                help="Write the value itself.",
                limit=arity(spec.minimum, spec.maximum),
            )
            return []
        if value:
            return [flag]
        if (off := negation(spec)) is not None:
            return [off]
        if self.by_name:
            return [f"{flag}=false"]
        self._refuse(
            "no-negation", where, f"{flag} cannot be switched off: it has no --no- form.", help="Leave the option out."
        )
        return []

    def _tokens(self, spec: OptionSpec, flag: str, items: list[Any], where: str) -> list[str]:
        texts = [_text(item) for item in items]
        if spec.repeatable and spec.maximum == 1:
            return [token for text in texts for token in _pair(flag, text)]
        if len(texts) == 1:
            return _pair(flag, texts[0])
        for text in texts:
            if text.startswith("-") and not self.table.is_value(text):
                self._refuse(
                    "ambiguous-value",
                    where,
                    f"a value of {flag} starts with a dash and would be read as an option.",
                    text,
                    help="Give this option values that do not start with a dash.",
                )
                return []
        return [flag, *texts]

    # -- extra arguments -----------------------------------------------------------------------------------------------

    def arguments(self, tokens: Sequence[str]) -> tuple[Setting, ...]:
        """The settings of tokenized extra arguments; their tokens are as written. What is refused is left out."""
        settings: list[Setting] = []
        index = 0
        while index < len(tokens):
            token, where = tokens[index], f"{self.where}.extra_args[{index}]"
            index += 1
            if token == "--" or self.table.is_value(token):
                self._refuse(
                    "loose-argument",
                    where,
                    f"{_shown(token)!r} belongs to no option.",
                    token,
                    help="Write '--flag', 'value' or '--flag=value'; the model is named by Model(source=...).",
                )
                continue
            following: list[str] = []
            while index + len(following) < len(tokens) and self.table.is_value(tokens[index + len(following)]):
                following.append(tokens[index + len(following)])
            setting, taken = self._argument(token, following, where)
            index += taken
            if setting is not None:
                settings.append(setting)
        return tuple(settings)

    def _argument(self, token: str, following: list[str], where: str) -> tuple[Setting | None, int]:
        """Read one option of the extra arguments: its setting, and how many of the tokens after it are its values."""
        matches = self.table.find(token)
        name = token.partition("=")[0]
        first = following[0] if following else None
        if not matches:
            self._unknown(name, where, first)
            return None, len(following)
        found = matches[0]
        if len(matches) > 1:
            # An ambiguous abbreviation is an error of the engine, but the managed meaning is the better answer when
            # one is among them.
            managed = next((match for match in matches if owner_of(match.spec, match.path) is not None), None)
            if managed is not None and all(match.spec is managed.spec for match in matches):
                self._may_set(managed, where, first)
            else:
                flags = sorted({match.flag for match in matches})
                self._refuse(
                    "ambiguous-option", where, f"{name} can mean {_several(flags)}.", help="Write the flag in full."
                )
            return None, len(following)
        given = found.attached if found.attached is not None else first
        if not self._may_set(found, where, given):
            return None, len(following)
        if not found.exact:
            full = ".".join((found.flag, *found.path))
            self._refuse(
                "abbreviated-option", where, f"{found.written} abbreviates {full}.", help="Write the flag in full."
            )
            return None, len(following)
        if found.path and not takes_keys(found.spec):
            self._refuse(
                "wrong-arity",
                where,
                f"{found.flag} takes no dotted keys: its value is not a JSON object.",
                token,
                help=f"Write {found.flag} alone.",
                limit=arity(*found.values),
            )
            return None, len(following)
        _, most = found.values
        if found.attached is not None:
            values, taken = [found.attached], 0
        else:
            taken = len(following) if most is None else min(most, len(following))
            values = following[:taken]
        if found.attached is None and any(value.startswith("-") and "." in value for value in values):
            self._refuse(
                "ambiguous-value",
                where,
                f"a negative number with a point must be attached, {found.flag}=..., to be read as a value.",
                first,
                help=f"Write '{found.flag}={first}'.",
            )
            return None, taken
        if found.path:
            if not values:
                self._refuse(
                    "wrong-arity",
                    where,
                    f"{name} takes one value, and none is given.",
                    help=f"Write '{name}=VALUE'.",
                    limit="one value",
                )
                return None, taken
        elif not self._values_fit(found, found.flag, values, where, given) or not self._nested(found, values, where):
            return None, taken
        if self.by_name and not values and found.values[1] != 0:
            # Without its parser, nothing says what the flag alone would mean.
            self._refuse(
                "wrong-arity",
                where,
                f"{found.flag} needs its value written out.",
                help=f"Write '{found.flag}=VALUE'.",
                limit="one value or more",
            )
            return None, taken
        tokens = (token, *following[:taken])
        return Setting(spec=found.spec, value=_meant(found, values), tokens=tokens, where=where), taken

    # -- shared checks -------------------------------------------------------------------------------------------------

    def _may_set(self, found: Found, where: str, value: Any) -> bool:
        """Whether a config may set the option here: not managed, no secret, not set before."""
        spec = found.spec
        given = value if found.attached is None else found.attached
        if (owned := owner_of(spec, found.path)) is not None:
            self._managed(owned, found, where, given)
            return False
        if any(redact(text) != text for text in _texts(given)):
            self._refuse(
                "literal-secret", where, f"the value of {long_flag(spec)} looks like a secret.", help=_SECRET_HELP
            )
            return False
        if (fault := next(filter(None, map(unwritable, _texts(given))), None)) is not None:
            self._refuse(
                "unwritable",
                where,
                f"the value of {long_flag(spec)} holds {fault}, which no command line can carry.",
                help="Write the value without it.",
            )
            return False
        if any("@{" in text for text in _texts(given)):
            self._refuse(
                "placeholder",
                where,
                "'@{' marks what Standfast fills in and cannot be part of a value.",
                given,
                help="Write the value without it.",
            )
            return False
        if not self._may_hold(found, given, where):
            return False
        places = self._places.setdefault(spec.dest, [])
        clash = next((place for other, place in places if _clash(other, found)), None)
        places.append((found, where))
        if clash is not None and not spec.repeatable:
            self._refuse(
                "duplicate-option",
                where,
                f"{long_flag(spec)} is set twice; the other place is {clash}.",
                given,
                help="Keep one of them.",
            )
            return False
        return True

    def _may_hold(self, found: Found, value: Any, where: str) -> bool:
        """Whether a JSON setting carries no key that Standfast manages."""
        paths = [(path, owner_of(found.spec, path)) for path in dict.fromkeys(_paths(value, found.path))]
        managed = [(path, owned) for path, owned in paths if owned is not None]
        for path, owned in managed:
            self._managed(owned, replace(found, path=path), where, None)
        return not managed

    def _nested(self, found: Found, values: list[str], where: str) -> bool:
        """Whether JSON written as text carries no managed key either."""
        held = [self._may_hold(found, _json_or_text(text), where) for text in values if text.lstrip()[:1] in ("{", "[")]
        return all(held)

    def _managed(self, owned: Owned, found: Found, where: str, value: Any) -> None:
        spelled = ".".join((long_flag(found.spec), *found.path))
        plain = canonical(f"--{found.written.lstrip('-')}") in (spelled, long_flag(found.spec), negation(found.spec))
        subject = spelled if plain else f"{found.written} is {spelled}, which"
        self.problems.append(managed_option(owned, subject, where, _showable(found.spec.dest, value)))

    def _values_fit(self, found: Found, flag: str, values: list[str], where: str, given: Any) -> bool:
        spec = found.spec
        least, most = found.values
        if spec.repeatable and most == 1 and values:
            most = None
        if len(values) < least or (most is not None and len(values) > most):
            number = "none is" if not values else "one is" if len(values) == 1 else f"{len(values)} are"
            wanted = arity(least, most)
            help = f"Give it {wanted}." if most != 0 else "Write the flag alone."
            self._refuse(
                "wrong-arity", where, f"{flag} takes {wanted}, and {number} given.", given, help=help, limit=wanted
            )
            return False
        for value in values:
            if (found_misfit := misfit(spec, value)) is not None:
                reason, limit = found_misfit
                self._refuse("wrong-value", where, f"{flag} {reason}.", value, help=_nearest(spec, value), limit=limit)
                return False
        return True

    def _unknown(self, name: str, where: str, value: Any) -> None:
        flag = name if name.startswith("-") else canonical(f"--{name}")
        if name.startswith("-") and ".options[" in where and self.table.find(name):
            self._refuse(
                "spelled-option",
                where,
                "options are named without dashes.",
                help=f"Write {name.lstrip('-').replace('_', '-')!r}.",
            )
            return
        near = self.table.nearest(flag)
        if near is None:
            help = "Look the option up in the engine's documentation of this version."
        elif (owned := owner_of(near.spec)) is not None:
            help = f"Nearest: {near.flag}, which Standfast manages: {owned.advice(value)}."
        else:
            help = f"Nearest: {near.flag}."
        # What follows an unknown flag may be a credential: only the flag is shown.
        self._refuse("unknown-option", where, f"{self.engine} has no option {_shown(flag)}.", _shown(name), help=help)

    def _refuse(
        self, code: str, where: str, message: str, value: Any = None, *, help: str, limit: str | None = None
    ) -> None:
        shown = None if value is None else redact(_text(value))
        self.problems.append(Problem(code=code, where=where, message=message, help=help, value=shown, limit=limit))


def managed_option(owned: Owned, subject: str, where: str, value: Any) -> Problem:
    """The refusal of a setting that Standfast makes itself; ``subject`` is how the message calls it."""
    return Problem(
        code="managed-option",
        where=where,
        message=f"{subject} decides {owned.meaning}, and Standfast manages that.",
        help=_sentence(owned.advice(value)),
        value=None if value is None else redact(_text(value)),
    )


def managed_by_name(options: Mapping[str, Any], tokens: Sequence[str], *, where: str) -> Iterator[Problem]:
    """What Standfast manages among settings whose image nobody has looked into yet: full names only, in any engine's
    words. `ArgumentReader` finds every other spelling once the image's options are known.
    """
    for key, value in options.items():
        if (owned := owner_of_name(key)) is not None:
            yield managed_option(owned, canonical(f"--{key}"), f"{where}.options[{key!r}]", _showable(key, value))
    for index, token in enumerate(tokens):
        flag, equals, attached = token.partition("=")
        if flag.startswith("--") and (owned := owner_of_name(flag)) is not None:
            given = attached if equals else next(iter(tokens[index + 1 : index + 2]), None)
            yield managed_option(owned, canonical(flag), f"{where}.extra_args[{index}]", _showable(flag, given))


def _showable(name: str, value: Any) -> Any:
    """The value that was given to an option, unless the option's name says that it is a credential."""
    return None if names_a_secret(name.lstrip("-").replace("-", "_")) else value


#: The reader of options that take JSON of any kind.
_JSON = "loads"
_SECRET_HELP = "Bind it as a variable: Inference(environment={'NAME': Secret('NAME')})."


def _nearest(spec: OptionSpec, value: str) -> str:
    """What could have been meant by a value that does not fit."""
    if spec.choices is None:
        return "Write it as JSON, with quotes around text." if spec.type == _JSON else "Write a plain number."
    close = difflib.get_close_matches(value, spec.choices, n=1, cutoff=0.6)
    return f"Did you mean {close[0]!r}?" if close else "Choose one of them."


def _meant(found: Found, values: list[str]) -> Any:
    """What an argument sets its option to."""
    spec = found.spec
    if found.path:
        value: Any = _json_or_text(values[0])
        for key in reversed(found.path):
            value = {key: value}
        return value
    if not values:
        return not found.negated
    typed = [_typed(spec, value) for value in values]
    several = spec.repeatable or spec.maximum is None or spec.maximum > 1
    return typed if several else typed[0]


def _typed(spec: OptionSpec, text: str) -> int | float | str:
    return int(text) if spec.type == "int" else float(text) if spec.type == "float" else text


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _key(spec: OptionSpec) -> str:
    return long_flag(spec).lstrip("-")


def _text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return canonical_json(value).decode()


def _pair(flag: str, text: str) -> list[str]:
    # A value that starts with a dash would be read as an option when it stood alone.
    return [f"{flag}={text}"] if text.startswith("-") else [flag, text]


def _texts(value: Any) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        return [text for key, item in value.items() for text in (str(key), *_texts(item))]
    if isinstance(value, list | tuple):
        return [text for item in value for text in _texts(item)]
    return []


def _items(spec: OptionSpec, value: Any) -> list[Any]:
    """The values that one of ``options`` gives: several for a list, unless a list is itself the JSON value."""
    several = isinstance(value, list | tuple) and spec.type != _JSON
    return list(value) if several else [value]


def _alone(spec: OptionSpec, value: Any) -> Any:
    """The value of an option that takes one, out of a list of one."""
    one = spec.maximum == 1 and not spec.repeatable and isinstance(value, list | tuple) and spec.type != _JSON
    return value[0] if one and len(value) == 1 else value


def _paths(value: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of all keys in a JSON value; the places in a list do not count."""
    found = []
    if isinstance(value, Mapping):
        for key, item in value.items():
            found.append((*prefix, str(key)))
            found += _paths(item, (*prefix, str(key)))
    elif isinstance(value, list | tuple):
        for item in value:
            found += _paths(item, prefix)
    return found


def _clash(one: Found, other: Found) -> bool:
    # Dotted keys of one setting add up, but only under one spelling of the flag; under two, an engine takes the last.
    if one.flag != other.flag:
        return True
    shorter = min(len(one.path), len(other.path))
    return one.path[:shorter] == other.path[:shorter]


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _shown(token: str) -> str:
    return redact(token if len(token) <= 80 else f"{token[:77]}...")


def _several(flags: list[str]) -> str:
    shown = flags[:4]
    return f"{', '.join(shown[:-1])} or {shown[-1]}" + ("" if len(flags) <= 4 else f" (and {len(flags) - 4} more)")
