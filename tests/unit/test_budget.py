"""The retry budget's arithmetic."""

from hypothesis import given
from hypothesis import strategies as st

from standfast.budget import available, backoff_s, refills_at, still_spent
from standfast.plans.records import RetryPlan

PLAN = RetryPlan(attempts=3, window_s=60.0, initial_backoff_s=2.0, backoff_multiplier=2.0, max_backoff_s=30.0)
MOMENTS = st.lists(st.floats(0, 1000), max_size=12).map(lambda moments: tuple(sorted(moments)))


def test_what_left_the_window_is_available_again() -> None:
    assert available((), PLAN, 100.0) == 3
    assert available((10.0, 50.0, 90.0), PLAN, 100.0) == 1
    assert still_spent((10.0, 50.0, 90.0), PLAN, 100.0) == (50.0, 90.0)


@given(MOMENTS, st.floats(1000, 2000))
def test_a_refill_is_the_first_moment_at_which_an_attempt_is_available(spent: tuple[float, ...], now: float) -> None:
    moment = refills_at(spent, PLAN, now)
    assert moment >= now
    # One microsecond on, since a spending leaves the window at its very end.
    assert available(spent, PLAN, moment + 1e-6) >= 1
    if moment > now:
        assert available(spent, PLAN, now) == 0


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_a_backoff_stays_within_its_bounds(failures: int, jitter: float) -> None:
    assert PLAN.initial_backoff_s / 2 <= backoff_s(PLAN, failures, jitter) <= PLAN.max_backoff_s


def test_backoffs_grow_up_to_the_maximum() -> None:
    waits = [backoff_s(PLAN, failures, 0.5) for failures in range(1, 8)]
    assert waits == sorted(waits)
    assert waits[-1] == waits[-2]
