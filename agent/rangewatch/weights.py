"""Reads the parameters themselves, this rank's part of each: kind `weight`."""

from __future__ import annotations

from weakref import ref

from torch import nn

from rangewatch.observer import Observer
from rangewatch.selection import Selection
from rangewatch.tensor_names import clean_parameters


class WeightReads:
    """Reads on a cadence, and looks the parameters up anew each time: sharding and the user may replace them."""

    def __init__(self, observer: Observer, model: nn.Module, selection: Selection, *, start_step: int, every: int):
        self._observer, self._model, self._selection = observer, ref(model), selection
        self._start_step, self._every = start_step, every

    def read_if_due(self, step: int) -> None:
        """`step` is about to be closed: its update is done."""
        model = self._model()
        if model is None or (step - self._start_step) % self._every:
            return
        for fqn, parameter in clean_parameters(model):
            if self._selection.has(fqn):
                self._read(fqn, parameter)

    def _read(self, fqn: str, parameter: nn.Parameter) -> None:
        tensor = parameter.detach()
        number = self._observer.number(tensor, fqn, "weight", 0, "Parameter")
        if number >= 0 and tensor.numel():  # a rank may have no part of a small one
            self._observer.read(number, tensor)
