"""What the hooks of this room need of the agent that they report to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rangewatch.core.guard import Guard
from rangewatch.recording.events import Events
from rangewatch.recording.level import Recording
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.nonfinite.nonfinite_context import NonfiniteContext
from rangewatch.recording.observer import ForwardListener, InputListener, Observer
from rangewatch.steps.phase_clock import PhaseClock


class StepRecorder(Protocol):
    """The agent of one attached model, as seen from where its steps begin and end."""

    guard: Guard
    observer: Observer
    recording: Recording
    phases: PhaseClock
    in_forward: list[ForwardListener]
    """They hear where a forward of the model begins; they may take themselves from the list."""
    of_inputs: list[InputListener]
    """The same for what it is given."""
    events: Events
    values: LoggedValues
    nonfinite: NonfiniteContext

    @property
    def step(self) -> int:
        """Number of the open step."""

    def before_backward(self) -> None:
        """Torch's backward is about to begin."""

    def close_step(self) -> None:
        """The open step is over."""

    def loss_is_scaled(self) -> None:
        """A loss scaler is in use that was not known when the run began."""

    def record(self, values: Mapping[str, Any]) -> None:
        """Record values of the open step: numbers, or tensors of one element."""
