"""Temporal activities: the only place that touches the world."""

from collections.abc import Callable
from typing import Any

from activities.attempts import AttemptActivities
from activities.context import Services
from activities.probes import ProbeActivities
from activities.readiness import ReadinessActivities
from activities.settings import SettingsActivities
from activities.traffic import TrafficActivities
from activities.watching import WatchActivities


def all_activities(services: Services) -> list[Callable[..., Any]]:
    """Every activity, bound to the services of one control worker."""
    settings = SettingsActivities(services)
    attempts = AttemptActivities(services)
    readiness = ReadinessActivities(services)
    watching = WatchActivities(services)
    probes = ProbeActivities(services)
    traffic = TrafficActivities(services)
    return [
        settings.pin_settings,
        settings.build_image,
        settings.resolve_plan,
        settings.fetch_weights,
        settings.set_phase,
        attempts.place,
        attempts.launch,
        attempts.end,
        readiness.await_ready,
        readiness.publish,
        watching.watch,
        probes.run_probe,
        probes.record_proof,
        traffic.await_retirement,
        traffic.reclaim_generation,
        traffic.switch_traffic,
        traffic.plan_retirement,
        traffic.withdraw_traffic,
        traffic.drain_generation,
        traffic.await_gone,
        traffic.clean_generation,
        traffic.close_deployment,
    ]


__all__ = ["Services", "all_activities"]
