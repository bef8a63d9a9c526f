"""Reading logs: whole lines, the newest attempt, and on into the next one."""

from datetime import UTC, datetime
from typing import Any

import pytest

from standfast.client.logs import RankLog, read_logs
from standfast.problems import UserError
from standfast.registry import StoredAttempt


class Files:
    """Logs that grow when they are read: ``steps`` are appended one per read."""

    def __init__(self, **steps: list[bytes]) -> None:
        self.steps = {name.replace("_", "/"): list(parts) for name, parts in steps.items()}
        self.written: dict[str, bytes] = {}

    def read_log(self, attempt: str, rank: int, offset: int, limit: int = 0) -> tuple[bytes, int]:
        if attempt not in self.steps:
            raise FileNotFoundError(attempt)
        if self.steps[attempt]:
            self.written[attempt] = self.written.get(attempt, b"") + self.steps[attempt].pop(0)
        data = self.written.get(attempt, b"")[offset:]
        return data, offset + len(data)


def attempt(number: int, *, ended: bool = False) -> StoredAttempt:
    now = datetime.now(UTC)
    return StoredAttempt(
        name=f"m/{number}",
        deployment="m",
        generation="m@1",
        role="inference",
        replica=0,
        number=number,
        phase="ended" if ended else "ready",
        started_at=now,
        ready_at=None,
        ended_at=now if ended else None,
        failure=None,
        directory="",
    )


class Attempts:
    """A registry of attempts, newest first; each look takes the next answer, the last one stays."""

    def __init__(self, *looks: list[StoredAttempt]) -> None:
        self.looks = list(looks)

    async def list_attempts(self, **_: Any) -> list[StoredAttempt]:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]

    async def get_attempt(self, name: str) -> StoredAttempt | None:
        return next((a for a in self.looks[0] if a.name == name), None)


async def texts(registry: Any, files: Files, **options: Any) -> list[str]:
    return [f"{line.attempt} {line.text}" async for line in read_logs(registry, files, "m", **options)]


async def test_lines_are_whole_however_they_arrive() -> None:
    log = RankLog(Files(m=[b"a\nb", "é\r\n".encode()[:1], "é\r\n".encode()[1:]]), "m", 0)
    lines = await log.new_lines()
    assert [line.text for line in lines] == ["a", "bé"]
    assert log.last_line() == []


async def test_the_newest_attempt_is_read_to_its_last_unfinished_line() -> None:
    registry = Attempts([attempt(2), attempt(1, ended=True)])
    assert await texts(registry, Files(m_2=[b"one\ntwo\nthr"])) == ["m/2 one", "m/2 two", "m/2 thr"]
    assert await texts(registry, Files(m_2=[b"one\ntwo\n"]), tail=1) == ["m/2 two"]
    assert await texts(registry, Files(m_2=[b"one\ntwo\n"]), tail=0) == []
    assert await texts(registry, Files(m_1=[b"old\n"]), attempt="1") == ["m/1 old"]
    assert await texts(registry, Files(m_1=[b"old\n"]), attempt="m/1") == ["m/1 old"]


async def test_an_attempt_without_a_log_yet_is_empty() -> None:
    assert await texts(Attempts([attempt(1)]), Files()) == []


async def test_following_goes_on_into_the_next_attempt() -> None:
    first, second = attempt(1), attempt(2)
    registry = Attempts([first], [second, attempt(1, ended=True)])
    lines = []
    async for line in read_logs(registry, Files(m_1=[b"a\n", b"b\nlast"], m_2=[b"c\n"]), "m", follow=True):  # type: ignore[arg-type]
        lines.append(f"{line.attempt} {line.text}")
        if line.text == "c":
            break
    assert lines == ["m/1 a", "m/1 b", "m/1 last", "m/2 c"]


async def test_a_named_attempt_is_followed_to_its_own_end() -> None:
    registry = Attempts([attempt(1, ended=True)])
    assert await texts(registry, Files(m_1=[b"a\n", b"b"]), attempt="1", follow=True) == ["m/1 a", "m/1 b"]


async def test_an_attempt_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UserError, match="replica 0 of m has no attempt 7"):
        await texts(Attempts([attempt(1)]), Files(), attempt="7")
    with pytest.raises(UserError, match="m has no attempt 'other/1'"):
        await texts(Attempts([attempt(1)]), Files(), attempt="other/1")
    with pytest.raises(UserError, match="has no attempt, so there is no log"):
        await texts(Attempts([]), Files())
