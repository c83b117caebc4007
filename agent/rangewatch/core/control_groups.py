"""Limits of the control groups that this process is in, versions 1 and 2: what a container may have of its host.

The tightest one counts, of the process's own group and all above it. In a container the path that the kernel tells may
be one of the host's, and only the root of what is mounted is there: folders that do not exist are passed over.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

_UNLIMITED = 2.0**62
"""Version 1 has no word for "no limit": it tells the largest number of whole pages."""

_NUMBER = re.compile(r"-?[0-9]+")


def memory(proc: Path, sys: Path) -> tuple[float, float]:
    """Bytes used and their limit, NaN where there is none. At the limit the kernel kills.

    File caches that the kernel drops before it kills (`inactive_file`) are not counted, or a process that has read a
    large file would seem to be at its limit for ever.
    """
    tightest = (math.nan, math.nan)
    for folder in _folders(proc, sys, ""):
        tightest = _tighter(tightest, folder, "memory.current", "memory.max", "inactive_file")
    for folder in _folders(proc, sys, "memory"):
        tightest = _tighter(tightest, folder, "memory.usage_in_bytes", "memory.limit_in_bytes", "total_inactive_file")
    return tightest


def cpus(proc: Path, sys: Path) -> float:
    """How many processors' time may be used, such as 1.5; NaN where there is no quota."""
    quotas = [_numbers(folder / "cpu.max") for folder in _folders(proc, sys, "")]
    for folder in _folders(proc, sys, "cpu"):
        quotas.append(_numbers(folder / "cpu.cfs_quota_us") + _numbers(folder / "cpu.cfs_period_us"))
    shares = [each[0] / each[1] for each in quotas if len(each) == 2 and each[0] > 0 and each[1] > 0]
    return min(shares, default=math.nan)


def _folders(proc: Path, sys: Path, controller: str) -> Iterator[Path]:
    """The process's own group and those above it; "" is version 2."""
    top = sys / "fs/cgroup"
    for line in _lines(proc / "self/cgroup"):
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if controller not in controllers.split(","):
            continue
        root = next((each for each in (top / controllers, top / controller) if each.is_dir()), top)
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):
            yield folder
            if folder == root:
                break


def _tighter(
    tightest: tuple[float, float], folder: Path, used_file: str, limit_file: str, cache: str
) -> tuple[float, float]:
    limit = next(iter(_numbers(folder / limit_file)), math.nan)
    if math.isnan(limit) or limit >= _UNLIMITED or tightest[1] <= limit:
        return tightest
    used = next(iter(_numbers(folder / used_file)), math.nan)
    return max(used - _stat(folder / "memory.stat", cache), 0.0) if not math.isnan(used) else used, limit


def _stat(path: Path, name: str) -> float:
    fields = (line.split() for line in _lines(path))
    return next((float(each[1]) for each in fields if len(each) == 2 and each[0] == name and each[1].isdecimal()), 0.0)


def _numbers(path: Path) -> list[float]:
    """Those of the first line; nothing where a word is none: "max" is a limit that there is not."""
    fields = next((line.split() for line in _lines(path)), [])
    return [float(each) for each in fields] if all(_NUMBER.fullmatch(each) for each in fields) else []


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except (OSError, ValueError):
        return []
