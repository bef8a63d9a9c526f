"""Ports of the embedded stack: defaults give way, explicit ones do not."""

import socket
from collections.abc import Set

import pytest

from standfast.problems import UserError
from standfast.stack.ports import SEARCHED_PORTS, choose_port, port_is_free

NONE: frozenset[int] = frozenset()


def choose(
    asked: int | None = None,
    *,
    busy: Set[int] = NONE,
    preferred: tuple[int, ...] = (8080,),
    taken: Set[int] = NONE,
) -> tuple[int, str | None]:
    return choose_port(
        option="--port",
        host="127.0.0.1",
        asked=asked,
        preferred=preferred,
        taken=set(taken),
        is_free=lambda _host, port: port not in busy,
    )


def test_the_default_is_taken_when_it_is_free() -> None:
    assert choose() == (8080, None)


def test_a_busy_default_gives_way_to_the_next_free_port_and_says_so() -> None:
    port, notice = choose(busy={8080, 8081})
    assert port == 8082
    assert notice == "port 8080 is taken; using 8082 (--port chooses another)"


def test_the_port_of_the_last_run_comes_before_the_default() -> None:
    assert choose(preferred=(8082, 8080))[0] == 8082
    assert choose(preferred=(8082, 8080), busy={8082})[0] == 8080


def test_ports_of_the_same_stack_do_not_clash() -> None:
    assert choose(taken={8080})[0] == 8081


def test_an_explicit_port_that_is_busy_is_refused_with_help() -> None:
    with pytest.raises(UserError, match=r"--port 9000: another process listens on 127.0.0.1:9000") as refusal:
        choose(9000, busy={9000})
    assert "another port" in refusal.value.help


def test_zero_means_any_free_port() -> None:
    port, notice = choose(0)
    assert 1024 <= port <= 65535
    assert notice is None


def test_when_nothing_is_free_the_search_ends() -> None:
    with pytest.raises(UserError, match="no free port"):
        choose(busy=set(range(8080, 8080 + SEARCHED_PORTS + 1)))


def test_a_listening_server_makes_its_port_busy() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert not port_is_free("127.0.0.1", port)
    assert port_is_free("127.0.0.1", port)
