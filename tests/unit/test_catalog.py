"""Loading config files by path: what is found, what is left behind, and how a broken file is reported."""

import importlib
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from standfast.catalog import Catalog, load, select
from standfast.problems import Problem, ProblemsError, UserError
from standfast.spec import DirectorySource

HEAD = "from standfast import Deployment, DirectorySource, Inference, Model\nfrom dataclasses import replace\n"
ONE = 'QWEN = Deployment(name="qwen", model=Model(id="org/qwen"), inference=Inference(engine="vllm"))\n'


def write(path: Path, text: str, head: str = HEAD) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(head + dedent(text))
    return path


def user_error(path: Path) -> UserError:
    with pytest.raises(UserError) as caught:
        load(path)
    return caught.value


def problems(path: Path) -> tuple[Problem, ...]:
    with pytest.raises(ProblemsError) as caught:
        load(path)
    return caught.value.problems


# -- what is found -----------------------------------------------------------------------------------------------------


def test_public_names_lists_and_mappings_export_deployments(tmp_path: Path) -> None:
    text = """
    _BASE = replace(QWEN, name="base")
    FAMILY = [replace(QWEN, name="a"), (replace(QWEN, name="b"),)]
    BY_SIZE = {"small": replace(QWEN, name="c"), "not a deployment": 1}
    ALIAS = QWEN
    """
    catalog = load(write(tmp_path / "c.py", ONE + dedent(text)))
    assert catalog.names == ("qwen", "a", "b", "c")
    assert [entry.variable for entry in catalog.entries] == ["QWEN", "FAMILY[0]", "FAMILY[1][0]", "BY_SIZE['small']"]
    assert [entry.line for entry in catalog.entries] == [3, 6, 6, 7]


def test_all_decides_what_is_exported(tmp_path: Path) -> None:
    catalog = load(write(tmp_path / "c.py", ONE + '_B = replace(QWEN, name="b")\n__all__ = ["_B"]\n'))
    assert catalog.names == ("b",)
    error = user_error(write(tmp_path / "d.py", ONE + '__all__ = ["QWEM"]\n'))
    assert (error.message, error.where) == (
        "__all__ names 'QWEM', which the file does not define.",
        f"{tmp_path / 'd.py'}:4",
    )


def test_imported_deployments_are_exported_only_when_passed_on(tmp_path: Path) -> None:
    write(tmp_path / "base.py", ONE)
    assert load(write(tmp_path / "a.py", 'from base import QWEN\nB = replace(QWEN, name="b")\n')).names == ("b",)
    for passed_on in ("from base import *\n", "from base import QWEN as QWEN\n", "from base import QWEN\nQ = QWEN\n"):
        assert load(write(tmp_path / "index.py", passed_on)).names == ("qwen",)


def test_two_different_deployments_of_one_name_are_an_error(tmp_path: Path) -> None:
    (problem,) = problems(write(tmp_path / "c.py", ONE + "\nOTHER = replace(QWEN, visible=False)\n"))
    assert (problem.file, problem.line) == (str(tmp_path / "c.py"), 5)
    assert problem.message == "Two different deployments are called 'qwen': QWEN and OTHER."


@pytest.mark.parametrize(
    ("text", "help"),
    [("X = 1\n", "NAME = Deployment("), (ONE.replace("QWEN", "_QWEN"), "_QWEN is not exported")],
)
def test_a_file_without_deployments_is_an_error(tmp_path: Path, text: str, help: str) -> None:
    error = user_error(write(tmp_path / "c.py", text))
    assert help in error.help
    assert error.where == str(tmp_path / "c.py")


def test_a_relative_directory_of_weights_is_relative_to_the_config_file(tmp_path: Path) -> None:
    text = 'A = replace(QWEN, model=Model(id="m", source=DirectorySource(path="../weights")), name="a")\n'
    catalog = load(write(tmp_path / "configs" / "c.py", ONE + text))
    source = select(catalog, ["a"])[0].model.source
    assert isinstance(source, DirectorySource)
    assert source.path == str(tmp_path / "weights")


def test_deployments_are_selected_by_name_in_the_order_given(tmp_path: Path) -> None:
    catalog = load(write(tmp_path / "c.py", ONE + 'B = replace(QWEN, name="other")\n'))
    assert [made.name for made in select(catalog, ["other", "qwen", "other"])] == ["other", "qwen"]
    assert select(catalog) == tuple(catalog)
    assert len(catalog) == 2


