"""What a step's time went into. The training thread is in one phase at a time; the clock cuts where that changes.

Phases may be nested: time belongs to the innermost. What is in none is `other`, so they add up to the step.
"""

from __future__ import annotations

import time
from array import array
from functools import partial
from math import isnan
from threading import get_ident
from typing import Any, Protocol

from rangewatch.cost import Cost
from rangewatch.guard import Guard
from rangewatch.last_words.layout import PHASE, PHASE_NUMBERS
from rangewatch.phase_clock_device import DeviceSlices
from rangewatch.phase_clock_spent import BACKWARD, EXPOSED_COMM, FORWARD, OTHER, Spent

_now_ns = time.perf_counter_ns


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

    def __init__(self, cost: Cost, guard: Guard) -> None:
        self._cost, self._guard = cost, guard
        self.sources: list[ExposedSource] = []
        """While it is empty nobody knows of communication: its time is left in the phase it happened in."""
        self.device: DeviceSlices | None = None
        self.is_on = True
        self.seen = {OTHER}
        """Phases met so far. One that was never met is unknown and has no series; one met before may well be 0."""
        self.step_time_s: float | None = None
        """Of the last step, by the host's clock; None for the first, whose beginning nobody saw."""
        self.scene: Any = array("q", bytes(8 * (PHASE + 1)))
        """The cells that say where this process is, see `last_words.layout`: the phase is kept there."""
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
        self.scene[PHASE] = PHASE_NUMBERS[counted]
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
                self.scene[PHASE] = PHASE_NUMBERS[self._inside[-1][1]] if self._inside else 0
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
        self.scene[PHASE] = PHASE_NUMBERS[BACKWARD] if self._inside else 0
        self._spent = Spent()
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
