"""When a step ends."""

from __future__ import annotations

from collections.abc import Callable, Iterable


class StepBoundary:
    """Decides which of the calls of optimizers and scalers ends the step; `close` is called when it does.

    With a scaler `scaler.update()` ends it, since a scaler that skips never calls `optimizer.step`; with several, when
    each has been updated once. Where a scaler is not updated any more, an optimizer that steps a second time shows
    that: those two steps are one, and from then on the optimizer ends the step until a scaler is updated again. With
    several optimizers and no scaler the step ends when each has stepped once, or when one steps a second time.
    """

    def __init__(self, close: Callable[[], None], optimizer_count: int, scalers: Iterable[int] = ()) -> None:
        self._close, self._optimizer_count = close, optimizer_count
        self.awaited = set(scalers)
        """The scalers that end the step."""
        self._stepped: set[int] = set()
        self._updated: set[int] = set()

    def optimizer_stepped(self, key: int) -> None:
        """Optimizer `key` has stepped."""
        is_second = key in self._stepped
        self._stepped.add(key)
        if is_second:
            self.awaited = set()
        if is_second or (not self.awaited and len(self._stepped) >= self._optimizer_count):
            self._end()

    def scaler_updated(self, key: int) -> None:
        """Scaler `key` has been updated."""
        if key not in self.awaited:
            self.awaited.add(key)  # from here on: an optimizer has ended this one's step already
            return
        is_second = key in self._updated
        self._updated.add(key)
        if is_second:
            self.awaited = self.awaited & self._updated
        if self.awaited <= self._updated:
            self._end()

    def _end(self) -> None:
        self._stepped.clear()
        self._updated.clear()
        self._close()
