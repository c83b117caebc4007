"""One card: its rows, and whether it is there. One that stops answering is an alarm, and its rows go on saying so."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np

from rangewatch.collectors.base import Told
from rangewatch.collectors.gpu_about import about
from rangewatch.collectors.gpu_changes import changes
from rangewatch.collectors.gpu_devices import Device
from rangewatch.collectors.gpu_fast import FastReadings, Row, nothing_answered
from rangewatch.collectors.gpu_processes import CardProcesses
from rangewatch.collectors.gpu_slow import slow_row
from rangewatch.collectors.nvml import TIMEOUT, Nvml, NvmlError, Reader
from rangewatch.records import Samples

_LAST_SEEN = ("temperature_c", "temperature_memory_c", "power_w", "utilization_gpu_percent", "throttle_reasons")


class Card:
    """Made and looked at by the thread that talks to NVML."""

    def __init__(self, nvml: Nvml, device: Device, told: Told) -> None:
        """Raises NvmlError where the card does not answer from the start."""
        self._nvml, self._told = nvml, told
        self.lost: NvmlError | None = None
        """Why it does not answer."""
        self._lost_s = 0.0
        self._columns: tuple[str, ...] = ()
        self._slow: Row = {}
        self._seen: Row = {}
        """The last known value of each slow reading: what grows while a reading fails is told of when it is back."""
        self._fast: Row = {}
        self._time_ns = 0
        self._processes, self._pids = CardProcesses(), frozenset[int]()
        self.adopt(device)

    def adopt(self, device: Device) -> None:
        """Read `device`, the same card, from here on: it has a new handle, or is known better."""
        self.device = device
        self._reader = Reader(self._nvml, device.handle)
        self._readings = FastReadings(self._reader)
        self.about: dict[str, Any] = about(self._reader, device, self._readings.limits)

    def look(self, step: int, *, is_slow: bool) -> Samples:
        """One row. A lost card is tried again when `is_slow`."""
        if self.lost is not None and not is_slow:
            return self.absent(step)
        try:
            row = self._row(is_slow)
        except NvmlError as error:
            self.lose(error)
            return self.absent(step)
        self._tell_found()
        self._columns = tuple(row)
        return self._samples({"step": float(step), "present": 1.0, **row})

    def absent(self, step: int) -> Samples:
        """The row of a card that does not answer: everything is unknown but that."""
        return self._samples({"step": float(step), "present": 0.0, **dict.fromkeys(self._columns, math.nan)})

    def not_watched(self, step: int) -> Samples:
        """The last row of a card that is not this rank's after all: without it, it would look as if it had vanished."""
        return self._samples({"step": float(step), "present": math.nan, **dict.fromkeys(self._columns, math.nan)})

    def lose(self, error: NvmlError) -> None:
        """The card does not answer; told once."""
        if self.lost is None:
            self._lost_s = time.monotonic()
            last = {name: self._fast[name] for name in _LAST_SEEN if not math.isnan(self._fast.get(name, math.nan))}
            data = {"code": error.code, "reason": str(error), "last": last, "last_time_ns": self._time_ns}
            self._tell("gpu_lost", f"does not answer any more: {error}", data)
        self.lost = error

    @property
    def was_silent(self) -> bool:
        """It was lost only because the driver took long, which is now over."""
        return self.lost is not None and self.lost.code == TIMEOUT

    def _row(self, is_slow: bool) -> Row:
        if self.lost is not None:
            handle = self._nvml.call("nvmlDeviceGetHandleByUUID", self.device.uuid)
            self.adopt(self.device._replace(handle=handle))
        self._reader.begin(forget=is_slow)
        fast = self._readings.row(time.time_ns())
        error = nothing_answered(self._reader)
        if error is not None:
            raise error
        self._fast = fast
        if is_slow or not self._slow:
            self._read_slow()
        return {**fast, **self._slow}

    def _read_slow(self) -> None:
        row = {**slow_row(self._reader), **self._processes.row(self._reader)}
        for message, data in changes(self._seen, row):
            self._tell("gpu", message, data)
        self._slow = row
        self._seen |= {name: value for name, value in row.items() if not math.isnan(value)}
        others = frozenset(each["pid"] for each in self._processes.others)
        if others - self._pids:
            names = ", ".join(f"{each['command']} ({each['pid']})" for each in self._processes.others)
            data = {"processes": self._processes.others, "processes_hidden": self._processes.hidden}
            self._tell("gpu", f"is shared with other processes: {names}", data)
        self._pids = others

    def _tell_found(self) -> None:
        if self.lost is not None:
            self.lost, gone_s = None, time.monotonic() - self._lost_s
            self._tell("gpu", f"answers again after {gone_s:.0f} s", {"recovered": True, "lost_s": gone_s})

    def _tell(self, kind: str, message: str, data: dict[str, Any]) -> None:
        self._told(kind, f"{self.label}: {message}", {"uuid": self.device.uuid, **data})

    @property
    def label(self) -> str:
        """What messages call it."""
        number = "" if self.device.cuda_index is None else f" cuda:{self.device.cuda_index}"
        return f"{self.about.get('name', 'GPU')}{number} ({self.device.uuid})"

    def _samples(self, row: Row) -> Samples:
        self._time_ns = max(self._time_ns, time.time_ns())  # rows stay in order when the clock is set back
        columns = {name: np.array([value]) for name, value in row.items()}
        return Samples("gpu", self.device.uuid, np.array([self._time_ns], dtype=np.int64), columns, self.about)
