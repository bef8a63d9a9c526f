"""The fast lane accepts less than llhttp does, and never reads anything in another way."""

from hypothesis import example, given, settings
from hypothesis import strategies as st

from workers.gateway.reader import RequestReader
from workers.gateway.request import Budget, Request
from workers.gateway.responses import ResponseHead, ResponseReader
from workers.gateway.settings import Settings
from workers.gateway.whole import repeated_request, whole_request, whole_response

LIMITS = {"head_limit": 65536, "target_limit": 8192}
REQUEST = (
    b"POST /v1/chat/completions?a=b HTTP/1.1\r\nHost: gateway\r\nUser-Agent: OpenAI/Python 1.0\r\nAccept:*/*\r\n"
    b"Authorization: Bearer sf-key\r\nConnection: keep-alive\r\nX-Request-ID: abc\r\n"
    b"Content-Length: 13\r\nX-Last: \r\n\r\n"
    b'{"model":"m"}'
)
RESPONSE = (
    b"HTTP/1.1 200 OK\r\ndate: Mon, 01 Jan 2029 00:00:00 GMT\r\nserver: uvicorn\r\ncontent-length: 11\r\n"
    b'content-type: application/json\r\n\r\n{"ok":true}'
)
PIECES = [
    b"\r\n",
    b"\n",
    b"\r",
    b"\0",
    b" ",
    b"\t",
    b":",
    b"\x7f",
    b"\xff",
    b"0",
    b"#",
    b"\r\nContent-Length: 13",
    b"\r\nContent-Length: 1",
    b"\r\nTransfer-Encoding: chunked",
    b"\r\nHost: other",
    b"\r\nConnection: close",
    b"\r\nConnection: X-Last",
    b"\r\nExpect: 100-continue",
    b"\r\nUpgrade: h2c",
    b"\r\nAuthorization: Bearer other",
    b"\r\n folded",
    b"\r\n\r\n",
    b" HTTP/1.0",
    b"HTTP/1.0",
]
MUTATION = st.tuples(
    st.integers(0, 400), st.integers(0, 3), st.one_of(st.sampled_from(PIECES), st.binary(max_size=3), st.just(b""))
)


def mutated(data: bytes, mutations: list[tuple[int, int, bytes]]) -> bytes:
    """``data`` with bytes replaced here and there."""
    for at, length, piece in mutations:
        at = min(at, len(data))
        data = data[:at] + piece + data[at + length :]
    return data


def by_llhttp(data: bytes) -> list[Request]:
    requests: list[Request] = []
    reader = RequestReader(Settings(), Budget(1 << 30), lambda _: None, requests.append)
    reader.feed(data)
    assert reader.request is None
    return requests


def headers_of(relay: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, value.strip(b" \t")) for name, _, value in (line.partition(b":") for line in relay.split(b"\r\n"))]


def assert_same(fast: Request, slow: Request) -> None:
    assert slow.refusal is None
    assert slow.complete
    assert not slow.close
    assert not slow.http10
    assert (fast.method, fast.target, fast.take_body()) == (slow.method, slow.target, slow.take_body())
    assert (fast.authorization, fast.request_id) == (slow.authorization, slow.request_id)
    assert (fast.expect, fast.size) == (slow.expect, slow.size)
    assert headers_of(fast.relay) == headers_of(slow.relay)


def test_a_plain_request_takes_the_fast_lane() -> None:
    found = whole_request(REQUEST, **LIMITS)
    assert found is not None
    request, cut = found
    assert cut is not None
    assert request.relay == b"User-Agent: OpenAI/Python 1.0\r\nAccept:*/*\r\nX-Last: \r\n"
    assert_same(request, *by_llhttp(REQUEST))


@given(st.lists(MUTATION, min_size=1, max_size=3))
@example([(0, 0, b"\r\n")])
@example([(0, 0, b"")])
@settings(max_examples=400, deadline=None)
def test_what_the_fast_lane_reads_llhttp_reads_alike(mutations: list[tuple[int, int, bytes]]) -> None:
    data = mutated(REQUEST, mutations)
    found = whole_request(data, **LIMITS)
    if found is not None:
        (slow,) = by_llhttp(data)
        assert_same(found[0], slow)


@given(st.lists(MUTATION, max_size=2), st.binary(max_size=30), st.integers(0, 40))
@settings(max_examples=400, deadline=None)
def test_a_head_that_is_recognised_means_what_it_meant(
    mutations: list[tuple[int, int, bytes]], body: bytes, length: int
) -> None:
    first = whole_request(REQUEST, **LIMITS)
    assert first is not None
    last, cut = first
    assert cut is not None
    data = REQUEST.partition(b"\r\n\r\n")[0].replace(b"Length: 13", b"Length: %d" % length) + b"\r\n\r\n" + body
    data = mutated(data, mutations)
    at = cut.body_at(data)
    if at:
        (slow,) = by_llhttp(data)
        repeated = repeated_request(last, data[at:])
        repeated.authorization = last.authorization
        assert_same(repeated, slow)
    elif not mutations:
        assert length != len(body)


@given(st.lists(MUTATION, max_size=3))
@settings(max_examples=400, deadline=None)
def test_a_response_in_the_fast_lane_is_read_as_llhttp_reads_it(mutations: list[tuple[int, int, bytes]]) -> None:
    data = mutated(RESPONSE, mutations)
    found = whole_response(data, head_limit=65536)
    if found is None:
        assert mutations
        return
    head, body, _ = found
    reader = ResponseReader(1 << 18)
    assert reader.feed(data) == ""
    assert reader.reusable
    assert reader.take() == body
    assert reader.head is not None
    assert fields(reader.head) == fields(head)


def fields(head: ResponseHead) -> tuple[object, ...]:
    first, _, rest = head.start.partition(b"\r\n")
    return head.status, first.rstrip(), head.length, head.event_stream, headers_of(rest)


def test_a_repeated_response_head_is_recognised_with_another_length() -> None:
    found = whole_response(RESPONSE, head_limit=65536)
    assert found is not None
    cut = found[2]
    assert cut is not None
    other = RESPONSE.replace(b"length: 11", b"length: 3")[: -len(b'{"ok":true}')] + b"abc"
    assert other[cut.body_at(other) :] == b"abc"
    assert cut.body_at(other + b"d") == 0
    assert cut.body_at(other[:-1]) == 0
    assert cut.body_at(other.replace(b": 3", b": 3x")) == 0
    assert cut.body_at(other.replace(b"uvicorn", b"unicorn")) == 0
