"""Event `repeated_random`: torch's random numbers are in a state in which they were some steps before, as where the
seed is set anew at the top of each epoch: noise, dropout, augmentation and batches that are drawn are the same again.

Looked at before the step's first forward, 6 us; after 1,024 steps at each fourth, where it is seen by the fourth epoch
at the latest. Of the host's generator alone; Python's and NumPy's are not read.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor

from rangewatch.recording.eager import hidden_from_modes, is_traced_now
from rangewatch.recording.events import Events
from rangewatch.recording.observer import InputListener, StepReader
from rangewatch.recording.tensor_names import leaves
from rangewatch.wire.events import RepeatedRandom

FEWEST = 4
"""Steps in a row that must be so, and steps to the earlier ones at least: a noise that is meant to be the same in each
step is no fault."""

MOST = 4_096
"""Last states that are known: of longer epochs it is not seen."""

FIRST, LATER = 1_024, 4
"""First steps of which each is looked at, and one of how many of those after them."""

ELEMENTS = 64
"""Of whole numbers that the model is given that are compared."""

BYTES = 128
"""Of the state that are compared: the seed, the place in the block of numbers and the first words of the block."""

_transform = torch._C._functorch.peek_interpreter_stack
"""Of `torch.func`, as `vmap` and `grad`: what is made within has no memory of its own, the generator's state either."""


class RandomStates(StepReader, InputListener):
    """Called by the training thread, until it has reported it once."""

    def __init__(self, events: Events, of_inputs: list[InputListener]) -> None:
        self._events, self._of_inputs = events, of_inputs
        self._step = self._period = self._count = self._first = self._looked = 0
        self._are_inputs_same: bool | None = None
        self._given: int | None = None
        """A number of what the model was given when the first state of these came again."""
        self._do_inputs_differ = False
        self._steps: OrderedDict[int, tuple[int, int | None]] = OrderedDict()
        """State -> the last step that had it, oldest first, and a number of what the model was given."""
        self._last: int | None = None
        self._is_done = False

    def begin_step(self, step: int) -> None:
        """`step` is open: look at its first forward."""
        self._step = step
        is_due = self._looked < FIRST or not step % LATER
        if is_due and not self._is_done and self not in self._of_inputs:
            self._of_inputs.append(self)

    def inputs_given(self, values: Any) -> None:
        """The model is called with these, for the first time in the step."""
        self._of_inputs.remove(self)
        if is_traced_now() or _transform() is not None:
            return
        self._looked += 1
        with hidden_from_modes():
            state = hash(torch.default_generator.get_state().numpy()[:BYTES].tobytes())
        if state == self._last:
            return
        (before, given), self._last = self._steps.pop(state, (None, None)), state
        now = _print(values)
        self._steps[state] = self._step, now
        if len(self._steps) > MOST:
            self._steps.popitem(last=False)
        period = 0 if before is None else self._step - before
        if not period or period != self._period:
            self._count, self._first, self._are_inputs_same = 0, self._step, None if now is None else True
            self._given, self._do_inputs_differ = now, False
        self._count, self._period = self._count + 1, period
        if now != given:
            self._are_inputs_same = False
        self._do_inputs_differ = self._do_inputs_differ or now != self._given
        if period >= FEWEST and self._count == FEWEST:
            self._is_done = True
            self._steps.clear()
            # What is the same in each step, as all of a graph, or places beside the words, is no batch drawn again.
            is_known = self._do_inputs_differ or self._are_inputs_same is False
            self._events.add(RepeatedRandom(self._first, period, self._are_inputs_same if is_known else None))


def _print(values: Any) -> int | None:
    """A number of the first elements of the first tensor, where these are whole numbers in host memory, as of words:
    `input_rms` shows others. None where it is no such tensor."""
    first = next((each for each in values if isinstance(each, Tensor)), None)  # leaves() takes 4 us
    if first is None:
        first = next((each for each in leaves(values) if isinstance(each, Tensor)), None)
    if type(first) is not Tensor or first.is_floating_point() or not first.is_cpu or not first.numel():
        return None
    if first.is_nested:
        return None
    if first.is_complex() or first.is_quantized or first.layout is not torch.strided or not first.is_contiguous():
        return None
    return hash(first.numpy().reshape(-1)[:ELEMENTS].tobytes())
