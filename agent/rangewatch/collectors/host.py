"""The host's health: a row a second, from /proc, /sys and the file systems themselves.

Numbers of this host and this process out of /proc and /sys. Where those are not (macOS, Windows) all is NaN.

Each function opens its file anew and answers NaN for what it cannot read: a container may hide any of them.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rangewatch.collectors.blocking_call import BlockingCall
from rangewatch.collectors.gpu.readings import Differences
from rangewatch.core import control_groups
from rangewatch.core.options import Options
from rangewatch.recording.events import Events
from rangewatch.wire.records import RankInfo, Samples

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
    values = dict(_pairs(_lines(proc / "meminfo")))
    get = {name: values.get(name, math.nan) * 1024 for name in ("MemTotal", "MemAvailable", "SwapTotal", "SwapFree")}
    return {
        "memory_total_bytes": get["MemTotal"],
        "memory_available_bytes": get["MemAvailable"],
        "memory_used_bytes": get["MemTotal"] - get["MemAvailable"],
        "swap_used_bytes": get["SwapTotal"] - get["SwapFree"],
    }


def swapped_bytes(proc: Path) -> Row:
    """Bytes swapped in and out since boot."""
    counters = dict(_pairs(line.replace(" ", ": ", 1) for line in _lines(proc / "vmstat")))
    page = float(os.sysconf("SC_PAGE_SIZE")) if counters else math.nan
    return {"in": counters.get("pswpin", math.nan) * page, "out": counters.get("pswpout", math.nan) * page}


def load(proc: Path) -> float:
    """Processes that run or want to, averaged over a minute."""
    for line in _lines(proc / "loadavg"):
        return next(iter(_numbers(line.split()[:1])), math.nan)
    return math.nan


def network_bytes(proc: Path, sys: Path) -> dict[str, Row]:
    """Bytes received and sent since boot, by interface.

    Where there are real ones only they are sent: bonds, bridges and containers' ends would count a byte twice.
    """
    interfaces = {}
    for line in _lines(proc / "net/dev"):
        name, _, counters = line.partition(":")
        values = _numbers(counters.split())
        if len(values) > _SENT and name.strip() != "lo":
            interfaces[name.strip()] = {"received": values[_RECEIVED], "sent": values[_SENT]}
    real = {name: each for name, each in interfaces.items() if (sys / "class/net" / name / "device").exists()}
    return real or interfaces


def infiniband_bytes(sys: Path) -> dict[str, Row]:
    """Bytes received and sent by InfiniBand and RoCE port, which no network interface counts: NCCL's traffic."""
    return {
        str(port): {way: _number(port / "counters" / counter) * 4 for way, counter in _PORT_COUNTERS.items()}
        for port in (sys / "class/infiniband").glob("*/ports/*")
    }


def process(proc: Path) -> Row:
    """Memory and open files of this process."""
    values = dict(_pairs(line.replace("\t", " ") for line in _lines(proc / "self/status")))
    try:
        files = float(len(os.listdir(proc / "self/fd")))  # noqa: PTH208 - names only, no Path for each of thousands
    except OSError:
        files = math.nan
    return {"process_rss_bytes": values.get("VmRSS", math.nan) * 1024, "process_open_files": files}


def memory_limit(proc: Path, sys: Path) -> Row:
    """Memory and limit in bytes of the tightest control group that this process is in: a container's."""
    used, limit = control_groups.memory(proc, sys)
    return {"container_memory_used_bytes": used, "container_memory_limit_bytes": limit}


def _number(path: Path) -> float:
    for line in _lines(path):
        return next(iter(_numbers([line.strip()])), math.nan)
    return math.nan


def _numbers(fields: list[str]) -> list[float]:
    """Nothing where a word is no number: "max" is a limit that there is not."""
    return [float(each) for each in fields] if all(_NUMBER.fullmatch(each) for each in fields) else []


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


DISK_EVERY_S = 10.0
"""Seconds between two questions to the file systems: on a network each is a request to a server."""

PATIENCE_S = 0.2
"""Seconds that the row waits for them; after that it carries NaN until they answer."""

SILENCE_S = 10.0
"""Seconds without an answer after which a file system is reported: a server's short hiccup is nothing."""

STOP_S = 0.5

_WAYS = ("received", "sent")


