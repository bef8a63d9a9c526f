"""What a shared cache on disk needs: locks between processes, files that appear whole, trees that go away."""

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

_POLL_S = 0.2


@contextlib.asynccontextmanager
async def locked(path: Path, *, on_wait: Callable[[], None] | None = None) -> AsyncIterator[int]:
    """Hold an exclusive lock on the file ``path``; yields its descriptor.

    The kernel releases the lock when the last process that inherited the descriptor ends: pass it to children
    (``pass_fds``), and a child that outlives a killed parent keeps others out until it has stopped writing.
    ``on_wait`` is called about every second while somebody else holds it. Raises ``OSError``.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        waited = 0
        while not _try_lock(descriptor):
            if on_wait is not None and waited % 5 == 0:
                on_wait()
            waited += 1
            await asyncio.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` so that readers see the old file or the new one, also after a crash. Raises ``OSError``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with temporary.open("x", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


async def remove_tree(path: Path) -> None:
    """Remove a directory and all in it, if it is there. Raises ``OSError`` where that is not allowed."""
    if path.exists():
        await asyncio.to_thread(shutil.rmtree, path)


def size_of_tree(path: Path) -> int:
    """Bytes of all files below ``path`` now; files that vanish meanwhile count as nothing."""
    total = 0
    for directory, _, names in os.walk(path):
        for name in names:
            with contextlib.suppress(OSError):
                total += (Path(directory) / name).stat(follow_symlinks=False).st_size
    return total


def human_bytes(count: float) -> str:
    """A size as people read it: ``"1.2 GB"``."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit in ("B", "kB") or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} TB"
