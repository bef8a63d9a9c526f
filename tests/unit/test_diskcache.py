"""Files that appear whole, locks between processes, sizes for people."""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from standfast.diskcache import human_bytes, locked, remove_tree, size_of_tree, write_whole


def test_a_file_is_replaced_and_readable_by_others(tmp_path: Path) -> None:
    path = tmp_path / "sub" / "marker.json"
    write_whole(path, "one")
    write_whole(path, "two")
    assert path.read_text() == "two"
    assert [found.name for found in path.parent.iterdir()] == ["marker.json"]
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "marker.json"
    write_whole(path, "old")
    with pytest.raises(UnicodeEncodeError):
        write_whole(path, "\ud800")
    assert path.read_text() == "old"
    assert [found.name for found in tmp_path.iterdir()] == ["marker.json"]


async def test_one_holds_the_lock_at_a_time(tmp_path: Path) -> None:
    inside = 0

    async def enter() -> None:
        nonlocal inside
        async with locked(tmp_path / "lock"):
            inside += 1
            assert inside == 1
            await asyncio.sleep(0)
            inside -= 1

    await asyncio.gather(*(enter() for _ in range(5)))


async def test_a_child_that_inherited_the_lock_keeps_it(tmp_path: Path) -> None:
    waits = asyncio.Event()
    async with locked(tmp_path / "lock") as descriptor:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "input()", stdin=asyncio.subprocess.PIPE, pass_fds=(descriptor,)
        )
    waiting = asyncio.create_task(_enter(tmp_path / "lock", waits))
    await asyncio.wait_for(waits.wait(), 60)
    assert not waiting.done()
    await child.communicate(b"\n")
    await asyncio.wait_for(waiting, 60)


async def _enter(path: Path, waits: asyncio.Event) -> None:
    async with locked(path, on_wait=waits.set):
        pass


async def test_a_tree_goes_away_and_a_missing_one_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    (tmp_path / "tree" / "sub" / "file").write_bytes(b"12345")
    assert size_of_tree(tmp_path / "tree") == 5
    await remove_tree(tmp_path / "tree")
    await remove_tree(tmp_path / "tree")
    assert not (tmp_path / "tree").exists()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1500, "2 kB"), (269_000_000, "269 MB"), (1.24e9, "1.2 GB"), (3e12, "3.0 TB")],
)
def test_sizes_read_as_people_write_them(count: float, text: str) -> None:
    assert human_bytes(count) == text
