"""Starts an SGLang server from settings. Lies in every SGLang image and runs there: standard library only, beside
the engine itself.

``python -m standfast_sglang NAME=TEXT NAME:=JSON ...`` builds ``ServerArgs(**settings)`` and serves. ``:=`` gives any
JSON value; after ``=`` everything is text, which is read the way SGLang's command line reads it where a setting is of
another type.
"""

import argparse
import importlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any


class SettingError(Exception):
    """A token is not a setting."""


def read_settings(tokens: Sequence[str]) -> dict[str, Any]:
    """The settings that tokens make. Raises `SettingError`."""
    settings: dict[str, Any] = {}
    for token in tokens:
        name, equals, text = token.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name.isidentifier():
            raise SettingError(f"{token!r} is not a setting: write name=text or name:=json")
        if name in settings:
            raise SettingError(f"{name} is set twice")
        try:
            settings[name] = json.loads(text) if is_json else text
        except ValueError as error:
            raise SettingError(f"{name} is not JSON ({error}): {text!r}") from None
    return settings


def convert(settings: Mapping[str, Any], parser: argparse.ArgumentParser) -> dict[str, Any]:
    """Texts become what the command line would make of them; everything else stays. Raises `SettingError`."""
    readers = {action.dest: action.type for action in parser._actions if callable(action.type)}
    converted = dict(settings)
    for name, value in settings.items():
        read = readers.get(name, str)
        if isinstance(value, str) and read is not str:
            try:
                converted[name] = read(value)
            except (TypeError, ValueError, argparse.ArgumentTypeError) as error:
                raise SettingError(f"{name}={value!r}: {error}") from None
    return converted


def main(tokens: Sequence[str]) -> None:
    """Serve until stopped; ends the whole process tree with it."""
    server_args = importlib.import_module("sglang.srt.server_args").ServerArgs
    launch_server = importlib.import_module("sglang.launch_server")
    launch_server.load_plugins()
    parser = argparse.ArgumentParser(add_help=False)
    server_args.add_cli_args(parser)
    try:
        arguments = server_args(**convert(read_settings(tokens), parser))
    except (SettingError, TypeError, ValueError) as error:
        sys.exit(f"standfast_sglang: error: {error}")
    try:
        launch_server.run_server(arguments)
    finally:
        launch_server.kill_process_tree(os.getpid(), include_parent=False)


if __name__ == "__main__":
    main(sys.argv[1:])
