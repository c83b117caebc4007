"""Reads the parameters themselves, this rank's part of each: kind `weight`."""

from __future__ import annotations

from weakref import ref

from torch import Tensor, nn

from rangewatch.observer import Observer
from rangewatch.recording import Recording
from rangewatch.selection import Selection
from rangewatch.tensor_names import clean_parameters


class Cadence:
    """Which steps read what is read seldom: each `every` from `start_step` on, and traced ones."""

    def __init__(self, recording: Recording, start_step: int, every: int) -> None:
        self._recording, self._start_step, self._every = recording, start_step, every

    def is_due(self, step: int) -> bool:
        """Whether the open step, `step`, is one of them."""
        return self._recording.is_traced or not (step - self._start_step) % self._every


class WeightReads:
    """Looks the parameters up anew each time: sharding and the user may replace them."""

    def __init__(
        self, observer: Observer, model: nn.Module, selection: Selection, recording: Recording, cadence: Cadence
    ) -> None:
        self._observer, self._model, self._selection = observer, ref(model), selection
        self._recording, self._cadence = recording, cadence

    def read_if_due(self, step: int) -> None:
        """`step` is about to be closed: its update is done."""
        model = self._model()
        if model is None or not self._recording.has("weight") or not self._cadence.is_due(step):
            return
        for fqn, parameter in clean_parameters(model):
            if self._selection.has(fqn) and "weight" in self._recording.wanted(fqn):
                read_parameter(self._observer, fqn, "weight", parameter.detach())


def read_parameter(observer: Observer, fqn: str, kind: str, tensor: Tensor) -> None:
    """Read this rank's part of a tensor that has a parameter's shape; it may have no part of a small one."""
    number = observer.number(tensor, fqn, kind, 0, "Parameter")
    if number >= 0 and tensor.numel():
        observer.read(number, tensor)
