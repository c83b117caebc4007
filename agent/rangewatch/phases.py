"""When a step ends, and how long it took."""

from __future__ import annotations

import time
from collections.abc import Callable


class StepBoundary:
    """Decides which of the calls of optimizers and scaler ends the step; `close` is called when it does.

    With a scaler `scaler.update()` ends it, since a scaler that skips never calls `optimizer.step`. Where the scaler is
    never updated, an optimizer that steps a second time shows that. With several optimizers and no scaler the step ends
    when each has stepped once, or when one steps a second time.
    """

    def __init__(self, close: Callable[[], None], optimizer_count: int, *, has_scaler: bool) -> None:
        self._close, self._optimizer_count, self._has_scaler = close, optimizer_count, has_scaler
        self._stepped: set[int] = set()
        self._waits_for_scaler = has_scaler

    def optimizer_stepped(self, key: int) -> None:
        """Optimizer `key` has stepped."""
        is_second = key in self._stepped
        self._stepped.add(key)
        if is_second:
            self._waits_for_scaler = False
        if is_second or (not self._waits_for_scaler and len(self._stepped) >= self._optimizer_count):
            self._end()

    def scaler_updated(self) -> None:
        """The scaler has been updated."""
        if self._waits_for_scaler:
            self._end()
        self._waits_for_scaler = True

    def _end(self) -> None:
        self._stepped.clear()
        self._close()


class StepClock:
    """Time between two ends of steps, by the host's monotonic clock."""

    def __init__(self) -> None:
        self._last_s: float | None = None

    def end_step(self) -> dict[str, float]:
        """`step_time_s` (not for the first step, whose beginning nobody saw) and `wall_time_s` (Unix time)."""
        now_s, times = time.perf_counter(), {"wall_time_s": time.time()}
        if self._last_s is not None:
            times["step_time_s"] = now_s - self._last_s
        self._last_s = now_s
        return times
