"""Refusals on the command line: three parts, an exit code, never a traceback."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from temporalio.service import RPCError, RPCStatusCode

from standfast.cli.errors import report
from standfast.cli.run import run
from standfast.client.errors import DeployInProgressError, OperationFailedError
from standfast.contracts import Failure
from standfast.problems import Problem, ProblemsError, UserError
from standfast.stack.supervisor import StackFailedError

TOKEN = "hf_" + "aB3" * 12
FAILURE = Failure(
    kind="permanent",
    code="out-of-memory",
    message="The model does not fit in the memory it was given.",
    help="Give Compute more memory.",
    evidence=("torch.OutOfMemoryError: CUDA out of memory", f"using {TOKEN}"),
    attempt="m@0123456789ab/inference/0/1",
)


@pytest.fixture(autouse=True)
def logging() -> Iterator[None]:
    """Commands that run in this process set logging up; undo it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("STANDFAST_HOME", str(tmp_path / "home"))
    for name in ("TEMPORAL_ADDRESS", "TEMPORAL_PROFILE", "STANDFAST_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TEMPORAL_CONFIG_FILE", "/dev/null")
    return tmp_path / "home"


@pytest.mark.parametrize("verb", ["status", "down", "doctor", "up", "logs"])
def test_a_home_that_is_no_directory_is_the_callers_mistake(
    verb: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home.write_text("a file")
    assert run([verb, *(["m"] if verb == "logs" else [])]) in (2, 3)
    shown = capsys.readouterr()
    assert "fault of Standfast" not in shown.err + shown.out
    assert str(home) in shown.err + shown.out


def test_a_full_disk_is_called_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OSError(errno.ENOSPC, "No space left on device", str(home / "run")), as_json=True) == 1
    assert "the disk is full" in json.loads(capsys.readouterr().out)["error"]


def test_a_verdict_shows_the_engines_words_what_to_do_and_where_the_rest_is(capsys: pytest.CaptureFixture[str]) -> None:
    error = OperationFailedError("deploy", "m", FAILURE, workflow_url="http://ui/1")
    assert report(error, as_json=False) == 1
    shown = capsys.readouterr().err
    for words in (
        "✗ deploy m failed  permanent: out-of-memory",
        "The model does not fit",
        "│ torch.OutOfMemoryError: CUDA out of memory",
        "help: Give Compute more memory.",
        "log: standfast logs m --attempt m@0123456789ab/inference/0/1",
        "UI: http://ui/1",
    ):
        assert words in shown
    assert TOKEN not in shown


def test_every_problem_is_printed_and_counted(capsys: pytest.CaptureFixture[str]) -> None:
    problems = tuple(
        Problem(code="c", where=f"A.field{number}", message=f"wrong {number}", help="right", file="a.py", line=number)
        for number in (1, 2)
    )
    assert report(ProblemsError(problems), as_json=False) == 2
    shown = capsys.readouterr().err
    assert "error: wrong 1\n  --> a.py:1  A.field1\n   = help: right" in shown
    assert "2 problems; nothing was started." in shown


def test_with_json_an_error_is_one_document_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert report(OperationFailedError("deploy", "m", FAILURE), as_json=True) == 1
    printed = capsys.readouterr()
    document = json.loads(printed.out)
    assert printed.err == ""
    assert document["failure"]["code"] == "out-of-memory"
    assert document["exit_code"] == 1
    assert TOKEN not in printed.out


def test_a_part_that_did_not_come_up_shows_the_end_of_its_log(capsys: pytest.CaptureFixture[str]) -> None:
    error = StackFailedError(
        "the worker did not come up: it ended with exit code 3.", tail=("boom",), help="See x.log."
    )
    assert report(error, as_json=False) == 1
    shown = capsys.readouterr().err
    assert "error: the worker did not come up: it ended with exit code 3.\n    │ boom\n   = help: See x.log." in shown


def test_an_unexpected_error_is_one_line_and_its_traceback_is_kept(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        raise KeyError("surprise")
    except KeyError as error:
        assert report(error, as_json=False) == 1
    shown = capsys.readouterr().err
    assert "unexpected KeyError: 'surprise'" in shown
    assert "Traceback" not in shown
    log = home / "logs" / "cli.log"
    assert str(log) in shown
    assert "Traceback" in log.read_text()


def test_debugging_shows_the_traceback(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("STANDFAST_DEBUG", "1")
    try:
        raise KeyError("surprise")
    except KeyError as error:
        report(error, as_json=False)
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UserError("x"), 2),
        (UserError("x", exit_code=3), 3),
        (DeployInProgressError("m"), 1),
        (ProblemsError((Problem(code="c", where="w", message="m"),)), 2),
    ],
)
def test_each_kind_of_refusal_has_its_exit_code(error: Exception, code: int) -> None:
    assert report(error, as_json=True) == code


@pytest.mark.parametrize(
    ("status", "code", "words"),
    [
        (RPCStatusCode.UNAVAILABLE, 3, "Temporal does not answer: down"),
        (RPCStatusCode.INVALID_ARGUMENT, 1, "Temporal refused: down"),
    ],
)
def test_an_outage_of_temporal_is_told_from_a_refusal(
    status: RPCStatusCode, code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(RPCError("down", status, b""), as_json=True) == code
    assert words in json.loads(capsys.readouterr().out)["error"]


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["status"], 3, "the stack is not running"),
        (["deploy"], 2, "a config file is needed"),
        (["deploy", "x.py", "--cancel", "m"], 2, "give --cancel alone"),
        (["depoy"], 2, "Did you mean 'deploy'"),
        (["plan", "no/such/file.py"], 2, "no/such"),
        (["plan", "x.py", "--target", "lokal"], 2, "Did you mean 'local'"),
        (["validate", "m", "--timeout", "soon"], 2, "--timeout soon"),
    ],
)
def test_wrong_use_is_refused_with_a_hint(
    home: Path, arguments: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(arguments) == code
    shown = " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert words in shown
    assert not home.exists()


@pytest.mark.parametrize("verb", ["up", "down", "plan", "deploy", "status", "logs", "retry", "validate", "deprecate"])
def test_every_verb_documents_the_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([verb, "--help"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "Exit codes: 0 done; 1 the operation failed" in shown
