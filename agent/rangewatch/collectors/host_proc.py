"""Numbers of this host and this process out of /proc and /sys. Where those are not (macOS, Windows) all is NaN.

Each function opens its file anew and answers NaN for what it cannot read: a container may hide any of them.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

from rangewatch import control_groups

Row = dict[str, float]

_IDLE, _IOWAIT, _GUEST = 3, 4, 8
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?")
_RECEIVED, _SENT = 0, 8
_PORT_COUNTERS = {"received": "port_rcv_data", "sent": "port_xmit_data"}
"""In words of four bytes."""

_PAIR = re.compile(r"(\w+):\s+(\d+)(?: kB)?")


def cpu_ticks(proc: Path) -> Row:
    """Ticks since boot over all CPUs: `total`, `busy` and `iowait`. Guests' are in user time already."""
    for line in _lines(proc / "stat"):
        ticks = _numbers(line.split()[1:])
        if line.startswith("cpu ") and len(ticks) > _IOWAIT:
            total = math.fsum(ticks[:_GUEST])
            return {"total": total, "busy": total - ticks[_IDLE] - ticks[_IOWAIT], "iowait": ticks[_IOWAIT]}
    return dict.fromkeys(("total", "busy", "iowait"), math.nan)


def memory(proc: Path) -> Row:
    """Memory and swap of the host, in bytes. What is available is the kernel's own estimate, caches counted."""
    found = dict(_pairs(_lines(proc / "meminfo")))
    get = {name: found.get(name, math.nan) * 1024 for name in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")}
    return {
        "memory_total_bytes": get["MemTotal"],
        "memory_available_bytes": get["MemAvailable"],
        "memory_used_bytes": get["MemTotal"] - get["MemAvailable"],
        "swap_used_bytes": get["SwapTotal"] - get["SwapFree"],
    }


def swapped_bytes(proc: Path) -> Row:
    """Bytes swapped in and out since boot."""
    found = dict(_pairs(line.replace(" ", ": ", 1) for line in _lines(proc / "vmstat")))
    page = float(os.sysconf("SC_PAGE_SIZE")) if found else math.nan
    return {"in": found.get("pswpin", math.nan) * page, "out": found.get("pswpout", math.nan) * page}


def load(proc: Path) -> float:
    """Processes that run or want to, averaged over a minute."""
    for line in _lines(proc / "loadavg"):
        return next(iter(_numbers(line.split()[:1])), math.nan)
    return math.nan


def network_bytes(proc: Path, sys: Path) -> dict[str, Row]:
    """Bytes received and sent since boot, by interface.

    Where there are real ones only they are told: bonds, bridges and containers' ends would count a byte twice.
    """
    found = {}
    for line in _lines(proc / "net/dev"):
        name, _, counters = line.partition(":")
        values = _numbers(counters.split())
        if len(values) > _SENT and name.strip() != "lo":
            found[name.strip()] = {"received": values[_RECEIVED], "sent": values[_SENT]}
    real = {name: each for name, each in found.items() if (sys / "class/net" / name / "device").exists()}
    return real or found


def infiniband_bytes(sys: Path) -> dict[str, Row]:
    """Bytes received and sent by InfiniBand and RoCE port, which no network interface counts: NCCL's traffic."""
    return {
        str(port): {way: _number(port / "counters" / counter) * 4 for way, counter in _PORT_COUNTERS.items()}
        for port in (sys / "class/infiniband").glob("*/ports/*")
    }


def process(proc: Path) -> Row:
    """Memory and open files of this process."""
    found = dict(_pairs(line.replace("\t", " ") for line in _lines(proc / "self/status")))
    try:
        files = float(len(os.listdir(proc / "self/fd")))  # noqa: PTH208 - names only, no Path for each of thousands
    except OSError:
        files = math.nan
    return {"process_rss_bytes": found.get("VmRSS", math.nan) * 1024, "process_open_files": files}


def memory_limit(proc: Path, sys: Path) -> Row:
    """Memory and limit in bytes of the tightest control group that this process is in: a container's."""
    used, limit = control_groups.memory(proc, sys)
    return {"container_memory_used_bytes": used, "container_memory_limit_bytes": limit}


def _number(path: Path) -> float:
    for line in _lines(path):
        return next(iter(_numbers([line.strip()])), math.nan)
    return math.nan


def _numbers(words: list[str]) -> list[float]:
    """Nothing where a word is no number: "max" is a limit that there is not."""
    return [float(each) for each in words] if all(_NUMBER.fullmatch(each) for each in words) else []


def _pairs(lines: Iterable[str]) -> Iterable[tuple[str, float]]:
    for line in lines:
        match = _PAIR.match(line)
        if match:
            yield match[1], float(match[2])


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").splitlines()
    except OSError:
        return []
