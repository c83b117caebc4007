"""How often the out-of-memory killer has struck in a process's control group, of version 1 or 2.

The process itself says which file counts the strikes and how many there were when it joined: the watcher may only read
that it has joined when the killer has already struck.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")

LATELY_S = 60.0
"""Seconds before a death in which a strike has to do with it: a large process takes some to be gone."""


class OomKills:
    """Strikes that `file` counts, of which there were `count` at first. `poll` is cheap: call it now and then."""

    def __init__(self, file: Path, count: int) -> None:
        self._file = file
        self._counts = deque([(time.monotonic(), count)])

    def poll(self) -> None:
        """Remember how many there are now."""
        now_s = time.monotonic()
        self._counts.append((now_s, oom_kills(self._file)))
        while len(self._counts) > 1 and self._counts[1][0] < now_s - LATELY_S:
            self._counts.popleft()

    def lately(self) -> int:
        """Strikes in the last `LATELY_S`, give or take the time between polls; 0 where nobody counts them."""
        self.poll()
        return max(self._counts[-1][1] - self._counts[0][1], 0)


def oom_file(pid: int, proc: Path = Path("/proc"), mount: Path = _MOUNT) -> Path:
    """What counts the strikes in its group, those in groups below included (version 2); an empty path: nothing does."""
    files = []
    for line in _lines(proc / str(pid) / "cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        group = path.lstrip("/")
        if not controllers:
            # In a container only the root of what is mounted may be there.
            files += [root / group / "memory.events" for root in (mount, mount / "unified")] + [mount / "memory.events"]
        elif "memory" in controllers.split(","):
            files += [mount / "memory" / group / "memory.oom_control", mount / "memory" / "memory.oom_control"]
    return next((each for each in files if each.is_file()), Path())


def oom_kills(file: Path) -> int:
    """Strikes until now; 0 where `file` does not say."""
    counts = dict(line.split(maxsplit=1) for line in _lines(file) if " " in line)
    text = counts.get("oom_kill", "0").strip()
    return int(text) if text.isdecimal() else 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
