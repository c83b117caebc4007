"""A step's slices by a device's clock: an event at each cut, asked when it is done, and never waited for.

The host runs ahead of the device, so its clock says when work was queued. Between two events lies what the device did,
or how long it stood idle: a wait for data that hides behind the device's work is 0 here, as it costs nothing.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from rangewatch.phase_clock_spent import Spent

SLICES = 1024
"""Slices of one step that get an event, some 3 microseconds of the host each; a step of more is told by the host."""

WAITING_STEPS = 256
"""Steps that wait to be asked for, four full step buffers; the oldest is told by the host when there are more."""


class _Slice(NamedTuple):
    phase: str
    exposed_s: float
    end: Any


class _Step(NamedTuple):
    step: int
    host: dict[str, float]
    """What the host's clock says, for when the device's cannot be had."""
    known: frozenset[str]
    began: Any
    slices: list[_Slice]


class DeviceSlices:
    """One device's. The training thread calls all but `take`, which any thread may; nothing here waits.

    `record(event)` marks the end of what is queued so far. `is_capturing()`: a graph is captured, and no event may be.
    """

    def __init__(
        self, make_event: Callable[[], Any], record: Callable[[Any], None], is_capturing: Callable[[], bool]
    ) -> None:
        self._make_event, self._record, self.is_capturing = make_event, record, is_capturing
        self.is_ending = False
        """Nobody will ask again: `take` tells of steps that are not done by the host's clock."""
        self._is_broken = False
        self._began: Any = None
        self._slices: list[_Slice] = []
        self._is_whole = True
        self._waiting: deque[_Step] = deque()
        self._free: deque[Any] = deque()

    def begin(self) -> None:
        """The first step that is seen whole begins."""
        self._began, self._slices, self._is_whole = self._mark(), [], True

    def cut(self, phase: str, exposed_s: float) -> None:
        """A slice of `phase` ends here."""
        if self._began is None or not self._is_whole:
            return
        event = self._mark() if len(self._slices) < SLICES else None
        if event is None:
            self._is_whole = False
        else:
            self._slices.append(_Slice(phase, exposed_s, event))

    def end_step(self, step: int, host: dict[str, float], known: frozenset[str]) -> None:
        """The last cut was the step's end. `host`: its series by the host's clock."""
        if self._began is not None and self._is_whole and self._slices:
            self._waiting.append(_Step(step, host, known, self._began, self._slices))
            self._began, self._slices = self._slices[-1].end, []
        else:
            self._waiting.append(_Step(step, host, known, None, []))
            self.begin()

    def take(self) -> list[tuple[int, dict[str, float]]]:
        """(step, series) of the steps that are done, in order, each once."""
        found = []
        while self._waiting:
            first = self._waiting[0]
            is_done = not first.slices or self._is_broken or self._is_done(first)
            if not is_done and not self.is_ending and len(self._waiting) <= WAITING_STEPS:
                break
            self._waiting.popleft()
            found.append((first.step, self._series(first) if is_done else first.host))
        return found

    def _is_done(self, step: _Step) -> bool:
        try:
            return all(each.end.query() for each in reversed(step.slices))
        except RuntimeError:  # the device is lost: the user's own next call says so
            self._is_broken = True
            return True

    def _series(self, step: _Step) -> dict[str, float]:
        if not step.slices or self._is_broken:
            return step.host
        try:
            return self._by_device(step)
        except RuntimeError:
            self._is_broken = True
            return step.host

    def _by_device(self, step: _Step) -> dict[str, float]:
        spent, total_s = Spent(), 0.0
        for each in step.slices:
            # From the step's beginning, and never backwards: cuts may lie on different streams.
            end_s = max(total_s, step.began.elapsed_time(each.end) / 1e3)
            spent.add(each.phase, end_s - total_s, each.exposed_s)
            total_s = end_s
        self._free.append(step.began)
        self._free.extend(each.end for each in step.slices[:-1])  # the last one begins the next step
        return {"step_time_s": total_s, **spent.series(step.known)}

    def _mark(self) -> Any:
        """A recorded event; None where none can be."""
        if self._is_broken or self.is_capturing():
            return None
        event = self._free.pop() if self._free else self._make_event()
        try:
            self._record(event)
        except RuntimeError:
            self._is_broken = True
            return None
        return event


def of_device(device: torch.device) -> DeviceSlices | None:
    """For CUDA (and ROCm) devices; None for others, whose steps the host's clock tells."""
    if device.type != "cuda":
        return None

    def record(event: Any) -> None:
        event.record(torch.cuda.current_stream(device))

    make_event = functools.partial(torch.cuda.Event, enable_timing=True)
    return DeviceSlices(make_event, record, torch.cuda.is_current_stream_capturing)
