"""Small value types of the configuration language: durations, memory sizes, frozen mappings.

Pure functions over the standard library; ``standfast.fields`` binds them to pydantic.
"""

import math
import re
from collections.abc import Mapping
from datetime import timedelta
from fractions import Fraction
from typing import Any, NoReturn

#: Microseconds per unit, largest first.
_DURATION_UNITS = {
    "w": 604_800_000_000,
    "d": 86_400_000_000,
    "h": 3_600_000_000,
    "m": 60_000_000,
    "s": 1_000_000,
    "ms": 1_000,
    "us": 1,
}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?) ?(ms|us|s|m|h|d|w)(?![a-z])", re.ASCII)
_DURATION = re.compile(rf"{_DURATION_PART.pattern}(?: ?{_DURATION_PART.pattern})*", re.ASCII)
_DURATION_HELP = "write a timedelta or text such as '30s', '15m', '1h30m' or '7d'"
_MEMORY_UNITS = {
    "TiB": 2**40,
    "GiB": 2**30,
    "MiB": 2**20,
    "KiB": 2**10,
    "TB": 10**12,
    "GB": 10**9,
    "MB": 10**6,
    "KB": 10**3,
    "B": 1,
}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?([KMGT]i?B|B)", re.ASCII)
_ALMOST_MEMORY = re.compile(r"(\d+(?:\.\d+)?) ?([kmgt])i?b?", re.ASCII | re.IGNORECASE)
_MEMORY_HELP = "write bytes or text such as '512MiB' or '32GiB'"


class Misuse(ValueError):
    """A value that the configuration language refuses: what is wrong, and apart from it what would be right."""

    def __init__(self, message: str, help: str = "") -> None:
        super().__init__(f"{message}; {help}" if help else message)
        self.message = message
        self.help = help


def parse_duration(value: object) -> timedelta:
    """Read a duration: a ``timedelta``, or text such as ``"15m"``, ``"1h30m"``, ``"250ms"``. Raises `Misuse`."""
    if isinstance(value, timedelta):
        duration = value
    elif isinstance(value, str):
        text = value.strip()
        if not _DURATION.fullmatch(text):
            raise Misuse(f"{_shown(value)} is not a duration", _DURATION_HELP)
        parts = _DURATION_PART.findall(text)
        units = [unit for _, unit in parts]
        if units != [unit for unit in _DURATION_UNITS if unit in units]:
            raise Misuse(f"{_shown(value)} names its units twice or out of order", "write for example '1h30m'")
        microseconds = sum(Fraction(number) * _DURATION_UNITS[unit] for number, unit in parts)
        try:
            duration = timedelta(microseconds=round(microseconds))
        except OverflowError:
            raise Misuse(f"{_shown(value)} is too long for a duration", _DURATION_HELP) from None
    else:
        raise Misuse(f"{_shown(value)} has no unit", _DURATION_HELP)
    if duration < timedelta(0):
        raise Misuse("a duration cannot be negative")
    return duration


def format_duration(value: timedelta) -> str:
    """The shortest text that `parse_duration` reads back to exactly this value."""
    rest = value // timedelta(microseconds=1)
    text = ""
    for unit in ("d", "h", "m", "s", "ms", "us"):
        count, rest = divmod(rest, _DURATION_UNITS[unit])
        text += f"{count}{unit}" if count else ""
    return text or "0s"


def parse_memory(value: object) -> int:
    """Read an amount of memory in bytes: an ``int``, or text such as ``"32GiB"``. Raises `Misuse`."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise Misuse(f"{_shown(value)} is not an amount of memory", _MEMORY_HELP)
    if isinstance(value, int):
        amount = value
    else:
        match = _MEMORY.fullmatch(value.strip())
        if match is None:
            raise Misuse(f"{_shown(value)} is not an amount of memory", _memory_meant(value))
        amount = round(Fraction(match.group(1)) * _MEMORY_UNITS[match.group(2)])
    if amount <= 0:
        raise Misuse("an amount of memory must be positive", _MEMORY_HELP)
    return amount


def format_memory(value: int) -> str:
    """Bytes as text in the largest binary unit that keeps the value exact: `parse_memory` reads the same value back."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        size = _MEMORY_UNITS[unit]
        if value >= size and value % size == 0:
            return f"{value // size}{unit}"
    return f"{value}B"


def show_memory(value: int) -> str:
    """Bytes for people: three digits in the largest binary unit, such as ``"23.4GiB"``. Not exact."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        size = _MEMORY_UNITS[unit]
        if value >= size:
            amount = value / size
            return f"{amount:.0f}{unit}" if amount >= 100 or value % size == 0 else f"{amount:.3g}{unit}"
    return f"{value}B"


def _memory_meant(value: str) -> str:
    match = _ALMOST_MEMORY.fullmatch(value.strip())
    if match is None:
        return _MEMORY_HELP
    number, letter = match.group(1), match.group(2).upper()
    return f"write '{number}{letter}iB' (binary) or '{number}{letter}B' (decimal)"


def _shown(value: object) -> str:
    """Short values as they are written, others by their type: a message never carries a whole object."""
    if isinstance(value, str | int | float) or value is None:
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    return f"a value of type {type(value).__name__}"


class FrozenMapping(dict[str, Any]):
    """A dictionary that refuses to change, with its keys in sorted order, so that equal settings serialize alike."""

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        super().__init__({key: _frozen(value) for key, value in sorted((items or {}).items())})

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("this mapping is frozen; build a new one, for example with {**old, 'key': value}")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))

    def __reduce__(self) -> tuple[type["FrozenMapping"], tuple[dict[str, Any]]]:
        return (type(self), (dict(self),))


def freeze(value: Any) -> Any:
    """A deeply immutable copy of a JSON-like value: mappings become `FrozenMapping`, lists become tuples.

    Raises `Misuse`; its message names the place inside the value, never the value.
    """
    _require_json(value, "")
    return _frozen(value)


def _frozen(value: Any) -> Any:
    if isinstance(value, Mapping):
        return FrozenMapping(value)
    return tuple(_frozen(item) for item in value) if isinstance(value, list | tuple) else value


#: Bits of a whole number: Python itself does not write many more as text.
_LONGEST = 4096


def unwritable(text: str) -> str | None:
    """What in a text no command line can carry, if anything."""
    if "\0" in text:
        return "a NUL character"
    return "half of a surrogate pair" if any("\ud800" <= char <= "\udfff" for char in text) else None


def _require_json(value: Any, place: str) -> None:
    at = f"at {place}: " if place else ""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if not isinstance(key, str):
                raise Misuse(f"{at}a key of type {type(key).__name__} is not text")
            _require_json(item, f"{place}[{key!r}]")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _require_json(item, f"{place}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise Misuse(f"{at}{value} is not a JSON number")
    elif isinstance(value, int) and value.bit_length() > _LONGEST:
        raise Misuse(f"{at}a number of more than {_LONGEST} bits is not carried over by JSON")
    elif isinstance(value, str) and not value.isascii() and (fault := unwritable(value.replace("\0", ""))) is not None:
        raise Misuse(f"{at}the text holds {fault}")
    elif not (value is None or isinstance(value, bool | int | float | str)):
        kinds = "text, number, boolean, None, list or mapping"
        raise Misuse(f"{at}a value of type {type(value).__name__} is not a JSON value", f"write {kinds}")
