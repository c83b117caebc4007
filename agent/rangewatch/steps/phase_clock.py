"""What a step's time went into. The training thread is in one phase at a time; the clock cuts where that changes.

Phases may be nested: time belongs to the innermost. What is in none is `other`, so they add up to the step.

`DeviceSlices` are the same by a device's clock: an event at each cut, asked when it is done, and never waited for.

The host runs ahead of the device, so its clock says when work was queued. Between two events lies what the device did,
or how long it stood idle: a wait for data that hides behind the device's work is 0 here, as it costs nothing.
"""

from __future__ import annotations

import functools
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from math import isnan
from threading import get_ident
from typing import Any, NamedTuple, Protocol

import torch

from rangewatch.core.guard import Guard
from rangewatch.recording.level import Cost
from rangewatch.recording.phase_times import BACKWARD, EXPOSED_COMM, FORWARD, OTHER, Spent
from rangewatch.recording.rows.mirror import PHASE, PHASE_NUMBERS, own_cells

SLICES = 1024
"""Slices of one step that get an event, some 3 microseconds of the host each; a step of more is timed by the host."""

WAITING_STEPS = 256
"""Steps that wait to be asked for, four full step buffers; the oldest is timed by the host when there are more."""


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
        late = []
        while self._waiting:
            first = self._waiting[0]
            is_done = not first.slices or self._is_broken or self._is_done(first)
            if not is_done and not self.is_ending and len(self._waiting) <= WAITING_STEPS:
                break
            self._waiting.popleft()
            late.append((first.step, self._series(first) if is_done else first.host))
        return late

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


_now_ns = time.perf_counter_ns
_COMPUTING = frozenset({FORWARD, BACKWARD})


class ExposedSource(Protocol):
    """Who knows how long the training thread was blocked in collectives."""

    def take_exposed_s(self) -> float:
        """Seconds since the last call; NaN where that cannot be known. Called by the training thread, at each change
        of phase."""
        ...


