"""The engine's output: secrets replaced, kept in files of bounded size, the last lines at hand."""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path

#: Bytes per log file; one full file and the current one are kept.
ROTATE_BYTES = 64 << 20
TAIL_LINES = 60
TAIL_LINE_BYTES = 800
REPLACEMENT = b"***"

#: After a failed write nothing is tried for this long: a full disk does not empty between two lines.
_PAUSE_S = 1.0
_ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Redactor:
    """Replaces secret values in a stream, also when a value arrives in pieces.

    What could be the start of a secret is held back until the next piece shows whether it is one. Lines of a secret of
    several lines are secrets too, since engines put prefixes before each line.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        values: set[bytes] = set()
        for secret in secrets:
            values.add(os.fsencode(secret))
            values.update(os.fsencode(line.strip()) for line in secret.splitlines() if len(line.strip()) >= 8)
        self._values = sorted((value for value in values if value), key=len, reverse=True)
        self._pattern = re.compile(b"|".join(re.escape(value) for value in self._values)) if self._values else None
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """What may be shown after ``data`` has come."""
        if self._pattern is None:
            return data
        data = self._held + data
        shown: list[bytes] = []
        safe = len(data) - self._undecided(data)
        position = 0
        for match in self._pattern.finditer(data):
            if match.start() >= safe:
                break
            shown += (data[position : match.start()], REPLACEMENT)
            position = match.end()
        rest = max(position, safe)
        shown.append(data[position:rest])
        self._held = data[rest:]
        return b"".join(shown)

    def flush(self) -> bytes:
        """What was held back, when nothing more comes."""
        rest, self._held = self._held, b""
        return rest if self._pattern is None else self._pattern.sub(REPLACEMENT, rest)

    def _undecided(self, data: bytes) -> int:
        """The length of the longest end of ``data`` that is the start of a secret and not all of it."""
        longest = 0
        for value in self._values:
            for length in range(min(len(value) - 1, len(data)), longest, -1):
                if data.endswith(value[:length]):
                    longest = length
                    break
        return longest


class Tail:
    """The last lines of a stream, as a person reads them: of a progress bar only its last state, no colours."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque(maxlen=TAIL_LINES)
        self._open = b""

    def feed(self, data: bytes) -> None:
        """Take the next piece of the stream."""
        *whole, self._open = (self._open + data).split(b"\n")
        # An endless line must not grow without bound; its start is what a reader needs, unless it is a progress bar.
        if len(self._open) > 4 * TAIL_LINE_BYTES:
            self._open = self._open[: 2 * TAIL_LINE_BYTES] + self._open[-TAIL_LINE_BYTES:]
        self._lines.extend(whole[-TAIL_LINES:])

    def lines(self) -> list[str]:
        """The last lines, the unfinished one included."""
        lines = [_readable(line) for line in self._lines]
        if self._open:
            lines.append(_readable(self._open))
        return lines[-TAIL_LINES:]


def _readable(line: bytes) -> str:
    last = line.rstrip(b"\r").rpartition(b"\r")[2]
    return _ANSI.sub("", last[:TAIL_LINE_BYTES].decode("utf-8", "replace"))


class RotatingLog:
    """A log file that never grows beyond its share and never fails its writer.

    When the file is full it is renamed to ``<name>.<offset>``, where ``offset`` counts all bytes written before the new
    file's first; the one renamed before is deleted. What cannot be written is dropped and counted, and the log says so
    as soon as it can be written again.
    """

    def __init__(self, path: Path, limit: int = ROTATE_BYTES, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._clock = clock
        self._limit = limit
        self._descriptor: int | None = None
        self._size = 0
        self._paused_until = 0.0
        self._unreported = 0
        self.dropped_bytes = 0
        self.error: str | None = None

    def write(self, data: bytes) -> None:
        """Append ``data``, or as much of it as there is room for."""
        if not data:
            return
        if self._clock() < self._paused_until:
            self._drop(len(data))
            return
        written = 0
        try:
            if self._unreported:
                lost, reason = self._unreported, self.error
                self._append(f"\n[standfast] {lost} bytes of output were dropped here: {reason}\n".encode())
                self._unreported, self.error = 0, None
            # A disk that fills up takes a part first and refuses only the rest.
            while written < len(data):
                written += self._append(data[written:])
        except OSError as error:
            self._fail(error, len(data) - written)

    def close(self) -> None:
        """Close the file; the next write opens it again."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = None

    def _append(self, data: bytes) -> int:
        if self._descriptor is not None and self._size >= self._limit:
            self._rotate()
        if self._descriptor is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
            self._descriptor = os.open(self._path, flags, 0o644)
            self._size = os.fstat(self._descriptor).st_size
        written = os.write(self._descriptor, data)
        self._size += written
        return written

    def _rotate(self) -> None:
        self.close()
        older = rotated(self._path)
        base = older[-1][0] if older else 0
        self._path.replace(self._path.with_name(f"{self._path.name}.{base + self._size}"))
        for _, path in older:
            path.unlink()
        self._size = 0

    def _fail(self, error: OSError, count: int) -> None:
        self.error = error.strerror or str(error)
        self._paused_until = self._clock() + _PAUSE_S
        self._drop(count)

    def _drop(self, count: int) -> None:
        self.dropped_bytes += count
        self._unreported += count


def rotated(path: Path) -> list[tuple[int, Path]]:
    """The full files of the log at ``path`` with the offsets that end them, oldest first."""
    found = [(name.name[len(path.name) + 1 :], name) for name in path.parent.glob(f"{path.name}.*")]
    return sorted((int(suffix), name) for suffix, name in found if suffix.isdigit())
