"""Run a command that ends when its parent ends, however the parent dies: ``python -I -S tether.py PARENT_PID
COMMAND...``.

Run by path, with the standard library only. Where the kernel offers no parent-death signal (anything but Linux) the
command runs untethered.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Ask the kernel for a TERM at the parent's death, check that the parent still lives, become the command."""
    parent, command = int(sys.argv[1]), sys.argv[2:]
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        if os.getppid() != parent:
            sys.exit(0)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
