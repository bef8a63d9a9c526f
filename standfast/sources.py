"""Find the line of a config file that a problem is about. Reads the text only; runs nothing."""

import ast
import re
from collections.abc import Iterator

Position = tuple[int | None, int | None, int | None, int | None]
_KEY = re.compile(r"\[(['\"])(.*?)\1\]")


def call_line(source: str, position: Position, where: str) -> int | None:
    """The line of the argument that ``where`` (``Inference.timeout``) is about, in the call at ``position``.

    ``position`` is that of an instruction: first and last line, first and last column. Without such an argument it is
    the line of the call; ``None`` when the call is not found.
    """
    first, last, begin, end = position
    for node in ast.walk(_parse(source)):
        if isinstance(node, ast.Call) and (node.lineno, node.end_lineno, node.col_offset, node.end_col_offset) == (
            first,
            last,
            begin,
            end,
        ):
            return _argument_line(node, where) or node.lineno
    return None


def assignment_line(source: str, variable: str) -> int | None:
    """The line on which a module-level name is assigned for the last time."""
    statement = _assignment(_parse(source), variable)
    return None if statement is None else statement.lineno


def field_line(source: str, variable: str, where: str) -> int | None:
    """The line that sets a field such as ``Deployment.inference.options['max-num-seqs']`` of the deployment in
    ``variable``: inside its assignment if possible, else the only place in the file that sets a field of this name,
    else the assignment."""
    tree = _parse(source)
    statement = _assignment(tree, variable)
    keys = [key for _, key in _KEY.findall(where)]
    fields = _KEY.sub("", where).split(".")[1:]
    for wanted, is_key in [*((key, True) for key in reversed(keys)), *((name, False) for name in reversed(fields))]:
        inside = list(_settings(statement, wanted, key=is_key)) if statement is not None else []
        if inside:
            return inside[0]
        anywhere = list(_settings(tree, wanted, key=is_key))
        if len(anywhere) == 1:
            return anywhere[0]
    return None if statement is None else statement.lineno


def imported_names(source: str) -> set[str]:
    """Module-level names that the file imports and does not pass on (``import a as a`` and ``import *`` do)."""
    names: set[str] = set()
    for statement in _parse(source).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            for alias in statement.names:
                if alias.name != "*" and alias.asname != alias.name:
                    names.add(alias.asname or alias.name.partition(".")[0])
        else:
            names -= set(_targets(statement))
    return names


def _parse(source: str) -> ast.Module:
    try:
        return ast.parse(source)
    except (SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _argument_line(call: ast.Call, where: str) -> int | None:
    parts = re.split(r"[.\[]", where, maxsplit=2)
    name = parts[1] if len(parts) > 1 else None
    return next((keyword.lineno for keyword in call.keywords if keyword.arg == name and name), None)


def _assignment(tree: ast.Module, variable: str) -> ast.stmt | None:
    return next((statement for statement in reversed(tree.body) if variable in _targets(statement)), None)


def _targets(statement: ast.stmt) -> Iterator[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign):
        targets = [statement.target]
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                yield node.id


def _settings(tree: ast.AST, name: str, *, key: bool) -> Iterator[int]:
    """Lines that set ``name``: as a key of a dictionary, or as a keyword argument."""
    for node in ast.walk(tree):
        if key and isinstance(node, ast.Dict):
            for item in node.keys:
                if isinstance(item, ast.Constant) and item.value == name:
                    yield item.lineno
        elif not key and isinstance(node, ast.keyword) and node.arg == name:
            yield node.lineno
