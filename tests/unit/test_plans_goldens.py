"""Plans are kept byte for byte: commands, variables, claims and digests. ``STANDFAST_WRITE_GOLDENS=1`` writes them
anew.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from standfast.plans import bind, plan_lines, resolve
from standfast.plans.identity import is_intact, read_settings
from standfast.plans.records import Generation
from tests.unit.plans_cases import CASES, GOLDENS, deployment, facts, inputs, plan


def _text(case: str) -> str:
    generation = resolve(*CASES[case])
    role = plan(generation)
    bound = [bind(role, replica.index, facts(role, replica=replica.index)) for replica in role.replicas]
    document: dict[str, Any] = {
        "shown": plan_lines(generation),
        "generation": generation.model_dump(mode="json"),
        "bound": [replica.model_dump(mode="json") for replica in bound],
    }
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _check(path: Path, text: str) -> None:
    if os.environ.get("STANDFAST_WRITE_GOLDENS") == "1":
        path.write_text(text)
    assert path.read_text() == text


@pytest.mark.parametrize("case", CASES)
def test_a_plan_and_its_commands_are_what_they_were(case: str) -> None:
    _check(GOLDENS / f"{case}.json", _text(case))


@pytest.mark.parametrize("case", CASES)
def test_a_generation_survives_json(case: str) -> None:
    generation = resolve(*CASES[case])
    again = Generation.model_validate_json(generation.model_dump_json())
    assert again == generation
    assert is_intact(again)
    assert read_settings(again.settings) == CASES[case][0]


def test_digests_do_not_depend_on_the_process() -> None:
    code = (
        "from standfast.plans import resolve; from tests.unit.plans_cases import CASES; "
        "print(*(resolve(*case).digest for case in CASES.values()))"
    )
    here = [resolve(*case).digest for case in CASES.values()]
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        root = Path(__file__).parents[2]
        printed = subprocess.run(
            [sys.executable, "-c", code], cwd=root, env=environment, capture_output=True, text=True, check=True
        ).stdout
        assert printed.split() == here


def test_the_first_digest_is_frozen() -> None:
    # Changing it gives every recorded generation another name: raise schema_version when it must happen.
    generation = resolve(deployment(), inputs())
    assert generation.digest == "211615c066f7ff9a167e4e8c8d99d77a4f3dc4d8888b90ee3e3bc0bae885dbb2"
    assert generation.inference_hash == "0e41d3de5aca0d12933ce16da7cac3228f3a5e026300e98f5704c2d2a9818cd7"
