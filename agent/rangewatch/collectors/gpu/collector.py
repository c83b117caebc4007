"""GPU health: a row a second for each card of this rank, by NVML, without root and without starting CUDA.

All talk with NVML is on a thread of its own: a driver whose card hangs may keep a call for minutes, and then the other
collectors go on and the silence is reported as a lost card.

Changes of the slow readings that are worth an event: what nobody would look for in a chart.

One card: its rows, and whether it is there. One that stops answering is an alarm, and its rows go on saying so.
"""

from __future__ import annotations

import math
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from rangewatch.collectors.blocking_call import BlockingCall
from rangewatch.collectors.gpu.devices import Device, about, cuda, devices_of, has_launcher_cards
from rangewatch.collectors.gpu.nvml import LIBRARY_NOT_FOUND, RECOVERY_ACTIONS, TIMEOUT, Nvml, NvmlError, Reader
from rangewatch.collectors.gpu.readings import CardProcesses, FastReadings, Row, nothing_answered, slow_row
from rangewatch.collectors.gpu.xid import XidWatch
from rangewatch.core.options import Options
from rangewatch.recording.events import Events
from rangewatch.wire.records import RankInfo, Samples

_LINK = re.compile(r"nvlink_(\d\d)_errors")

_GROWING = {
    "ecc_uncorrected_volatile": "uncorrectable memory errors; what was computed with them may be wrong",
    "remapped_rows_uncorrected": "rows of its memory remapped after an uncorrectable error, from the next reset on",
    "remapped_rows_failure": "row remapping has failed: have the card replaced",
    "remapped_rows_pending": "a row remapping waits for a reset of the GPU",
    "retired_pages_uncorrected": "pages of its memory retired after an uncorrectable error",
}


def changes(before: Row, now: Row) -> list[tuple[str, dict[str, Any]]]:
    """Message and data of each event between what was last known and `now`; nothing where either is not known."""
    events = [
        (
            f"{text} ({_count(before[name])} -> {_count(now[name])})",
            {"column": name, "from": before[name], "to": now[name]},
        )
        for name, text in _GROWING.items()
        if _grew(before, now, name)
    ]
    return events + _links_down(before, now) + _link_errors(before, now) + _recovery(before, now)


def _links_down(before: Row, now: Row) -> list[tuple[str, dict[str, Any]]]:
    was, mask = before.get("nvlink_active_mask", math.nan), now.get("nvlink_active_mask", math.nan)
    if math.isnan(was) or math.isnan(mask):
        return []
    down = [link for link in range(64) if int(was) >> link & 1 and not int(mask) >> link & 1]
    return [(f"NVLink {link} went down", {"link": link}) for link in down]


def _link_errors(before: Row, now: Row) -> list[tuple[str, dict[str, Any]]]:
    grown = {name: now[name] - before[name] for name in now if _LINK.fullmatch(name) and _grew(before, now, name)}
    return [
        (
            f"{_count(errors)} errors on NVLink {int(name[7:9])} since the last look",
            {"link": int(name[7:9]), "errors": errors},
        )
        for name, errors in grown.items()
    ]


def _recovery(before: Row, now: Row) -> list[tuple[str, dict[str, Any]]]:
    was, action = before.get("recovery_action", math.nan), now.get("recovery_action", math.nan)
    if math.isnan(action) or was == action or (math.isnan(was) and action == 0):
        return []
    text = RECOVERY_ACTIONS.get(int(action), f"action {int(action)}")
    return [(f"the driver's own verdict on how to recover it: {text}", {"recovery_action": int(action), "text": text})]


def _grew(before: Row, now: Row, name: str) -> bool:
    return now.get(name, math.nan) > before.get(name, math.nan)


def _count(value: float) -> str:
    return f"{value:.0f}"


_LAST_SEEN = ("temperature_c", "temperature_memory_c", "power_w", "utilization_gpu_percent", "throttle_reasons")


