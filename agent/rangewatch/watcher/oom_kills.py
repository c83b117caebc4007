"""How often the out-of-memory killer has struck in a process's control group, of version 1 or 2."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

_MOUNT = Path("/sys/fs/cgroup")


LATELY_S = 60.0
"""Seconds before a death in which a strike has to do with it: a large process takes some to be gone."""


class OomKills:
    """Of the group that a process is in. `look` is cheap: call it now and then."""

    def __init__(self, pid: int, proc: Path = Path("/proc"), mount: Path = _MOUNT) -> None:
        self._files = _files(proc / str(pid) / "cgroup", mount)
        self._counts = deque([(time.monotonic(), self._count())])

    def look(self) -> None:
        """Remember how many there are now."""
        now_s = time.monotonic()
        self._counts.append((now_s, self._count()))
        while len(self._counts) > 1 and self._counts[1][0] < now_s - LATELY_S:
            self._counts.popleft()

    def lately(self) -> int:
        """Strikes in the last `LATELY_S`, give or take the time between looks; 0 where nobody counts them."""
        self.look()
        return max(self._counts[-1][1] - self._counts[0][1], 0)

    def _count(self) -> int:
        return max((_oom_kills(path) for path in self._files), default=0)


def _files(cgroup: Path, mount: Path) -> list[Path]:
    """Where the strikes are counted, those in groups below included (version 2)."""
    found = []
    for line in _lines(cgroup):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        group = path.lstrip("/")
        if not controllers:
            # In a container only the root of what is mounted may be there.
            found += [root / group / "memory.events" for root in (mount, mount / "unified")] + [mount / "memory.events"]
        elif "memory" in controllers.split(","):
            found += [mount / "memory" / group / "memory.oom_control", mount / "memory" / "memory.oom_control"]
    return [next((each for each in found if each.is_file()), Path())] if found else []


def _oom_kills(path: Path) -> int:
    counts = dict(line.split(maxsplit=1) for line in _lines(path) if " " in line)
    text = counts.get("oom_kill", "0").strip()
    return int(text) if text.isdecimal() else 0


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
