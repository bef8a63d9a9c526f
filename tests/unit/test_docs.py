"""The documentation says what the code does: fields with their defaults, verbs, failure codes, links, examples."""

import ast
import dataclasses
import re
import shlex
from collections.abc import Iterator, Mapping
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer.core
import typer.main
from pydantic.fields import FieldInfo

from standfast import catalog, contracts, spec, targets
from standfast.cli.app import app
from standfast.failures import RULES
from standfast.values import format_duration

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
LANGUAGE: tuple[type[Any], ...] = (
    *(getattr(spec, name) for name in spec.__all__ if dataclasses.is_dataclass(getattr(spec, name))),
    targets.LocalTarget,
    targets.SlurmTarget,
    targets.ModalTarget,
)


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


@cache
def sections(page: str) -> Mapping[str, str]:
    """The text under each heading of a page, up to the next one of any level."""
    found: dict[str, str] = {}
    heading = ""
    for line in without_code(read(page)).splitlines():
        if match := re.fullmatch(r"#+ (.+)", line):
            heading = match[1]
        else:
            found[heading] = found.get(heading, "") + line + "\n"
    return found


def without_code(text: str) -> str:
    return re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)


def rows(text: str) -> dict[str, tuple[str, ...]]:
    """The rows of the tables in a text: the cells after the first, by each code in the first cell."""
    found: dict[str, tuple[str, ...]] = {}
    for line in text.splitlines():
        if line.startswith("| "):
            first, *rest = (cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1])
            found |= dict.fromkeys(re.findall(r"`([^`]+)`", first), tuple(rest))
    return found


