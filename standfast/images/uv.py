"""Runs ``uv`` for image builds: its environment, its progress in human sentences, and what its failures mean.

`environment`, `Narrator` and `verdict` are pure; `run` acts.
"""

import asyncio
import contextlib
import os
import re
import signal
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

Kind = Literal["permanent", "transient"]

_TICK_S = 5.0
_TAIL_LINES = 60
_TERM_GRACE_S = 5.0

#: pip's setting, uv's setting, and whether uv separates several values by commas (pip: always by spaces).
_TRANSLATED = (
    ("PIP_FIND_LINKS", "UV_FIND_LINKS", True),
    ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", False),
    ("PIP_EXTRA_INDEX_URL", "UV_INDEX", False),
    ("PIP_CONSTRAINT", "UV_CONSTRAINT", False),
    ("PIP_TRUSTED_HOST", "UV_INSECURE_HOST", False),
    ("PIP_NO_INDEX", "UV_NO_INDEX", False),
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


def without_credentials(line: str) -> str:
    """``line`` with user names and passwords in URLs hidden."""
    return re.sub(r"(\w+://)[^/\s@]+@", r"\1***@", line)


def _cause(log: str) -> str:
    lines = log.splitlines()
    causes = [line.strip().removeprefix("cause:").strip() for line in lines if line.strip().startswith("cause:")]
    errors = [line.removeprefix("error:").strip() for line in lines if line.startswith("error:")]
    said = causes[:1] if causes and errors and errors[0].startswith("No solution found") else errors[:1] + causes[-1:]
    text = ": ".join(dict.fromkeys(said))
    return text if text.endswith(".") or not text else f"{text}."


@dataclass(frozen=True)
class Finished:
    """How a child process ended, and the last lines it wrote."""

    returncode: int
    tail: tuple[str, ...]

    @property
    def log(self) -> str:
        """The last lines as one text."""
        return "\n".join(self.tail)


def command(*arguments: str) -> list[str]:
    """The command line of the ``uv`` that came with this installation."""
    import uv

    return [uv.find_uv_bin(), *arguments]


async def run(
    argv: Sequence[str],
    *,
    environ: Mapping[str, str],
    cwd: Path,
    lock: int,
    narrator: Narrator,
    on_progress: Callable[[str], None],
    log: Path | None = None,
) -> Finished:
    """Run a command to its end, telling what it does at every change and every few seconds.

    The child inherits the ``lock`` descriptor, so that a build whose parent was killed keeps the lock for as long as
    it still writes. A cancellation ends the child and everything it started. Raises ``OSError``.
    """
    began = time.monotonic()
    tail: deque[str] = deque(maxlen=_TAIL_LINES)

    def tell() -> None:
        elapsed = time.monotonic() - began
        on_progress(narrator.sentence if elapsed < 1 else f"{narrator.sentence} ({elapsed:.0f} s)")

    tell()
    child = await asyncio.create_subprocess_exec(
        *argv,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=cwd,
        env=dict(environ),
        start_new_session=True,
        pass_fds=(lock,),
    )
    assert child.stdout is not None
    try:
        with contextlib.ExitStack() as stack:
            sink = stack.enter_context(log.open("a", encoding="utf-8")) if log is not None else None
            async for line in _lines(child.stdout):
                if line is None:
                    tell()
                    continue
                shown = without_credentials(line)
                tail.append(shown)
                if sink is not None:
                    sink.write(f"{shown}\n")
                    sink.flush()
                if narrator.hear(shown):
                    tell()
        return Finished(await child.wait(), tuple(tail))
    finally:
        if child.returncode is None:
            await _end(child)


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[str | None]:
    """Lines as they come, and ``None`` whenever none came for a while."""
    pending = b""
    reading: asyncio.Task[bytes] | None = None
    try:
        while True:
            reading = reading or asyncio.ensure_future(stream.read(65536))
            done, _ = await asyncio.wait({reading}, timeout=_TICK_S)
            if not done:
                yield None
                continue
            chunk, reading = reading.result(), None
            *whole, pending = (pending + chunk).replace(b"\r", b"\n").split(b"\n")
            for line in whole:
                if line.strip():
                    yield line.decode(errors="replace")
            if not chunk:
                if pending.strip():
                    yield pending.decode(errors="replace")
                return
    finally:
        if reading is not None:
            reading.cancel()


async def _end(child: asyncio.subprocess.Process) -> None:
    for sent, patience in ((signal.SIGTERM, _TERM_GRACE_S), (signal.SIGKILL, None)):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, sent)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(child.wait(), patience)
            return
