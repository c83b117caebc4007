"""What each reader of the optimizers has: the optimizers that train the model, and the step that is open."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import ref

from rangewatch.hooks.optimizers.in_use import RestingOptimizers
from rangewatch.recording.observer import StepReader


class OptimizerReader(StepReader):
    """Called by the training thread. Keeps no optimizer alive."""

    def __init__(self, optimizers: Iterable[Any], resting: RestingOptimizers) -> None:
        self._optimizers = [ref(each) for each in optimizers]
        self._resting = resting
        self._step = 0

    def add(self, optimizer: Any) -> None:
        """It has come to train the model too."""
        self._optimizers = [each for each in self._optimizers if each() is not None] + [ref(optimizer)]

    def in_use(self) -> Iterator[Any]:
        """Those that do not rest."""
        resting = self._resting.resting
        return (each for one in self._optimizers if (each := one()) is not None and id(each) not in resting)

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        self._step = step
