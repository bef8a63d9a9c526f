"""When a serving engine counts as unhealthy."""

from activities.engine import Complaint
from activities.readiness import Health

SILENT = Complaint(text="/health: no answer in time", silent=True)
REFUSED = Complaint(text="/health: HTTP 503")


def test_a_clear_no_counts_after_three_times_in_a_row() -> None:
    health = Health()
    for second in range(3):
        assert health.verdict(second) is None
        health = health.after(REFUSED, second)
    assert "HTTP 503, 3 times in a row" in (health.verdict(3) or "")


def test_a_yes_clears_the_record() -> None:
    health = Health().after(REFUSED, 0).after(REFUSED, 1).after(None, 2).after(REFUSED, 3)
    assert health.verdict(4) is None


def test_a_busy_engine_may_be_silent_for_a_while_but_not_for_ever() -> None:
    health = Health()
    for second in range(0, 60, 6):
        health = health.after(SILENT, 100.0 + second)
        assert health.verdict(100.0 + second) is None
    assert "no answer in time for 60 s" in (health.verdict(160.0) or "")


def test_silence_and_refusals_are_counted_apart() -> None:
    health = Health().after(SILENT, 0.0).after(REFUSED, 50.0).after(SILENT, 70.0)
    assert health.verdict(100.0) is None
