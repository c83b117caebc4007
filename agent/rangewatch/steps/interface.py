"""What the hooks of this room need of the agent that they report to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from rangewatch.core.guard import Guard
from rangewatch.recording.level import Recording
from rangewatch.recording.observer import Observer
from rangewatch.steps.phase_clock import PhaseClock


class StepRecorder(Protocol):
    """The agent of one attached model, as seen from where its steps begin and end."""

    guard: Guard
    observer: Observer
    recording: Recording
    phases: PhaseClock
    step: int
    """Number of the open step."""
    in_forward: list[Callable[[], None]]
    """Each is called where a forward of the model begins."""

    def close_step(self) -> None:
        """The open step is over."""

    def record(self, values: Mapping[str, Any]) -> None:
        """Record values of the open step: numbers, or tensors of one element."""

    def add_event(self, kind: str, message: str = "", data: dict[str, Any] | None = None) -> None:
        """Ship an event with the next batch."""
