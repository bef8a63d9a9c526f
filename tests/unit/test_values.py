"""Durations, memory sizes and frozen mappings."""

import copy
import pickle
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standfast.values import (
    FrozenMapping,
    Misuse,
    format_duration,
    format_memory,
    freeze,
    parse_duration,
    parse_memory,
    show_memory,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.timedeltas(min_value=timedelta(0), max_value=timedelta(days=999_999)))
def test_a_duration_survives_being_written_and_read(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@given(st.integers(min_value=1, max_value=2**60))
def test_an_amount_of_memory_survives_being_written_and_read(value: int) -> None:
    assert parse_memory(format_memory(value)) == value


@given(st.text(max_size=12))
def test_any_text_is_a_duration_or_a_readable_refusal(text: str) -> None:
    try:
        assert parse_duration(text) >= timedelta(0)
    except Misuse as refusal:
        assert refusal.message


@given(st.text(max_size=12) | st.floats() | st.booleans() | st.none())
def test_anything_is_an_amount_of_memory_or_a_readable_refusal(value: object) -> None:
    try:
        assert parse_memory(value) > 0
    except Misuse as refusal:
        assert refusal.message


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("15m", timedelta(minutes=15)),
        ("1h30m", timedelta(minutes=90)),
        ("1h 30m", timedelta(minutes=90)),
        ("250ms", timedelta(milliseconds=250)),
        ("0.1s", timedelta(milliseconds=100)),
        ("2w", timedelta(weeks=2)),
        (" 7 d ", timedelta(days=7)),
        (timedelta(seconds=3), timedelta(seconds=3)),
    ],
)
def test_durations_that_people_write(text: object, value: timedelta) -> None:
    assert parse_duration(text) == value


@pytest.mark.parametrize("text", ["", "15", "15min", "m15", "1m1h", "1m2m", "-3s", "1h,30m", "٣s", "9" * 30 + "w"])
def test_what_is_not_a_duration_is_refused(text: str) -> None:
    with pytest.raises(Misuse):
        parse_duration(text)


def test_a_number_without_a_unit_is_no_duration() -> None:
    with pytest.raises(Misuse, match=r"900 has no unit; write .*'15m'"):
        parse_duration(900)


@pytest.mark.parametrize(
    ("text", "value"),
    [("32GiB", 32 * 2**30), ("1.5 GiB", 3 * 2**29), ("32GB", 32 * 10**9), ("7B", 7), (1024, 1024)],
)
def test_amounts_of_memory_that_people_write(text: object, value: int) -> None:
    assert parse_memory(text) == value


def test_an_ambiguous_unit_of_memory_is_refused_with_both_meanings() -> None:
    with pytest.raises(Misuse, match=r"'32GiB' .* or '32GB'"):
        parse_memory("32g")


@pytest.mark.parametrize("value", [0, -1, "0B", True, 1.5, None, "GiB"])
def test_what_is_not_an_amount_of_memory_is_refused(value: object) -> None:
    with pytest.raises(Misuse):
        parse_memory(value)


def test_memory_for_people_has_three_digits() -> None:
    assert [show_memory(value) for value in (2**30, 25_124_000_000, 150 * 2**30 + 1, 900)] == [
        "1GiB",
        "23.4GiB",
        "150GiB",
        "900B",
    ]


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(), json_values, max_size=5))
def test_a_frozen_mapping_is_equal_sorted_hashable_and_copies(value: dict[str, Any]) -> None:
    frozen = freeze(value)
    assert list(frozen) == sorted(value)
    assert hash(frozen) == hash(freeze(dict(reversed(value.items()))))
    assert pickle.loads(pickle.dumps(frozen)) == frozen == copy.deepcopy(frozen)


def test_a_frozen_mapping_refuses_every_change() -> None:
    frozen: Any = freeze({"a": {"b": [1]}})
    changes: tuple[Callable[[], object], ...] = (
        lambda: frozen.__setitem__("a", 1),
        lambda: frozen["a"].update(b=2),
        lambda: frozen.pop("a"),
        lambda: frozen.__ior__({"c": 1}),
        lambda: frozen["a"].setdefault("c", 1),
        lambda: frozen.clear(),
    )
    for change in changes:
        with pytest.raises(TypeError, match="frozen"):
            change()


def test_what_is_not_json_is_refused_by_place_and_never_by_value() -> None:
    for value, place in (({"a": [1, {"b": {2}}]}, r"\['a'\]\[1\]\['b'\]"), ({"a": float("nan")}, r"\['a'\]")):
        with pytest.raises(Misuse, match=place):
            freeze(value)
    with pytest.raises(Misuse, match="not text"):
        freeze({1: 2})
    assert isinstance(freeze({}), FrozenMapping)
