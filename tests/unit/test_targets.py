"""Targets: the built-in one, those in files, and what is not carried out yet."""

from pathlib import Path

import pytest

from standfast.problems import ProblemsError, UserError
from standfast.targets import LOCAL, LocalTarget, ModalTarget, SlurmTarget, Target, check, load_target

FILE = """
from standfast import LocalTarget, SlurmTarget

LAB = LocalTarget(name="lab", nodes=2)
_HIDDEN = SlurmTarget(name="cluster", directory="/shared")
"""


def test_local_is_built_in_and_carried_out() -> None:
    assert load_target("local") == LOCAL == LocalTarget()
    assert check(LOCAL) == ()


def test_a_target_is_loaded_from_a_file_by_name_or_because_it_is_the_only_one(tmp_path: Path) -> None:
    file = tmp_path / "targets.py"
    file.write_text(FILE)
    assert load_target(str(file)) == load_target(f"{file}:LAB") == LocalTarget(name="lab", nodes=2)
    assert load_target(f"{file}:_HIDDEN") == SlurmTarget(name="cluster", directory="/shared")


def test_an_unknown_target_names_the_nearest_one(tmp_path: Path) -> None:
    file = tmp_path / "targets.py"
    file.write_text(f'{FILE}\nOTHER = LocalTarget(name="other")\n')
    for given, help in (
        ("locale", "Did you mean 'local'?"),
        ("cluster", "--target file.py:NAME"),
        (f"{file}:LAP", "Did you mean 'LAB'?"),
        (str(file), "Choose one with file.py:NAME: LAB"),
    ):
        with pytest.raises(UserError) as caught:
            load_target(given)
        assert help in caught.value.help


def test_a_file_without_a_target_and_a_broken_one_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "targets.py"
    file.write_text("X = 1\n")
    with pytest.raises(UserError, match="has no target"):
        load_target(str(file))
    file.write_text("from standfast import LocalTarget\nX = LocalTarget(node=2)\n")
    with pytest.raises(ProblemsError) as caught:
        load_target(str(file))
    assert (caught.value.problems[0].line, caught.value.problems[0].help) == (2, "Did you mean 'nodes'?")


def test_what_is_not_carried_out_yet_is_refused_by_name() -> None:
    targets: list[Target] = [
        ModalTarget(name="m"),
        SlurmTarget(name="s", directory="/d"),
        LocalTarget(nodes=2, gateway="http://127.0.0.1:1"),
    ]
    places = [[problem.where for problem in check(target)] for target in targets]
    assert places == [["Target.platform"], ["Target.platform"], ["Target.nodes", "Target.gateway"]]
    assert "not carried out yet" in check(targets[0])[0].message
