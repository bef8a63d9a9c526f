"""Which backend a request goes to."""

from hypothesis import given
from hypothesis import strategies as st

from standfast.registry.rows import Backend, Route, RoutingTable
from workers.gateway.routing import Entry, Refusal, Target, choose, index, whole_seconds

IDS = ("a", "b", "c", "d")


def an_entry(*ids: str, max_waiting: int = 10) -> Entry:
    ready = tuple(Target(id, f"http://{id}") for id in ids)
    return Entry("m", "m@1", True, max_waiting, b"1", ready)


def first(_ties: int) -> int:
    return 0


def test_the_backend_with_fewest_requests_is_chosen() -> None:
    assert choose(an_entry("a", "b", "c"), {"a": 2, "b": 1, "c": 3}, (), first) == Target("b", "http://b")


def test_ties_are_broken_by_the_given_choice() -> None:
    asked: list[int] = []

    def last(ties: int) -> int:
        asked.append(ties)
        return ties - 1

    assert choose(an_entry("a", "b", "c"), {"b": 1}, (), last) == Target("c", "http://c")
    assert asked == [2]


def test_without_ready_backend_nothing_is_chosen() -> None:
    assert choose(an_entry(), {}, (), first) is Refusal.NOT_READY


def test_a_backend_at_its_limit_takes_no_more() -> None:
    entry = an_entry("a", "b", max_waiting=2)
    assert choose(entry, {"a": 2, "b": 1}, (), first) == Target("b", "http://b")
    assert choose(entry, {"a": 2, "b": 2}, (), first) is Refusal.FULL
    assert choose(an_entry("a", max_waiting=2), {"a": 2}, (), first) is Refusal.FULL


def test_a_held_backend_is_passed_over_even_when_the_other_is_busier() -> None:
    assert choose(an_entry("a", "b"), {"b": 5}, ("a",), first) == Target("b", "http://b")


def test_when_all_are_held_they_are_tried_all_the_same() -> None:
    assert choose(an_entry("a", "b"), {"a": 1}, ("a", "b"), first) == Target("b", "http://b")
    assert choose(an_entry("a"), {}, ("a",), first) == Target("a", "http://a")


def test_a_tried_backend_is_not_tried_again() -> None:
    assert choose(an_entry("a", "b"), {"b": 5}, ("a", "b"), first, ("a",)) == Target("b", "http://b")
    assert choose(an_entry("a"), {}, (), first, ("a",)) is Refusal.NOT_READY


@given(
    st.sets(st.sampled_from(IDS)),
    st.dictionaries(st.sampled_from(IDS), st.integers(0, 4)),
    st.sets(st.sampled_from(IDS)),
    st.sets(st.sampled_from(IDS)),
    st.integers(1, 4),
)
def test_a_choice_is_ready_untried_and_below_its_limit(
    ready: set[str], inflight: dict[str, int], held: set[str], tried: set[str], limit: int
) -> None:
    choice = choose(an_entry(*sorted(ready), max_waiting=limit), inflight, held, first, tuple(tried))
    free = (ready - held or ready) - tried
    if isinstance(choice, Target):
        assert choice.id in free
        assert inflight.get(choice.id, 0) == min(inflight.get(id, 0) for id in free) < limit
    elif choice is Refusal.FULL:
        assert free
        assert all(inflight.get(id, 0) >= limit for id in free)
    else:
        assert not free


def test_the_index_holds_ready_backends_only() -> None:
    def backend(id: str, state: str, url: str | None = "http://x") -> Backend:
        return Backend(id=id, url=url, state=state, attempt="t")  # type: ignore[arg-type]

    def route(name: str, generation: str | None, *backends: Backend, visible: bool = True) -> Route:
        return Route(
            served_name=name,
            deployment=name,
            generation=generation,
            visible=visible,
            max_waiting=3,
            retry_after_s=1.2,
            backends=backends,
        )

    states = ("down", "starting", "ready", "draining")
    table = index(
        RoutingTable(
            revision=7,
            routes=(
                route("m", "m@1", *(backend(state, state) for state in states), backend("lost", "ready", None)),
                route("hidden", "h@1", backend("h", "ready"), visible=False),
                route("new", None, backend("n", "ready")),
            ),
        )
    )
    assert table.revision == 7
    assert [target.id for target in table.entries["m"].ready] == ["ready"]
    assert table.entries["m"].retry_after == b"2"
    assert table.entries["m"].header == b"x-standfast-generation: m@1\r\n"
    assert table.entries["new"].ready == ()
    assert [entry.served_name for entry in table.visible_ready()] == ["m"]
    assert table.visible_names() == ["m", "new"]


def test_a_generation_cannot_break_out_of_its_header() -> None:
    route = Route(
        served_name="m",
        deployment="m",
        generation="m\r\nX: y",
        visible=True,
        max_waiting=1,
        retry_after_s=1.0,
        backends=(),
    )
    assert index(RoutingTable(revision=1, routes=(route,))).entries["m"].header == b""


def test_retry_after_is_whole_seconds_and_never_zero() -> None:
    assert [whole_seconds(value) for value in (0.0, 0.2, 1.0, 1.01, 30.0)] == [b"1", b"1", b"1", b"2", b"30"]
