"""The retry budget: how many attempts may be spent in a sliding window, and how long to wait between them. Pure."""

from standfast.plans.records import RetryPlan


def still_spent(spent_at: tuple[float, ...], plan: RetryPlan, now: float) -> tuple[float, ...]:
    """The spendings (Unix seconds) that the sliding window still holds at ``now``."""
    return tuple(moment for moment in spent_at if moment > now - plan.window_s)


def available(spent_at: tuple[float, ...], plan: RetryPlan, now: float) -> int:
    """How many attempts may be spent at ``now``."""
    return max(0, plan.attempts - len(still_spent(spent_at, plan, now)))


def refills_at(spent_at: tuple[float, ...], plan: RetryPlan, now: float) -> float:
    """When the next attempt may be spent, Unix seconds; ``now`` when one is available already."""
    held = still_spent(spent_at, plan, now)
    if len(held) < plan.attempts:
        return now
    return sorted(held)[len(held) - plan.attempts] + plan.window_s


def backoff_s(plan: RetryPlan, consecutive_failures: int, jitter: float) -> float:
    """Seconds to wait after the given number of failures in a row (1 or more).

    Exponential up to the plan's maximum; ``jitter`` in [0, 1) spreads the wait over the upper half of that span,
    so that replicas that failed
    together do not return together.
    """
    exponent = min(max(consecutive_failures, 1) - 1, 63)
    ceiling = min(plan.max_backoff_s, plan.initial_backoff_s * plan.backoff_multiplier**exponent)
    return ceiling * (0.5 + 0.5 * jitter)
