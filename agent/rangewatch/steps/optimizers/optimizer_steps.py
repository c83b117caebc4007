"""How many updates the optimizer has counted, by which Adam corrects its bias: series `optimizer_steps`."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rangewatch.hooks.optimizers.in_use import OptimizersInUse
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import Observer, StepReader, is_being_captured
from rangewatch.recording.parallel.schedule import Schedule

SERIES = "optimizer_steps"

MOST_SEARCHED = 64
"""Parameters whose state is looked at for a count: of frozen layers or unused experts there is none."""


class OptimizerSteps(StepReader):
    """The count of the first parameter that has one, of the first optimizer that does not rest."""

    def __init__(
        self, observer: Observer, values: LoggedValues, optimizers: OptimizersInUse, schedule: Schedule
    ) -> None:
        self._observer, self._values, self._optimizers, self._schedule = observer, values, optimizers, schedule
        self._step = 0

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        self._step = step

    def end_step(self) -> None:
        """The open step is about to be closed."""
        if self._schedule.is_due(self._step):
            count = next((known for each in self._optimizers.in_use() if (known := _count(each)) is not None), None)
            if count is not None and not (isinstance(count, Tensor) and is_being_captured(count)):
                self._values.record(SERIES, self._step, count)


def _count(optimizer: Any) -> float | Tensor | None:
    state = getattr(optimizer, "state", None)
    searched = 0
    for group in getattr(optimizer, "param_groups", None) or ():
        if isinstance(group.get("step"), int):  # as Apex's FusedAdam counts
            return float(group["step"])
        for parameter in group["params"]:
            searched += 1
            if searched > MOST_SEARCHED or state is None:
                return None
            count = state[parameter].get("step") if parameter in state else None
            if isinstance(count, Tensor):
                local: Tensor = getattr(count, "_local_tensor", count)
                return local.detach() if local.numel() == 1 else None
            if isinstance(count, (int, float)):
                return float(count)
    return None
