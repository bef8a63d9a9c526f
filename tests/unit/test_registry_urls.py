"""Which database URLs the registry takes, and what it says about the others."""

import pytest

from standfast.registry import RegistryError
from standfast.registry.database import Database, parse_url


@pytest.mark.parametrize(
    ("given", "driver"),
    [
        ("sqlite:////tmp/registry.db", "sqlite+aiosqlite"),
        ("sqlite+aiosqlite:///registry.db", "sqlite+aiosqlite"),
        ("postgres://user@host/name", "postgresql+psycopg"),
        ("postgresql://user@host/name", "postgresql+psycopg"),
        ("postgresql+psycopg://user@host/name", "postgresql+psycopg"),
    ],
)
def test_the_driver_is_filled_in(given: str, driver: str) -> None:
    assert parse_url(given).drivername == driver


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("mysql://user@host/name", "'mysql'"),
        ("not a url", "cannot be read"),
        ("sqlite+aiosqlite://", "needs a file"),
        ("sqlite+aiosqlite:///:memory:", "needs a file"),
    ],
)
def test_other_urls_are_refused_with_an_example_of_a_good_one(given: str, said: str) -> None:
    with pytest.raises(RegistryError, match=said) as refused:
        parse_url(given)
    assert "sqlite+aiosqlite:///" in refused.value.help
    assert refused.value.exit_code == 2


def test_the_password_is_never_shown() -> None:
    database = Database("postgresql://user:opensesame@host/name")
    assert "opensesame" not in database.shown_url
    assert "user" in database.shown_url
