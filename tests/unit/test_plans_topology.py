"""How a model is divided over nodes and GPUs, and which divisions are refused."""

from typing import Any

import pytest

from standfast.plans import check, resolve
from standfast.plans.records import Placement, ReplicaPlan, Topology
from standfast.plans.topology import divide
from standfast.problems import Problem
from standfast.spec import Compute, Inference, Parallelism, Scaling
from tests.unit.plans_cases import GPU_IMAGE, deployment, inputs, plan, refusals


def _gpus(gpus: int, nodes: int = 1) -> Compute:
    return Compute(gpu="H100", gpus=gpus, nodes=nodes, cpus=8, memory="64GiB")


def _sizes(compute: Compute, **parallelism: Any) -> tuple[int, int, int, int]:
    """Tensor, pipeline, data and expert sizes, once the open ones are filled in."""
    division = divide(Inference(engine="vllm", compute=compute, parallelism=Parallelism(**parallelism)))
    assert division.problems == ()
    topology = division.topology
    assert topology is not None
    assert topology.workers == max(1, compute.gpus) * compute.nodes or not compute.gpus
    return topology.tensor, topology.pipeline, topology.data, topology.expert


def _problems(compute: Compute, **parallelism: Any) -> tuple[Problem, ...]:
    return check(deployment(compute=compute, parallelism=Parallelism(**parallelism)))


def _replicas(count: int) -> Scaling:
    return Scaling(min_replicas=count, max_replicas=count)


# -- sizes that are left open ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute", "asked", "sizes"),
    [
        (_gpus(8), {}, (8, 1, 1, 1)),
        (_gpus(8, nodes=2), {}, (8, 2, 1, 1)),
        (_gpus(8), {"pipeline": 2}, (4, 2, 1, 1)),
        (_gpus(8, nodes=2), {"pipeline": 1}, (16, 1, 1, 1)),
        (_gpus(8, nodes=2), {"tensor": 16, "pipeline": 1}, (16, 1, 1, 1)),
        (_gpus(8, nodes=2), {"tensor": 4, "pipeline": 4}, (4, 4, 1, 1)),
        (_gpus(8), {"data": 2}, (4, 1, 2, 1)),
        (_gpus(8, nodes=2), {"data": 2}, (8, 1, 2, 1)),
        (_gpus(8, nodes=4), {"data": 2, "expert": 16}, (8, 2, 2, 16)),
        (_gpus(8, nodes=2), {"data": 16, "expert": 16}, (1, 1, 16, 16)),
        (_gpus(8, nodes=3), {"data": 6}, (4, 1, 6, 1)),
        (Compute(), {}, (1, 1, 1, 1)),
        (Compute(nodes=2), {}, (1, 2, 1, 1)),
        (Compute(nodes=2), {"tensor": 2, "pipeline": 1}, (2, 1, 1, 1)),
        (Compute(nodes=2), {"data": 2}, (1, 1, 2, 1)),
    ],
)
def test_tensor_takes_a_node_and_pipeline_the_nodes(
    compute: Compute, asked: dict[str, int], sizes: tuple[int, ...]
) -> None:
    assert _sizes(compute, **asked) == sizes


# -- sizes that cannot work --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("compute", "asked", "message"),
    [
        (_gpus(2), {"tensor": 4}, "tensor=4 needs 4 GPUs, and Compute gives a replica 2 GPUs."),
        (_gpus(4), {"tensor": 2}, "tensor=2 needs 2 GPUs, and Compute gives a replica 4 GPUs."),
        (_gpus(4), {"pipeline": 3}, "tensor=1 * pipeline=3 needs 3 GPUs, and Compute gives a replica 4 GPUs."),
        (
            _gpus(8, nodes=2),
            {"tensor": 16},
            "tensor=16 * pipeline=2 needs 32 GPUs, and Compute gives a replica 16 GPUs.",
        ),
        (Compute(cpus=1), {"tensor": 2}, "tensor=2 runs 2 workers on a node, and Compute gives it 1 CPU."),
        (
            Compute(nodes=2),
            {"tensor": 3, "pipeline": 1},
            "tensor=3 makes 3 workers, which do not divide over 2 nodes.",
        ),
    ],
)
def test_sizes_that_do_not_fit_the_compute_are_refused(compute: Compute, asked: dict[str, int], message: str) -> None:
    (problem,) = _problems(compute, **asked)
    assert (problem.code, problem.message) == ("topology-misfit", message)
    assert problem.where == "Deployment.inference.parallelism"
    assert problem.help and problem.value and problem.limit


