"""What the collectives tell the step phases: communication that the training thread waited for."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

TIMED = ("hooks", "wrapped")
"""Rungs of the ladder that see each collective as it is called."""


class Collected(Protocol):
    """The collector of collectives."""

    rung: str

    def exposed_s(self, step: int) -> float:
        """Seconds of a step so far; NaN where that cannot be known."""


class ExposedSince:
    """A source of `PhaseClock`: what has come since it was asked last. Called by the training thread."""

    def __init__(self, collected: Collected, step: Callable[[], int]) -> None:
        self._collected, self._step = collected, step
        self._of_step, self._taken_s = -1, 0.0

    def take_exposed_s(self) -> float:
        """Seconds since the last call, of the open step; NaN where it cannot be known."""
        step = self._step()
        if step != self._of_step:
            self._of_step, self._taken_s = step, 0.0
        total_s = self._collected.exposed_s(step) if self._collected.rung in TIMED else math.nan
        if math.isnan(total_s):
            return math.nan
        new_s, self._taken_s = max(total_s - self._taken_s, 0.0), max(total_s, self._taken_s)
        return new_s
