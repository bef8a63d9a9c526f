"""How the inspector reads a parser."""

import argparse
import inspect
from typing import Any

from standfast.images.inspector import describe, parameters_without_flags
from standfast.plans.inspection import OptionSpec


def read(**options: Any) -> OptionSpec:
    """What is read of one option, declared with the given arguments (``names`` are its spellings)."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument(*options.pop("names"), **options)
    [described] = describe(parser)
    described = {key: tuple(value) if isinstance(value, list) else value for key, value in described.items()}
    return OptionSpec.model_validate(described)


def test_a_plain_option_takes_one_value() -> None:
    spec = read(names=["--max-model-len", "-mml"], type=int)
    assert (spec.dest, spec.flags, spec.type) == ("max_model_len", ("--max-model-len", "-mml"), "int")
    assert (spec.minimum, spec.maximum, spec.repeatable) == (1, 1, False)


def test_arities_are_read_as_bounds() -> None:
    bounds = {nargs: read(names=["--x"], nargs=nargs) for nargs in ("?", "*", "+", 2)}
    assert {nargs: (spec.minimum, spec.maximum) for nargs, spec in bounds.items()} == {
        "?": (0, 1),
        "*": (0, None),
        "+": (1, None),
        2: (2, 2),
    }


def test_a_switch_with_two_spellings_keeps_them_apart() -> None:
    spec = read(names=["--enable-lora"], action=argparse.BooleanOptionalAction)
    assert (spec.flags, spec.negations, spec.type) == (("--enable-lora",), ("--no-enable-lora",), "bool")
    assert (spec.minimum, spec.maximum) == (0, 0)


def test_a_flag_that_only_begins_with_no_is_no_negation() -> None:
    spec = read(names=["--no-cache"], action="store_true")
    assert (spec.flags, spec.negations) == (("--no-cache",), ())


def test_an_option_that_takes_a_value_has_no_negations() -> None:
    assert read(names=["--no-log-path", "--log-path"]).negations == ()


def test_choices_become_text() -> None:
    assert read(names=["--level"], type=int, choices=[0, 1]).choices == ("0", "1")


def test_an_appending_option_is_repeatable() -> None:
    assert read(names=["--middleware"], action="append").repeatable


def test_a_positional_has_no_flags() -> None:
    spec = read(names=["model_tag"], nargs="?")
    assert (spec.dest, spec.flags) == ("model_tag", ())


def test_a_type_without_a_name_is_named_after_its_class() -> None:
    class Converter:
        def __call__(self, text: str) -> str:
            return text

    assert read(names=["--x"], type=Converter()).type == "Converter"


def test_the_help_option_is_left_out() -> None:
    assert describe(argparse.ArgumentParser()) == []


def test_parameters_that_no_flag_sets_are_described_by_their_types() -> None:
    def engine(
        shown: int, level: float | None = None, on: bool = False, names: list[int] | None = None, _own: int = 0
    ) -> None: ...

    found = parameters_without_flags(inspect.signature(engine).parameters, {"shown"})
    assert [(one["dest"], one["flags"], one["type"], one["minimum"], one["maximum"]) for one in found] == [
        ("level", ["--level"], "float", 1, 1),
        ("on", ["--on"], "bool", 0, 0),
        ("names", ["--names"], "str", 1, 1),
    ]
