"""When a step ends, and what is a step inside a step: an optimizer whose `step` calls its parent class's is hooked
twice by torch.

Torch wraps the `step` of each class of which there is an instance, so its hooks are called for the inner call and again
for the outer one, if the parent class was instantiated too.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import CodeType, FrameType
from typing import Any

from torch.optim import Optimizer


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


def is_inner(arguments: tuple[Any, ...]) -> bool:
    """Whether the step hook that was called with `arguments` belongs to a step inside a step of the same optimizer.

    The stack tells, which no exception in a step leaves in disorder as it would a counter. It is looked at only where
    it can happen. In compiled code, where a hook gets no arguments, it is not known.
    """
    if not arguments or _CODE is None or not _is_wrapped_twice(type(arguments[0])):
        return False
    frame: FrameType | None = sys._getframe(1)
    found = 0
    while frame is not None and found < 2:
        found += frame.f_code is _CODE and frame.f_locals.get("self") is arguments[0]
        frame = frame.f_back
    return found > 1


def _is_wrapped_twice(kind: type) -> bool:
    return sum(getattr(vars(base).get("step"), "hooked", False) is True for base in kind.__mro__) > 1


def _wrappers_code() -> CodeType | None:
    wrap: Any = getattr(Optimizer, "profile_hook_step", None)
    return None if wrap is None else wrap(lambda optimizer: None).__code__


_CODE = _wrappers_code()
"""Of what torch wraps around every `step`; it names the optimizer `self`."""