@pytest.mark.parametrize(
    ("name", "help"), [("qwne", "Did you mean 'qwen'?"), ("QWEN", "is the variable"), ("zzz", "It has qwen.")]
)
def test_an_unknown_name_gets_the_nearest_real_one(tmp_path: Path, name: str, help: str) -> None:
    catalog = load(write(tmp_path / "c.py", ONE))
    with pytest.raises(UserError) as caught:
        select(catalog, [name])
    assert help in caught.value.help


# -- what is left behind -----------------------------------------------------------------------------------------------


def test_siblings_import_while_the_file_loads_and_nothing_is_left_behind(tmp_path: Path) -> None:
    write(tmp_path / "family" / "__init__.py", "")
    write(tmp_path / "family" / "base.py", ONE)
    config = write(
        tmp_path / "c.py", "import helper\nfrom family.base import QWEN\nB = replace(QWEN, name=helper.NAME)\n"
    )
    write(tmp_path / "helper.py", 'NAME = "b"\n')
    path, modules = list(sys.path), dict(sys.modules)
    assert load(config).names == ("b",)
    assert sys.path == path
    assert sys.modules == modules
    assert not list(tmp_path.rglob("__pycache__"))


def test_a_broken_file_leaves_nothing_behind_either(tmp_path: Path) -> None:
    write(tmp_path / "helper.py", "1 / 0\n")
    path, modules = list(sys.path), dict(sys.modules)
    user_error(write(tmp_path / "c.py", "import helper\n"))
    assert (sys.path, sys.modules) == (path, modules)


