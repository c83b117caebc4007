"""Reads what an optimizer keeps of each parameter's gradients: kinds `exp_avg`, `exp_avg_sq` and `momentum_buffer`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple
from weakref import WeakSet, ref

from torch import Tensor, nn

from rangewatch.core.selection import Selection
from rangewatch.hooks.optimizers.reads import parameters_of
from rangewatch.recording.level import Recording
from rangewatch.recording.observer import Observer, StepReader, local_part
from rangewatch.recording.weights import Cadence
from rangewatch.statistics import BESIDE_EPS
from rangewatch.statistics.moments import beside_eps, bias_correction2
from rangewatch.wire.records import MOMENTS


class Pair(NamedTuple):
    """The two moments of a parameter on one device, the number of the second, and what Adam divides by."""

    number: int
    exp_avg: Tensor
    exp_avg_sq: Tensor
    eps: float
    correction2: Any


class MomentReads(StepReader):
    """Called after each optimizer's step. Each is read once from the step on that is due, which a scaler may skip.

    State that is not there (a parameter without a gradient so far) is left out, and a name of another optimizer's own.
    """

    def __init__(
        self, observer: Observer, model: nn.Module, selection: Selection, recording: Recording, cadence: Cadence
    ) -> None:
        self._observer, self._model, self._selection = observer, ref(model), selection
        self._recording, self._cadence = recording, cadence
        self._is_due = False
        self._done: WeakSet[Any] = WeakSet()

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        if any(map(self._recording.has, MOMENTS)) and self._cadence.is_due(step):
            self._is_due = True
            self._done.clear()

    def after(self, optimizer: Any) -> None:
        """It has updated its parameters."""
        model, states = self._model(), getattr(optimizer, "state", None)
        if not self._is_due or model is None or optimizer in self._done or not isinstance(states, Mapping):
            return
        self._done.add(optimizer)
        groups = {id(each): group for group in optimizer.param_groups for each in group["params"]}
        tensors: list[tuple[int, Tensor]] = []
        pairs: list[Pair] = []
        for fqn, parameter in parameters_of(model, optimizer, self._selection):
            state = states.get(parameter)
            if isinstance(state, Mapping) and state and not set(MOMENTS).isdisjoint(self._recording.wanted(fqn)):
                self._note_integers(fqn, state, optimizer)
                self._collect(fqn, state, groups[id(parameter)], tensors, pairs)
        host = self._observer.host
        was_full, host.is_full = host.is_full, True  # zeros and subnormals are what they are read for
        try:
            self._observer.read_many(tensors)
        finally:
            host.is_full = was_full
        self._observer.read_columns(
            BESIDE_EPS,
            [(each.number, beside_eps(each.exp_avg, each.exp_avg_sq, each.eps, each.correction2)) for each in pairs],
        )

    def _collect(
        self, fqn: str, state: Mapping[str, Any], group: Mapping[str, Any], tensors: list[tuple[int, Tensor]],
        pairs: list[Pair],
    ) -> None:  # fmt: skip
        numbers: dict[str, int] = {}
        for kind in MOMENTS:
            tensor = state.get(kind)
            if isinstance(tensor, Tensor) and kind in self._recording.wanted(fqn):
                number = self._observer.number(tensor, fqn, kind, 0, "Parameter")
                if number >= 0 and tensor.numel():
                    numbers[kind] = number
                    tensors.append((number, tensor))
        if "exp_avg_sq" in numbers and (pair := self._pair(numbers["exp_avg_sq"], state, group)) is not None:
            pairs.append(pair)

    def _pair(self, number: int, state: Mapping[str, Any], group: Mapping[str, Any]) -> Pair | None:
        """None where it is no Adam, or its numbers are not where torch has them."""
        step, betas, eps = state.get("step", group.get("step")), group.get("betas"), group.get("eps")
        square = state.get("max_exp_avg_sq", state["exp_avg_sq"])
        if step is None or betas is None or not isinstance(eps, float) or not isinstance(state.get("exp_avg"), Tensor):
            return None
        exp_avg, square = (local_part(each) for each in (state["exp_avg"], square))
        if exp_avg.shape != square.shape or exp_avg.device != square.device or not square.numel():
            return None
        if not self._observer.can_read(exp_avg) or not self._observer.can_read(square):
            return None
        return Pair(number, exp_avg, square, eps, bias_correction2(betas[1], step))

    def _note_integers(self, fqn: str, state: Mapping[str, Any], optimizer: Any) -> None:
        """An optimizer of 8 bits: its state is codes, and says nothing without their table."""
        codes = [
            f"{name} in {str(each.dtype).removeprefix('torch.')}"
            for name, each in state.items()
            if isinstance(each, Tensor) and each.dim() and not each.is_floating_point()
        ]
        if codes:
            text = f"moments: {type(optimizer).__name__} keeps {', '.join(codes[:2])}, which is not read"
            self._observer.note_not_observed(fqn, text)