class Card:
    """Made and looked at by the thread that talks to NVML."""

    def __init__(self, nvml: Nvml, device: Device, events: Events) -> None:
        """Raises NvmlError where the card does not answer from the start."""
        self._nvml, self._events = nvml, events
        self.lost: NvmlError | None = None
        """Why it does not answer."""
        self._lost_s = 0.0
        self._columns: tuple[str, ...] = ()
        self._slow: Row = {}
        self._seen: Row = {}
        """The last known value of each slow reading: what grows while a reading fails is reported when it is back."""
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

    def read(self, step: int, *, is_slow: bool) -> Samples:
        """One row. A lost card is tried again when `is_slow`."""
        if self.lost is not None and not is_slow:
            return self.absent(step)
        try:
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
        except NvmlError as error:
            self.lose(error)
            return self.absent(step)
        if self.lost is not None:
            self.lost, gone_s = None, time.monotonic() - self._lost_s
            self._emit("gpu", f"answers again after {gone_s:.0f} s", {"recovered": True, "lost_s": gone_s})
        row = {**fast, **self._slow}
        self._columns = tuple(row)
        return self._samples({"step": float(step), "present": 1.0, **row})

    def absent(self, step: int) -> Samples:
        """The row of a card that does not answer: everything is unknown but that."""
        return self._samples({"step": float(step), "present": 0.0, **dict.fromkeys(self._columns, math.nan)})

    def not_watched(self, step: int) -> Samples:
        """The last row of a card that is not this rank's after all: without it, it would look as if it had vanished."""
        return self._samples({"step": float(step), "present": math.nan, **dict.fromkeys(self._columns, math.nan)})

    def lose(self, error: NvmlError) -> None:
        """The card does not answer; reported once."""
        if self.lost is None:
            self._lost_s = time.monotonic()
            last = {name: self._fast[name] for name in _LAST_SEEN if not math.isnan(self._fast.get(name, math.nan))}
            data = {"code": error.code, "reason": str(error), "last": last, "last_time_ns": self._time_ns}
            self._emit("gpu_lost", f"does not answer any more: {error}", data)
        self.lost = error

    @property
    def was_silent(self) -> bool:
        """It was lost only because the driver took long, which is now over."""
        return self.lost is not None and self.lost.code == TIMEOUT

    def _read_slow(self) -> None:
        row = {**slow_row(self._reader), **self._processes.row(self._reader)}
        for message, data in changes(self._seen, row):
            self._emit("gpu", message, data)
        self._slow = row
        self._seen |= {name: value for name, value in row.items() if not math.isnan(value)}
        others = frozenset(each["pid"] for each in self._processes.others)
        if others - self._pids:
            names = ", ".join(f"{each['command']} ({each['pid']})" for each in self._processes.others)
            data = {"processes": self._processes.others, "processes_hidden": self._processes.hidden}
            self._emit("gpu", f"is shared with other processes: {names}", data)
        self._pids = others

    def _emit(self, kind: str, message: str, data: dict[str, Any]) -> None:
        self._events.add(kind, f"{self.label}: {message}", {"uuid": self.device.uuid, **data})

    @property
    def label(self) -> str:
        """What messages call it."""
        number = "" if self.device.cuda_index is None else f" cuda:{self.device.cuda_index}"
        return f"{self.about.get('name', 'GPU')}{number} ({self.device.uuid})"

    def _samples(self, row: Row) -> Samples:
        self._time_ns = max(self._time_ns, time.time_ns())  # rows stay in order when the clock is set back
        columns = {name: np.array([value]) for name, value in row.items()}
        return Samples("gpu", self.device.uuid, np.array([self._time_ns], dtype=np.int64), columns, self.about)


SLOW_EVERY_S = 30.0
"""Seconds between two readings of counters and links, and between two tries to reach a lost card or driver."""

PATIENCE_S = 1.0
"""Seconds that the collectors' thread waits for NVML: a look takes milliseconds, the very first one a second or two."""

SILENCE_S = 10.0
"""Seconds without an answer after which the cards count as lost: calls of a few seconds happen in a healthy run."""

STOP_S = 1.0
"""Seconds that the end waits for NVML, which may never answer."""


_NOT_RECORDED = {
    "xpu": "of an Intel GPU only the memory that torch reports is recorded; temperature, clocks and power are not",
    "mps": "of an Apple GPU only the memory that torch reports is recorded; temperature, clocks and power are not",
}
"""By what ranks call such devices."""


def _is_rocm() -> bool:
    return getattr(getattr(sys.modules.get("torch"), "version", None), "hip", None) is not None


