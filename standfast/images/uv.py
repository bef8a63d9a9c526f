"""Runs ``uv`` for image builds: its environment, its progress in human sentences, and what its failures mean.

`environment`, `Narrator` and `verdict` are pure; `run` acts.
"""

import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from standfast import subprocesses

Kind = Literal["permanent", "transient"]

#: pip's setting, uv's setting, and whether uv separates several values by commas (pip: always by spaces).
_TRANSLATED = (
    ("PIP_FIND_LINKS", "UV_FIND_LINKS", True),
    ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", False),
    ("PIP_EXTRA_INDEX_URL", "UV_INDEX", False),
    ("PIP_CONSTRAINT", "UV_CONSTRAINT", False),
    ("PIP_TRUSTED_HOST", "UV_INSECURE_HOST", False),
    ("PIP_DEFAULT_TIMEOUT", "UV_HTTP_TIMEOUT", False),
    ("PIP_CERT", "SSL_CERT_FILE", False),
)
#: Older names of uv's own settings: where one is set, the machine's owner has spoken.
_ELDERS = {"UV_DEFAULT_INDEX": "UV_INDEX_URL", "UV_INDEX": "UV_EXTRA_INDEX_URL"}
#: They describe the environment of the caller, which is not the one being built.
_FOREIGN = (
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONHOME",
    "PYTHONPATH",
    "VIRTUAL_ENV",
    "CONDA_PREFIX",
    "UV_PYTHON",
    "UV_SYSTEM_PYTHON",
    "UV_PROJECT",
    "UV_WORKING_DIR",
)


def environment(machine: Mapping[str, str]) -> dict[str, str]:
    """The variables that ``uv`` runs with on this machine: pip's package settings in uv's words.

    A ``UV_...`` variable that is set already wins over pip's.
    """
    translated = {name: value for name, value in machine.items() if name not in _FOREIGN}
    for pips, uvs, commas in _TRANSLATED:
        value = machine.get(pips, "").strip()
        if value and uvs not in machine and _ELDERS.get(uvs, uvs) not in machine:
            translated[uvs] = ",".join(value.split()) if commas else value
    if "UV_INDEX" in translated and "UV_INDEX" not in machine:
        # pip looks for the best version over all its indexes; uv by itself stops at the first that has the name.
        translated.setdefault("UV_INDEX_STRATEGY", "unsafe-best-match")
    translated["UV_NO_PROGRESS"] = "1"
    translated["NO_COLOR"] = "1"
    return translated


def no_index(machine: Mapping[str, str]) -> bool:
    """Whether this machine's packages come from its ``--find-links`` folders alone; ``uv`` has no variable for that."""
    return machine.get("PIP_NO_INDEX", "").strip().lower() in ("1", "true", "t", "yes", "y", "on")


def install(machine: Mapping[str, str], *arguments: str) -> list[str]:
    """The command line of ``uv pip install`` on this machine; `environment` makes its variables."""
    return command("pip", "install", *(["--no-index"] if no_index(machine) else []), *arguments)


class Narrator:
    """Turns the lines that ``uv`` writes into what it is doing now, as a person would say it."""

    def __init__(self, sentence: str) -> None:
        self.sentence = sentence
        self._downloads: dict[str, str] = {}

    def hear(self, line: str) -> bool:
        """Take a line in; whether `sentence` changed."""
        before = self.sentence
        self._hear(line.strip())
        return self.sentence != before

    def _hear(self, line: str) -> None:
        first, _, rest = line.partition(" ")
        match first:
            case "Resolved":
                self.sentence = f"resolved {rest}; getting them"
            case "Downloading":
                name, _, size = rest.partition(" ")
                self._downloads[name] = size.strip("()")
                self._say_downloads()
            case "Downloaded":
                self._downloads.pop(rest.strip(), None)
                self._say_downloads()
            case "Building":
                self.sentence = f"building {rest} from its source"
            case "Prepared":
                self.sentence = "installing"
            case "Installed":
                self.sentence = f"installed {rest}"
            case "Bytecode":
                self.sentence = f"compiled {rest.removeprefix('compiled ')}"
            case _:
                pass

    def _say_downloads(self) -> None:
        if self._downloads:
            largest = max(self._downloads, key=lambda name: _mebibytes(self._downloads[name]))
            others = len(self._downloads) - 1
            self.sentence = f"downloading {largest} ({self._downloads[largest]})" + (
                f" and {others} more" if others else ""
            )
        else:
            self.sentence = "unpacking"


