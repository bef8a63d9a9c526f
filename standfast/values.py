"""Small value types of the configuration language: durations, memory sizes, frozen mappings.

Pure functions over the standard library; ``standfast.spec`` binds them to pydantic.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any, NoReturn

_DURATION_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")
_MEMORY_UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_MEMORY = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]i?B|B)")


def parse_duration(value: object) -> timedelta:
    """Read a duration: a ``timedelta``, or text such as ``"15m"``, ``"1h30m"``, ``"250ms"``. Raises ``ValueError``."""
    if isinstance(value, timedelta):
        duration = value
    elif isinstance(value, str):
        text = value.strip()
        parts = _DURATION_PART.findall(text)
        if not parts or _DURATION_PART.sub("", text).strip():
            raise ValueError(f"{value!r} is not a duration; write a timedelta or text such as '30s', '15m', '1h30m' or '7d'")
        duration = timedelta(seconds=sum(float(number) * _DURATION_UNITS[unit] for number, unit in parts))
    else:
        raise ValueError(f"{value!r} has no unit; write a timedelta or text such as '30s', '15m', '1h30m' or '7d'")
    if duration < timedelta(0):
        raise ValueError("a duration cannot be negative")
    return duration


def format_duration(value: timedelta) -> str:
    """The shortest text that `parse_duration` reads back to the same value (milliseconds are the finest unit)."""
    milliseconds = round(value.total_seconds() * 1000)
    if milliseconds == 0:
        return "0s"
    text = ""
    for unit in ("d", "h", "m", "s", "ms"):
        size = round(_DURATION_UNITS[unit] * 1000)
        count, milliseconds = divmod(milliseconds, size)
        if count:
            text += f"{count}{unit}"
    return text


def parse_memory(value: object) -> int:
    """Read an amount of memory in bytes: an ``int``, or text such as ``"32GiB"``. Raises ``ValueError``."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} is not an amount of memory; write bytes or text such as '32GiB'")
    if isinstance(value, int):
        amount = value
    else:
        match = _MEMORY.fullmatch(value.strip())
        if match is None:
            raise ValueError(f"{value!r} is not an amount of memory; write bytes or text such as '512MiB' or '32GiB'")
        amount = round(float(match.group(1)) * _MEMORY_UNITS[match.group(2)])
    if amount <= 0:
        raise ValueError("an amount of memory must be positive")
    return amount


def format_memory(value: int) -> str:
    """Bytes as text in the largest binary unit that keeps the value exact, else in GiB with two digits."""
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        size = _MEMORY_UNITS[unit]
        if value >= size and value % size == 0:
            return f"{value // size}{unit}"
    return f"{value}B" if value < 2**20 else f"{value / 2**30:.2f}GiB"


class FrozenMapping(dict[str, Any]):
    """A dictionary that refuses to change, with its keys in sorted order, so that equal settings serialize alike."""

    def __init__(self, items: Mapping[str, Any] | None = None) -> None:
        super().__init__({key: freeze(value) for key, value in sorted((items or {}).items())})

    def _refuse(self, *_args: object, **_kwargs: object) -> NoReturn:
        raise TypeError("this mapping is frozen; build a new one, for example with {**old, 'key': value}")

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(tuple(self.items()))

    def __reduce__(self) -> tuple[type["FrozenMapping"], tuple[dict[str, Any]]]:
        return (FrozenMapping, (dict(self),))


def freeze(value: Any) -> Any:
    """A deeply immutable copy of a JSON-like value: mappings become `FrozenMapping`, lists become tuples."""
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise ValueError(f"the key {key!r} is not text")
        return FrozenMapping(value)
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise ValueError(f"{value!r} ({type(value).__name__}) is not a JSON value (text, number, boolean, null, list or mapping)")