class GpuCollector:
    """The collector `gpu`."""

    name = "gpu"
    help = "health of this rank's GPUs through NVML, a row a second and card; Xid events"
    docs = "gpu_health.md"

    def __init__(self, options: Options, info: RankInfo, environment: Mapping[str, str] = os.environ) -> None:
        self._info, self._environment = info, environment
        self._nvml: Nvml | None = None
        self._thread: BlockingCall[list[Samples]] = BlockingCall("rangewatch-nvml")
        self._xid: XidWatch | None = None
        self._cards: list[Card] = []
        self._left: list[Card] = []
        """Cards that have turned out to be none of this rank's, until their last row says so."""
        self._reason = ""
        """Why there is no card, as last reported."""
        self._is_open = self._is_given_up = self._is_silence_reported = False
        self._due_s = float("-inf")
        self._asked_s = 0.0
        self._events: Events

    def start(self, events: Events) -> None:
        """Load `pynvml`; that it is not installed is reported once."""
        self._events = events
        other = _NOT_RECORDED.get(self._info.device)
        if other is not None:
            self._give_up(f"GPU health is not recorded: {other}")
            return
        if _is_rocm():
            self._is_given_up = True  # see the collector `amd_gpu`
            return
        try:
            self._nvml = Nvml()
        except ImportError as error:
            hint = "install rangewatch[gpu] (the package nvidia-ml-py) to record it"
            self._give_up(f"GPU health is not recorded: {hint} ({error})")

    def collect(self, step: int) -> Sequence[Samples]:
        """One row for each card, with what NVML last said."""
        if self._nvml is None or self._is_given_up or not self._is_wanted():
            return ()
        if not self._thread.is_busy:
            self._asked_s, self._is_silence_reported = time.monotonic(), False
        try:
            return self._thread.ask(partial(self._read_cards, self._nvml, step), PATIENCE_S)
        except TimeoutError:
            return self._unanswered(step)

    def stop(self) -> None:
        """End the threads, and let go of NVML unless a call is stuck in it."""
        has_ended = self._xid is None or self._xid.stop()
        if self._thread.stop(STOP_S) and has_ended and self._nvml is not None:
            self._nvml.close()

    def _is_wanted(self) -> bool:
        """Training on a CPU opens no driver, unless the launcher gave this rank a card or CUDA runs all the same."""
        return self._info.device != "cpu" or has_launcher_cards(self._environment) or cuda() is not None

    def _unanswered(self, step: int) -> list[Samples]:
        silent_s = time.monotonic() - self._asked_s
        if silent_s < SILENCE_S:
            return []
        if not self._is_silence_reported:  # once a question: its answer may come between here and the next line
            self._is_silence_reported = True
            if not self._cards:
                self._emit_reason(f"no GPU is watched: the driver has not answered for {silent_s:.0f} s")
            for card in self._cards:
                card.lose(NvmlError(TIMEOUT, f"the driver has not answered for {silent_s:.0f} s"))
        return [card.absent(step) for card in self._cards]

    def _read_cards(self, nvml: Nvml, step: int) -> list[Samples]:
        """On NVML's own thread."""
        is_slow = time.monotonic() >= self._due_s
        if is_slow:
            self._due_s = time.monotonic() + SLOW_EVERY_S
        if not self._is_open and not (is_slow and self._open(nvml)):
            return [card.absent(step) for card in self._cards]
        if is_slow or (cuda() is not None and any(card.device.mapped_by != "torch" for card in self._cards)):
            self._find(nvml)
        rows = [card.read(step, is_slow=is_slow or card.was_silent) for card in self._cards]
        self._is_open = not any(card.lost is not None and card.lost.is_driver for card in self._cards)
        left, self._left = self._left, []
        return [*(card.not_watched(step) for card in left), *rows]

    def _open(self, nvml: Nvml) -> bool:
        if self._xid is not None:
            self._xid.stop()  # its event set ends with the connection
            self._xid = None
        try:
            nvml.open()
        except NvmlError as error:
            if error.code == LIBRARY_NOT_FOUND:
                self._give_up(f"GPU health is not recorded: {error}")
            else:
                self._emit_reason(f"GPU health is not recorded: {error}")
            return False
        self._is_open = True
        return True

    def _find(self, nvml: Nvml) -> None:
        """Whose cards these are may change: CUDA has started, or uses another card."""
        try:
            self._watch(nvml, self._devices(nvml))
        except NvmlError as error:
            if not self._cards:  # else the cards tell
                self._emit_reason(f"no GPU is watched: {error}")

    def _devices(self, nvml: Nvml) -> list[Device]:
        devices = devices_of(nvml, self._info.local_rank, self._environment)
        known = [card.device for card in self._cards]
        # Torch holds no memory for a while (`empty_cache`, offloading): what it has said is better than a guess.
        is_guess = _is_by_torch(known) and not _is_by_torch(devices)
        return known if is_guess else devices

    def _watch(self, nvml: Nvml, devices: Sequence[Device]) -> None:
        known = {card.device.uuid: card for card in self._cards}
        cards = [known.get(device.uuid) or Card(nvml, device, self._events) for device in devices]
        for card, device in zip(cards, devices, strict=True):
            if card.lost is None and device[2:] != card.device[2:]:
                card.adopt(device)
        if cards != self._cards or self._xid is None or not self._xid.is_watching:
            self._watch_xid(nvml, cards)
        self._left += [card for card in self._cards if card not in cards]
        self._cards, self._reason = cards, ""

    def _watch_xid(self, nvml: Nvml, cards: list[Card]) -> None:
        if self._xid is not None:
            self._xid.stop()
        self._xid = XidWatch(nvml, [(card.device, card.label) for card in cards], self._events)
        self._xid.start()

    def _emit_reason(self, reason: str) -> None:
        if reason != self._reason:
            self._reason = reason
            self._events.add("gpu", reason, {"reason": reason})

    def _give_up(self, reason: str) -> None:
        self._is_given_up = True
        self._emit_reason(reason)


def _is_by_torch(devices: Sequence[Device]) -> bool:
    return any(device.mapped_by == "torch" for device in devices)
