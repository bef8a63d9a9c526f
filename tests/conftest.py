"""What holds for all tests: engines keep to the ports of the process that tests them."""

import os
from collections.abc import Iterator

import pytest

from standfast.platforms.ports import RANGE_VARIABLE
from tests.support.ports import engine_ports


@pytest.fixture(scope="session", autouse=True)
def ports_of_this_process() -> Iterator[None]:
    """Two test processes on one machine do not meet on a port."""
    os.environ[RANGE_VARIABLE] = engine_ports()
    yield
    del os.environ[RANGE_VARIABLE]
