"""The host's health: a row a second, from /proc, /sys and the file systems themselves."""

from __future__ import annotations

import math
import os
import shutil
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rangewatch import control_groups
from rangewatch.collectors import host_proc
from rangewatch.collectors.answering import Answering
from rangewatch.collectors.base import Told
from rangewatch.collectors.gpu_fast import Differences
from rangewatch.collectors.host_proc import Row
from rangewatch.options import Options
from rangewatch.records import RankInfo, Samples

DISK_EVERY_S = 10.0
"""Seconds between two questions to the file systems: on a network each is a request to a server."""

PATIENCE_S = 0.2
"""Seconds that the row waits for them; after that it carries NaN until they answer."""

SILENCE_S = 10.0
"""Seconds without an answer after which a file system is told of: a server's short hiccup is nothing."""

STOP_S = 0.5

_WAYS = ("received", "sent")


class HostCollector:
    """The collector `host`."""

    name = "host"

    def __init__(
        self, options: Options, info: RankInfo, *, proc: Path = Path("/proc"), sys: Path = Path("/sys")
    ) -> None:
        self._proc, self._sys = proc, sys
        self._differences = Differences()
        self._disks: Answering[Row] = Answering("rangewatch-disks")
        self._places = places()
        self._room: Row = self._unknown_room()
        self._asking = Path()
        """The place that the file systems' thread is at."""
        self._asked_s = float("-inf")
        self._is_silence_told = False
        self._time_ns = 0
        self._about: dict[str, Any] = {}
        self._told: Told | None = None

    def start(self, told: Told) -> None:
        """Nothing to probe: what this system does not have is n/a."""
        self._told = told
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
            "load_1m": host_proc.load(self._proc),
            **host_proc.memory(self._proc),
            **host_proc.memory_limit(self._proc, self._sys),
            **self._rates("swap", ("in", "out"), {"": host_proc.swapped_bytes(self._proc)}),
            **self._rates("network", _WAYS, host_proc.network_bytes(self._proc, self._sys)),
            **self._rates("infiniband", _WAYS, host_proc.infiniband_bytes(self._sys)),
            **self._disk_room(),
            **host_proc.process(self._proc),
        }
        columns = {name: np.array([value]) for name, value in row.items()}
        return [Samples("host", "", np.array([self._time_ns], dtype=np.int64), columns, self._about)]

    def stop(self) -> None:
        """End the thread that asks the file systems, unless one of them never answers."""
        self._disks.stop(STOP_S)

    def _cpu(self) -> Row:
        ticks = {
            name: self._differences.of(f"cpu {name}", each) for name, each in host_proc.cpu_ticks(self._proc).items()
        }
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
            self._room = self._disks.ask(self._look_at_disks, PATIENCE_S)
            self._is_silence_told = False
        except TimeoutError:
            self._room = self._unknown_room()
            self._tell_silence(now_s - self._asked_s)
        return self._room

    def _tell_silence(self, silent_s: float) -> None:
        if silent_s >= SILENCE_S and not self._is_silence_told and self._told is not None:
            self._is_silence_told = True
            text = f"the file system of {self._asking} has not answered for {silent_s:.0f} s: a hung network mount?"
            self._told("host", text, {"path": str(self._asking), "silent_s": silent_s})

    def _look_at_disks(self) -> Row:
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
    found = {"tmp": Path(os.environ.get("TMPDIR") or "/tmp"), "shm": Path("/dev/shm")}  # noqa: S108 - only looked at
    try:
        return {"cwd": Path.cwd(), **found}
    except OSError:
        return {"cwd": Path(), **found}  # it was removed


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
