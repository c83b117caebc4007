"""Whether gradients are zeroed between two updates: without that each update goes by the sum of all gradients so far.

Torch counts the changes that are made to a tensor in place. Where nothing but the backward changes a gradient its count
rises by one with each; zeroing it raises the count by one more, and `set_to_none` begins a new tensor. So no element is
read. Clipping between backward and update raises it too, but that comes after the last backward and before the update.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import ref

from torch import Tensor, nn

_NONE = -2
"""No tensor's count is one more."""


class GradientSample:
    """One parameter, the gradient of which is followed."""

    __slots__ = ("_has_accumulated", "_is_kept", "_read", "_version", "parameter", "step_count")

    def __init__(self, parameter: nn.Parameter, read: Callable[[Tensor], None]) -> None:
        self.parameter, self._read = ref(parameter), read
        self._version, self._has_accumulated, self._is_kept = _NONE, False, False
        self.step_count = 0
        """Updates in a row by gradients that were not zeroed after the one before."""

    def accumulated(self, parameter: Tensor) -> None:
        """The hook after its gradient accumulated, with what is read of it then."""
        if parameter.grad is not None:
            version = parameter.grad._version
            self._is_kept = version == self._version + 1 and (self._is_kept or not self._has_accumulated)
            self._version, self._has_accumulated = version, True
        self._read(parameter)

    def updated(self) -> None:
        """Its optimizer has stepped."""
        parameter = self.parameter()
        if self._has_accumulated:
            self.step_count = self.step_count + 1 if self._is_kept else 0
        gradient = None if parameter is None else parameter.grad
        self._version, self._has_accumulated = _NONE if gradient is None else gradient._version, False


class KeptGradients:
    """Two parameters of a model, the first and the last that are trainable at attach: of two optimizers one each."""

    def __init__(self) -> None:
        self._samples: list[GradientSample] = []

    def follow(self, parameter: nn.Parameter, read: Callable[[Tensor], None]) -> Callable[[Tensor], None]:
        """Returns the hook to use in the place of `read`."""
        sample = GradientSample(parameter, read)
        self._samples.append(sample)
        return sample.accumulated

    def of(self, optimizer: Any) -> Callable[[], None]:
        """What is to be called after each step of `optimizer`."""
        held = {id(each) for group in getattr(optimizer, "param_groups", ()) for each in group["params"]}
        mine = [each for each in self._samples if id(each.parameter()) in held]

        def updated() -> None:
            for each in mine:
                each.updated()

        return updated

    @property
    def step_count(self) -> int:
        """Updates in a row, up to the last, by gradients that had been kept: the most of any sample."""
        return max((each.step_count for each in self._samples), default=0)
