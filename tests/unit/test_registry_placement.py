"""Placement decides over what is held: never twice the same GPU or port, never more memory than there is."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from standfast.registry import CapacityError, StoredLease
from standfast.registry.placement import (
    PORT_SLOT,
    PORTS_FROM,
    PORTS_TO,
    SLOTS,
    LeaseRequest,
    NewLease,
    answers,
    place,
    reservation_of,
)

_NOW = datetime(2026, 1, 1, tzinfo=UTC)


def stored(owner: str, leases: tuple[NewLease, ...]) -> list[StoredLease]:
    return [
        StoredLease(
            id=number,
            host="host",
            kind=lease.kind,
            resource=lease.resource,
            count=lease.count,
            position=lease.position,
            owner=owner,
            generation="g",
            created_at=_NOW,
        )
        for number, lease in enumerate(leases)
    ]


requests = st.builds(
    LeaseRequest,
    host=st.just("host"),
    owner=st.uuids().map(str),
    generation=st.just("g"),
    gpus=st.integers(0, 4),
    gpu_candidates=st.permutations(range(8)).map(tuple),
    memory_bytes=st.integers(0, 40),
    memory_total=st.just(100),
    port_spans=st.lists(st.integers(1, 3000), max_size=3).map(tuple),
)


@given(st.lists(st.tuples(requests, st.booleans()), max_size=12))
def test_whatever_is_asked_and_given_back_nothing_is_held_twice(steps: list[tuple[LeaseRequest, bool]]) -> None:
    held: list[StoredLease] = []
    for request, give_back in steps:
        try:
            mine = stored(request.owner, place(request, held))
        except CapacityError:
            continue
        reservation = reservation_of(request.owner, mine)
        assert answers(request, mine)
        assert len(reservation.gpu_ids) == request.gpus
        assert len(reservation.port_bases) == len(request.port_spans)
        before = held
        held = held + mine
        gpus = [lease.resource for lease in held if lease.kind == "gpu"]
        assert len(gpus) == len(set(gpus))
        ports: list[int] = []
        for base, count in zip(reservation.port_bases, request.port_spans, strict=True):
            ports.extend(range(base, base + count))
        taken = {
            port
            for lease in before
            if lease.kind == "ports"
            for port in range(lease.resource, lease.resource + lease.count)
        }
        assert len(ports) == len(set(ports))
        assert taken.isdisjoint(ports)
        assert all(PORTS_FROM <= port < PORTS_TO for port in ports)
        assert sum(lease.count for lease in held if lease.kind == "memory") <= 100
        if give_back:
            held = before


def test_the_best_free_candidates_are_taken_in_their_order() -> None:
    held = stored("other", (NewLease(kind="gpu", resource=3, count=1, position=0),))
    request = LeaseRequest(host="host", owner="a", generation="g", gpus=2, gpu_candidates=(3, 5, 1, 0))
    assert reservation_of("a", stored("a", place(request, held))).gpu_ids == (5, 1)


def test_a_span_larger_than_a_slot_takes_neighbouring_slots() -> None:
    request = LeaseRequest(host="host", owner="a", generation="g", port_spans=(PORT_SLOT + 1, 1))
    leases = [lease for lease in place(request, []) if lease.kind == "ports"]
    assert [lease.count for lease in leases] == [PORT_SLOT, 1, 1]
    assert leases[1].resource == leases[0].resource + PORT_SLOT
    assert all((lease.resource - PORTS_FROM) % PORT_SLOT == 0 for lease in leases)


def test_every_slot_can_be_handed_out() -> None:
    request = LeaseRequest(host="host", owner="a", generation="g", port_spans=(1,) * SLOTS)
    bases = reservation_of("a", stored("a", place(request, []))).port_bases
    assert sorted(bases) == list(range(PORTS_FROM, PORTS_TO, PORT_SLOT))


def test_ports_that_the_host_cannot_spare_are_passed_over() -> None:
    def port_free(base: int, count: int) -> bool:
        return base == PORTS_FROM + 7 * PORT_SLOT and count == 3

    request = LeaseRequest(host="host", owner="a", generation="g", port_spans=(3,), port_free=port_free)
    assert reservation_of("a", stored("a", place(request, []))).port_bases == (PORTS_FROM + 7 * PORT_SLOT,)


def test_registries_on_one_machine_begin_their_search_for_ports_at_different_places() -> None:
    request = LeaseRequest(host="host", owner="a", generation="g", port_spans=(1,))
    bases = {place(request, [], salt=f"registry {number}")[1].resource for number in range(20)}
    assert len(bases) > 10


def test_a_refusal_says_what_was_asked_what_is_free_and_who_holds_the_rest() -> None:
    held = stored(
        "retry/qwen/inference/0#1",
        (
            NewLease(kind="memory", resource=0, count=3 * 2**30, position=0),
            NewLease(kind="gpu", resource=0, count=1, position=0),
            NewLease(kind="ports", resource=PORTS_FROM, count=4, position=0),
        ),
    )
    request = LeaseRequest(
        host="node-1",
        owner="retry/llama/inference/0#1",
        generation="g",
        gpus=2,
        gpu_candidates=(0, 1),
        memory_bytes=2 * 2**30,
        memory_total=4 * 2**30,
    )
    with pytest.raises(CapacityError) as refused:
        place(request, held)
    assert str(refused.value) == (
        "node-1 cannot hold retry/llama/inference/0#1: asked for 2 GPUs, 1 of 2 free; "
        "asked for 2GiB of memory, 1GiB of 4GiB free (retry/qwen/inference/0#1 holds GPU 0 and 3GiB)."
    )
    assert refused.value.kinds == ("gpu", "memory")
    assert {lease.kind for lease in refused.value.holders} == {"gpu", "memory"}
    assert not refused.value.never
    assert "deprecate" in refused.value.help


@pytest.mark.parametrize(
    "request_",
    [
        LeaseRequest(host="host", owner="a", generation="g", gpus=3, gpu_candidates=(0, 1)),
        LeaseRequest(host="host", owner="a", generation="g", memory_bytes=11, memory_total=10),
        LeaseRequest(host="host", owner="a", generation="g", port_spans=(PORTS_TO - PORTS_FROM + 1,)),
    ],
    ids=["gpus", "memory", "ports"],
)
def test_what_even_an_empty_host_cannot_hold_is_marked_so(request_: LeaseRequest) -> None:
    with pytest.raises(CapacityError) as refused:
        place(request_, [])
    assert refused.value.never
    assert "too small" in refused.value.help
    assert "no other attempt holds any" in str(refused.value)


def test_another_request_is_not_answered_by_the_leases_of_the_first() -> None:
    first = LeaseRequest(host="host", owner="a", generation="g", gpus=1, gpu_candidates=(0,), port_spans=(40,))
    mine = stored("a", place(first, []))
    assert answers(first, mine)
    for other in (
        LeaseRequest(host="host", owner="a", generation="g", gpus=2, gpu_candidates=(0, 1), port_spans=(40,)),
        LeaseRequest(host="host", owner="a", generation="g", gpus=1, gpu_candidates=(0,), port_spans=(41,)),
        LeaseRequest(host="else", owner="a", generation="g", gpus=1, gpu_candidates=(0,), port_spans=(40,)),
        LeaseRequest(
            host="host", owner="a", generation="g", gpus=1, gpu_candidates=(0,), port_spans=(40,), memory_bytes=1
        ),
    ):
        assert not answers(other, mine)


def test_a_request_for_less_than_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="less than nothing"):
        LeaseRequest(host="host", owner="a", generation="g", gpus=-1)
    with pytest.raises(ValueError, match="twice"):
        LeaseRequest(host="host", owner="a", generation="g", gpu_candidates=(1, 1))
