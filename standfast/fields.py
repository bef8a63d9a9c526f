"""The machinery under the configuration language: the dataclass decorator and the types of the fields.

`config` makes frozen, keyword-only, validated dataclasses whose refusals are `ProblemsError`: every problem of one
object at once, each with the field it is about and, where one can be told, what to write instead.
"""

import dataclasses
import difflib
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Annotated, Any, TypeVar, cast, dataclass_transform, get_args, get_type_hints

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)
from pydantic.dataclasses import dataclass as pydantic_dataclass

from standfast.problems import Problem, ProblemsError, redact
from standfast.values import (
    FrozenMapping,
    Misuse,
    format_duration,
    format_memory,
    freeze,
    parse_duration,
    parse_memory,
    unwritable,
)

_T = TypeVar("_T")
_CONFIG = ConfigDict(extra="forbid", strict=True, validate_default=True)

#: Every class of the language by name, to say where a misplaced field belongs.
_CLASSES: dict[str, type] = {}


# -- the decorator -----------------------------------------------------------------------------------------------------


@dataclass_transform(kw_only_default=True, frozen_default=True, field_specifiers=(Field, dataclasses.field))
def config(*, instead: Mapping[str, str] | None = None) -> Callable[[type[_T]], type[_T]]:
    """Make a class of the configuration language. ``instead`` maps names that people expect from other tools to the
    sentence that says what to write here."""

    def decorate(cls: type[_T]) -> type[_T]:
        made = cast(type[_T], pydantic_dataclass(frozen=True, kw_only=True, config=_CONFIG)(cls))
        _CLASSES[cls.__name__] = made
        return _refuse_in_words(made, instead or {})

    return decorate


