"""Calls of Linux that Python does not wrap."""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Callable
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_SET_CHILD_SUBREAPER = 36


def _prctl(option: int, argument: object) -> bool:
    return bool(_libc.prctl(option, argument, 0, 0, 0) == 0)


def become_subreaper() -> bool:
    """Make this process the parent of its orphaned descendants, so that a double fork hides none of them."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, ctypes.c_ulong(1))


def name_process(name: str) -> None:
    """Set the name that ``ps`` and ``top`` show (at most 15 bytes)."""
    _prctl(_PR_SET_NAME, ctypes.c_char_p(name.encode()))


def die_with(parent: int) -> Callable[[], None]:
    """What a forked child runs before its exec so that the kernel kills it when ``parent`` dies, in any way."""

    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))
        if os.getppid() != parent:
            # The parent died before the call took effect.
            os.kill(os.getpid(), signal.SIGKILL)

    return prepare


def boot_id() -> str:
    """The identity of this boot of the host: process ids and start times mean nothing in another one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


_libc = ctypes.CDLL(None, use_errno=True)
