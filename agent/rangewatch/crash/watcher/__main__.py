"""`python -m rangewatch.crash.watcher JOB_FOLDER DESCRIPTOR`: started by a rank, with the socket that it listens on."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

_NICENESS = 10


def main(arguments: list[str]) -> int:
    """Watch until all is done; the process that was started returns at once, so that no rank has a child of ours."""
    job, descriptor = Path(arguments[0]), int(arguments[1])
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # until `Node` has handlers: what stops the job is for the ranks
    if os.fork():
        os._exit(0)
    try:
        from rangewatch.crash.watcher.node import Node  # noqa: PLC0415 - after the fork: numpy may start threads

        with contextlib.suppress(OSError):
            os.nice(_NICENESS)
        Node(socket.socket(fileno=descriptor), job).run()
    except Exception:  # noqa: BLE001 - nobody reads what it prints
        _write_down(job)
        return 1
    return 0


def _write_down(job: Path) -> None:
    with contextlib.suppress(OSError):
        (job.parent / "watcher-failed.txt").write_text(f"{time.ctime()}\n{traceback.format_exc()}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
