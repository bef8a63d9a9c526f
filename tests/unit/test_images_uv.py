"""The installer's surroundings, its progress in words, and what its failures mean.

The texts of failures were written by uv 0.13.
"""

import pytest

from standfast.images.uv import Narrator, environment, install, misses_torch, verdict

UNRESOLVED = """Using Python 3.11.7 environment at: v
error: No solution found when resolving dependencies
  cause: Because there is no version of torch==2.13.0+cpu and you require torch==2.13.0+cpu, we can conclude that your \
requirements are unsatisfiable."""
UNKNOWN_PACKAGE = """error: No solution found when resolving dependencies
  cause: Because vlllm was not found in the package registry and you require vlllm==1.0, we can conclude that your \
requirements are unsatisfiable."""
REFUSED_CONNECTION = """error: Request failed after 1 retry in 1.9s
  cause: Failed to fetch: http://127.0.0.1:9/simple/six/
  cause: error sending request for url (http://127.0.0.1:9/simple/six/)
  cause: client error (Connect)
  cause: tcp connect error
  cause: Connection refused (os error 111)"""
FULL = """error: Failed to install: numpy-2.4.6-cp311.whl (numpy==2.4.6)
  cause: Failed to copy to `v/numpy.libs/libscipy_openblas64_.so`
  cause: failed to copy file: No space left on device (os error 28)"""
MALFORMED = """error: Failed to parse: `not a req ==1`
  cause: Expected one of `@`, `(`, `<`, `=`, `>`, `~`, `!`, `;`, found `a`
         not a req ==1
             ^"""
MISSING_FILE = "error: Distribution not found at: file:///tmp/none-1.0-py3-none-any.whl"
NO_FIND_LINKS = """error: Failed to read `--find-links` directory: /no/such/dir
  cause: No such file or directory (os error 2)"""


def test_pips_settings_reach_uv() -> None:
    made = environment(
        {
            "PIP_FIND_LINKS": "/wheels /more",
            "PIP_INDEX_URL": "https://index.invalid/simple",
            "PIP_EXTRA_INDEX_URL": "https://a.invalid https://b.invalid",
            "PIP_CONSTRAINT": "/c.txt",
        }
    )
    assert made["UV_FIND_LINKS"] == "/wheels,/more"
    assert made["UV_DEFAULT_INDEX"] == "https://index.invalid/simple"
    assert made["UV_INDEX"] == "https://a.invalid https://b.invalid"
    assert made["UV_CONSTRAINT"] == "/c.txt"


def test_a_machine_without_an_index_installs_without_one() -> None:
    assert "--no-index" in install({"PIP_NO_INDEX": "true"}, "six")
    assert "--no-index" not in install({"PIP_NO_INDEX": "0"}, "six")
    assert "--no-index" not in install({}, "six")


def test_uvs_own_settings_win_over_pips() -> None:
    machine = {"PIP_INDEX_URL": "https://pip.invalid", "UV_DEFAULT_INDEX": "https://uv.invalid"}
    assert environment(machine)["UV_DEFAULT_INDEX"] == "https://uv.invalid"


def test_uvs_older_names_win_too() -> None:
    machine = {"PIP_INDEX_URL": "https://pip.invalid", "UV_INDEX_URL": "https://uv.invalid"}
    assert "UV_DEFAULT_INDEX" not in environment(machine)


def test_several_indexes_are_searched_as_pip_searches_them() -> None:
    assert environment({"PIP_EXTRA_INDEX_URL": "https://a.invalid"})["UV_INDEX_STRATEGY"] == "unsafe-best-match"
    assert "UV_INDEX_STRATEGY" not in environment({"UV_INDEX": "https://a.invalid"})


def test_the_callers_python_settings_stay_out() -> None:
    machine = {"PYTHONDONTWRITEBYTECODE": "1", "VIRTUAL_ENV": "/v", "PYTHONPATH": "/p", "PATH": "/bin"}
    made = environment(machine)
    assert "PATH" in made
    assert not made.keys() & {"PYTHONDONTWRITEBYTECODE", "VIRTUAL_ENV", "PYTHONPATH"}


def test_progress_reads_like_a_person_said_it() -> None:
    narrator = Narrator("resolving requirements")
    said = [narrator.sentence]
    for line in (
        "Using Python 3.11.7 environment at: v",
        "Resolved 152 packages in 1.23s",
        "Downloading sympy (6.0MiB)",
        "Downloading torch (180.0MiB)",
        " Downloaded torch",
        " Downloaded sympy",
        "   Building llama-cpp-python==0.3.36",
        "Prepared 2 packages in 3s",
        "Installed 152 packages in 1.00s",
        " + torch==2.13.0+cpu",
    ):
        if narrator.hear(line):
            said.append(narrator.sentence)
    assert said == [
        "resolving requirements",
        "resolved 152 packages in 1.23s; getting them",
        "downloading sympy (6.0MiB)",
        "downloading torch (180.0MiB) and 1 more",
        "downloading sympy (6.0MiB)",
        "unpacking",
        "building llama-cpp-python==0.3.36 from its source",
        "installing",
        "installed 152 packages in 1.00s",
    ]


@pytest.mark.parametrize(
    ("log", "returncode", "kind", "words"),
    [
        (UNRESOLVED, 1, "permanent", "there is no version of torch==2.13.0+cpu"),
        (UNKNOWN_PACKAGE, 1, "permanent", "vlllm was not found"),
        (REFUSED_CONNECTION, 2, "transient", "Connection refused"),
        (FULL, 2, "permanent", "The disk is full"),
        (MALFORMED, 2, "permanent", "not a req ==1"),
        (MISSING_FILE, 1, "permanent", "none-1.0-py3-none-any.whl"),
        (NO_FIND_LINKS, 2, "permanent", "/no/such/dir"),
        (
            "error: HTTP status client error (403 Forbidden) for url (https://x.invalid)",
            2,
            "permanent",
            "refused access",
        ),
        ("error: HTTP status server error (503 Service Unavailable)", 2, "transient", "could not be downloaded"),
        ("", -9, "transient", "SIGKILL"),
        ("error: something new", 7, "transient", "something new"),
    ],
)
def test_failures_are_told_apart(log: str, returncode: int, kind: str, words: str) -> None:
    told, reason = verdict(log, returncode)
    assert told == kind
    assert words in reason


def test_only_a_missing_torch_is_looked_for_elsewhere() -> None:
    assert misses_torch(UNRESOLVED)
    assert not misses_torch(UNKNOWN_PACKAGE)
    assert not misses_torch(REFUSED_CONNECTION)
