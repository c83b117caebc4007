"""Reads what an optimizer gets and does: kinds `reduced_grad` and `update`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from weakref import ref

from torch import Tensor, nn

from rangewatch.core.selection import Selection
from rangewatch.hooks.optimizers.in_use import parameters_held
from rangewatch.recording.level import Recording
from rangewatch.recording.observer import Observer, StepReader, local_part
from rangewatch.recording.tensor_names import clean_parameters
from rangewatch.recording.weights import Cadence, read_parameters


class OptimizerReads(StepReader):
    """Called around each optimizer's step, and before a step is closed (a scaler that skips calls no optimizer)."""

    def __init__(
        self, observer: Observer, model: nn.Module, selection: Selection, recording: Recording, cadence: Cadence
    ) -> None:
        self._observer, self._model, self._selection = observer, ref(model), selection
        self._recording, self._cadence = recording, cadence
        self._before: list[tuple[str, nn.Parameter, Tensor]] = []
        self._read: set[str] = set()
        """Parameters whose gradient has been read in the open step."""

    def before(self, step: int, optimizer: Any) -> None:
        """`optimizer` is about to update its parameters in the open step, `step`, by the gradients they have."""
        parameters = self._parameters(optimizer)
        self._read_gradients(parameters)
        self._keep(step, [(fqn, each) for fqn, each in parameters if each.grad is not None])

    def before_closure(self, step: int, optimizer: Any) -> None:
        """The same, but the gradients are yet to be computed."""
        self._keep(step, self._parameters(optimizer))

    def after(self, optimizer: Any) -> None:
        """It has updated them."""
        self._read_gradients(self._parameters(optimizer))
        before, self._before = self._before, []
        for fqn, parameter, old in before:
            # One by one: all at once would be a third copy of the parameters.
            read_parameters(self._observer, "update", [(fqn, local_part(parameter.detach()).sub(old))])

    def _keep(self, step: int, parameters: list[tuple[str, nn.Parameter]]) -> None:
        if self._recording.has("update") and self._cadence.is_due(step):
            # As long as the update lasts, a second copy of the parameters: their values are gone afterwards.
            self._before = [
                (fqn, each, local_part(each.detach()).clone())
                for fqn, each in parameters
                if "update" in self._recording.wanted(fqn)
            ]

    def end_step(self) -> None:
        """The open step is about to be closed: read the gradients that no optimizer has taken."""
        if self._recording.has("reduced_grad"):
            self._read_gradients(self._parameters(None))
        self._read.clear()
        self._before = []

    def _read_gradients(self, parameters: Iterable[tuple[str, nn.Parameter]]) -> None:
        wanted = [
            (fqn, parameter.grad.detach())
            for fqn, parameter in parameters
            if parameter.grad is not None and fqn not in self._read and "reduced_grad" in self._recording.wanted(fqn)
        ]
        self._read.update(fqn for fqn, _ in wanted)
        read_parameters(self._observer, "reduced_grad", wanted)

    def _parameters(self, optimizer: Any) -> list[tuple[str, nn.Parameter]]:
        """The model's parameters that are recorded and belong to `optimizer` (None: to any), by clean name."""
        model = self._model()
        if model is None or not (self._recording.has("reduced_grad") or self._recording.has("update")):
            return []
        return parameters_of(model, optimizer, self._selection)


def parameters_of(model: nn.Module, optimizer: Any, selection: Selection) -> list[tuple[str, nn.Parameter]]:
    """The model's selected parameters that belong to `optimizer` (None: all), by clean name."""
    own = None if optimizer is None else parameters_held(optimizer)
    return [
        (fqn, parameter)
        for fqn, parameter in clean_parameters(model)
        if (own is None or id(parameter) in own) and selection.has(fqn)
    ]


def has_closure(arguments: tuple[Any, ...]) -> bool:
    """Whether a hook before an optimizer's step is given a closure, in `(optimizer, args, kwargs)`."""
    if len(arguments) < 3:  # inside a compiled step
        return False
    _, args, kwargs = arguments
    return any(map(callable, args)) or callable(kwargs.get("closure"))