def test_files_and_siblings_of_the_same_name_do_not_clash(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write(tmp_path / name / "common.py", f'NAME = "{name}"\n')
        write(tmp_path / name / "config.py", f"from common import NAME\n{ONE}B = replace(QWEN, name=NAME)\n")
    assert [load(tmp_path / name / "config.py").names for name in ("a", "b", "a")] == [
        ("qwen", "a"),
        ("qwen", "b"),
        ("qwen", "a"),
    ]


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    config, helper = tmp_path / "c.py", tmp_path / "helper.py"
    write(config, f"from helper import NAME\n{ONE}B = replace(QWEN, name=NAME)\n")
    for name in ("x", "y"):
        write(helper, f'NAME = "{name}"\n')
        assert load(config).names == ("qwen", name)


def test_a_sibling_wins_over_a_loaded_module_of_its_name_and_the_module_returns(tmp_path: Path) -> None:
    write(tmp_path / "elsewhere" / "a_common_name.py", 'NAME = "theirs"\n')
    write(tmp_path / "a_common_name.py", 'NAME = "mine"\n')
    text = f"from a_common_name import NAME\n{ONE}B = replace(QWEN, name=NAME)\n"
    config = write(tmp_path / "c.py", text)
    sys.path.insert(0, str(tmp_path / "elsewhere"))
    try:
        loaded = importlib.import_module("a_common_name")
        assert load(config).names == ("qwen", "mine")
        assert sys.modules["a_common_name"] is loaded
    finally:
        sys.path.remove(str(tmp_path / "elsewhere"))
        sys.modules.pop("a_common_name", None)


def test_dataclasses_defined_in_a_config_work(tmp_path: Path) -> None:
    text = """
    from __future__ import annotations
    from dataclasses import dataclass

    @dataclass
    class Size:
        name: str

    SIZES = [Size("a"), Size("b")]
    """
    config = tmp_path / "c.py"
    config.write_text(dedent(text) + HEAD + ONE + "FAMILY = [replace(QWEN, name=size.name) for size in SIZES]\n")
    assert load(config).names == ("qwen", "a", "b")


# -- how a broken file is reported -------------------------------------------------------------------------------------


def test_a_refused_field_is_reported_at_the_line_of_the_argument(tmp_path: Path) -> None:
    text = """
    A = Deployment(
        name="a",
        model=Model(id="m"),
        inference=Inference(
            engine="vllm",
            timeout="5m",
            contxt_length=1,
        ),
    )
    """
    config = write(tmp_path / "c.py", text)
    assert [(problem.file, problem.line, problem.where) for problem in problems(config)] == [
        (str(config), 9, "Inference.timeout"),
        (str(config), 10, "Inference.contxt_length"),
    ]


def test_a_refused_replace_is_reported_at_its_argument_and_a_missing_field_at_the_call(tmp_path: Path) -> None:
    (problem,) = problems(write(tmp_path / "c.py", ONE + 'B = replace(\n    QWEN,\n    name="B",\n)\n'))
    assert (problem.line, problem.where) == (6, "Deployment.name")
    (problem,) = problems(write(tmp_path / "d.py", "\n\nA = Model()\n"))
    assert (problem.line, problem.where) == (5, "Model.id")


def test_a_problem_in_a_sibling_is_reported_in_the_sibling(tmp_path: Path) -> None:
    write(tmp_path / "base.py", '\nBASE = Model(id="")\n')
    (problem,) = problems(write(tmp_path / "c.py", "from base import BASE\n"))
    assert (problem.file, problem.line) == (str(tmp_path / "base.py"), 4)


def test_paths_below_the_working_directory_are_shown_relative(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (problem,) = problems(write(tmp_path / "configs" / "c.py", "\nA = Model()\n"))
    assert problem.render().splitlines()[1] == "  --> configs/c.py:4  Model.id"


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("\nX = (\n", 4, "SyntaxError: '(' was never closed"),
        ("def f():\nreturn 1\n", 4, "IndentationError: expected an indented block"),
        ("\n\n1 / 0\n", 5, "ZeroDivisionError: division by zero"),
        ("import nowhere_at_all\n", 3, "ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("from standfast import Deploiment\n", 3, "ImportError: standfast has no name 'Deploiment'"),
        ("import sys\nsys.exit(3)\n", 4, "The config file ends the program."),
        ("raise RuntimeError\n", 3, "RuntimeError"),
    ],
)
def test_a_broken_file_is_reported_with_its_own_line(tmp_path: Path, text: str, line: int, message: str) -> None:
    error = user_error(write(tmp_path / "c.py", text))
    assert error.where == f"{tmp_path / 'c.py'}:{line}"
    assert error.message.startswith(message)
    assert error.__cause__ is None


def test_the_way_to_an_error_in_a_sibling_is_named(tmp_path: Path) -> None:
    write(tmp_path / "helper.py", "def f():\n    return {}['x']\n")
    error = user_error(write(tmp_path / "c.py", "import helper\n\nhelper.f()\n"))
    assert (error.message, error.where) == ("KeyError: 'x'", f"{tmp_path / 'helper.py'}:4")
    assert error.help == f"Reached from {tmp_path / 'c.py'}:5."


def test_a_syntax_error_in_a_sibling_names_the_sibling(tmp_path: Path) -> None:
    write(tmp_path / "helper.py", "x = = 1\n")
    assert user_error(write(tmp_path / "c.py", "import helper\n")).where == f"{tmp_path / 'helper.py'}:3"


def test_a_secret_in_an_error_of_the_config_is_not_echoed(tmp_path: Path) -> None:
    error = user_error(write(tmp_path / "c.py", 'raise ValueError("no hf_aBcDeFgHiJkLmNoP123")\n'))
    assert "hf_a" not in error.render()


def test_a_missing_file_a_directory_and_a_binary_are_named(tmp_path: Path) -> None:
    write(tmp_path / "real.py", ONE)
    (tmp_path / "binary.py").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "nul.py").write_bytes(b"x = 1\0")
    assert "The directory holds binary.py, nul.py, real.py." in user_error(tmp_path / "reel.py").help
    assert "is a directory" in user_error(tmp_path).message
    assert "not a Python file" in user_error(tmp_path / "binary.py").message
    assert (
        "cannot be read" in user_error(tmp_path / "nul.py").message or "null" in user_error(tmp_path / "nul.py").message
    )


# -- problems that are found later -------------------------------------------------------------------------------------


def test_a_problem_of_a_plan_is_led_back_to_its_line(tmp_path: Path) -> None:
    text = """
    OPTIONS = {
        "max-num-seqs": 4,
        "tensor-paralel-size": 2,
    }
    A = Deployment(
        name="a",
        model=Model(id="m"),
        inference=Inference(
            engine="vllm",
            options=OPTIONS,
        ),
    )
    """
    catalog: Catalog = load(write(tmp_path / "c.py", text))
    found = [
        Problem(code="x", where="Deployment.inference.options['tensor-paralel-size']", message="No such option."),
        Problem(code="x", where="Deployment.inference.engine", message="Not yet."),
        Problem(code="x", where="Deployment", message="Impossible."),
    ]
    located = catalog.locate("a", found)
    assert [(problem.where, problem.line) for problem in located] == [
        ("A.inference.options['tensor-paralel-size']", 6),
        ("A.inference.engine", 12),
        ("A", 8),
    ]
    assert located[0].file == str(tmp_path / "c.py")
    assert catalog.locate("b", found) == tuple(found)