def blocks(page: Path, language: str) -> Iterator[tuple[str, str]]:
    """The code blocks of a language: where each begins, and its text."""
    text = page.read_text(encoding="utf-8")
    for match in re.finditer(rf"^( *)```{language}\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        line = text[: match.start()].count("\n") + 1
        yield f"{page.name}:{line}", re.sub(rf"^{match[1]}", "", match[2], flags=re.MULTILINE)


PYTHON = [block for page in PAGES for block in blocks(page, "python")]
CONFIGS = [block for block in PYTHON if "Deployment(" in block[1]]


# -- the configuration language ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", LANGUAGE, ids=lambda kind: kind.__name__)
def test_every_field_has_its_row_with_its_default(kind: type) -> None:
    table = rows(sections("docs/configuration.md")[kind.__name__])
    shown = {name: cells[0].strip("`") for name, cells in table.items()}
    assert shown == {field.name: default_of(field) for field in dataclasses.fields(kind)}


def default_of(field: "dataclasses.Field[Any]") -> str:
    """A default as a config writes it; ``required`` without one."""
    default = field.default
    if isinstance(default, FieldInfo):  # what stands in for factories
        made = default.get_default(call_default_factory=True)
        return "{}" if isinstance(made, Mapping) else f"{type(made).__name__}()"
    if default is dataclasses.MISSING:
        return "required"
    if isinstance(default, timedelta):
        default = format_duration(default)
    return repr(default).replace("'", '"')


@pytest.mark.parametrize(("where", "text"), CONFIGS, ids=[where for where, _ in CONFIGS])
def test_every_config_loads(where: str, text: str, tmp_path: Path) -> None:
    file = tmp_path / "config.py"
    file.write_text(text)
    assert len(catalog.load(file)) >= 1


@pytest.mark.parametrize(("where", "text"), PYTHON, ids=[where for where, _ in PYTHON])
def test_every_python_block_is_python_and_its_imports_exist(where: str, text: str) -> None:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "standfast":
            module = __import__(node.module, fromlist=["*"])
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_the_config_of_the_readme_is_the_quickstarts(tmp_path: Path) -> None:
    [shown] = [text for where, text in CONFIGS if where.startswith("README")]
    (tmp_path / "config.py").write_text(shown)
    [readme], [real] = catalog.load(tmp_path / "config.py"), catalog.load(ROOT / "configs" / "quickstart.py")
    assert dataclasses.replace(real, description="") == readme


# -- the command line --------------------------------------------------------------------------------------------------


def verbs() -> dict[str, typer.core.TyperCommand]:
    group = typer.main.get_command(app)
    assert isinstance(group, typer.core.TyperGroup)
    return {name: command for name, command in group.commands.items() if isinstance(command, typer.core.TyperCommand)}


def test_every_verb_has_a_section_and_a_row() -> None:
    page = sections("docs/cli.md")
    first = re.findall(r"\]\(#(\w+)\)", page["The command line"])
    assert set(verbs()) <= set(page)
    assert set(first) == set(verbs())


@pytest.mark.parametrize("verb", sorted(verbs()))
def test_every_option_of_a_verb_is_explained(verb: str) -> None:
    section = sections("docs/cli.md")[verb]
    real = {option for parameter in verbs()[verb].params for option in parameter.opts if option.startswith("-")}
    real -= {"--help", "-h"}
    assert {option for option in real if f"`{option}`" not in section} == set()
    assert set(re.findall(r"^\| `(--[\w-]+)`", section, re.MULTILINE)) <= real


def test_every_shown_command_is_one() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        shell = "\n".join(block for _, block in blocks(page, "sh"))
        shown = [*re.findall(r"`(standfast [^`\n]+)`", text), *re.findall(r"^ *(standfast .+)$", shell, re.MULTILINE)]
        for command in shown:
            words = shlex.split(command.partition("&&")[0].replace("[", "").replace("]", ""), comments=True)[1:]
            assert words[0] in verbs() or words[0] in ("VERB", "--help"), f"{page.name}: {command}"
            if words[0] in verbs():
                options = {option for parameter in verbs()[words[0]].params for option in parameter.opts}
                given = {word.partition("=")[0] for word in words[1:] if word.startswith("-")}
                assert given <= {*options, "--help"}, f"{page.name}: {command}"


def test_every_make_target_that_is_shown_exists() -> None:
    targets_of_make = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    for page in PAGES:
        named = re.findall(r"(?:^|`)make ([a-z]+)\b", page.read_text(encoding="utf-8"), re.MULTILINE)
        assert set(named) <= targets_of_make, page.name


def test_every_variable_that_the_code_reads_is_listed() -> None:
    sources = [path for top in ("standfast", "activities", "workers") for path in (ROOT / top).rglob("*.py")]
    read_there = {name for path in sources for name in re.findall(r"\bSTANDFAST_[A-Z_]+\b", path.read_text())}
    listed = rows(sections("docs/cli.md")["Environment variables"])
    assert read_there <= set(listed)
    assert {name for name in listed if name.startswith("STANDFAST_")} <= read_there


# -- what operators and clients look up --------------------------------------------------------------------------------


def test_every_failure_rule_is_listed_with_its_kind_in_its_order() -> None:
    table = rows(sections("docs/operating.md")["Read from the engine's log"])
    listed = [(code, cells[0]) for code, cells in table.items()]
    assert listed[: len(RULES)] == [(rule.code, rule.kind) for rule in RULES]


def test_every_failure_code_of_the_steps_is_listed() -> None:
    page = read("docs/operating.md")
    codes = {code for top in ("activities", "workflows") for code in _codes(ROOT / top, "Failure", keyword="code")}
    codes |= _codes(ROOT / "activities", "misused", position=1)
    assert len(codes) > 15
    assert {code for code in codes if f"`{code}`" not in page} == set()


def test_every_error_code_of_the_gateway_is_listed_with_its_status() -> None:
    table = rows(sections("docs/gateway.md")["Errors"])
    listed = {code for cells in table.values() for code in re.findall(r"`(\w+)`", " ".join(cells))} | set(table)
    text = read("docs/gateway.md")
    codes = _codes(ROOT / "workers" / "gateway", "problem", position=2)
    assert len(codes) > 10
    assert {code for code in codes if code not in listed and f"`{code}`" not in text} == set()


def test_every_metric_of_the_gateway_is_listed() -> None:
    source = read("workers/gateway/metrics.py")
    names = set(re.findall(r'f"\{prefix\}_([a-z_]+)"', source)) | set(re.findall(r'"(\w+_seconds)",', source))
    assert len(names) > 8
    assert {name for name in names if f"`{name}`" not in sections("docs/gateway.md")["Logs and metrics"]} == set()


def _codes(directory: Path, function: str, *, keyword: str = "", position: int | None = None) -> set[str]:
    """The constant texts given to calls of a function, as an argument of that name or place."""
    found: set[str] = set()
    for path in directory.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if name != function:
                continue
            given = [argument.value for argument in node.keywords if argument.arg == keyword]
            if position is not None and len(node.args) > position:
                given.append(node.args[position])
            for value in given:
                constants = [str(part.value) for part in ast.walk(value) if isinstance(part, ast.Constant)]
                found |= {text for text in constants if re.fullmatch(r"[a-z]\w*(-[a-z]+)*", text)}
    return found


def test_search_attributes_and_workflow_ids_are_listed() -> None:
    page = read("docs/operating.md")
    for name in contracts.SEARCH_ATTRIBUTES:
        assert page.count(name) >= 2
    generation = "NAME@DIGEST"
    for made in (
        contracts.deploy_id("NAME"),
        contracts.validate_id(generation),
        contracts.deprecate_id("NAME"),
        contracts.deprecate_id(generation),
        f"{contracts.retry_id(generation, 'inference', 0)[:-1]}N",
    ):
        assert f"`{made}`" in page


def test_every_test_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", read("docs/architecture.md")))
    real = {
        name
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text(encoding="utf-8"))
    }
    assert len(named) > 20
    assert named - real == set()


# -- links -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_relative_links_lead_somewhere(page: Path) -> None:
    text = without_code(page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name}: {link}"
        assert target.is_relative_to(ROOT), f"{page.name}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{page.name}: {link}"


@cache
def anchors(page: Path) -> frozenset[str]:
    """The anchors that the headings of a page have, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", without_code(page.read_text(encoding="utf-8")), re.MULTILINE)
    return frozenset(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings)
