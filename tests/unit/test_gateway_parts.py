"""The small parts: keys, bodies, histograms, header kinds, the access log."""

import asyncio
import json
import os
from pathlib import Path

import pytest

from tests.support.gateway import key_hash, on_uvloop, until
from workers.gateway import wire
from workers.gateway.access import AccessLine, AccessLog
from workers.gateway.body import ModelFieldError, model_of
from workers.gateway.keys import KeyRing, digest_of, presented_key
from workers.gateway.metrics import BUCKETS_S, Histogram
from workers.gateway.paths import origin_form


@pytest.mark.parametrize(
    ("authorization", "key"),
    [
        (b"Bearer sf-x", b"sf-x"),
        (b"bearer   sf-x ", b"sf-x"),
        (b"Bearer ", None),
        (b"Bearer", None),
        (b"Basic sf-x", None),
        (b"", None),
    ],
)
def test_a_key_is_presented_as_a_bearer(authorization: bytes, key: bytes | None) -> None:
    assert presented_key(authorization) == key


@on_uvloop
async def test_reads_of_keys_are_shared() -> None:
    reads: list[None] = []

    async def fetch() -> set[str]:
        reads.append(None)
        return {key_hash("sf-x")}

    ring = KeyRing(fetch, interval_s=0.0)
    assert not ring.has(digest_of(b"sf-x"))
    assert await asyncio.gather(*(ring.refresh() for _ in range(10))) == [True] * 10
    assert ring.has(digest_of(b"sf-x"))
    await asyncio.gather(ring.refresh(), ring.refresh())
    assert len(reads) == 2


@on_uvloop
async def test_a_read_waits_until_the_interval_since_the_last_has_passed() -> None:
    reads: list[None] = []

    async def fetch() -> set[str]:
        reads.append(None)
        return set()

    ring = KeyRing(fetch, interval_s=3600.0)
    await ring.refresh()
    waiting = ring.refresh()
    # Whatever the loop has to do besides, an hour does not pass meanwhile.
    for _ in range(100):
        await asyncio.sleep(0)
    assert len(reads) == 1 and not waiting.done()
    assert ring.refresh() is waiting
    waiting.cancel()


@on_uvloop
async def test_an_unreadable_registry_leaves_the_keys_as_they_were() -> None:
    answers = iter([{key_hash("sf-x")}, None])

    async def fetch() -> set[str]:
        found = next(answers)
        if found is None:
            raise ConnectionError
        return found

    ring = KeyRing(fetch, interval_s=0.0)
    assert await ring.refresh()
    assert not await ring.refresh()
    assert ring.has(digest_of(b"sf-x"))


def test_the_model_is_found_wherever_it_stands() -> None:
    assert model_of(b'{"messages": [{"model": "x", "a": "\\"model\\": 1"}], "model": "org/m"}') == "org/m"
    assert model_of('{"model": "modèle"}'.encode()) == "modèle"
    assert model_of(b'{"mod\\u0065l": "m"}') == "m"


@pytest.mark.parametrize("body", [b'{"model": "' + b"x" * 513 + b'"}', b'{"model": "m", "x": ' + b"[" * 100_000])
def test_a_body_that_is_out_of_bounds_is_refused(body: bytes) -> None:
    with pytest.raises(ModelFieldError):
        model_of(body)


def test_one_body_does_not_remember_another() -> None:
    for _ in range(2):
        with pytest.raises(ModelFieldError, match="not valid JSON"):
            model_of(b'{"model": "a", ')
        assert model_of(b'{"model": "b"}') == "b"


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram()
    for seconds in (0.0, BUCKETS_S[0], 0.3, 1e9):
        histogram.observe(seconds)
    lines = list(histogram.lines("t", 'model="m"'))
    assert f't_bucket{{model="m",le="{BUCKETS_S[0]}"}} 2' in lines
    assert 't_bucket{model="m",le="0.5"} 3' in lines
    assert 't_bucket{model="m",le="+Inf"} 4' in lines
    assert 't_count{model="m"} 4' in lines


def test_header_kinds_do_not_depend_on_spelling() -> None:
    for name in (b"Authorization", b"authorization", b"AUTHORIZATION"):
        assert wire.REQUEST_HEADERS[name] == wire.AUTHORIZATION
    assert wire.REQUEST_HEADERS[b"X-Standfast-Anything"] == wire.DROP
    assert wire.REQUEST_HEADERS[b"X-Else"] == wire.PASS
    assert wire.REQUEST_HEADERS[b"X Else"] == wire.BAD


def test_header_spellings_are_not_learnt_without_bound() -> None:
    kinds = wire.HeaderKinds({b"host": wire.HOST})
    for n in range(5000):
        assert kinds[b"x-%d" % n] == wire.PASS
    assert len(kinds) <= 1024
    assert kinds[b"Host"] == wire.HOST


@pytest.mark.parametrize(
    ("target", "plain"),
    [
        (b"/v1/x?y=http://z", b"/v1/x?y=http://z"),
        (b"http://host/v1/x", b"/v1/x"),
        (b"https://host", b"/"),
        (b"http://host?x", b"/?x"),
        (b"*", b"*"),
        (b"host:443", b"host:443"),
    ],
)
def test_targets_are_brought_to_origin_form(target: bytes, plain: bytes) -> None:
    assert origin_form(target) == plain


def a_line(**fields: object) -> AccessLine:
    given = {
        "event": "request",
        "method": "POST",
        "path": "/v1/x",
        "status": 200,
        "outcome": "ok",
        "request_id": "r",
        "client": "127.0.0.1",
        "duration_ms": 1.5,
        "bytes_out": 3,
    }
    return AccessLine(**given | fields)  # type: ignore[arg-type]


@on_uvloop
async def test_access_lines_are_json_with_time_and_level() -> None:
    read_end, write_end = os.pipe()
    access = AccessLog(write_end)
    access.add(a_line())
    access.add(a_line(status=404))
    await access.close()
    os.close(write_end)
    with os.fdopen(read_end) as file:
        lines = [json.loads(line) for line in file]
    assert [line["status"] for line in lines] == [200, 404]
    assert lines[0]["level"] == "info"
    assert lines[0]["timestamp"].endswith("Z")


@on_uvloop
async def test_a_reader_of_the_log_that_stalls_costs_lines_and_nothing_else(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    access = AccessLog(write_end)
    path = "x" * 100_000
    while not access.dropped:
        access.add(a_line(path=path))
        await asyncio.sleep(0)
    assert access.dropped
    os.close(read_end)
    await until(lambda: access._writing is None or access._writing.done())
    await access.close()
    os.close(write_end)