def test_a_size_over_several_nodes_says_that_pipeline_took_the_nodes() -> None:
    (problem,) = _problems(_gpus(8, nodes=2), tensor=16)
    assert problem.help == "Set Parallelism(pipeline=1): left out, it takes the nodes."


def test_every_problem_of_the_sizes_is_reported_at_once() -> None:
    problems = _problems(_gpus(8), tensor=2, expert=3, data_parallel_attention=True)
    assert [problem.code for problem in problems] == ["topology-misfit", "expert-misfit", "attention-misfit"]
    assert [(problem.value, problem.limit) for problem in problems] == [
        ("tensor=2", "8 GPUs"),
        ("3", "a divisor of 2"),
        ("True", "data of 2 or more"),
    ]
    assert all(problem.help for problem in problems)


# -- vLLM's own rules --------------------------------------------------------------------------------------------------


def _engine_problem(compute: Compute, **parallelism: Any) -> Problem:
    (problem,) = _problems(compute, **parallelism)
    assert problem.code == "engine-topology"
    assert problem.help and problem.value and problem.limit
    return problem


def test_vllm_divides_experts_over_a_whole_stage_or_not_at_all() -> None:
    problem = _engine_problem(_gpus(8), expert=4)
    assert problem.where == "Deployment.inference.parallelism.expert"
    assert (problem.value, problem.limit) == ("4", "1 or 8")
    assert problem.help == "Set Parallelism(expert=8), or leave expert out."


def test_vllm_needs_copies_that_fill_nodes_or_nodes_that_hold_copies() -> None:
    problem = _engine_problem(_gpus(3, nodes=2), tensor=2, pipeline=1, data=3)
    assert problem.where == "Deployment.inference.parallelism.data"
    assert "a multiple or a divisor of 3 workers" in str(problem.limit)


def test_vllm_runs_copies_over_several_nodes_for_experts_only() -> None:
    problem = _engine_problem(_gpus(8, nodes=4), data=2)
    assert "Set Parallelism(expert=16)" in problem.help
    assert _problems(_gpus(8, nodes=4), data=2, expert=16) == ()
    assert _problems(_gpus(8, nodes=2), data=2) == ()


# -- places ------------------------------------------------------------------------------------------------------------


def _placed(replicas: int, compute: Compute, placement: Placement) -> tuple[ReplicaPlan, ...]:
    wanted = deployment(compute=compute, scaling=_replicas(replicas))
    return plan(resolve(wanted, inputs(GPU_IMAGE, placement=placement))).replicas


def test_replicas_without_a_placement_have_their_nodes_to_themselves() -> None:
    replicas = _placed(3, _gpus(2), Placement())
    assert [(one.group, one.lane, one.gpu_slots) for one in replicas] == [
        (0, 0, (0, 1)),
        (1, 0, (0, 1)),
        (2, 0, (0, 1)),
    ]


def test_replicas_share_nodes_in_lanes() -> None:
    replicas = _placed(5, _gpus(3), Placement(nodes=3, gpus_per_node=8))
    assert [(one.group, one.lane, one.gpu_slots) for one in replicas] == [
        (0, 0, (0, 1, 2)),
        (0, 1, (3, 4, 5)),
        (1, 0, (0, 1, 2)),
        (1, 1, (3, 4, 5)),
        (2, 0, (0, 1, 2)),
    ]


def test_a_lane_over_several_nodes_is_the_same_on_each() -> None:
    replicas = _placed(3, _gpus(4, nodes=2), Placement(nodes=4, gpus_per_node=8))
    assert [(one.group, one.lane, one.gpu_slots) for one in replicas] == [
        (0, 0, (0, 1, 2, 3)),
        (0, 1, (4, 5, 6, 7)),
        (1, 0, (0, 1, 2, 3)),
    ]


