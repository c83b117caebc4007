"""The learning rate of a loop that logs none, and that of each parameter group to compare between ranks: where it is a
number on the host.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from torch import Tensor

from rangewatch.core import limits
from rangewatch.hooks.optimizers.in_use import OptimizersInUse
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import StepReader
from rangewatch.recording.parallel.placements import Layout
from rangewatch.recording.parallel.schedule import Schedule
from rangewatch.steps.interface import StepRecorder


class LearningRate(StepReader):
    """Of several groups and optimizers it is the one of the largest magnitude. Optimizers that rest are left out.

    A step's value is recorded when the next one ends: only then is it known that the loop has logged none for it.
    """

    def __init__(self, agent: StepRecorder, optimizers: OptimizersInUse) -> None:
        self._agent, self._optimizers = agent, optimizers
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
        return (rate for each in self._optimizers.in_use() for rate in _rates_of(each) if rate is not None)


PARTED, MOST_PARTED = 1.5, 64
"""How many times as much as another's one group's rate must have changed in a step, and how often that is recorded."""


class GroupRates(StepReader):
    """Series `lr_group_0`, `lr_group_1` and so on, where there are several parameter groups, in the order of the
    optimizers and their groups, of which those that rest have none; `lr` has the largest alone. At the steps of the
    schedule, where there are other ranks to compare with; at the first step, and after 2, 4, 8 and so on; and at a step
    before which some groups' rates changed as the others' did not, and the one before.
    """

    def __init__(self, values: LoggedValues, optimizers: OptimizersInUse, layout: Layout, schedule: Schedule) -> None:
        self._optimizers, self._values, self._layout, self._schedule = optimizers, values, layout, schedule
        self._last: list[float | None] = []
        self._step = self._parted = self._steps = 0

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        self._step = step

    def end_step(self) -> None:
        """The open step is about to be closed: a scheduler that steps now sets the next one's."""
        rates = list(islice(self._of_groups(), limits.RATE_GROUPS))
        last, self._last = self._last, rates
        if len(rates) < 2:
            return
        has_parted = self._parted < MOST_PARTED and _have_parted(last, rates)
        if has_parted:
            self._parted += 1
            self._record(self._step - 1, last)
        self._steps += 1
        is_due = self._layout.world_size > 1 and self._schedule.is_due(self._step)
        if has_parted or is_due or not self._steps & (self._steps - 1):
            self._record(self._step, rates)

    def _of_groups(self) -> Iterator[float | None]:
        for optimizer in self._optimizers.every():
            is_resting = id(optimizer) in self._optimizers.resting
            yield from (None if is_resting else rate for rate in _rates_of(optimizer))

    def _record(self, step: int, rates: Iterable[float | None]) -> None:
        for at, rate in enumerate(rates):
            if rate is not None:
                self._values.record(f"lr_group_{at}", step, rate)


def _have_parted(last: list[float | None], rates: list[float | None]) -> bool:
    """Groups whose rate is 0, from which schedules begin, or becomes 0 are left out: they have no ratio. One whose rate
    was 0 while another's was not, and is no longer, as where layers are unfrozen, has parted."""
    if len(last) != len(rates) or last == rates:
        return False
    if any(last) and any(was == 0 and now for was, now in zip(last, rates, strict=True)):
        return True
    times = [now / was for was, now in zip(last, rates, strict=True) if was and now is not None and now / was > 0]
    return len(times) > 1 and max(times) >= PARTED * min(times)


def _rates_of(optimizer: Any) -> Iterator[float | None]:
    """Of each parameter group. One that lies on a device is not read, and is None: that would wait for it."""
    for group in getattr(optimizer, "param_groups", None) or ():
        rate = group.get("lr")
        is_host = isinstance(rate, (int, float)) or (isinstance(rate, Tensor) and rate.is_cpu and rate.numel() == 1)
        yield float(rate) if is_host else None