def _mebibytes(size: str) -> float:
    match = re.match(r"([\d.]+)\s*([KMG]?)", size)
    return float(match[1]) * {"": 1e-6, "K": 1e-3, "M": 1.0, "G": 1e3}[match[2]] if match else 0.0


def verdict(log: str, returncode: int) -> tuple[Kind, str]:
    """Whether a failed run of ``uv`` may succeed later, and why it failed, in one sentence."""
    cause = _cause(log)
    if returncode < 0:
        name = signal.Signals(-returncode).name
        return "transient", f"The installer was ended by {name}." + (
            " The kernel's out-of-memory killer does that: see `dmesg`." if name == "SIGKILL" else ""
        )
    if "No space left on device" in log:
        return "permanent", "The disk is full. Free some space, then try again."
    if "Disk quota exceeded" in log:
        return "permanent", "The disk quota is used up. Free some space, then try again."
    if re.search(r"HTTP status client error \((401|403)", log) or "401 Unauthorized" in log or "403 Forbidden" in log:
        return "permanent", f"A package index refused access. {cause}"
    if "No solution found when resolving" in log:
        return "permanent", f"The requirements cannot be resolved. {cause}"
    if re.search(r"Failed to (fetch|download|extract)|error sending request|timed? ?out|HTTP status server error", log):
        return "transient", f"A package could not be downloaded. {cause}"
    if re.search(r"Failed to (parse|read|build)|Distribution not found|hash mismatch|unexpected argument", log, re.I):
        return "permanent", f"A requirement cannot be installed. {cause}"
    return "transient", f"The installer failed with exit code {returncode}. {cause}"


def misses_torch(log: str) -> bool:
    """Whether a failed resolution is about PyTorch: the build asked for may be on PyTorch's own index."""
    return "No solution found when resolving" in log and re.search(r"\btorch\b", log) is not None


def _cause(log: str) -> str:
    lines = log.splitlines()
    causes = [line.strip().removeprefix("cause:").strip() for line in lines if line.strip().startswith("cause:")]
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    said = causes[:1] if causes and errors and errors[0].startswith("No solution found") else errors[:1] + causes[-1:]
    text = ": ".join(dict.fromkeys(said))
    return text if text.endswith(".") or not text else f"{text}."


def command(*arguments: str) -> list[str]:
    """The command line of the ``uv`` that came with this installation."""
    import uv

    return [uv.find_uv_bin(), *arguments]


async def run(
    argv: Sequence[str],
    narrator: Narrator,
    *,
    environ: Mapping[str, str],
    cwd: Path,
    lock: int,
    on_progress: Callable[[str], None],
    log: Path | None = None,
) -> subprocesses.Finished:
    """Run a command to its end, saying what it does at every change and every few seconds, with the time it took.

    See `standfast.subprocesses.run` for ``lock`` and cancellation. Raises ``OSError``.
    """
    began = time.monotonic()

    def say() -> None:
        elapsed = time.monotonic() - began
        on_progress(narrator.sentence if elapsed < 1 else f"{narrator.sentence} ({elapsed:.0f} s)")

    def hear(line: str) -> None:
        if narrator.hear(line):
            say()

    say()
    return await subprocesses.run(argv, environ=environ, cwd=cwd, lock=lock, on_line=hear, on_tick=say, log=log)