def _refuse_in_words(made: type[_T], instead: Mapping[str, str]) -> type[_T]:
    validated_init: Callable[..., None] = made.__init__

    @functools.wraps(validated_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            validated_init(self, *args, **kwargs)
        except ValidationError as error:
            raise ProblemsError(tuple(_problems(made, instead, error))) from None

    made.__init__ = init  # type: ignore[method-assign]
    return made


# -- refusals ----------------------------------------------------------------------------------------------------------

#: What pydantic says, in our words; ``{...}`` are values of the error's context.
_WORDS = {
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "bool_type": "must be True or False",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "finite_number": "must be a finite number",
    "literal_error": "must be {expected}",
}


def _problems(cls: type, instead: Mapping[str, str], error: ValidationError) -> Iterator[Problem]:
    details = error.errors(include_url=False)
    if any(detail["type"] == "unexpected_positional_argument" for detail in details):
        first = next(iter(_field_names(cls)))
        yield Problem(
            code="positional",
            where=cls.__name__,
            message=f"{cls.__name__} takes its fields by name only.",
            help=f"Write {cls.__name__}({first}=...).",
        )
        details = [detail for detail in details if detail["type"] not in ("missing", "unexpected_positional_argument")]
    for detail in details:
        if detail["type"] == "unexpected_keyword_argument":
            yield _unknown_field(cls, instead, str(detail["loc"][-1]))
        else:
            yield _invalid(cls, detail)


def _unknown_field(cls: type, instead: Mapping[str, str], name: str) -> Problem:
    names = _field_names(cls)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    places = dict(_places(cls))
    help = instead.get(name)
    if help is None and name in places:
        help = f"It belongs to a part: write {places[name].format('...')}."
    if help is None and close:
        help = f"Did you mean {close[0]!r}?"
    if help is None and (near := difflib.get_close_matches(name, places, n=1, cutoff=0.75)):
        help = f"Did you mean {near[0]!r} in a part: {places[near[0]].format('...')}?"
    if help is None and (owners := [owner for owner, made in _CLASSES.items() if name in _field_names(made)]):
        help = f"It is a field of {' and '.join(owners)}."
    return Problem(
        code="unknown-field",
        where=f"{cls.__name__}.{name}",
        message=f"{cls.__name__} has no field {name!r}.",
        help=help or f"The fields are: {', '.join(names)}.",
    )


def _places(cls: type, depth: int = 2) -> Iterator[tuple[str, str]]:
    """Fields of the parts of ``cls``, each with the text that sets it; those of nearer parts come last and win."""
    parts = [(field, part) for field, part in _parts(cls)]
    if depth > 1:
        for field, part in reversed(parts):
            for name, text in _places(part, depth - 1):
                yield name, f"{field}={part.__name__}({text})"
    for field, part in reversed(parts):
        for name in _field_names(part):
            yield name, f"{field}={part.__name__}({name}={{}})"


def _parts(cls: type) -> Iterator[tuple[str, type]]:
    for field, hint in get_type_hints(cls).items():
        for candidate in (hint, *get_args(hint)):
            if isinstance(candidate, type) and candidate.__name__ in _CLASSES:
                yield field, candidate


def _field_names(cls: type) -> list[str]:
    return [field.name for field in dataclasses.fields(cls)]


def _invalid(cls: type, detail: Any) -> Problem:
    kind, location, given = str(detail["type"]), detail["loc"], detail.get("input")
    context = detail.get("ctx", {})
    path = "".join(f".{_field_names(cls)[part] if isinstance(part, int) else part}" for part in location)
    refusal = context.get("error")
    help, shown = "", None
    if kind == "missing":
        message = f"{cls.__name__} needs the field {location[-1]!r}."
        help = f"Write {cls.__name__}({location[-1]}=...)."
    else:
        subject = f"{cls.__name__}{path}" if location else cls.__name__
        if isinstance(refusal, Misuse):
            message, help = refusal.message, refusal.help
        elif kind in ("dataclass_exact_type", "dataclass_type"):
            part = context["class_name"]
            message, help = f"must be {part}(...), not {_kind_of(given)}", f"Write {part}(...)."
        elif kind in _WORDS:
            message = _WORDS[kind].format(**context)
        else:
            message = str(detail["msg"]).removeprefix("Value error, ").replace("Input should", "must", 1)
        if kind == "literal_error" and isinstance(given, str):
            choices = re.findall(r"'([^']*)'", str(context["expected"]))
            close = difflib.get_close_matches(given, choices, n=1, cutoff=0.6)
            help = f"Did you mean {close[0]!r}?" if close else help
        shown = repr(given) if isinstance(given, str | int | float) and not isinstance(refusal, Misuse) else None
        message = f"{subject} {message}." if message.startswith("must") else f"{subject}: {message}."
    return Problem(
        code=f"invalid-{kind.replace('_', '-')}",
        where=f"{cls.__name__}{path}",
        message=message,
        help=_sentence(help),
        value=shown if shown is None or len(shown) <= 80 else f"{shown[:77]}...",
    )


def _sentence(text: str) -> str:
    return text if not text or text[-1] in ".?" else f"{text[0].upper()}{text[1:]}."


def _kind_of(value: object) -> str:
    if isinstance(value, type):
        return f"the class {value.__name__} itself"
    return "None" if value is None else f"a value of type {type(value).__name__}"


# -- types of fields ---------------------------------------------------------------------------------------------------


def _positive(value: timedelta | str) -> timedelta | str:
    if seconds(value) <= 0:
        raise Misuse("must be longer than 0s")
    return value


def matching(pattern: str, otherwise: str, help: str = "") -> AfterValidator:
    """Text that matches a regular expression as a whole; ``otherwise`` says in words what it must be."""
    compiled = re.compile(pattern, re.ASCII)

    def check(value: str) -> str:
        if not compiled.fullmatch(value):
            shown = value if len(value) <= 80 else f"{value[:77]}..."
            raise Misuse(f"{otherwise}, not {shown!r}", help)
        return value

    return AfterValidator(check)


def _name(value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", value):
        nearest = re.sub(r"[^a-z0-9]+", "-", value.lower()).strip("-")[:63].strip("-")
        raise Misuse(
            f"must be lower-case letters, digits and dashes, at most 63, not {value[:80]!r}",
            f"Write {nearest!r}." if nearest else "Write for example 'qwen35-9b'.",
        )
    return value


def _mapping(value: object) -> FrozenMapping:
    if not isinstance(value, Mapping):
        raise Misuse(f"must be a mapping from names to values, not {_kind_of(value)}")
    return cast(FrozenMapping, freeze(value))


def _thaw(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _thaw(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_thaw(item) for item in value]
    return value


def _tokens(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        raise Misuse("must be a list of texts, not one text: nothing here passes through a shell", "Write ['...'].")
    if not isinstance(value, list | tuple):
        raise Misuse(f"must be a list of texts, not {_kind_of(value)}")
    for index, token in enumerate(value):
        if not isinstance(token, str):
            raise Misuse(f"must be a list of texts; item {index} is {_kind_of(token)}", "Write it in quotes.")
        if (fault := unwritable(token)) is not None:
            raise Misuse(f"holds {fault} in item {index}, which no command line can carry")
    return tuple(value)


def _some(value: Sequence[str]) -> Sequence[str]:
    if not value:
        raise Misuse("must not be empty")
    return value


def either(*kinds: type, otherwise: str = "") -> BeforeValidator:
    """A value of one of these types. Without this, a union reports one problem for each of its members."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if info.mode == "python" and value is not None and type(value) not in kinds:
            named = " or ".join([*(f"{kind.__name__}(...)" for kind in kinds if kind is not str), *_other(otherwise)])
            raise Misuse(f"must be {named}, not {_kind_of(value)}")
        return value

    return BeforeValidator(check)


def _other(text: str) -> list[str]:
    return [text] if text else []


#: A ``timedelta``, or text such as ``"15m"``; always a ``timedelta`` once the object is built (read it with `seconds`).
Duration = Annotated[
    timedelta | str,
    BeforeValidator(parse_duration),
    PlainSerializer(lambda value: format_duration(value), return_type=str),
]
#: A `Duration` longer than nothing.
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
#: Bytes, or text such as ``"32GiB"``; always bytes once the object is built (read it with `memory_bytes`).
Memory = Annotated[
    int | str, BeforeValidator(parse_memory), PlainSerializer(lambda value: format_memory(value), return_type=str)
]
#: Settings passed to a backend: names to JSON values, deeply frozen, keys sorted.
Options = Annotated[
    Mapping[str, Any],
    PlainValidator(lambda value: _mapping(value)),
    PlainSerializer(lambda value: _thaw(value), return_type=dict[str, Any]),
]
#: Lower-case words joined by dashes: safe in URLs, file names, job names and workflow ids.
Name = Annotated[str, AfterValidator(_name)]
#: Text that is not empty.
Text = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(ge=1)]
#: A list of texts, one per command-line token, never one text to be split; a tuple once the object is built.
Tokens = Annotated[
    Sequence[str], PlainValidator(lambda value: _tokens(value)), PlainSerializer(list, return_type=list[str])
]
#: `Tokens`, at least one.
SomeTokens = Annotated[Tokens, AfterValidator(_some)]


def seconds(value: timedelta | str) -> float:
    """A duration field in seconds."""
    return parse_duration(value).total_seconds()


def memory_bytes(value: int | str) -> int:
    """A memory field in bytes."""
    return parse_memory(value)


# -- secrets and environments ------------------------------------------------------------------------------------------

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def _secret_name(value: str) -> str:
    if redact(value) != value:
        raise Misuse("must be the name of a secret, and this looks like its value", "Write Secret('HF_TOKEN').")
    if not _VARIABLE.fullmatch(value):
        raise Misuse("must be a name of letters, digits and underscores", "Write for example Secret('HF_TOKEN').")
    return value


@functools.partial(_refuse_in_words, instead={"value": "A config never holds a secret's value, only its name."})
@pydantic_dataclass(frozen=True, config=_CONFIG)
class Secret:
    """The name of a secret: ``Secret("HF_TOKEN")``.

    Its value stays in the target's secret store (locally: the control worker's environment) and reaches only the
    process that needs it; plans, histories, command lines and logs carry the name.
    """

    name: Annotated[str, AfterValidator(_secret_name)]


class FrozenEnvironment(FrozenMapping):
    """A frozen mapping from variable names to text or `Secret`, sorted by name."""

    def __init__(self, items: Mapping[str, str | Secret] | None = None) -> None:
        dict.__init__(self, sorted((items or {}).items()))


def _environment(value: object) -> FrozenEnvironment:
    if not isinstance(value, Mapping):
        raise Misuse(f"must be a mapping from variable names to text or Secret('NAME'), not {_kind_of(value)}")
    checked: dict[str, str | Secret] = {}
    for key, bound in value.items():
        if not isinstance(key, str) or not _VARIABLE.fullmatch(key):
            raise Misuse(f"{key!r} is not the name of an environment variable")
        if isinstance(bound, Mapping) and set(bound) == {"name"} and _VARIABLE.fullmatch(str(bound["name"])):
            bound = Secret(bound["name"])
        if isinstance(bound, bool | int | float):
            raise Misuse(f"{key} must be text, not a value of type {type(bound).__name__}", "write it in quotes")
        if not isinstance(bound, str | Secret):
            raise Misuse(f"{key} must be text or Secret('NAME'), not {_kind_of(bound)}")
        if isinstance(bound, str) and "\0" in bound:
            raise Misuse(f"{key} holds a NUL character, which no environment can carry")
        checked[key] = bound
    return FrozenEnvironment(checked)


#: Variables of a role's processes: a literal, or the name of a secret.
Environment = Annotated[
    Mapping[str, str | Secret],
    PlainValidator(lambda value: _environment(value)),
    PlainSerializer(
        lambda value: {
            key: ({"name": bound.name} if isinstance(bound, Secret) else bound) for key, bound in value.items()
        }
    ),
]
