"""Event `own_steps`: this rank has updated its parameters for long, and nothing of their size has gone to another rank
or come from one, so that nobody can have reduced gradients or averaged parameters: no wrapper, no loop.

Whether the ranks are meant to train one model nobody knows here: the server compares what they hold. Once anything of
their size was sent, though it be a batch or an activation, the event is over for good: between two averages local SGD
looks the same, and so does a stage of a pipeline to whoever does not see what it sends. It reads no tensor.
"""

from __future__ import annotations

from typing import Protocol

from torch.nn.parameter import is_lazy

from rangewatch.core import limits
from rangewatch.recording.events import Events, sendable
from rangewatch.recording.observer import StepReader
from rangewatch.recording.parallel.placements import Layout
from rangewatch.wire.events import OwnSteps

LASTING = 128
"""Updates after which it is sent. Local SGD averages every few to some dozen updates; DiLoCo every 500, which is why
the finding says what else it may be, and why it ends when something is sent."""

SHARE, LEAST_BYTES = 1 / 1024, 64
"""Of the parameters' bytes: what is sent in one step and is less than both is a loss or a metric, and not the
parameters, be they compressed a hundredfold."""


class Traffic(Protocol):
    """Who sees what this process sends."""

    def moved_bytes(self) -> int | None:
        """Of all collectives, sends and receives so far; None where any may not be seen."""


class OwnStepsReport(StepReader):
    """Of one model. Called by the training thread."""

    def __init__(self, layout: Layout, events: Events, traffic: Traffic | None) -> None:
        self._layout, self._events, self._traffic = layout, events, traffic
        self._step, self._first = 0, -1
        self._has_updated = self._is_reported = False
        self._updates = self._moved = self._least = 0

    def begin_step(self, step: int) -> None:
        """`step` is open. What was sent before the first update, such as the parameters, once, says nothing."""
        self._step = step
        if not self._least and self._traffic is not None:
            self._moved = self._traffic.moved_bytes() or 0

    def before_update(self) -> None:
        """An optimizer is about to update the parameters."""
        self._has_updated = True

    def end_step(self) -> None:
        """The open step is about to be closed."""
        traffic, has_updated = self._traffic, self._has_updated
        self._has_updated = False
        if traffic is None or (not has_updated and not self._updates) or self._layout.world_size < 2:
            return
        if not self._least:
            self._least, self._first = self._least_bytes(), self._step
        moved = traffic.moved_bytes()
        if moved is None or moved - self._moved >= self._least:
            self._traffic = None
            if self._is_reported:
                self._events.add(OwnSteps(0))
            return
        self._moved = moved
        self._updates += has_updated
        if has_updated and self._updates == LASTING:
            placed = self._layout.parameters()
            axes = self._layout.unwrapped(placed)
            if axes is None:
                self._traffic = None
                return
            self._is_reported = True
            name = next((each.fqn for each in placed), "")
            self._events.add(OwnSteps(LASTING, self._first, sendable(name)[: limits.NAME_CHARACTERS], axes))

    def _least_bytes(self) -> int:
        parameters = [each for each in self._layout.trained() if not is_lazy(each)]
        whole = sum(each.numel() * each.element_size() for each in parameters)
        return max(min(LEAST_BYTES, whole), int(whole * SHARE), 1)
