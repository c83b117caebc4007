"""The learning rate of a loop that logs none, and that of each parameter group to compare between ranks: where it is a
number on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any
from weakref import ref

from torch import Tensor

from rangewatch.core import limits
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.parallel.placements import Layout
from rangewatch.recording.parallel.schedule import Schedule
from rangewatch.steps.interface import StepRecorder
from rangewatch.steps.optimizers.reader import OptimizerReader


class LearningRate(OptimizerReader):
    """Of several groups and optimizers it is the one of the largest magnitude.

    A step's value is recorded when the next one ends: only then is it known that the loop has logged none for it.
    """

    def __init__(self, agent: StepRecorder, optimizers: Iterable[Any]) -> None:
        super().__init__(optimizers)
        self._agent = agent
        self._held: tuple[int, float] | None = None

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
        return (rate for rate in _rates_of(self._optimizers) if rate is not None)


class GroupRates(OptimizerReader):
    """Series `lr_group_0`, `lr_group_1` and so on, at the steps of the schedule, where there are several parameter
    groups and other ranks to compare with: `lr` alone has the largest. In the order of the optimizers and their groups.
    """

    def __init__(self, values: LoggedValues, optimizers: Iterable[Any], layout: Layout, schedule: Schedule) -> None:
        super().__init__(optimizers)
        self._values, self._layout, self._schedule = values, layout, schedule

    def end_step(self) -> None:
        """The open step is about to be closed: a scheduler that steps now sets the next one's."""
        if self._layout.world_size < 2 or not self._schedule.is_due(self._step):
            return
        rates = list(islice(_rates_of(self._optimizers), limits.RATE_GROUPS))
        if len(rates) > 1:
            for at, rate in enumerate(rates):
                if rate is not None:
                    self._values.record(f"lr_group_{at}", self._step, rate)


def _rates_of(optimizers: Iterable[ref[Any]]) -> Iterator[float | None]:
    """Of each parameter group. One that lies on a device is not read, and is None: that would wait for it."""
    for each in optimizers:
        for group in getattr(each(), "param_groups", None) or ():
            rate = group.get("lr")
            is_host = isinstance(rate, (int, float)) or (isinstance(rate, Tensor) and rate.is_cpu and rate.numel() == 1)
            yield float(rate) if is_host else None