class HostCollector:
    """The collector `host`."""

    name = "host"
    help = "the host's processors, memory, network and disks, a row a second"
    docs = "gpu_health.md"

    def __init__(
        self, options: Options, info: RankInfo, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")
    ) -> None:
        self._proc, self._sys = proc, sys
        self._differences = Differences()
        self._disks: BlockingCall[Row] = BlockingCall("rangewatch-disks")
        self._places = places()
        self._room: Row = self._unknown_room()
        self._asking = Path()
        """The place that the file systems' thread is at."""
        self._asked_s = float("-inf")
        self._is_silence_reported = False
        self._time_ns = 0
        self._about: dict[str, Any] = {}
        self._events: Events

    def start(self, events: Events) -> None:
        """Nothing to probe: what this system does not have is n/a."""
        self._events = events
        quota = control_groups.cpus(self._proc, self._sys)
        self._about = {
            "host": socket.gethostname(),
            "cpus": os.cpu_count() or 0,
            "cpus_of_process": _own_cpus(),
            "cpu_quota": None if math.isnan(quota) else quota,
            "open_files_limit": _open_files_limit(),
            "places": {name: str(path) for name, path in self._places.items()},
        }

    def collect(self, step: int) -> Sequence[Samples]:
        """One row."""
        self._time_ns = max(self._time_ns, time.time_ns())
        row = {
            "step": float(step),
            **self._cpu(),
            "load_1m": load(self._proc),
            **memory(self._proc),
            **memory_limit(self._proc, self._sys),
            **self._rates("swap", ("in", "out"), {"": swapped_bytes(self._proc)}),
            **self._rates("network", _WAYS, network_bytes(self._proc, self._sys)),
            **self._rates("infiniband", _WAYS, infiniband_bytes(self._sys)),
            **self._disk_room(),
            **process(self._proc),
        }
        columns = {name: np.array([value]) for name, value in row.items()}
        return [Samples("host", "", np.array([self._time_ns], dtype=np.int64), columns, self._about)]

    def stop(self) -> None:
        """End the thread that asks the file systems, unless one of them never answers."""
        self._disks.stop(STOP_S)

    def _cpu(self) -> Row:
        ticks = {name: self._differences.of(f"cpu {name}", each) for name, each in cpu_ticks(self._proc).items()}
        spent_s = self._differences.rate("process", time.monotonic_ns(), time.process_time())
        return {
            "cpu_percent": _share(ticks["busy"], ticks["total"]),
            "cpu_iowait_percent": _share(ticks["iowait"], ticks["total"]),
            "process_cpu_percent": spent_s * 100,  # of one CPU, as `top` counts
        }

    def _rates(self, name: str, ways: Sequence[str], counters: Mapping[str, Mapping[str, float]]) -> Row:
        """Over all devices of `counters`. Each has its own difference: in a sum one that comes would be a spike."""
        now_ns = time.monotonic_ns()
        values = {f"{name} {device} {way}": each[way] for device, each in counters.items() for way in ways}
        self._differences.keep(f"{name} ", values)
        rates = {each: self._differences.rate(each, now_ns, value) for each, value in values.items()}
        return {
            f"{name}_{way}_bytes_per_s": _total([rates[f"{name} {device} {way}"] for device in counters])
            for way in ways
        }

    def _disk_room(self) -> Row:
        now_s = time.monotonic()
        if not self._disks.is_busy and now_s - self._asked_s < DISK_EVERY_S:
            return self._room
        if not self._disks.is_busy:
            self._asked_s = now_s
        try:
            self._room = self._disks.ask(self._read_disks, PATIENCE_S)
            self._is_silence_reported = False
        except TimeoutError:
            self._room = self._unknown_room()
            self._emit_silence(now_s - self._asked_s)
        return self._room

    def _emit_silence(self, silent_s: float) -> None:
        if silent_s >= SILENCE_S and not self._is_silence_reported:
            self._is_silence_reported = True
            text = f"the file system of {self._asking} has not answered for {silent_s:.0f} s: a hung network mount?"
            self._events.add("host", text, {"path": str(self._asking), "silent_s": silent_s})

    def _read_disks(self) -> Row:
        """On their own thread."""
        row: Row = {}
        for name, path in self._places.items():
            self._asking = path
            free, total = _room(path)
            row |= {f"disk_{name}_free_bytes": free, f"disk_{name}_total_bytes": total}
        return row

    def _unknown_room(self) -> Row:
        return {f"disk_{name}_{what}_bytes": math.nan for name in self._places for what in ("free", "total")}


def places() -> dict[str, Path]:
    """Where a full disk ends a training: the working directory, temporary files, shared memory (data loaders)."""
    # Not tempfile.gettempdir(), which writes a file to find out.
    folders = {"tmp": Path(os.environ.get("TMPDIR") or "/tmp"), "shm": Path("/dev/shm")}  # noqa: S108 - only looked at
    try:
        return {"cwd": Path.cwd(), **folders}
    except OSError:
        return {"cwd": Path(), **folders}  # it was removed


def _room(path: Path) -> tuple[float, float]:
    try:
        usage = shutil.disk_usage(path)
    except OSError:
        return math.nan, math.nan
    if not usage.total:  # network and virtual file systems may not say
        return math.nan, math.nan
    return float(usage.free), float(usage.total)


def _total(rates: Sequence[float]) -> float:
    """Of those that are known."""
    known = [rate for rate in rates if not math.isnan(rate)]
    return math.fsum(known) if known else math.nan


def _share(part: float, total: float) -> float:
    return 100 * part / total if total > 0 else math.nan


def _own_cpus() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 0


def _open_files_limit() -> int | None:
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return None
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else limit
