"""Series `input_rms`, `input_rms_1` and so on: the size of what the model is given, by a sample of its elements.

Of the step's first forward in training, of each floating tensor in the order of the arguments: the root of the mean
square. A batch that was not normalised, or was twice, shows there and nowhere else for sure: what a first layer makes
of it may as well be its weights'. An input that a gradient goes through is another model's output, and not read.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import InputListener, Observer, StepReader, is_being_captured, why_unobservable
from rangewatch.recording.tensor_names import leaves

SERIES = ("input_rms", "input_rms_1", "input_rms_2")
"""As many tensors are read."""

PIECES, LENGTH = 64, 64
"""So many runs of so many elements are read of a tensor, spread over it: 15 us in host memory, however large it is."""

ON_DEVICE = 4
"""Steps from one reading on an accelerator to the next, where each takes three launches."""


class InputScale(StepReader, InputListener):
    """Called by the training thread."""

    def __init__(self, observer: Observer, values: LoggedValues, of_inputs: list[InputListener]) -> None:
        self._observer, self._values, self._of_inputs = observer, values, of_inputs
        self._step = 0
        self._found: list[Tensor | float | None] = []

    def begin_step(self, step: int) -> None:
        """`step` is open: look at its first forward."""
        self._step = step
        if self not in self._of_inputs:
            self._of_inputs.append(self)

    def inputs_given(self, values: Any) -> None:
        """The model is called with these, for the first time in the step."""
        self._of_inputs.remove(self)
        tensors = [each for each in leaves(values) if isinstance(each, Tensor) and each.is_floating_point()]
        self._found = [self._read(each) for each in tensors[: len(SERIES)]]

    @torch.no_grad()
    def _read(self, tensor: Tensor) -> Tensor | float | None:
        local: Any = getattr(tensor, "_local_tensor", tensor)
        is_there = isinstance(local, Tensor) and local.layout is torch.strided and local.device.type != "meta"
        is_there = is_there and local.dtype.itemsize > 1
        if not is_there or tensor.requires_grad or why_unobservable(local) or is_being_captured(local):
            return None
        is_on_device = self._observer.is_on_device(local)
        if is_on_device and self._step % ON_DEVICE:
            return None
        part = sampled(local.detach())
        if part is None:
            return None
        rms = rms_of(part)
        return rms if is_on_device else float(rms)

    def end_step(self) -> None:
        """The open step is about to be closed."""
        found, self._found = self._found, []
        for name, value in zip(SERIES, found, strict=False):
            if value is not None:
                self._values.record(name, self._step, value)


def sampled(tensor: Tensor) -> Tensor | None:
    """Elements of all of it, without a copy; of a tensor whose memory has gaps those of its first row. None where there
    are none, or too many in a row."""
    if not tensor.numel():
        return None
    if not tensor.is_contiguous() and not tensor.is_contiguous(memory_format=_channels_last(tensor)):
        tensor = tensor[0] if tensor.dim() > 1 else tensor
        return tensor if tensor.numel() <= 16 * PIECES * LENGTH else None
    if tensor.numel() <= PIECES * LENGTH:
        return tensor
    stride = (tensor.numel() - LENGTH) // (PIECES - 1)
    return tensor.as_strided((PIECES, LENGTH), (stride, 1), tensor.storage_offset())


def rms_of(part: Tensor) -> Tensor:
    """Root of the mean square; in float32 at the least, and float64 of what is: torch narrows no dtype here."""
    dtype = torch.float32 if part.dtype.itemsize < 4 else part.dtype
    return torch.linalg.vector_norm(part, dtype=dtype) / math.sqrt(part.numel())


def _channels_last(tensor: Tensor) -> torch.memory_format:
    by_dim = {4: torch.channels_last, 5: torch.channels_last_3d}
    return by_dim.get(tensor.dim(), torch.contiguous_format)
