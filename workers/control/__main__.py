"""``python -P -m workers.control``: the control worker, which runs the workflows and the activities of this host."""

import os
import signal
import sys

_STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Run until SIGTERM or SIGINT, then hand over: running activities end at once and go on in the next worker."""
    # Signals that arrive while modules load must not be lost, nor kill half-way.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOP_SIGNALS)
    from workers.control.run import run

    code = run(_STOP_SIGNALS)
    sys.stdout.flush()
    sys.stderr.flush()
    # The SDK's threads can abort the interpreter while it shuts down (temporalio/sdk-python#300).
    os._exit(code)


if __name__ == "__main__":
    main()