class PhaseClock:
    """The clock of one attached model. Hooks call `enter` and `leave`, which count on the training thread alone.

    By the host's monotonic clock; with `device`, by events on that device's stream, which are read later.
    """

    def __init__(self, cost: Cost, guard: Guard, cells: Any = None) -> None:
        self._cost, self._guard = cost, guard
        self.sources: list[ExposedSource] = []
        """While it is empty nobody knows of communication: its time is left in the phase it happened in."""
        self.device: DeviceSlices | None = None
        self.is_on = True
        self.has_begun = False
        """Whether the open step has had a forward or a backward."""
        self.has_backward = False
        """Whether it has had a backward."""
        self.forward_count = 0
        """Outermost forwards of the open step that began before its first backward."""
        self.backward_count = 0
        """Backwards that have begun."""
        self.seen = {OTHER}
        """Phases met so far. One that was never met is unknown and has no series; one met before may well be 0."""
        self.step_time_s: float | None = None
        """Of the last step, by the host's clock; None for the first, whose beginning nobody saw."""
        self._cells: Any = own_cells() if cells is None else cells
        """Say where this process is, see `recording.rows.mirror`: the phase is kept there."""
        self._thread = get_ident()
        self._inside: list[tuple[str, str]] = []
        """Open phases, and what each counts as."""
        self._since_ns: int | None = None
        self._began_ns = 0
        self._spent = Spent()

    def enter(self, phase: str) -> None:
        """The training thread begins `phase`."""
        if self._is_elsewhere():
            return
        now_ns = _now_ns()
        self._cut(now_ns)
        # A forward inside a backward pass is a checkpoint's recomputation.
        is_recomputed = phase == FORWARD and self._inside and any(each == BACKWARD for each, _ in self._inside)
        counted = BACKWARD if is_recomputed else phase
        self._inside.append((phase, counted))
        self.has_begun = self.has_begun or phase in _COMPUTING
        self.has_backward = self.has_backward or phase == BACKWARD
        self.forward_count += phase == FORWARD and len(self._inside) == 1 and not self.has_backward
        self.backward_count += phase == BACKWARD
        self._cells[PHASE] = PHASE_NUMBERS[counted]
        self.seen.add(counted)
        if self._cost.is_on:
            self._cost.add(now_ns)

    def leave(self, phase: str) -> None:
        """It ends `phase`, and what was begun in it and not ended. Does nothing where `phase` has not been entered."""
        if self._is_elsewhere():
            return
        for depth in range(len(self._inside) - 1, -1, -1):
            if self._inside[depth][0] == phase:
                now_ns = _now_ns()
                self._cut(now_ns)
                del self._inside[depth:]
                self._cells[PHASE] = PHASE_NUMBERS[self._inside[-1][1]] if self._inside else 0
                if self._cost.is_on:
                    self._cost.add(now_ns)
                return

    def end_step(self, step: int) -> dict[str, float]:
        """The series of the step that ends here, as far as they are known; the rest comes by `take_late`.

        `wall_time_s` (Unix time) always; `step_time_s` and the phases in seconds, but for the first step.
        """
        times, now_ns = {"wall_time_s": time.time()}, _now_ns()
        self._cut(now_ns)
        if self._since_ns is None:
            self.step_time_s = None
        else:
            self.step_time_s = (now_ns - self._began_ns) / 1e9
            series = {"step_time_s": self.step_time_s, **self._spent.series(self._known())}
            if self.device is None:
                times |= series
            else:
                self.device.end_step(step, series, self._known())
        if self.device is not None and self._since_ns is None:
            self.device.begin()
        self._open(now_ns)
        return times

    def take_late(self) -> list[tuple[int, dict[str, float]]]:
        """(step, series) of steps that the device has been asked about since the last call. Never waits."""
        return [] if self.device is None else self.device.take()

    def end(self) -> None:
        """From here on `take_late` tells of all steps, by the host's clock where the device is not done."""
        if self.device is not None:
            self.device.is_ending = True

    def _open(self, now_ns: int) -> None:
        # An exception may have left a phase open, so none outlasts the step; but a backward in which the optimizer
        # steps, perhaps in a thread of the engine's, ends by itself and where it began.
        self._inside = [each for each in self._inside if each[0] == BACKWARD]
        self._cells[PHASE] = PHASE_NUMBERS[BACKWARD] if self._inside else 0
        self._spent = Spent()
        self.has_begun = self.has_backward = False
        self.forward_count = 0
        if not self._inside:
            self._thread = get_ident()
        self._since_ns = self._began_ns = now_ns

    def _is_elsewhere(self) -> bool:
        """Off, in another thread, or while a CUDA graph is captured, whose replays run no hook: that is no phase."""
        if not self.is_on or get_ident() != self._thread:
            return True
        return self.device is not None and self.device.is_capturing()

    def _known(self) -> frozenset[str]:
        return frozenset(self.seen | {EXPOSED_COMM} if self.sources else self.seen)

    def _cut(self, now_ns: int) -> None:
        """What went by since the last cut belongs to the innermost phase."""
        if self._since_ns is None:
            return
        phase = self._inside[-1][1] if self._inside else OTHER
        exposed_s = self._take_exposed_s() if self.sources else 0.0
        self._spent.add(phase, (now_ns - self._since_ns) / 1e9, exposed_s)
        self._since_ns = now_ns
        if self.device is not None:
            self.device.cut(phase, exposed_s)

    def _take_exposed_s(self) -> float:
        """Of all sources; one that fails, or cannot know it, is dropped: unknown is not 0."""
        total_s = 0.0
        for source in list(self.sources):
            taken: list[float] = []
            if not self._guard.run("exposed communication", partial(_take_from, source, taken)) or isnan(taken[0]):
                self.sources.remove(source)
            else:
                total_s += taken[0]
        return total_s


def _take_from(source: ExposedSource, taken: list[float]) -> None:
    taken.append(source.take_exposed_s())
