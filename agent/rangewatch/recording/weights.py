"""Reads the parameters themselves, this rank's part of each, as a step's forward uses them: kind `weight`."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rangewatch.core.selection import Selection
from rangewatch.recording.level import Recording
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.nonfinite.nonfinite_context import NonfiniteContext
from rangewatch.recording.observer import Observer, StepReader, local_part, why_unobservable
from rangewatch.recording.tensor_names import clean_parameters


class Cadence:
    """Which steps read what not every step reads: each `every` from `start_step` on, and traced ones."""

    def __init__(self, recording: Recording, start_step: int, every: int) -> None:
        self._recording, self._start_step, self._every = recording, start_step, every

    def is_due(self, step: int) -> bool:
        """Whether the open step, `step`, is one of them."""
        return self._recording.is_traced or not (step - self._start_step) % self._every


class WeightReads(StepReader):
    """Reads them with the first tensor of the step: a checkpoint may be loaded, or the model sharded, until then."""

    def __init__(
        self, observer: Observer, model: nn.Module, selection: Selection, recording: Recording, cadence: Cadence
    ) -> None:
        self._observer, self._model, self._selection = observer, ref(model), selection
        self._recording, self._cadence = recording, cadence
        self._is_pending = False

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        self._is_pending = self._recording.has("weight") and self._cadence.is_due(step)
        if self._is_pending:
            self._observer.read = self._read_first

    def read_now(self) -> None:
        """Read them, unless that is done in this step; the update comes next."""
        model, was_pending, self._is_pending = self._model(), self._is_pending, False
        if was_pending and model is not None:
            self._observer.read = self._observer.host.read
            wanted = (
                (fqn, parameter.detach())
                for fqn, parameter in clean_parameters(model)
                if not is_lazy(parameter) and self._selection.has(fqn) and "weight" in self._recording.wanted(fqn)
            )
            read_parameters(self._observer, "weight", wanted)

    def end_step(self) -> None:
        """Read them, if nothing was read in this step."""
        self.read_now()

    def _read_first(self, number: int, tensor: Tensor) -> None:
        try:
            self.read_now()
        finally:
            self._observer.host.read(number, tensor)


class FiniteWeights(StepReader):
    """After an accelerator has held a NaN or Inf: whether the weights are finite when the next step opens."""

    def __init__(self, model: nn.Module, nonfinite: NonfiniteContext, values: LoggedValues) -> None:
        self._model, self._nonfinite, self._values = ref(model), nonfinite, values

    def begin_step(self, step: int) -> None:
        """Record the series `weights_finite` of `step`, if it is asked for."""
        model = self._model() if self._nonfinite.wants_weights else None
        if model is not None:
            self._nonfinite.wants_weights = False
            if (value := are_finite(model)) is not None:
                self._values.record("weights_finite", step, value)


@torch.no_grad()
def are_finite(model: nn.Module) -> Tensor | None:
    """1.0 when all that this rank has of the parameters is finite, else 0.0: on their device, without waiting for it.

    None when there is none, or not all are on one device.
    """
    local = [local_part(each.detach()) for each in model.parameters() if not is_lazy(each)]
    known = [each for each in local if each.numel() and why_unobservable(each) is None]
    if not known or len({each.device for each in known}) > 1:
        return None
    largest = [torch.linalg.vector_norm(each.float() if each.itemsize == 1 else each, float("inf")) for each in known]
    return torch.stack([each.double() for each in largest]).isfinite().all().double()


def read_parameters(observer: Observer, kind: str, tensors: Iterable[tuple[str, Tensor]]) -> None:
    """Read this rank's part of tensors that have a parameter's name; it may have no part of a small one."""
    numbered = ((observer.number(tensor, fqn, kind, 0, "Parameter"), tensor) for fqn, tensor in tensors)
    observer.read_many((number, tensor) for number, tensor in numbered if number >= 0 and tensor.numel())
