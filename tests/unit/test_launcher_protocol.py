"""The launcher's files, commands and rules, without processes."""

import ast
import os
import sys
from pathlib import Path
from typing import Any

import pytest

import workers.launcher
from workers.launcher.engine import Command, CommandError, build_environment, parse_command, secret_values
from workers.launcher.processes import Census, Process, list_pids, read_process
from workers.launcher.protocol import RESERVE_BYTES, StateFile, read_json, replace_file, take_lock

SOURCES = sorted(Path(workers.launcher.__file__).parent.glob("*.py"))


def bound(**changes: Any) -> dict[str, Any]:
    return {"schema_version": 1, "attempt": "a/1", "ranks": {"0": {"argv": ["run"]} | changes}}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_the_launcher_is_python_3_9_and_imports_the_standard_library_only(source: Path) -> None:
    tree = ast.parse(source.read_text(), feature_version=(3, 9))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}

    others = {name for name in imported if not name.startswith("workers.launcher")}
    assert {name.partition(".")[0] for name in others} <= sys.stdlib_module_names


def test_a_command_has_defaults_for_what_is_left_out() -> None:
    assert parse_command(bound(), 0) == Command(
        attempt="a/1", rank=0, argv=("run",), environment={}, secrets={}, working_directory=None, stop_grace_s=30.0
    )


def test_secrets_are_names_or_variables_bound_to_names() -> None:
    assert parse_command(bound(secrets=["TOKEN"]), 0).secrets == {"TOKEN": "TOKEN"}
    assert parse_command(bound(secrets={"KEY": "TOKEN"}), 0).secrets == {"KEY": "TOKEN"}


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ({}, "schema_version is None"),
        ({"schema_version": 2}, "schema_version is 2"),
        ({"schema_version": 1}, "attempt"),
        ({"schema_version": 1, "attempt": "a"}, "ranks has no entry 0"),
        ({"schema_version": 1, "attempt": "a", "ranks": {"1": {"argv": ["x"]}}}, "ranks has no entry 0"),
        (bound(argv="run --fast"), "ranks.0.argv"),
        (bound(argv=[1]), "ranks.0.argv"),
        (bound(stop_grace_s=-1), "ranks.0.stop_grace_s"),
        (bound(stop_grace_s=True), "ranks.0.stop_grace_s"),
        (bound(working_directory=3), "ranks.0.working_directory"),
        (bound(environment=["A=1"]), "ranks.0.environment"),
        (bound(secrets={"A": None}), "ranks.0.secrets"),
    ],
)
def test_an_unusable_command_names_its_field(value: dict[str, Any], told: str) -> None:
    with pytest.raises(CommandError, match=told) as refusal:
        parse_command(value, 0)

    assert refusal.value.code == 125


def test_the_plan_decides_over_base_variables_and_the_marks_over_everything() -> None:
    changes = {"environment": {"PATH": "/engine/bin", "STANDFAST_ATTEMPT": "forged"}, "secrets": {"KEY": "TOKEN"}}
    own = {"PATH": "/usr/bin", "HOME": "/root", "TOKEN": "value", "NOISE": "x"}

    assert build_environment(parse_command(bound(**changes), 0), own) == {
        "HOME": "/root",
        "KEY": "value",
        "PATH": "/engine/bin",
        "SPT_NOENV": "1",
        "STANDFAST_ATTEMPT": "a/1",
        "STANDFAST_RANK": "0",
    }


def test_a_missing_secret_is_named_by_variable_and_name() -> None:
    with pytest.raises(CommandError, match=r"secret TOKEN \(variable KEY\)"):
        secret_values(parse_command(bound(secrets={"KEY": "TOKEN"}), 0), {})


def test_replacing_a_file_leaves_nothing_but_the_file(tmp_path: Path) -> None:
    replace_file(tmp_path / "a.json", b"{}")
    replace_file(tmp_path / "a.json", b'{"b":1}')

    assert read_json(tmp_path / "a.json") == {"b": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_that_holds_no_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("[]")

    with pytest.raises(ValueError, match="holds list"):
        read_json(tmp_path / "a.json")
    assert read_json(tmp_path / "b.json") is None


def test_a_lock_has_one_holder(tmp_path: Path) -> None:
    first = take_lock(tmp_path / "lock")
    assert first is not None
    assert take_lock(tmp_path / "lock") is None

    os.close(first)

    again = take_lock(tmp_path / "lock")
    assert again is not None
    os.close(again)


def test_states_written_into_spare_files_are_whole_and_keep_being_written(tmp_path: Path) -> None:
    (tmp_path / "state").mkdir()
    states = StateFile(tmp_path / "state" / "0.json")
    states.reserve()
    state = {"tail": ["x" * 700] * 60, "processes": [{"pid": 1}], "beat": 0}
    assert states.write(state)

    # A directory where the new file would be written stands for a disk without room for one.
    (tmp_path / "state" / f".0.json.{os.getpid()}.tmp").mkdir()
    for beat in range(1, 6):
        assert states.write(state | {"beat": beat, "tail": ["y" * 100_000] * 3})
        written = read_json(tmp_path / "state" / "0.json")
        assert written is not None
        assert written["beat"] == beat
        assert (tmp_path / "state" / "0.json").stat().st_size == RESERVE_BYTES
    (tmp_path / "state" / f".0.json.{os.getpid()}.tmp").rmdir()
    assert states.write(state | {"beat": 6})

    assert read_json(tmp_path / "state" / "0.json") == state | {"beat": 6}
    states.release()
    assert [path.name for path in (tmp_path / "state").iterdir()] == ["0.json"]


def test_a_process_is_read_whatever_its_name() -> None:
    own = read_process(os.getpid())

    assert own is not None
    assert (own.pid, own.parent, own.live) == (os.getpid(), os.getppid(), True)
    assert own.pid in list_pids()
    assert read_process(2**22 + 1) is None


def test_a_census_counts_the_session_and_the_descendants_of_the_launcher() -> None:
    table = {
        1: Process(1, 0, 1, 1, "S", "init"),
        10: Process(10, 1, 10, 5, "S", "launcher"),
        20: Process(20, 10, 20, 6, "S", "engine"),
        21: Process(21, 20, 20, 7, "S", "worker"),
        22: Process(22, 21, 22, 8, "S", "own session"),
        23: Process(23, 10, 22, 9, "S", "orphan"),
        24: Process(24, 20, 20, 9, "Z", "zombie"),
        30: Process(30, 1, 30, 9, "S", "stranger"),
        31: Process(31, 30, 30, 9, "S", "stranger's child"),
    }
    census = Census(20, leader_ticks=6, launcher=10, list_pids=lambda: list(table), read_process=table.get)

    assert [process.pid for process in census.look()] == [20, 21, 22, 23]
    table[23] = table[23]._replace(parent=1)
    table[32] = Process(32, 22, 32, 10, "S", "new")
    assert [process.pid for process in census.look()] == [20, 21, 22, 23, 32]
    for pid in (20, 21, 22, 23, 24, 32):
        del table[pid]
    table[20] = Process(20, 1, 20, 99, "S", "somebody else's session")
    assert census.look(full=True) == []
