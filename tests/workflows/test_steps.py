"""The table of steps and the activities agree."""

import inspect
from datetime import timedelta
from typing import Any, get_type_hints
from unittest.mock import Mock

import pytest

from activities import all_activities
from workflows import steps

ACTIVITIES = {
    bound.__temporal_activity_definition.name: bound  # type: ignore[attr-defined]
    for bound in all_activities(Mock())
}


def test_every_step_has_its_activity_and_every_activity_its_step() -> None:
    assert sorted(step.name for step in steps.ALL) == sorted(ACTIVITIES)


@pytest.mark.parametrize("step", steps.ALL, ids=lambda step: step.name)
def test_a_step_takes_and_returns_what_its_activity_does(step: steps.Step[Any, Any]) -> None:
    function = inspect.unwrap(ACTIVITIES[step.name])
    hints = get_type_hints(function)
    returns = hints.pop("return")
    assert returns is step.returns
    assert list(hints.values()) == [step.takes]


@pytest.mark.parametrize("step", steps.ALL, ids=lambda step: step.name)
def test_a_long_step_has_a_heartbeat(step: steps.Step[Any, Any]) -> None:
    assert step.start_to_close <= timedelta(minutes=2) or step.heartbeat is not None
    assert step.start_to_close < step.schedule_to_close
