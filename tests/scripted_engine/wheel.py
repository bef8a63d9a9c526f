"""Build the stand-in as a wheel, by hand, so that the real image builder and inspector handle it like any engine."""

import base64
import hashlib
import zipfile
from pathlib import Path

from standfast.spec import Image

SOURCE = Path(__file__).parent / "vllm"


def build_wheel(directory: Path, version: str = "0.1.0") -> Path:
    """Write ``vllm-<version>-py3-none-any.whl`` into ``directory``. The same version gives the same bytes."""
    directory.mkdir(parents=True, exist_ok=True)
    files = {f"vllm/{path.relative_to(SOURCE).as_posix()}": path.read_bytes() for path in sorted(SOURCE.rglob("*.py"))}
    files["vllm/__init__.py"] = files["vllm/__init__.py"].replace(b'"0.1.0"', f'"{version}"'.encode())
    info = f"vllm-{version}.dist-info"
    metadata = ("Metadata-Version: 2.1", "Name: vllm", f"Version: {version}", "Requires-Python: >=3.11", "")
    files[f"{info}/METADATA"] = "\n".join(metadata).encode()
    tags = ("Wheel-Version: 1.0", "Generator: standfast-tests", "Root-Is-Purelib: true", "Tag: py3-none-any", "")
    files[f"{info}/WHEEL"] = "\n".join(tags).encode()
    files[f"{info}/entry_points.txt"] = b"[console_scripts]\nvllm = vllm.entrypoints.cli.main:main\n"
    record = [f"{name},sha256={_hash(content)},{len(content)}" for name, content in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,", ""]).encode()
    wheel = directory / f"vllm-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name, date_time=(2020, 1, 1, 0, 0, 0)), content)
    return wheel


def scripted_image(wheel: Path, name: str = "scripted") -> Image:
    """The recipe of an image that holds nothing but the stand-in."""
    return Image(name=name, engine="vllm", requirements=(f"vllm @ {wheel.resolve().as_uri()}",))


def _hash(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
