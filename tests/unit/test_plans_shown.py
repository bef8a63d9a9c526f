"""Plans as people read them, and the difference of two."""

import json

from standfast.plans import difference, plan_document, plan_lines, resolve
from standfast.plans.records import canonical_json
from standfast.spec import Compute, Scaling, Secret
from tests.unit.plans_cases import CASES, deployment, inputs


def test_a_plan_shows_place_command_and_endpoint() -> None:
    lines = plan_lines(resolve(*CASES["gpu-three-lanes"]))
    text = "\n".join(lines)
    assert "inference: 3 replicas of 1 node, tensor 1" in text
    assert "replicas 0 to 2, started after 0s, 1m5s, 1m10s" in text
    assert "node 0, rank 0 (head): 1 x H100, 8 CPUs, 64GiB, 32 ports (http +0, internal +8)" in text
    assert "vllm serve @{model_path} \\" in text
    assert text.count("vllm serve") == 1
    assert "served name     lanes  (listed in /v1/models)" in text


def test_a_secret_is_shown_by_name() -> None:
    lines = plan_lines(resolve(*CASES["cpu-one-replica"]))
    assert any(line.strip() == "HF_TOKEN=(secret HF_TOKEN)" for line in lines)


def test_a_plan_document_is_json_with_the_settings_unfolded() -> None:
    generation = resolve(*CASES["cpu-one-replica"])
    document = plan_document(generation)
    assert json.loads(canonical_json(document)) == document
    assert document["id"] == generation.id
    assert document["settings"]["inference"]["options"]["max-num-seqs"] == 4


def test_the_difference_names_each_field_and_what_restarts() -> None:
    before = resolve(deployment(options={"max-num-seqs": 8, "enforce-eager": True}), inputs())
    after = resolve(deployment(options={"max-num-seqs": 16}, environment={"A": Secret("B")}), inputs())
    found = difference(before, after)
    assert [change.render() for change in found.settings] == [
        "inference.options['enforce-eager']: true -> (not set)",
        "inference.options['max-num-seqs']: 8 -> 16",
        "inference.environment['A'].name: (not set) -> B",
    ]
    assert [change.render() for change in found.plan] == [
        "rank 0 --enforce-eager: (on) -> (not set)",
        "rank 0 --max-num-seqs: 8 -> 16",
        "rank 0 $A: (not set) -> secret B",
    ]
    assert not found.reuses_inference
    assert found.lines()[-1] == "inference: starts a new worker app"


def test_a_difference_in_scale_keeps_the_worker_app() -> None:
    before = resolve(deployment(), inputs())
    after = resolve(deployment(scaling=Scaling(min_replicas=2, max_replicas=2)), inputs())
    found = difference(before, after)
    assert found.reuses_inference
    assert "replicas: 1 -> 2" in found.lines()


def test_the_same_generation_has_no_difference() -> None:
    generation = resolve(deployment(), inputs())
    assert difference(generation, generation).identical
    assert difference(generation, generation).lines() == (f"{generation.id} is the same generation.",)
    assert difference(None, generation).lines() == (f"{generation.id} is the first generation.",)


def test_a_repeated_size_is_not_a_difference() -> None:
    before = resolve(deployment(compute=Compute(memory="4GiB")), inputs())
    after = resolve(deployment(compute=Compute(memory="4096MiB")), inputs())
    assert before == after
