"""Importing Standfast stays cheap: what is not needed is not loaded. ``bench/imports.py`` measures the time."""

import json
import subprocess
import sys

import pytest

import standfast

HEAVY = {
    "temporalio",
    "modal",
    "typer",
    "rich",
    "sqlalchemy",
    "alembic",
    "httpx",
    "huggingface_hub",
    "uvloop",
    "openai",
}


def loaded_after(code: str) -> set[str]:
    script = f"import sys, json\n{code}\nprint(json.dumps(sorted(sys.modules)))"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_importing_standfast_loads_nothing_but_itself() -> None:
    extra = loaded_after("import standfast") - loaded_after("import typing")
    assert {name.partition(".")[0] for name in extra} == {"standfast"}


@pytest.mark.parametrize("module", ["spec", "catalog", "targets", "plans"])
def test_configs_and_plans_load_no_client_and_no_platform(module: str) -> None:
    loaded = loaded_after(f"import standfast.{module}")
    assert not HEAVY & loaded
    assert "asyncio" not in loaded


def test_the_configuration_language_adds_few_modules_to_those_of_pydantic() -> None:
    pydantic = loaded_after(
        "import pydantic, pydantic.dataclasses\n@pydantic.dataclasses.dataclass\nclass A:\n    x: int\n"
    )
    assert len(loaded_after("import standfast.spec")) <= 1.25 * len(pydantic)


def test_every_public_name_resolves_to_where_it_is_defined() -> None:
    for name in standfast.__all__:
        if name != "Client":
            assert getattr(standfast, name).__name__ in (name, "load", "select")
    assert set(standfast.__all__) <= set(dir(standfast))
    assert standfast.__version__


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Deploiment'"):
        standfast.Deploiment  # noqa: B018
