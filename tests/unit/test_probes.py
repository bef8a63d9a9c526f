"""How the answers to validation probes are judged."""

import pytest

from activities.engine import Answer
from activities.probes import choose_stop, judge_text, prove_stop
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
    assert choose_stop("The capital is Paris.") == "c"
    assert choose_stop("no nonsense") == "non"
    assert choose_stop("Paris") == "s"
    assert choose_stop("   ") is None
    assert choose_stop("\ufffd\x00") is None


def test_the_stop_is_made_of_characters_that_are_text() -> None:
    assert choose_stop("wori][\ufffdR'\ufffd\x00") == "R"


class Model:
    """Answers the same text every time; ``deaf`` goes on past the stop."""

    def __init__(self, text: str, *, deaf: bool = False) -> None:
        self.text, self.deaf = text, deaf
        self.asked: list[str | None] = []

    async def ask(self, stop: str | None) -> Answer:
        self.asked.append(stop)
        text, reason = self.text, "length"
        if stop is not None and stop in text and not self.deaf:
            text, reason = text[: text.index(stop)], "stop"
        return Answer(text=text, finish_reason=reason, first_token_s=0.0, took_s=0.0, request="")


async def test_a_reference_saves_the_stop_probe_from_asking_twice() -> None:
    model = Model("The capital is Paris.")
    answer, passed, _ = await prove_stop(model.ask, "The capital is Paris.")
    assert passed and answer.text == "The "
    assert model.asked == ["c"]


async def test_a_reference_that_the_model_does_not_repeat_is_no_verdict() -> None:
    model = Model("It is Paris.")
    _, passed, _ = await prove_stop(model.ask, "The capital is Paris.")
    assert passed
    assert model.asked == ["c", None, "i"]


@pytest.mark.parametrize("reference", [None, "The capital is Paris."])
async def test_a_model_that_goes_on_past_its_stop_fails(reference: str | None) -> None:
    _, passed, message = await prove_stop(Model("The capital is Paris.", deaf=True).ask, reference)
    assert not passed and "'c'" in message


async def test_an_empty_answer_has_nothing_to_stop_at() -> None:
    _, passed, _ = await prove_stop(Model("").ask, None)
    assert not passed
