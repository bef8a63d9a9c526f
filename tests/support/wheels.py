"""Tiny wheels, made by hand, for tests that install things."""

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path

_SERVE = """
import argparse

FlexibleArgumentParser = argparse.ArgumentParser


class Serve:
    def subparser_init(self, commands):
        parser = commands.add_parser("serve")
        parser.add_argument("model_tag", nargs="?")
        parser.add_argument("--max-model-len", "-mml", type=int)
        parser.add_argument("--enforce-eager", action=argparse.BooleanOptionalAction)
        return parser


def cmd_init():
    return [Serve()]
"""


def tiny_wheel(
    directory: Path,
    name: str,
    version: str,
    files: Mapping[str, bytes | str],
    *,
    scripts: Mapping[str, str] | None = None,
    requires: tuple[str, ...] = (),
) -> Path:
    """Write a pure-Python wheel into ``directory``; ``scripts`` maps commands to ``module:function``."""
    info = f"{name.replace('-', '_')}-{version}.dist-info"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    content = {path: text.encode() if isinstance(text, str) else text for path, text in files.items()}
    content[f"{info}/METADATA"] = "\n".join([*metadata, *(f"Requires-Dist: {one}" for one in requires), ""]).encode()
    content[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if scripts:
        lines = ["[console_scripts]", *(f"{command} = {target}" for command, target in scripts.items()), ""]
        content[f"{info}/entry_points.txt"] = "\n".join(lines).encode()
    record = [f"{path},sha256={_hash(data)},{len(data)}" for path, data in content.items()]
    content[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    directory.mkdir(parents=True, exist_ok=True)
    wheel = directory / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return wheel


def tiny_engine(
    directory: Path, *, name: str = "vllm", version: str = "1.2.3", at_import: str = "", extra: bytes = b""
) -> Path:
    """A wheel that the inspector takes for vLLM: three options, and ``at_import`` run when it is loaded."""
    files = {
        "vllm/__init__.py": f"__version__ = {version!r}\n{at_import}\n",
        "vllm/entrypoints/__init__.py": "",
        "vllm/entrypoints/cli/__init__.py": "",
        "vllm/entrypoints/cli/serve.py": _SERVE,
        "vllm/entrypoints/cli/main.py": "def main():\n    print('served')\n",
        "vllm/ballast.bin": extra,
    }
    return tiny_wheel(directory, name, version, files, scripts={"vllm": "vllm.entrypoints.cli.main:main"})


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
