"""At which steps the scales of low precision are read: as often as `limits.SCALES_FRACTION` of the training's time
allows, at every so many steps.

That many is a power of two, so that ranks which read at different intervals still have steps in common. What a reading
costs is measured, in processor time, and whatever it was above its share is a debt, which the steps after it pay off.
Where something was seen that is not as usual the next step is read too, within a debt of `limits.SCALES_BURST`
readings.
"""

from __future__ import annotations

import math
import time
from collections import deque

from rangewatch.core import limits
from rangewatch.recording.level import Recording
from rangewatch.recording.observer import HostReader, StepReader

_READINGS, _STEPS = 4, 32  # the last so many, of which about the least is what one takes where nothing is in the way
_TOLERANCE = 0.25  # of a reading, by which a debt may be open when the next is due
_LARGEST_POWER = 10


def _now() -> tuple[int, int]:
    """Of the clock, and of the process, whose time is the lesser where it has to wait for a busy machine."""
    return time.perf_counter_ns(), time.process_time_ns()


class ScaleSchedule(StepReader):
    """`every`: the option `scales_every`; 0: by what readings cost."""

    def __init__(self, host: HostReader, recording: Recording, every: int) -> None:
        self.is_due = self.is_full = True
        """Whether scales are read in the open step, and whether what saturates and becomes zero is counted too."""
        self.every = every or 1
        """Steps from one reading to the next, as it is now."""
        self._host, self._recording, self._fixed = host, recording, every
        self._readings: deque[int] = deque(maxlen=_READINGS)
        self._steps: deque[int] = deque(maxlen=_STEPS)
        self._debt_ns = 0.0
        self._spent_ns = self._apart_ns = 0
        self._is_unusual = self._is_full_owed = False
        self._began = _now()
        self._is_first = True

    @property
    def has_read(self) -> bool:
        """Whether the open step has a reading that most steps have not."""
        return self._spent_ns > 0 and self.every > 1

    def add(self, began_ns: int) -> None:
        """A reading has taken since `began_ns` (`time.thread_time_ns`)."""
        self._spent_ns += time.thread_time_ns() - began_ns

    def set_apart(self, took_ns: int) -> None:
        """So much of what `add` is given is no part of every reading."""
        self._apart_ns += took_ns

    def note_unusual(self) -> bool:
        """Something was seen of which the next step should say more; whether this one may say it too."""
        self._is_unusual = True
        return self._fixed == 0 and self._may_go_ahead()

    def end_step(self) -> None:
        """A NaN or Inf is not as usual."""
        self._is_unusual |= self._host.saw_nonfinite

    def begin_step(self, step: int) -> None:
        """Say whether `step` is read."""
        began, self._began = self._began, _now()
        self._settle(min(now_ns - began_ns for began_ns, now_ns in zip(began, self._began, strict=True)))
        was_unusual, self._is_unusual = self._is_unusual, False
        self._is_full_owed |= self._host.is_full
        self.is_due = self._recording.is_traced or self._is_due(step, was_unusual)
        self.is_full = self.is_due and self._is_full_owed
        if self.is_due:
            self._is_full_owed = False

    def _settle(self, step_ns: int) -> None:
        """Of the step that has ended, which took `step_ns`."""
        spent_ns, apart_ns = self._spent_ns, self._apart_ns
        self._spent_ns = self._apart_ns = 0
        if self._is_first:  # it meets cold caches, as all else that is done for the first time
            self._is_first = not spent_ns
            return
        self._steps.append(step_ns - spent_ns)
        if spent_ns and self.is_due and not self.is_full:
            self._readings.append(spent_ns - apart_ns)
        reading_ns = self._reading_ns()
        debt_ns = self._debt_ns + spent_ns - limits.SCALES_FRACTION * step_ns
        self._debt_ns = max(debt_ns, -reading_ns)  # a pause is not saved up for
        if self._fixed or not reading_ns:
            return
        # Of the shortest but few, which may be no such steps as the others: of an empty batch, or skipped.
        usual_ns = sorted(self._steps)[len(self._steps) // 16]
        share = reading_ns / (limits.SCALES_FRACTION * max(usual_ns, 1))
        every: int = 2 ** min(max(math.ceil(math.log2(share)), 0), _LARGEST_POWER)
        if every > self.every or 4 * every <= self.every:  # it does not go up and down with every step
            self.every = every

    def _reading_ns(self) -> int:
        """What a reading without counts takes; 0 where there was none."""
        return min(self._readings, default=0)

    def _is_due(self, step: int, was_unusual: bool) -> bool:
        if self._fixed:
            return step % self._fixed == 0
        if self._is_first:
            return True
        if was_unusual and self._may_go_ahead():
            return True
        return step % self.every == 0 and self._debt_ns <= _TOLERANCE * self._reading_ns()

    def _may_go_ahead(self) -> bool:
        return self._debt_ns <= limits.SCALES_BURST * self._reading_ns()
