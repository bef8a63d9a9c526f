"""How the module in SGLang images reads settings, before the engine gets them."""

import argparse
import json

import pytest

from standfast.images.sglang_server import SettingError, convert, read_settings


def test_texts_and_json_are_told_apart() -> None:
    assert read_settings(["host=127.0.0.1", "port:=23000", "path=a=b:=c", "on:=false", "many:=[1, 2]", "empty="]) == {
        "host": "127.0.0.1",
        "port": 23000,
        "path": "a=b:=c",
        "on": False,
        "many": [1, 2],
        "empty": "",
    }


@pytest.mark.parametrize("token", ["--port", "port", "=x", "a-b=x", ":=1", "port:=", "port:=@{http_port}"])
def test_anything_else_is_refused_by_name(token: str) -> None:
    with pytest.raises(SettingError, match=r"setting|JSON"):
        read_settings([token])


def test_a_setting_that_comes_twice_is_refused() -> None:
    with pytest.raises(SettingError, match="port is set twice"):
        read_settings(["port:=1", "port:=2"])


def test_texts_are_read_as_the_command_line_reads_them() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--length", type=int)
    parser.add_argument("--config", type=json.loads)
    parser.add_argument("--name", type=str)
    given = {"length": "5", "config": '{"a": 1}', "name": "7", "unknown": "x", "typed": 3}
    assert convert(given, parser) == {"length": 5, "config": {"a": 1}, "name": "7", "unknown": "x", "typed": 3}
    with pytest.raises(SettingError, match="length='many'"):
        convert({"length": "many"}, parser)
