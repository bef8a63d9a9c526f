"""What the operations hand to Temporal."""

from types import SimpleNamespace
from typing import Any

import pytest

from standfast.client.connection import TemporalEndpoint
from standfast.client.operations import deprecate


class StartedError(Exception):
    """Ends the operation once it has said what it wants."""


class Noting:
    """Stands for Temporal's client: notes what it is asked to start."""

    def __init__(self) -> None:
        self.given = ""

    async def start_workflow(self, *arguments: Any, **options: Any) -> None:
        self.given = repr((arguments, options))
        raise StartedError


async def test_a_credential_in_a_reason_is_left_out() -> None:
    temporal = Noting()
    endpoint = TemporalEndpoint(address="a", namespace="default", settings={}, source="")
    stored = SimpleNamespace(name="m", target="local")
    with pytest.raises(StartedError):
        await deprecate(
            temporal,  # type: ignore[arg-type]
            endpoint,
            stored,  # type: ignore[arg-type]
            None,
            reason="rotated password=hunter2hunter2 away",
            drain_timeout_s=1.0,
            timeout_s=None,
        )
    assert "rotated" in temporal.given and "away" in temporal.given
    assert "hunter2" not in temporal.given
