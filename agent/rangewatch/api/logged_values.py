"""Values that the user logs, and those that the agent records beside them: which step each belongs to."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from rangewatch.core import limits
from rangewatch.core.guard import Guard, logger
from rangewatch.delivery.batcher import Drops, sendable
from rangewatch.recording.observer import Observer
from rangewatch.recording.phase_times import SERIES as PHASES
from rangewatch.recording.step_buffer import StepBuffer

OWN_SERIES = frozenset(
    {"skipped_step", "found_inf", "loss_scale", "step_time_s", "wall_time_s", "agent_time_s", "agent_device_time_s"}
    | {"weights_finite"}
    | set(PHASES.values())
)
"""Series that the agent records itself: the user's values cannot have these names."""


class LoggedValues:
    """Called by the training thread."""

    def __init__(self, buffer: StepBuffer, observer: Observer, drops: Drops, guard: Guard) -> None:
        self._buffer, self._observer, self._drops, self._guard = buffer, observer, drops, guard
        self._names: set[str] = set()
        self._names_before: set[str] = set()
        """Names logged for the step just closed, before it closed or after."""
        self._refused: set[str] = set()

    def close_step(self) -> None:
        """What was logged was of the step just closed."""
        self._names, self._names_before = set(), self._names

    def log(self, values: Mapping[str, Any], step: int, *, can_be_late: bool) -> None:
        """One that cannot be recorded is a fault and takes no other with it.

        `can_be_late`: a value belongs to the step before `step`, if that has none of this name.
        """
        for name, value in values.items():
            if name in OWN_SERIES or name.startswith("loss_scale/"):
                self._refuse(name)
                continue
            is_late = can_be_late and name not in self._names_before
            (self._names_before if is_late else self._names).add(name)
            self._guard.run("log", partial(self.record, _series_name(name), step - is_late, value))

    def record(self, name: str, step: int, value: Any) -> None:
        """A number, or a tensor of one element wherever it is."""
        if not self._observer.is_on_device(value):
            self._buffer.set_series(name, step, _as_float(value))
        elif not self._observer.device.put_scalar(name, step, value):
            self._drops.add("too_many_values")

    def _refuse(self, name: str) -> None:
        self._drops.add("reserved_name")
        if name not in self._refused:
            self._refused.add(name)
            logger.warning("rangewatch: log(%s=...) is not recorded: the agent records a series of that name", name)


def _series_name(name: str) -> str:
    return sendable(name)[: limits.NAME_CHARACTERS]


def _as_float(value: Any) -> float:
    return float(value.detach()) if hasattr(value, "detach") else float(value)
