"""How the answers to validation probes are judged."""

import pytest

from activities.probes import choose_stop, judge_text
from standfast.plans.records import ValidationPlan

PARIS = ValidationPlan(prompt="What is the capital of France?", expect="Paris", max_tokens=8, timeout_s=5.0)


def test_the_expected_answer_passes() -> None:
    assert judge_text("The capital is Paris.", PARIS)[0]


@pytest.mark.parametrize("text", ["", "  \n", "Lyon"])
def test_an_empty_or_other_answer_fails(text: str) -> None:
    passed, message = judge_text(text, PARIS)
    assert not passed
    assert message


def test_any_text_passes_where_nothing_is_expected() -> None:
    assert judge_text("Lyon", PARIS.model_copy(update={"expect": None}))[0]


def test_the_stop_lies_inside_the_answer() -> None:
    assert choose_stop("The capital is Paris.") == "Paris."
    assert choose_stop("Paris") == "s"
    assert choose_stop("   ") is None
