"""The names of the application's packages are common; another package of such a name is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from standfast.application import require_own_packages
from standfast.problems import UserError


def test_our_own_packages_are_accepted() -> None:
    require_own_packages()


@pytest.mark.parametrize("shape", ["package", "module", "namespace"])
def test_a_package_that_hides_ours_is_refused_with_both_places(tmp_path: Path, shape: str) -> None:
    if shape == "module":
        (tmp_path / "workers.py").write_text("")
    else:
        (tmp_path / "workers").mkdir()
    if shape == "package":
        (tmp_path / "workers" / "__init__.py").write_text("raise SystemExit('imported')")
    code = (
        "from standfast.application import require_own_packages; from standfast.problems import UserError\n"
        "try: require_own_packages()\n"
        "except UserError as error: print(error.message); print(error.help)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    if shape == "namespace":  # a real package wins over a directory without __init__.py, wherever it is
        assert ran.stdout == ""
        return
    assert "Another package named 'workers' hides Standfast's own" in ran.stdout
    assert str(tmp_path) in ran.stdout


def test_a_missing_package_is_named() -> None:
    with pytest.raises(UserError, match="Standfast's own package 'no_such_package' is not installed"):
        require_own_packages(("no_such_package",))
