"""A full disk stops logs, and nothing else. Needs the right to mount a small file system, else it is skipped."""

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.launcher_kit import Rank, alive, cleared, eventually, python

TALKATIVE = """
import time
count = 0
while True:
    count += 1
    print("line", count, "x" * 2000, flush=True)
    time.sleep(0.005)
"""


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "none", str(place)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"cannot mount: {mounted.stderr.strip()}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def rank(small_disk: Path) -> Iterator[Rank]:
    made = Rank(small_disk / "attempt", attempt=f"kit-{uuid.uuid4().hex[:8]}/inference/0/1")

    def launchers() -> list[int]:
        state = made.state()
        return [state["launcher_pid"]] if state and alive(state["launcher_pid"], state["launcher_start_ticks"]) else []

    with cleared(made.attempt, launchers=launchers):
        yield made


def fill(disk: Path) -> Path:
    """Take every free byte."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"0" * 4096)
        except OSError:
            pass
    return filler


def test_beats_go_on_and_the_engine_lives_while_the_disk_is_full(rank: Rank, small_disk: Path) -> None:
    rank.launch()
    rank.bind(python(TALKATIVE))
    rank.wait_for_line("line 3 ")

    filler = fill(small_disk)
    full = eventually(lambda: (s := rank.state())["log"]["dropped_bytes"] > 0 and s, "dropped lines") or {}
    assert full["log"]["error"] == "No space left on device"
    for _ in range(5):
        beat = rank.state()["beat"]
        eventually(lambda beat=beat: rank.state()["beat"] > beat, "another beat")  # type: ignore[misc]
    later = rank.state()
    assert later["phase"] == "running"
    assert later["tail"] != full["tail"]
    assert alive(later["pid"], later["start_ticks"])

    filler.unlink()
    rank.wait_for_line("bytes of output were dropped here: No space left on device")
    eventually(lambda: rank.state()["log"]["error"] is None, "the end of the error")
    rank.request_stop()
    assert rank.wait_for_phase("ended")["exit"]["reason"] == "stopped"


def test_an_exit_on_a_full_disk_is_recorded(rank: Rank, small_disk: Path) -> None:
    rank.launch()
    rank.bind(python(TALKATIVE))
    rank.wait_for_line("line 3 ")
    fill(small_disk)
    eventually(lambda: rank.state()["log"]["dropped_bytes"] > 0, "dropped lines")

    os.kill(rank.state()["pid"], 9)

    assert rank.wait_for_phase("ended")["exit"]["signal"] == 9


def test_a_launcher_that_finds_the_disk_full_refuses_to_start(small_disk: Path) -> None:
    rank = Rank(small_disk / "attempt")
    fill(small_disk)

    refused = rank.launch()

    assert refused.returncode == 1
    assert "No space left on device" in refused.stderr
