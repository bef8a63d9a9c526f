"""What the launcher keeps of an engine's output."""

import itertools
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from standfast.platforms.logs import read_log
from workers.launcher.logs import TAIL_LINES, Redactor, RotatingLog, Tail, rotated


def relayed(secrets: list[str], *pieces: bytes) -> bytes:
    redactor = Redactor(secrets)
    return b"".join([*(redactor.feed(piece) for piece in pieces), redactor.flush()])


def test_a_secret_is_replaced_wherever_the_stream_is_cut() -> None:
    text = b"token=hunter2hunter2 again hunter2hunter2!"

    for cut in range(len(text)):
        assert relayed(["hunter2hunter2"], text[:cut], text[cut:]) == b"token=*** again ***!"


def test_what_cannot_start_a_secret_is_shown_at_once() -> None:
    assert Redactor(["hunter2"]).feed(b"progress 10%") == b"progress 10%"


def test_a_start_of_a_secret_that_goes_on_otherwise_is_shown() -> None:
    assert relayed(["hunter2"], b"hunt", b"ing season") == b"hunting season"


def test_the_longer_of_two_secrets_with_one_start_is_replaced_whole() -> None:
    assert relayed(["abc", "abcdef"], b"x abc", b"def y abc z") == b"x *** y *** z"


def test_each_line_of_a_secret_of_several_lines_is_a_secret() -> None:
    key = "-----BEGIN KEY-----\nAAAABBBBCCCC\nDDDDEEEEFFFF\n"

    assert relayed([key], b"(worker) AAAABBBBCCCC\n(worker) DDDDEEEEFFFF\n") == b"(worker) ***\n(worker) ***\n"


def test_an_empty_secret_replaces_nothing() -> None:
    assert relayed(["", "  \n"], b"as it is") == b"as it is"


@given(
    text=st.text(alphabet="abc", max_size=60),
    secrets=st.lists(st.text(alphabet="abc", min_size=2, max_size=6), min_size=1, max_size=3),
    cuts=st.lists(st.integers(0, 60), max_size=6),
)
def test_no_cutting_of_any_stream_shows_a_secret_or_changes_the_result(
    text: str, secrets: list[str], cuts: list[int]
) -> None:
    data = text.encode()
    places = [0, *sorted(cuts), len(data)]
    pieces = [data[start:end] for start, end in itertools.pairwise(places)]

    shown = relayed(secrets, *pieces)

    assert shown == relayed(secrets, data)
    assert not any(secret.encode() in shown for secret in secrets)


def test_the_tail_holds_the_last_lines_of_what_came_in_pieces() -> None:
    tail = Tail()
    for number in range(500):
        tail.feed(b"li")
        tail.feed(f"ne {number}\n".encode())
    tail.feed(b"unfinished")

    assert tail.lines() == [*(f"line {number}" for number in range(500 - TAIL_LINES + 1, 500)), "unfinished"]


def test_the_tail_shows_a_progress_bars_last_state_without_colours() -> None:
    tail = Tail()
    tail.feed(b"load  10%\rload  50%\r\x1b[32mload 100%\x1b[0m\r\nready\n")

    assert tail.lines() == ["load 100%", "ready"]


def test_an_endless_line_stays_small() -> None:
    tail = Tail()
    for _ in range(100):
        tail.feed(b"x" * 100_000)

    assert [len(line) for line in tail.lines()] == [800]


def test_bytes_that_are_no_text_do_not_break_the_tail() -> None:
    tail = Tail()
    tail.feed(b"\xff\xfe ok\n")

    assert tail.lines()[0].endswith(" ok")


def test_a_full_log_is_rotated_and_read_by_offsets_from_its_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = RotatingLog(path, limit=1000)
    written = b"".join(f"{number:09}\n".encode() for number in range(450))
    for start in range(0, len(written), 100):
        log.write(written[start : start + 100])

    assert [end for end, _ in rotated(path)] == [4000]
    assert path.stat().st_size == 500
    assert read_log(path, 3990, 1000) == (written[3990:4000], 4000)
    assert read_log(path, 4000, 1000) == (written[4000:], 4500)
    assert read_log(path, 4500, 1000) == (b"", 4500)
    assert read_log(path, 4200, 50) == (written[4200:4250], 4250)


def test_a_reader_that_fell_behind_goes_on_with_the_oldest_that_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    log = RotatingLog(path, limit=100)
    for number in range(100):
        log.write(f"{number:09}\n".encode())

    data, offset = read_log(path, 10, 20)

    assert data == b"000000080\n000000081\n"
    assert offset == 820


def test_a_reader_beyond_the_end_is_moved_to_it(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    RotatingLog(path).write(b"short")

    assert read_log(path, 99, 10) == (b"", 5)


def test_a_reader_of_a_log_that_is_not_there_gets_nothing(tmp_path: Path) -> None:
    assert read_log(tmp_path / "0.log", 0, 10) == (b"", 0)


def test_a_log_that_cannot_be_written_counts_what_is_lost_and_says_so_later(tmp_path: Path) -> None:
    path = tmp_path / "place" / "0.log"
    now = 100.0
    log = RotatingLog(path, clock=lambda: now)

    log.write(b"lost\n")
    assert (log.dropped_bytes, log.error) == (5, "No such file or directory")
    path.parent.mkdir()
    log.write(b"still lost\n")
    now += 60
    log.write(b"kept\n")

    assert path.read_text() == "\n[standfast] 16 bytes of output were dropped here: No such file or directory\nkept\n"
    assert (log.dropped_bytes, log.error) == (16, None)


def test_a_log_goes_on_where_an_earlier_launcher_left_it(tmp_path: Path) -> None:
    path = tmp_path / "0.log"
    RotatingLog(path, limit=10).write(b"0123456789")
    log = RotatingLog(path, limit=10)
    log.write(b"abc")
    log.write(b"def")

    assert read_log(path, 0, 100)[0] == b"0123456789abc"
    assert read_log(path, 13, 100) == (b"def", 16)
