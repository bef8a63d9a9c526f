"""How long the control plane takes to install, and how large it is, without engines.

    python bench/install.py

Installs ``requirements.lock`` and this checkout into a new environment with uv, twice: with the machine's download
cache as it is, and again once it
is warm. Prints seconds and megabytes, beside what the Temporal server's binary is of them. Goals: under 30 s,
under 400 MB.
"""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from uv import find_uv_bin

ROOT = Path(__file__).parents[1]
MEGABYTE = 1_000_000


def install(directory: Path) -> float:
    """Make an environment with the control plane in it; seconds."""
    uv = find_uv_bin()
    started = time.monotonic()
    subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, directory], check=True)
    pip = [uv, "pip", "install", "--quiet", "--python", directory / "bin" / "python"]
    subprocess.run([*pip, "-r", ROOT / "requirements.lock"], check=True)
    subprocess.run([*pip, "--no-deps", ROOT], check=True)
    return time.monotonic() - started


def size(directory: Path) -> float:
    """Megabytes of everything below a directory, each file once."""
    files = {(stat.st_dev, stat.st_ino): stat.st_size for path in directory.rglob("*") if (stat := path.lstat())}
    return sum(files.values()) / MEGABYTE


def main() -> None:
    """Install twice and print."""
    with tempfile.TemporaryDirectory(prefix="standfast-install-") as root:
        first = install(Path(root) / "first")
        second = install(Path(root) / "second")
        whole = size(Path(root) / "second")
        temporal = (Path(root) / "second" / "bin" / "temporal").stat().st_size / MEGABYTE
    print(f"install: {first:.1f} s, and {second:.1f} s with warm downloads (goal under 30 s)")
    print(f"size: {whole:.0f} MB, of which {temporal:.0f} MB are the Temporal server (goal under 400 MB)")


if __name__ == "__main__":
    main()
