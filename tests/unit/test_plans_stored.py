"""Generations that an earlier release recorded are read as they were meant."""

import json

import pytest

from standfast.plans.records import Generation
from standfast.plans.stored import CURRENT, read_generation
from standfast.problems import UserError
from tests.unit.plans_cases import GOLDENS, plan


@pytest.mark.parametrize("name", ["stored-v1-cpu", "stored-v1-gpu"])
def test_a_generation_of_version_1_is_lifted_and_keeps_its_names(name: str) -> None:
    text = (GOLDENS / f"{name}.json").read_text()
    before = json.loads(text)
    generation = read_generation(text)
    role = plan(generation)
    assert (generation.schema_version, role.schema_version) == (2, 2)
    for field in ("digest", "inference_hash", "settings", "deployment"):
        assert getattr(generation, field) == before[field]
    for index, replica in enumerate(before["inference"]["replicas"]):
        assert replica["ranks"] == json.loads(generation.model_dump_json())["inference"]["ranks"]
        assert role.replicas[index].launch_delay_s == replica["launch_delay_s"]
    assert read_generation(generation.model_dump_json()) == generation


def test_the_start_order_of_version_1_is_found_again() -> None:
    role = plan(read_generation((GOLDENS / "stored-v1-gpu.json").read_text()))
    assert (role.standoff_s, role.stagger_s, role.stop_grace_s) == (60.0, 5.0, 30.0)
    assert [replica.gpu_slots for replica in role.replicas] == [(0,), (0,), (0,)]
    assert [replica.group for replica in role.replicas] == [0, 1, 2]


def test_a_generation_of_a_later_release_is_refused_in_words() -> None:
    document = json.loads((GOLDENS / "stored-v1-cpu.json").read_text())
    with pytest.raises(UserError, match="a later release of Standfast"):
        read_generation(json.dumps({**document, "schema_version": CURRENT + 1}))


def test_what_is_no_generation_is_refused() -> None:
    for text in ("[]", "{}", '{"schema_version": 0}', '{"schema_version": 2}'):
        with pytest.raises(ValueError):
            read_generation(text)


def test_the_current_version_is_the_one_that_is_written() -> None:
    assert Generation.model_fields["schema_version"].default == CURRENT
