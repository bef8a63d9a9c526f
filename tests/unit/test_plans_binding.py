"""Binding fills in what only the platform knows, and refuses facts that do not fit."""

from typing import Any

import pytest

from standfast.plans import bind, resolve
from standfast.plans.facts import BindFacts, BoundRank, BoundReplica, RankFacts
from standfast.plans.records import (
    BackendPlan,
    Claim,
    EnvironmentBinding,
    PortSpan,
    RankPlan,
    RendezvousPlan,
    ReplicaPlan,
    RolePlan,
    Topology,
)
from standfast.problems import ProblemsError
from tests.unit.plans_cases import CASES, facts, plan


def _role(case: str) -> RolePlan:
    return plan(resolve(*CASES[case]))


def _refused(role: RolePlan, given: BindFacts) -> list[str]:
    with pytest.raises(ProblemsError) as refusal:
        bind(role, 0, given)
    return [problem.code for problem in refusal.value.problems]


def _two_nodes() -> RolePlan:
    """A plan of two ranks, made by hand: what binding does with it does not wait for the resolver."""
    role = _role("cpu-one-replica")
    first = role.head
    second = first.model_copy(update={"rank": 1, "node": 1})
    rendezvous = RendezvousPlan(port="internal", timeout_s=role.readiness.initialization_timeout_s)
    replica = role.replicas[0].model_copy(update={"rendezvous": rendezvous})
    topology = Topology(nodes=2, tensor=2, pipeline=1, data=1, expert=1)
    return RolePlan(**{**dict(role), "ranks": (first, second), "replicas": (replica,), "topology": topology})


def test_the_executable_comes_first_and_every_placeholder_is_filled() -> None:
    (rank,) = bind(_role("cpu-one-replica"), 0, facts(_role("cpu-one-replica"))).ranks
    assert rank.argv[:3] == ("/images/vllm/bin/vllm", "serve", "/weights/qwen")
    assert rank.argv[3:6] == ("--served-model-name", "qwen", "qwen@0123456789ab/inference/0/1")
    assert dict(rank.environment)["VLLM_PORT"] == "20008"
    assert dict(rank.ports) == {"http": 20000, "internal": 20008}
    assert rank.secrets == (("HF_TOKEN", "HF_TOKEN"),)
    assert "HF_TOKEN" not in dict(rank.environment)


def test_gpus_are_handed_to_the_engine_by_id() -> None:
    role = _role("gpu-tensor-2")
    (rank,) = bind(role, 0, facts(role, first_gpu=4)).ranks
    assert dict(rank.environment)["CUDA_VISIBLE_DEVICES"] == "4,5"


def test_the_digest_follows_the_facts() -> None:
    role = _role("cpu-one-replica")
    one, same = bind(role, 0, facts(role)), bind(role, 0, facts(role))
    other = bind(role, 0, facts(role, port_base=21000))
    assert one == same
    assert one.digest != other.digest


def test_the_order_of_the_facts_does_not_matter() -> None:
    role = _two_nodes()
    given = facts(role)
    backwards = given.model_copy(update={"ranks": given.ranks[::-1]})
    assert bind(role, 0, given) == bind(role, 0, backwards)


def test_ranks_that_share_a_host_must_not_share_ports_or_gpus() -> None:
    role = _two_nodes()
    given = facts(role)
    apart = tuple(rank.model_copy(update={"host": "one", "port_base": 20000 + 32 * rank.rank}) for rank in given.ranks)
    assert len(bind(role, 0, given.model_copy(update={"ranks": apart})).ranks) == 2
    together = tuple(rank.model_copy(update={"host": "one"}) for rank in given.ranks)
    assert _refused(role, given.model_copy(update={"ranks": together})) == ["port-clash"]


@pytest.mark.parametrize(
    ("case", "changes", "code"),
    [
        ("gpu-tensor-2", {"gpu_ids": ("0",)}, "gpu-mismatch"),
        ("cpu-one-replica", {"gpu_ids": ("0",)}, "gpu-mismatch"),
        ("cpu-one-replica", {"port_base": 65520}, "port-range"),
        ("cpu-one-replica", {"rank": 1}, "rank-mismatch"),
    ],
)
def test_facts_that_do_not_fit_the_plan_are_refused(case: str, changes: dict[str, Any], code: str) -> None:
    role = _role(case)
    given = facts(role)
    ranks = (RankFacts(**{**dict(given.ranks[0]), **changes}),)
    assert _refused(role, given.model_copy(update={"ranks": ranks})) == [code]


