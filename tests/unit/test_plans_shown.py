"""Plans as people read them, and the difference of two."""

import json

from standfast.plans import difference, plan_document, plan_lines, resolve
from standfast.plans.diff import settings_difference
from standfast.plans.record import canonical_json
from standfast.plans.records import Placement
from standfast.spec import Compute, Launch, Scaling, Secret
from tests.unit.plans_cases import CASES, GPU_IMAGE, deployment, inputs


def test_a_plan_shows_place_command_and_endpoint() -> None:
    lines = plan_lines(resolve(*CASES["gpu-three-lanes"]))
    text = "\n".join(lines)
    assert "inference: 3 replicas of 1 node, tensor 1" in text
    assert "room            1 node of 4 GPUs, 4 lanes to a node" in text
    assert "replica 0       node 0, GPU 0 (lane 0), started at once" in text
    assert "replica 2       node 0, GPU 2 (lane 2), started after 1m10s" in text
    assert "node 0, rank 0: 1 x H100, 8 CPUs, 64GiB, 32 ports (http +0, internal +8)" in text
    assert "vllm serve @{model_path} \\" in text
    assert text.count("vllm serve") == 1
    assert "served name     lanes  (listed in /v1/models)" in text


def test_a_gang_is_shown_by_its_head_and_what_the_others_have_differently() -> None:
    lines = plan_lines(resolve(*CASES["two-replicas-of-two-nodes"]))
    text = "\n".join(lines)
    assert "replica 1       nodes 0 to 1, GPUs 4 to 7 of each (lane 1), started after 1m5s" in text
    assert "node 0, rank 0 (head): 4 x H100" in text
    assert text.count("vllm serve") == 1
    place = lines.index("    as rank 0, without --host, --port, and with:")
    assert [line.strip() for line in lines[place + 1 : place + 3]] == ["--node-rank 1", "--headless"]
    assert "rendezvous      at the head, port +1 (rendezvous); each waits 20m for the others" in text
    assert "backends        inference/0, inference/1; at their heads, port +0 (http)" in text
    assert "relays          POST, to another backend only while nothing was sent" in text


def test_many_replicas_are_not_shown_one_by_one() -> None:
    wanted = deployment(scaling=Scaling(min_replicas=100, max_replicas=100))
    shown = [line for line in plan_lines(resolve(wanted, inputs())) if line.startswith(("  replica ", "  ... "))]
    assert len(shown) == 8
    assert shown[-1].startswith("  replica 99")


def test_a_difference_that_all_ranks_have_is_said_once() -> None:
    two, four = Compute(gpu="H100", gpus=8, nodes=2), Compute(gpu="H100", gpus=8, nodes=4)
    before = resolve(deployment(compute=two), inputs(GPU_IMAGE))
    seeded = difference(before, resolve(deployment(compute=two, options={"seed": 1}), inputs(GPU_IMAGE)))
    assert [change.render() for change in seeded.plan] == ["every rank --seed: (not set) -> 1"]
    wider = difference(before, resolve(deployment(compute=four), inputs(GPU_IMAGE)))
    fields = [change.field for change in wider.plan]
    assert fields == [
        *("topology.nodes", "topology.pipeline", "every rank --pipeline-parallel-size", "every rank --nnodes"),
        *("rank 2", "rank 3"),
    ]


def test_places_and_start_order_are_part_of_the_difference() -> None:
    wanted = deployment(compute=Compute(gpu="H100", gpus=2), launch=Launch(stagger="5s"))
    before = resolve(deployment(compute=Compute(gpu="H100", gpus=2)), inputs(GPU_IMAGE))
    after = resolve(wanted, inputs(GPU_IMAGE, placement=Placement(gpus_per_node=8)))
    assert {change.render() for change in difference(before, after).plan} == {
        "placement.gpus_per_node: (not set) -> 8",
        "stagger_s: 0.0 -> 5.0",
    }


def test_a_config_that_cannot_be_resolved_yet_is_compared_by_its_settings() -> None:
    before = resolve(deployment(options={"seed": 1}), inputs())
    found = settings_difference(before, deployment(options={"seed": 2}))
    assert [change.render() for change in found.settings] == ["inference.options['seed']: 1 -> 2"]
    assert (found.after, found.plan, found.worker_apps) == (None, (), ())
    assert settings_difference(None, deployment()).lines() == ("This is the first generation.",)


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
    old, new = (str(generation.inference_hash)[:12] for generation in (before, after))
    assert found.lines()[-1] == f"inference: a new worker app {new} in place of {old}"


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
