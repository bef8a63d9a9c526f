"""Routes move as a whole, by compare-and-set, and gateways see every change as one revision."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import sqlalchemy as sa

from standfast.registry import (
    NotFound,
    Registry,
    RegistryUnavailable,
    RouteConflict,
    ServedNameTaken,
    backend_id,
)
from tests.support.registry_records import a_generation, put_generations

pytest_plugins = ("tests.support.registry",)

FIRST, SECOND, THIRD = (a_generation(variant=variant) for variant in ("first", "second", "third"))


async def test_every_change_of_what_gateways_read_takes_a_new_revision(registry: Registry) -> None:
    await put_generations(registry, FIRST)
    key, _plaintext = await registry.create_api_key("k")
    backend = backend_id(FIRST.id, 0)
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: registry.put_deployment("qwen", served_name="qwen", target="local", visible=False),
        lambda: registry.put_backend(backend, generation=FIRST.id, replica=0, host="h"),
        lambda: registry.set_backend(backend, "ready", url="http://127.0.0.1:1"),
        lambda: registry.switch_route("qwen", FIRST.id, None),
        lambda: registry.delete_route("qwen"),
        lambda: registry.delete_backends(FIRST.id),
        lambda: registry.revoke_api_key(key.id),
        lambda: registry.create_api_key("k"),
        lambda: registry.retire_deployment("qwen"),
    ]
    for change in changes:
        before = await registry.revision()
        await change()
        assert await registry.revision() == before + 1


async def test_what_gateways_do_not_read_leaves_the_revision_alone(registry: Registry) -> None:
    await put_generations(registry, FIRST)
    before = await registry.revision()
    await registry.set_generation_phase(FIRST.id, "starting")
    await registry.gateway_beat("g", url="u", revision_seen=before, inflight={})
    await registry.reserve(host="h", owner="o", generation="g")
    await registry.put_attempt("a", deployment="qwen", generation=FIRST.id, replica=0, number=1, directory="/d")
    with pytest.raises(NotFound):
        await registry.set_backend("none", "down")
    assert await registry.revision() == before


async def test_asking_for_the_revision_is_one_statement(registry: Registry) -> None:
    await registry.revision()
    statements: list[str] = []
    sa.event.listen(
        registry._database.engine.sync_engine,
        "before_cursor_execute",
        lambda _connection, _cursor, statement, *_rest: statements.append(statement),
    )
    assert await registry.revision() == 0
    assert await registry.revision() == 0
    assert statements == ["SELECT number FROM revision WHERE id = 1"] * 2


async def test_the_routing_table_holds_the_backends_of_the_routed_generation(registry: Registry) -> None:
    await put_generations(registry, FIRST, SECOND)
    for replica in (1, 0):
        await registry.put_backend(
            backend_id(FIRST.id, replica),
            generation=FIRST.id,
            replica=replica,
            host="h",
            state="ready",
            attempt=f"a{replica}",
            url=f"http://127.0.0.1:{20000 + replica}",
        )
    await registry.put_backend(backend_id(SECOND.id, 0), generation=SECOND.id, replica=0, host="h")
    revision = await registry.switch_route("qwen", FIRST.id, None)
    table = await registry.routing_table()
    assert table.revision == revision == await registry.revision()
    (route,) = table.routes
    assert (route.served_name, route.deployment, route.generation) == ("qwen", "qwen", FIRST.id)
    assert (route.visible, route.max_waiting, route.retry_after_s) == (True, 8, 2.5)
    assert [(one.id, one.state, one.url, one.attempt) for one in route.backends] == [
        (backend_id(FIRST.id, 0), "ready", "http://127.0.0.1:20000", "a0"),
        (backend_id(FIRST.id, 1), "ready", "http://127.0.0.1:20001", "a1"),
    ]


async def test_a_deployment_that_is_still_starting_is_known_and_an_unknown_one_is_not(registry: Registry) -> None:
    await registry.put_deployment("b", served_name="served-b", target="local", visible=False)
    await registry.put_deployment("a", served_name="served-a", target="local")
    table = await registry.routing_table()
    assert [(route.served_name, route.generation, route.visible, route.backends) for route in table.routes] == [
        ("served-a", None, True, ()),
        ("served-b", None, False, ()),
    ]
    assert all(route.max_waiting > 0 and route.retry_after_s > 0 for route in table.routes)


async def test_a_switch_moves_the_route_and_the_phases_together(registry: Registry) -> None:
    await put_generations(registry, FIRST, SECOND)
    await registry.switch_route("qwen", FIRST.id, None)
    await registry.switch_route("qwen", SECOND.id, FIRST.id)
    phases = {row.id: row.phase for row in await registry.list_generations("qwen")}
    assert phases == {FIRST.id: "draining", SECOND.id: "serving"}
    deployment = await registry.get_deployment("qwen")
    assert deployment is not None
    assert deployment.current_generation == SECOND.id
    assert [route.generation for route in await registry.list_routes()] == [SECOND.id]


async def test_a_switch_takes_the_policy_of_the_new_generation(registry: Registry) -> None:
    changed = a_generation(variant="patient", max_waiting=99, retry_after_s=30.0, visible=False)
    await put_generations(registry, FIRST, changed)
    await registry.switch_route("qwen", FIRST.id, None)
    await registry.switch_route("qwen", changed.id, FIRST.id)
    (route,) = await registry.list_routes()
    assert (route.max_waiting, route.retry_after_s, route.visible) == (99, 30.0, False)


async def test_a_switch_from_where_the_traffic_no_longer_goes_is_refused(registry: Registry) -> None:
    await put_generations(registry, FIRST, SECOND, THIRD)
    with pytest.raises(RouteConflict) as refused:
        await registry.switch_route("qwen", SECOND.id, FIRST.id)
    assert refused.value.current is None
    await registry.switch_route("qwen", FIRST.id, None)
    before = await registry.routing_table()
    for expected in (None, SECOND.id):
        with pytest.raises(RouteConflict) as refused:
            await registry.switch_route("qwen", THIRD.id, expected)
        assert refused.value.current == FIRST.id
    assert await registry.routing_table() == before
    third = await registry.get_generation(THIRD.id)
    assert third is not None
    assert third.phase == "preparing"


async def test_a_repeated_switch_succeeds_and_drains_nothing(registry: Registry) -> None:
    await put_generations(registry, FIRST, SECOND)
    await registry.switch_route("qwen", FIRST.id, None)
    await registry.switch_route("qwen", SECOND.id, FIRST.id)
    await registry.set_generation_phase(FIRST.id, "retired")
    await registry.switch_route("qwen", SECOND.id, FIRST.id)
    phases = {row.id: row.phase for row in await registry.list_generations("qwen")}
    assert phases == {FIRST.id: "retired", SECOND.id: "serving"}


async def test_of_many_switches_from_one_generation_one_wins(registry: Registry, registry_url: str) -> None:
    rivals = [a_generation(variant=f"rival {number}") for number in range(6)]
    await put_generations(registry, FIRST, *rivals)
    await registry.switch_route("qwen", FIRST.id, None)
    others = [await Registry.open(registry_url) for _ in rivals]
    try:
        outcomes = await asyncio.gather(
            *(other.switch_route("qwen", rival.id, FIRST.id) for other, rival in zip(others, rivals, strict=True)),
            return_exceptions=True,
        )
    finally:
        for other in others:
            await other.close()
    assert sum(isinstance(outcome, int) for outcome in outcomes) == 1
    assert sum(isinstance(outcome, RouteConflict) for outcome in outcomes) == len(rivals) - 1
    winner = next(rival for rival, outcome in zip(rivals, outcomes, strict=True) if isinstance(outcome, int))
    assert [route.generation for route in await registry.list_routes()] == [winner.id]
    phases = [row.phase for row in await registry.list_generations("qwen")]
    assert sorted(phases) == ["draining", *["preparing"] * (len(rivals) - 1), "serving"]


async def test_a_new_served_name_takes_over_from_the_old_one_at_the_switch(registry: Registry) -> None:
    renamed = a_generation(variant="renamed", served_name="new")
    await put_generations(registry, FIRST, renamed)
    await registry.switch_route("qwen", FIRST.id, None)
    await registry.put_deployment("qwen", served_name="new", target="local")
    table = await registry.routing_table()
    assert {route.served_name: route.generation for route in table.routes} == {"qwen": FIRST.id, "new": None}
    await registry.switch_route("new", renamed.id, FIRST.id)
    assert {route.served_name: route.generation for route in await registry.list_routes()} == {"new": renamed.id}


async def test_a_route_of_another_deployment_is_not_taken(registry: Registry) -> None:
    llama = a_generation("llama")
    await put_generations(registry, FIRST, llama)
    await registry.switch_route("qwen", FIRST.id, None)
    with pytest.raises(ServedNameTaken, match="'qwen' is routed to the deployment 'qwen'"):
        await registry.switch_route("qwen", llama.id, None)


async def test_a_late_switch_does_not_bring_a_deprecated_deployment_back(registry: Registry) -> None:
    await put_generations(registry, FIRST)
    await registry.switch_route("qwen", FIRST.id, None)
    await registry.retire_deployment("qwen")
    with pytest.raises(NotFound, match="was deprecated"):
        await registry.switch_route("qwen", FIRST.id, None)
    assert (await registry.routing_table()).routes == ()


async def test_routes_to_what_is_not_recorded_are_refused(registry: Registry) -> None:
    trainer_only = a_generation(variant="trainer only", inference=False)
    await put_generations(registry, trainer_only)
    with pytest.raises(NotFound, match="inference role"):
        await registry.switch_route("qwen", trainer_only.id, None)
    with pytest.raises(NotFound, match="no generation 'qwen@none'"):
        await registry.switch_route("qwen", "qwen@none", None)
    with pytest.raises(NotFound, match="no generation"):
        await registry.put_backend("b", generation="qwen@none", replica=0, host="h")


async def test_a_late_word_about_a_dead_attempt_does_not_touch_its_successor(registry: Registry) -> None:
    await put_generations(registry, FIRST)
    id = backend_id(FIRST.id, 0)
    await registry.put_backend(id, generation=FIRST.id, replica=0, host="h", attempt="a#1")
    assert await registry.set_backend(id, "starting", attempt="a#2", url="http://127.0.0.1:2", expect_attempt="a#1")
    assert not await registry.set_backend(id, "down", attempt=None, url=None, expect_attempt="a#1")
    assert await registry.set_backend(id, "ready")
    backend = await registry.get_backend(id)
    assert backend is not None
    assert (backend.state, backend.attempt, backend.url) == ("ready", "a#2", "http://127.0.0.1:2")
    assert await registry.set_backend(id, "down", attempt=None, url=None)
    assert await registry.set_backend(id, "starting", attempt="a#3", expect_attempt=None)
    (backend,) = await registry.list_backends(FIRST.id)
    assert (backend.state, backend.attempt, backend.url) == ("starting", "a#3", None)
    await registry.delete_backends(FIRST.id)
    assert await registry.list_backends() == []


async def test_a_table_read_during_changes_is_of_one_revision(registry: Registry, registry_url: str) -> None:
    await put_generations(registry, FIRST)
    id = backend_id(FIRST.id, 0)
    await registry.put_backend(id, generation=FIRST.id, replica=0, host="h")
    await registry.switch_route("qwen", FIRST.id, None)
    written: dict[int, str] = {}

    async def write() -> None:
        async with await Registry.open(registry_url) as writer:
            base = await writer.revision()
            for number in range(1, 61):
                written[base + number] = f"http://127.0.0.1:{number}"
                await writer.set_backend(id, "ready", url=f"http://127.0.0.1:{number}")

    writing = asyncio.create_task(write())
    seen = [await registry.routing_table()]
    while not writing.done():
        seen.append(await registry.routing_table())
        assert await registry.revision() >= seen[-1].revision
    await writing
    seen.append(await registry.routing_table())
    assert seen[-1].revision == max(written)
    assert [table.revision for table in seen] == sorted(table.revision for table in seen)
    for table in seen[1:]:
        assert table.routes[0].backends[0].url == written.get(table.revision)


async def test_a_cancelled_caller_leaves_the_registry_usable(registry: Registry) -> None:
    await put_generations(registry, FIRST)
    loop = asyncio.get_running_loop()
    for turns in range(40):
        tasks = [
            asyncio.create_task(registry.put_deployment("qwen", served_name="qwen", target=f"t{turns}")),
            asyncio.create_task(registry.routing_table()),
            asyncio.create_task(registry.revision()),
        ]
        yielded = loop.create_future()
        loop.call_later(turns / 10_000, yielded.set_result, None)
        await yielded
        for task in tasks:
            task.cancel()
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(
            not isinstance(outcome, BaseException) or isinstance(outcome, asyncio.CancelledError)
            for outcome in outcomes
        ), outcomes
    before = await registry.revision()
    await registry.put_deployment("qwen", served_name="qwen", target="last")
    assert (await registry.routing_table()).revision == before + 1 == await registry.revision()


async def test_a_restart_of_the_server_is_survived(postgres_url: str) -> None:
    async with await Registry.open(postgres_url) as registry, await Registry.open(postgres_url) as other:
        await registry.put_deployment("qwen", served_name="qwen", target="local")
        assert await registry.revision() == 1
        async with other._database.write() as connection:
            await connection.execute(
                sa.text(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                    "WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
            )
        assert await registry.revision() == 1
        await registry.put_deployment("qwen", served_name="qwen", target="local")
        assert (await registry.routing_table()).revision == 2


async def test_a_server_that_went_away_is_an_unavailable_registry(postgres_url: str) -> None:
    async with await Registry.open(postgres_url) as registry, await Registry.open(postgres_url) as other:
        with pytest.raises(RegistryUnavailable):
            async with registry._database.write() as connection:
                mine = (await connection.execute(sa.text("SELECT pg_backend_pid()"))).scalar_one()
                async with other._database.write() as killer:
                    await killer.execute(sa.text("SELECT pg_terminate_backend(:pid)"), {"pid": mine})
                await connection.execute(sa.text("SELECT 1"))