@pytest.mark.parametrize(
    ("replicas", "compute", "placement", "where", "limit"),
    [
        (5, _gpus(4), Placement(nodes=2, gpus_per_node=8), "scaling.min_replicas", "4"),
        (2, _gpus(8, nodes=2), Placement(nodes=3, gpus_per_node=8), "scaling.min_replicas", "1"),
        (1, _gpus(8, nodes=2), Placement(nodes=1, gpus_per_node=8), "compute.nodes", "1"),
        (1, _gpus(8), Placement(gpus_per_node=4), "compute.gpus", "4"),
    ],
)
def test_too_few_nodes_or_gpus_are_refused_with_what_would_fit(
    replicas: int, compute: Compute, placement: Placement, where: str, limit: str
) -> None:
    wanted = deployment(compute=compute, scaling=_replicas(replicas))
    (problem,) = refusals(wanted, inputs(GPU_IMAGE, placement=placement))
    assert (problem.code, problem.where) == ("no-room", f"Deployment.inference.{where}")
    assert problem.limit == limit
    assert problem.help.startswith("Set ")


def test_placement_does_not_change_the_worker_app() -> None:
    wanted = deployment(compute=_gpus(2), scaling=_replicas(4))
    alone = resolve(wanted, inputs(GPU_IMAGE))
    shared = resolve(wanted, inputs(GPU_IMAGE, placement=Placement(nodes=1, gpus_per_node=8)))
    assert alone.inference_hash == shared.inference_hash
    assert alone.digest != shared.digest


# -- commands over several nodes ---------------------------------------------------------------------------------------


def _argv(compute: Compute, **parallelism: Any) -> list[list[str]]:
    """The commands of each rank, from the first topology flag on."""
    image = GPU_IMAGE if compute.gpus else None
    wanted = deployment(compute=compute, parallelism=Parallelism(**parallelism))
    role = plan(resolve(wanted, inputs(image) if image else inputs()))
    return [list(rank.argv[rank.argv.index("--tensor-parallel-size") :]) for rank in role.ranks]


def test_the_ranks_of_two_nodes_differ_in_their_place_alone() -> None:
    head, follower = _argv(_gpus(8, nodes=2))
    common = ["--tensor-parallel-size", "8", "--pipeline-parallel-size", "2", "--nnodes", "2"]
    meeting = ["--master-addr", "@{head_address}", "--master-port", "@{head_rendezvous_port}"]
    rest = ["--distributed-executor-backend", "mp", "--distributed-timeout-seconds", "600"]
    assert head == [*common, "--node-rank", "0", *meeting, *rest]
    assert follower == [*common, "--node-rank", "1", *meeting, *rest, "--headless"]


def test_data_parallel_ranks_over_nodes_report_to_the_head() -> None:
    head, follower = _argv(_gpus(8, nodes=2), data=16, expert=16, data_parallel_attention=True)
    for argv in (head, follower):
        assert argv[argv.index("--data-parallel-size") + 1] == "16"
        assert argv[argv.index("--data-parallel-rpc-port") + 1] == "@{head_data_parallel_port}"
        assert "--enable-expert-parallel" in argv


def test_only_the_head_has_an_http_port() -> None:
    role = plan(resolve(deployment(compute=_gpus(8, nodes=2)), inputs(GPU_IMAGE)))
    assert [dict(rank.claim.ports.offsets) for rank in role.ranks] == [
        {"http": 0, "rendezvous": 1, "internal": 8},
        {"internal": 8},
    ]
    assert "--port" not in role.ranks[1].argv and "--host" not in role.ranks[1].argv


def test_the_ranks_wait_for_each_other_as_long_as_initialization_may_take() -> None:
    role = plan(resolve(deployment(compute=_gpus(8, nodes=2)), inputs(GPU_IMAGE)))
    rendezvous = role.replicas[0].rendezvous
    assert rendezvous is not None
    assert (rendezvous.port, rendezvous.timeout_s) == ("rendezvous", 600.0)
    assert plan(resolve(deployment(), inputs())).replicas[0].rendezvous is None


def test_a_topology_counts_its_workers() -> None:
    topology = Topology(nodes=2, tensor=4, pipeline=2, data=2, expert=8)
    assert (topology.workers, topology.workers_per_node) == (16, 8)
