"""The learning rate of a loop that logs none: that of the parameter groups, where it is a number on the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import ref

from torch import Tensor

from rangewatch.recording.observer import StepReader
from rangewatch.steps.interface import StepRecorder


class LearningRate(StepReader):
    """Of several groups and optimizers it is the one of the largest magnitude. Called by the training thread.

    A step's value is recorded when the next one ends: only then is it known that the loop has logged none for it.
    """

    def __init__(self, agent: StepRecorder, optimizers: Iterable[Any]) -> None:
        self._agent = agent
        self._optimizers = [ref(each) for each in optimizers]
        self._held: tuple[int, float] | None = None

    def add(self, optimizer: Any) -> None:
        """It has come to train the model too."""
        self._optimizers = [each for each in self._optimizers if each() is not None] + [ref(optimizer)]

    def end_step(self) -> None:
        """The open step is about to be closed: a scheduler that steps now sets the next one's."""
        self.flush()
        if self._is_wanted():
            rate = max(self._rates(), key=abs, default=None)
            self._held = None if rate is None else (self._agent.step, rate)

    def flush(self) -> None:
        """Record the value of the last step, unless the loop has logged one."""
        held, self._held = self._held, None
        if held is not None and self._is_wanted():
            self._agent.values.record("lr", *held)

    def _is_wanted(self) -> bool:
        return not self._agent.values.logged_rates

    def _rates(self) -> Iterator[float]:
        """One that lies on a device is not read: that would wait for it."""
        for each in self._optimizers:
            for group in getattr(each(), "param_groups", None) or ():
                rate = group.get("lr")
                if isinstance(rate, (int, float)) or (isinstance(rate, Tensor) and rate.is_cpu and rate.numel() == 1):
                    yield float(rate)
