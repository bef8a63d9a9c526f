"""Child processes with vLLM's names, and a stray one that left its session."""

import os
import signal


def start_children(names: tuple[str, ...], *, ignore_sigterm: bool, lifetime_s: int) -> dict[int, str]:
    """Fork one idle process per name, in our process group. Returns their process ids."""
    return {_fork(name, ignore_sigterm=ignore_sigterm, lifetime_s=lifetime_s): name for name in names}


def start_stray(lifetime_s: int) -> None:
    """Leave an idle process with its own session and no parent; only its environment still tells whose it is."""
    middle = os.fork()
    if middle == 0:
        os.setsid()
        _fork("stray", ignore_sigterm=False, lifetime_s=lifetime_s)
        os._exit(0)
    os.waitpid(middle, 0)


def set_name(name: str) -> None:
    """Name this process as ``ps`` shows it (the kernel keeps 15 bytes)."""
    with open("/proc/self/comm", "w") as comm:  # noqa: PTH123
        comm.write(name)


def _fork(name: str, *, ignore_sigterm: bool, lifetime_s: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    signal.signal(signal.SIGTERM, signal.SIG_IGN if ignore_sigterm else signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.alarm(lifetime_s)
    set_name(name)
    while True:
        signal.pause()
