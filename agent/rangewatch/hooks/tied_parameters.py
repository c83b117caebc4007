"""Event `untied_weights`: names that stood for one parameter, and stand for several since the event's step.

A resize of an embedding, a model made on the meta device, a copy or a wrapper may untie what was tied: nothing fails,
and one of the two begins with values that nobody has trained. Looked at after the first steps, since a model may be
wrapped after it is attached, and when the model has other parameters. It reads no tensor.
"""

from __future__ import annotations

from collections.abc import Callable
from weakref import ref

from torch import nn

from rangewatch.core import limits
from rangewatch.hooks.parameter_hooks import flat_parameters
from rangewatch.recording.events import Events, sendable
from rangewatch.recording.observer import StepReader
from rangewatch.recording.tensor_names import parameter_names
from rangewatch.wire.events import UntiedWeights

MOST_EVENTS = 8

FIRST_STEPS = 2


class TiedParameters(StepReader):
    """Called by the training thread, between steps. `structure()`: another number when the model has other parameters
    or modules."""

    def __init__(self, events: Events, model: nn.Module, structure: Callable[[], int]) -> None:
        self._events, self._model, self._structure = events, ref(model), structure
        self._known_structure, self._step_count, self._emitted = structure(), 0, 0
        self._tied: set[tuple[str, ...]] = set()
        self._look()

    def end_step(self) -> None:
        """The open step is about to be closed."""
        self._step_count += 1
        was, self._known_structure = self._known_structure, self._structure()
        if self._known_structure != was or self._step_count <= FIRST_STEPS:
            self._look()

    def _look(self) -> None:
        model = self._model()
        if model is None or flat_parameters(model):  # of which parameters are views that come and go
            return
        names = parameter_names(model)
        now = {name: at for at, each in enumerate(names) for name in each}
        for group in list(self._tied):
            numbers = {now[name] for name in group if name in now}
            if len(numbers) > 1:
                self._tied.discard(group)
                if self._emitted < MOST_EVENTS:
                    self._emitted += 1
                    self._events.add(
                        UntiedWeights(tuple(sendable(each)[: limits.NAME_CHARACTERS] for each in group[:MOST_EVENTS]))
                    )
        self._tied.update(tuple(each) for each in names if len(each) > 1)
