"""Reads an engine's real option list. Runs inside the image, with the image's Python: standard library only.

``python -I inspector.py ENGINE OUTPUT`` imports the engine, walks the parser of its own command line, and writes
``{"engine", "version", "executable", "options"}`` as JSON to the file OUTPUT, since engines print while they load.
``executable`` is relative to the image's root. An option is ``{"dest", "flags", "negations", "minimum", "maximum",
"choices", "type", "repeatable"}``: see `standfast.plans.inspection.OptionSpec`.
"""

import argparse
import importlib
import importlib.metadata
import inspect
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any


def describe(parser: argparse.ArgumentParser) -> list[dict[str, Any]]:
    """Every option of ``parser``, in the order in which it declares them, without the help option."""
    return [_describe(action) for action in parser._actions if not isinstance(action, argparse._HelpAction)]


def _describe(action: argparse.Action) -> dict[str, Any]:
    minimum, maximum = _arity(action)
    negations = [flag for flag in action.option_strings if flag.startswith("--no-") and _is_switch_pair(action)]
    return {
        "dest": action.dest,
        "flags": [flag for flag in action.option_strings if flag not in negations],
        "negations": negations,
        "minimum": minimum,
        "maximum": maximum,
        "choices": None if action.choices is None else [str(choice) for choice in action.choices],
        "type": _type_name(action, maximum),
        "repeatable": isinstance(action, (argparse._AppendAction, argparse._AppendConstAction, argparse._CountAction)),
    }


def _is_switch_pair(action: argparse.Action) -> bool:
    """Whether the action has a positive and a negative spelling, as ``BooleanOptionalAction`` and its kin do."""
    positive = {flag for flag in action.option_strings if not flag.startswith("--no-")}
    return action.nargs == 0 and any(
        f"--{flag[5:]}" in positive for flag in action.option_strings if flag[:5] == "--no-"
    )


def _arity(action: argparse.Action) -> tuple[int, int | None]:
    if action.nargs is None:
        return 1, 1
    if isinstance(action.nargs, int):
        return action.nargs, action.nargs
    return {"?": (0, 1), "*": (0, None), "+": (1, None)}.get(action.nargs, (0, None))


def _type_name(action: argparse.Action, maximum: int | None) -> str:
    if maximum == 0:
        return "bool"
    return "str" if action.type is None else str(getattr(action.type, "__name__", None) or type(action.type).__name__)


def vllm() -> dict[str, Any]:
    """Read ``vllm serve``."""
    return {
        "version": importlib.import_module("vllm").__version__,
        "executable": ["bin/vllm", "serve"],
        "options": describe(_vllm_serve_parser()),
    }


def _vllm_serve_parser() -> argparse.ArgumentParser:
    """The parser of ``vllm serve``, made the way its command line makes it."""
    try:
        serve = importlib.import_module("vllm.entrypoints.cli.serve")
    except ModuleNotFoundError as error:
        if error.name != "vllm.entrypoints.cli.serve":
            raise
    else:
        commands = serve.FlexibleArgumentParser(prog="vllm").add_subparsers()
        [command] = serve.cmd_init()
        return command.subparser_init(commands)  # type: ignore[no-any-return]
    arguments = importlib.import_module("vllm.entrypoints.openai.cli_args")
    return arguments.make_arg_parser(arguments.FlexibleArgumentParser(prog="vllm serve"))  # type: ignore[no-any-return]


def sglang() -> dict[str, Any]:
    """Read ``ServerArgs``: its parameters, each with the spellings that the command line has for it."""
    server_args = importlib.import_module("sglang.srt.server_args").ServerArgs
    parser = argparse.ArgumentParser(add_help=False)
    server_args.add_cli_args(parser)
    parameters = inspect.signature(server_args).parameters
    return {
        "version": importlib.import_module("sglang").__version__,
        "executable": ["bin/python", "-m", "standfast_sglang"],
        "options": [
            *(option for option in describe(parser) if option["dest"] in parameters),
            *parameters_without_flags(parameters, {action.dest for action in parser._actions}),
        ],
    }


def parameters_without_flags(
    parameters: Mapping[str, inspect.Parameter], known: Collection[str]
) -> Iterator[dict[str, Any]]:
    """The public parameters that no flag sets, described as if one did."""
    for name, parameter in parameters.items():
        if name not in known and not name.startswith("_"):
            kind = _kind(parameter.annotation)
            values = 0 if kind == "bool" else 1
            yield {
                "dest": name,
                "flags": [f"--{name.replace('_', '-')}"],
                "negations": [],
                "minimum": values,
                "maximum": values,
                "choices": None,
                "type": kind,
                "repeatable": False,
            }


def _kind(annotation: Any) -> str:
    """The type that an annotation means, as options name it; ``Annotated`` and ``Optional`` do not count."""
    text = str(getattr(annotation, "__origin__", annotation) if hasattr(annotation, "__metadata__") else annotation)
    for kind in ("int", "float", "bool"):
        if text in (f"<class '{kind}'>", kind, f"typing.Optional[{kind}]", f"{kind} | None"):
            return kind
    return "str"


ENGINES = {"vllm": vllm, "sglang": sglang}


def main(engine: str, output: str) -> None:
    """Inspect ``engine`` and write what was read to the file ``output``."""
    found = {"engine": engine, **ENGINES[engine]()}
    Path(output).write_text(json.dumps(found), encoding="utf-8")
    # Engines leave threads and exit hooks behind; what was to be read is on disk.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:3])
