"""The launcher's life, with real processes: what it starts, sees, records and ends."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.launcher_kit import FAMILY, STUBBORN, Rank, alive, cleared, eventually, marked, python


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    made = Rank(tmp_path / "attempt", attempt=f"kit-{uuid.uuid4().hex[:8]}/inference/0/1")
    with cleared(made.attempt, launchers=lambda: _launcher_of(made)):
        yield made


def _launcher_of(rank: Rank) -> list[int]:
    state = rank.state()
    known = state and alive(state["launcher_pid"], state["launcher_start_ticks"])
    return [state["launcher_pid"]] if known else []


def _gone(processes: list[dict[str, Any]]) -> bool:
    return not any(alive(process["pid"], process["start_ticks"]) for process in processes)


def test_the_first_process_returns_when_the_detached_one_has_reported(rank: Rank) -> None:
    started = rank.launch()

    assert (started.returncode, started.stderr) == (0, "")
    facts = rank.facts()
    assert (facts["rank"], facts["host"], facts["address"]) == (0, "kit", "127.0.0.1")
    assert rank.state()["phase"] == "waiting"
    assert alive(facts["pid"], facts["start_ticks"])
    assert os.getsid(facts["pid"]) not in (os.getsid(0), facts["pid"])
    assert Path(f"/proc/{facts['pid']}/fd/1").readlink() == rank.root / "logs" / "launcher.0.log"


def test_an_engine_that_fails_leaves_its_code_and_its_last_lines(rank: Rank) -> None:
    rank.launch()
    rank.bind(["sh", "-c", "echo out; echo error >&2; exit 3"])

    state = rank.wait_for_phase("ended")

    assert (state["exit"]["code"], state["exit"]["signal"], state["exit"]["reason"]) == (3, None, "exited")
    assert state["tail"] == ["out", "error"]
    assert rank.log() == "out\nerror\n"
    eventually(lambda: not alive(state["launcher_pid"], state["launcher_start_ticks"]), "the launcher's end")


def test_an_engine_that_exits_with_zero_has_exited_like_any_other(rank: Rank) -> None:
    rank.launch()
    rank.bind(["true"])

    assert rank.wait_for_phase("ended")["exit"]["reason"] == "exited"


def test_a_line_without_end_is_shown_too(rank: Rank) -> None:
    rank.launch()
    rank.bind(["printf", "10%%\\r50%%\\rlast words"])

    assert rank.wait_for_phase("ended")["tail"] == ["last words"]


def test_children_that_left_the_session_are_listed_and_end_with_the_first_process(rank: Rank) -> None:
    rank.launch()
    rank.bind(python(FAMILY))
    processes = rank.wait_for_processes(4)

    os.kill(rank.state()["pid"], signal.SIGKILL)
    state = rank.wait_for_phase("ended")

    assert state["exit"]["signal"] == signal.SIGKILL
    assert _gone(processes)
    assert state["processes"] == []


def test_a_killed_child_disappears_from_the_list_while_the_engine_runs(rank: Rank) -> None:
    rank.launch()
    rank.bind(python(FAMILY))
    processes = rank.wait_for_processes(4)
    victim = next(process for process in processes if process["pid"] != rank.state()["pid"])

    os.kill(victim["pid"], signal.SIGKILL)

    rest = rank.wait_for_processes(3)
    assert victim not in rest
    assert rank.state()["phase"] == "running"


def test_what_outlives_the_engine_and_ignores_term_is_killed_and_named(rank: Rank) -> None:
    rank.launch()
    rank.bind(python(STUBBORN))
    rank.wait_for_line("child up")
    processes = rank.wait_for_processes(2)
    first = rank.state()["pid"]

    os.kill(first, signal.SIGKILL)
    state = rank.wait_for_phase("ended")

    assert [survivor["pid"] for survivor in state["exit"]["survivors"]] == [
        process["pid"] for process in processes if process["pid"] != first
    ]
    assert _gone(processes)


def test_a_process_without_session_or_parent_is_found_by_its_environment(rank: Rank) -> None:
    rank.launch()
    rank.bind(["sleep", "600"])
    rank.wait_for_processes(1)
    stray = subprocess.Popen(
        ["sleep", "600"], env={"STANDFAST_ATTEMPT": rank.attempt, "PATH": os.environ["PATH"]}, start_new_session=True
    )

    rank.request_stop()
    state = rank.wait_for_phase("ended")

    assert stray.wait(timeout=60) in (-signal.SIGTERM, -signal.SIGKILL)
    assert state["exit"]["reason"] == "stopped"


def test_another_ranks_processes_on_the_same_host_are_left_alone(rank: Rank) -> None:
    other = Rank(rank.root, attempt=rank.attempt, rank=1)
    rank.launch()
    other.launch()
    sleeping = {"argv": ["sleep", "600"]}
    rank.write("bound.json", {"schema_version": 1, "attempt": rank.attempt, "ranks": {"0": sleeping, "1": sleeping}})
    (survivor,) = other.wait_for_processes(1)
    rank.wait_for_processes(1)

    os.kill(rank.state()["pid"], signal.SIGKILL)
    rank.wait_for_phase("ended")

    assert alive(survivor["pid"], survivor["start_ticks"])
    other.request_stop()
    other.wait_for_phase("ended")


def test_stop_lets_an_engine_end_by_itself(rank: Rank) -> None:
    rank.launch()
    rank.bind(python("import signal,sys,time\nsignal.signal(15, lambda *_: sys.exit(0))\nprint('up')\ntime.sleep(600)"))
    rank.wait_for_line("up")

    rank.request_stop()

    ended = rank.wait_for_phase("ended")["exit"]
    assert (ended["code"], ended["signal"], ended["reason"], ended["survivors"]) == (0, None, "stopped", [])
    assert "[standfast] stopping: the test says so" in rank.log()


def test_stop_kills_an_engine_that_ignores_term_after_the_grace(rank: Rank) -> None:
    rank.launch()
    rank.bind(python(STUBBORN), stop_grace_s=600)
    rank.wait_for_line("child up")
    processes = rank.wait_for_processes(2)

    rank.request_stop(grace_s=0.5)

    ended = rank.wait_for_phase("ended")["exit"]
    assert (ended["signal"], ended["reason"]) == (signal.SIGKILL, "stopped")
    assert _gone(processes)


def test_a_later_request_can_shorten_the_grace(rank: Rank) -> None:
    rank.launch()
    rank.bind(python(STUBBORN))
    rank.wait_for_line("child up")

    rank.request_stop(grace_s=600)
    rank.wait_for_phase("stopping")
    rank.request_stop(grace_s=0)

    assert rank.wait_for_phase("ended")["exit"]["signal"] == signal.SIGKILL


def test_terminating_the_launcher_stops_the_engine(rank: Rank) -> None:
    rank.launch()
    rank.bind(["sleep", "600"])
    rank.wait_for_processes(1)

    os.kill(rank.state()["launcher_pid"], signal.SIGTERM)

    ended = rank.wait_for_phase("ended")["exit"]
    assert (ended["signal"], ended["reason"]) == (signal.SIGTERM, "stopped")


def test_an_engine_does_not_outlive_a_killed_launcher(rank: Rank) -> None:
    rank.launch()
    rank.bind(["sleep", "600"])
    (process,) = rank.wait_for_processes(1)

    os.kill(rank.state()["launcher_pid"], signal.SIGKILL)

    eventually(lambda: _gone([process]), "the engine's end")


def test_a_launcher_after_a_killed_one_ends_what_is_left_and_starts_nothing(rank: Rank) -> None:
    rank.launch()
    rank.bind(python(FAMILY + "\n"))
    rank.wait_for_line("family up")
    processes = rank.wait_for_processes(4)
    first = rank.state()
    os.kill(first["launcher_pid"], signal.SIGKILL)
    eventually(lambda: not alive(first["launcher_pid"]), "the launcher's end")

    again = rank.launch()
    state = rank.wait_for_phase("ended")

    assert again.returncode == 0
    assert state["exit"]["reason"] == "lost"
    assert _gone(processes)
    assert marked(rank.attempt) == []
    assert rank.log().count("family up") == 1


def test_a_state_cut_short_by_a_crash_counts_as_begun(rank: Rank) -> None:
    (rank.root / "state").mkdir()
    (rank.root / "state" / "0.json").write_bytes(b"")
    rank.bind(["echo", "never"])

    assert rank.launch().returncode == 0

    state = eventually(lambda: (rank.root / "state" / "0.json").read_bytes() and rank.state(), "a state") or {}
    assert (state["phase"] in ("stopping", "ended"), "never" in rank.log()) == (True, False)
    assert rank.wait_for_phase("ended")["exit"]["reason"] == "lost"


def test_a_launcher_killed_while_it_waited_is_replaced(rank: Rank) -> None:
    rank.launch()
    os.kill(rank.state()["launcher_pid"], signal.SIGKILL)
    eventually(lambda: not alive(rank.state()["launcher_pid"]), "the launcher's end")

    rank.launch()
    rank.bind(["echo", "hello"])

    assert rank.wait_for_phase("ended")["tail"] == ["hello"]


def test_of_two_launchers_one_starts_the_engine(rank: Rank) -> None:
    rank.bind(["sh", "-c", "echo started; exec sleep 600"])
    command = [
        sys.executable,
        "-I",
        "-m",
        "workers.launcher",
        str(rank.root),
        "--rank",
        "0",
        "--host",
        "kit",
        "--detach",
    ]
    several = [subprocess.Popen(command, env={"PATH": os.environ["PATH"]}) for _ in range(3)]

    assert [process.wait(timeout=60) for process in several] == [0, 0, 0]
    rank.wait_for_line("started")
    rank.wait_for_processes(1)
    assert rank.launch().returncode == 0
    assert rank.log() == "started\n"
    assert len(marked(rank.attempt)) == 1


def test_an_ended_attempt_is_never_started_again(rank: Rank) -> None:
    rank.launch()
    rank.bind(["echo", "once"])
    ended = rank.wait_for_phase("ended")
    eventually(lambda: not alive(ended["launcher_pid"]), "the launcher's end")

    assert rank.launch().returncode == 0
    eventually(lambda: not alive(rank.facts()["pid"]), "the second launcher's end")
    assert rank.state()["exit"] == ended["exit"]
    assert rank.log() == "once\n"


def test_a_stop_while_waiting_ends_it_and_a_later_command_starts_nothing(rank: Rank) -> None:
    rank.launch()

    rank.request_stop()
    state = rank.wait_for_phase("ended")
    rank.bind(["echo", "too late"])
    rank.launch()

    assert state["exit"] | {"at": 0} == {"code": None, "signal": None, "reason": "stopped", "at": 0, "survivors": []}
    assert rank.log() == ""


def test_a_stop_before_the_start_starts_nothing(rank: Rank) -> None:
    rank.request_stop()
    rank.bind(["echo", "never"])

    assert rank.launch().returncode == 0

    assert rank.wait_for_phase("ended")["exit"]["reason"] == "stopped"
    assert rank.log() == ""


def test_the_engine_gets_the_base_variables_the_plans_and_the_named_secrets_only(rank: Rank) -> None:
    rank.launch(secrets={"NAMED": "one-secret", "UNNAMED": "another-secret", "PYTHONPATH": "/nowhere"})
    script = "import os\nprint(sorted(os.environ))\nprint(os.environ['TOKEN'] == 'one' + '-secret', os.environ['MODE'])"
    rank.bind(python(script), environment={"MODE": "fast"}, secrets={"TOKEN": "NAMED"})

    names, values = rank.wait_for_phase("ended")["tail"]

    assert {"MODE", "PATH", "SPT_NOENV", "STANDFAST_ATTEMPT", "STANDFAST_RANK", "TOKEN"} <= set(eval(names))
    assert not {"NAMED", "UNNAMED", "PYTHONPATH"} & set(eval(names))
    assert values == "True fast"


def test_a_printed_secret_reaches_neither_log_nor_state(rank: Rank) -> None:
    secret = "s3cr3t-" + uuid.uuid4().hex
    rank.launch(secrets={"TOKEN": secret})
    # Written in two pieces with a pause, so that the relay meets it cut in half.
    script = (
        "import os,time\nt=os.environ['TOKEN']\nprint('whole', t)\nos.write(1, b'half ' + t[:9].encode())\n"
        "time.sleep(0.3)\nos.write(1, t[9:].encode() + b'\\n')"
    )
    rank.bind(python(script), secrets=["TOKEN"])

    state = rank.wait_for_phase("ended")

    assert state["tail"] == ["whole ***", "half ***"]
    assert not [path for path in rank.root.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("argv", "changes", "code", "told"),
    [
        (["/no/such/engine"], {}, 127, "/no/such/engine"),
        (["no-such-engine"], {}, 127, "No such file in PATH: no-such-engine"),
        (["/"], {}, 126, "Permission denied"),
        (["true"], {"working_directory": "/no/such/place"}, 127, "/no/such/place"),
        (["true"], {"secrets": ["NOT_THERE"]}, 125, "the secret NOT_THERE (variable NOT_THERE)"),
        ([], {}, 125, "ranks.0.argv"),
        (["true"], {"environment": {"A": 1}}, 125, "ranks.0.environment"),
    ],
)
def test_a_command_that_cannot_run_ends_with_a_reason(
    rank: Rank, argv: list[str], changes: dict[str, Any], code: int, told: str
) -> None:
    rank.launch()
    rank.bind(argv, **changes)

    state = rank.wait_for_phase("ended")

    assert state["exit"]["code"] == code
    assert told in state["tail"][-1]
    assert told in rank.log()


def test_a_command_that_is_not_json_ends_with_a_reason(rank: Rank) -> None:
    rank.launch()
    (rank.root / "bound.json").write_text("{")

    assert "unreadable" in rank.wait_for_phase("ended")["tail"][-1]


def test_a_chatty_engine_fills_no_more_than_two_log_files_and_beats_go_on(rank: Rank) -> None:
    rank.launch(options=["--log-bytes", "1000000"])
    rank.bind(
        python("line = 'x' * 999\nfor n in range(20000): print(line)\nprint('done')\nimport time; time.sleep(600)")
    )
    begun = rank.wait_for_phase("running")

    rank.wait_for_line("done\n")

    sizes = [path.stat().st_size for path in (rank.root / "logs").glob("0.log*")]
    assert len(sizes) == 2
    assert sum(sizes) < 3_000_000
    assert eventually(lambda: rank.state()["beat"] > begun["beat"], "another beat")
    assert eventually(lambda: rank.state()["tail"][-1:] == ["done"], "the tail")


def test_beats_go_on_though_nothing_else_changes(rank: Rank) -> None:
    rank.launch()
    rank.bind(["sleep", "600"])
    rank.wait_for_processes(1)
    beat = rank.root / "state" / "0.beat"

    for _ in range(3):
        before = beat.stat().st_mtime_ns
        eventually(lambda before=before: beat.stat().st_mtime_ns > before, "a beat")  # type: ignore[misc]
    written = rank.state()["beat"]
    eventually(lambda: rank.state()["beat"] > written, "a state of the same content")


def test_wrong_use_is_refused_with_code_2(tmp_path: Path) -> None:
    command = [sys.executable, "-I", "-m", "workers.launcher", str(tmp_path)]
    wrong = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert wrong.returncode == 2
    assert "--rank" in wrong.stderr


def test_a_launcher_that_cannot_write_says_so_and_fails(tmp_path: Path) -> None:
    (tmp_path / "attempt").mkdir()
    (tmp_path / "attempt" / "facts").write_text("in the way")

    refused = Rank(tmp_path / "attempt").launch()

    assert refused.returncode == 1
    assert "File exists" in refused.stderr