def test_a_replica_that_the_plan_does_not_have_is_refused() -> None:
    role = _role("cpu-one-replica")
    with pytest.raises(ProblemsError, match="1 replica"):
        bind(role, 1, facts(role))


# -- records refuse what is inconsistent -------------------------------------------------------------------------------

_PORTS = PortSpan(count=4, offsets=(("http", 0),))
_CLAIM = Claim(gpu=None, gpus=0, cpus=1, memory_bytes=1, ports=_PORTS)


def _rank(**changes: Any) -> RankPlan:
    fields: dict[str, Any] = {"rank": 0, "node": 0, "argv": ("@{executable}",), "environment": (), "claim": _CLAIM}
    return RankPlan(**{**fields, **changes})


def _bound(**changes: Any) -> BoundReplica:
    fields: dict[str, Any] = {"rank": 0, "argv": ("a",), "environment": (), "secrets": (), "ports": ()}
    # As `bind` makes them, without looking at each part.
    rank = BoundRank.model_construct(**{**fields, **changes})
    return BoundReplica(attempt="a", ranks=(rank,), digest="0" * 64)


def _replica(**changes: Any) -> ReplicaPlan:
    backend = BackendPlan(id="inference/0", port="http", served_name="a", health_path="/health")
    fields: dict[str, Any] = {
        "index": 0,
        "group": 0,
        "lane": 0,
        "gpu_slots": (),
        "launch_delay_s": 0.0,
        "rendezvous": None,
        "backend": backend,
    }
    return ReplicaPlan(**{**fields, **changes})


def _role_of(*ranks: RankPlan) -> RolePlan:
    return RolePlan(**{**dict(_role("cpu-one-replica")), "ranks": ranks})


@pytest.mark.parametrize(
    "make",
    [
        lambda: PortSpan(count=4, offsets=(("http", 4),)),
        lambda: PortSpan(count=4, offsets=(("http", 0), ("http", 1))),
        lambda: PortSpan(count=4, offsets=(("http", 0), ("other", 0))),
        lambda: Claim(gpu="H100", gpus=0, cpus=1, memory_bytes=1, ports=_PORTS),
        lambda: Claim(gpu=None, gpus=1, cpus=1, memory_bytes=1, ports=_PORTS),
        lambda: EnvironmentBinding(name="A"),
        lambda: EnvironmentBinding(name="A", value="1", secret="A"),
        lambda: _rank(argv=()),
        lambda: _rank(argv=("@{nothing}",)),
        lambda: _rank(argv=("@{internal_port}",)),
        lambda: _rank(argv=("x@{executable}",)),
        lambda: _rank(environment=(EnvironmentBinding(name="A", value="1"),) * 2),
        lambda: _replica(launch_delay_s=-1.0),
        lambda: _replica(gpu_slots=(0, 0)),
        lambda: _replica(backend=None),
        lambda: _role_of(),
        lambda: _role_of(_rank(rank=1)),
        lambda: _role_of(_rank(node=1)),
        lambda: _role_of(_rank(argv=("@{head_other_port}",))),
        lambda: Topology(nodes=2, tensor=1, pipeline=1, data=1, expert=1),
        lambda: Topology(nodes=1, tensor=2, pipeline=1, data=1, expert=3),
        lambda: RankFacts(rank=0, host="h", address="a", port_base=70000, gpu_ids=()),
        lambda: RankFacts(rank=0, host="h", address="a", port_base=1, gpu_ids=("0", "0")),
        lambda: BoundRank(rank=0, argv=("@{model_path}",), environment=(), secrets=(), ports=()),
        lambda: _bound(argv=("@{model_path}",)),
        lambda: _bound(environment=(("A", "x@{host}"),)),
        lambda: _bound(rank=1),
    ],
)
def test_a_record_that_contradicts_itself_cannot_be_made(make: Any) -> None:
    with pytest.raises(ValueError):
        make()
