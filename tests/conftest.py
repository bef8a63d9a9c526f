"""What holds for all tests: engines keep to the ports of the process that tests them, and no verdict depends on how
busy the machine is.
"""

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings

from standfast.platforms.ports import RANGE_VARIABLE
from tests.support.ports import engine_ports

settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")


@pytest.fixture(scope="session", autouse=True)
def ports_of_this_process() -> Iterator[None]:
    """Two test processes on one machine do not meet on a port."""
    os.environ[RANGE_VARIABLE] = engine_ports()
    yield
    del os.environ[RANGE_VARIABLE]
