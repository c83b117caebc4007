"""Whether weights change between the updates: by code that writes to them, as where an average's are left in a model.

One or two small parameters are compared, whole, with what they were after the optimizer's last step (of parameters that
no attached optimizer holds: in the last forward) when a step's first forward in training begins. A write to all weights
shows there, one to another layer does not. Series `weights_written`: the largest change of an element, 0 where there is
none. Series `sampled_update`: that of the first of them by the optimizer's own step, which no gradient shows where
what the optimizer keeps is wrong. Series `sampled_gradient`: the largest magnitude of its gradient as the optimizer is
given it, whatever the loop has made of it since the backward. Nothing waits for a device, and no parameter is written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rangewatch.core import limits
from rangewatch.core.selection import Selection
from rangewatch.recording.eager import hidden_from_modes
from rangewatch.recording.events import Events
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import ForwardListener, Observer, StepReader, is_being_captured, local_part
from rangewatch.recording.tensor_names import clean_parameters
from rangewatch.statistics import reduce
from rangewatch.wire.events import SampledWeights

SERIES, UPDATE, GRADIENT = "weights_written", "sampled_update", "sampled_gradient"

FEWEST_ELEMENTS, MOST_ELEMENTS = 4, 4_096
"""Of a parameter that may be one of the samples: one element says little, and many take long."""

SEARCHED_EVERY = 32
"""Steps between two searches for an optimizer of samples that none has, the first with the first step."""

ON_DEVICE = 1
"""Samples on an accelerator, where each takes four launches a step, and its gradient one; in host memory each of two
readings a step is 3 to 6 us, and the gradient 4 to 8."""


class Sample:
    """One parameter, and a copy of it."""

    def __init__(self, fqn: str, parameter: nn.Parameter) -> None:
        self.fqn, self.parameter = fqn, ref(parameter)
        self.holders: set[int] = set()
        """`id` of the attached optimizers that update it."""
        self._copy: Tensor | None = None
        self._change: Tensor | None = None

    def gradient(self) -> Tensor | float | None:
        """The largest magnitude of its gradient; None where it has none that can be read."""
        parameter = self.parameter()
        given = None if parameter is None else parameter.grad
        if given is None:
            return None
        local = local_part(given.detach())
        if local.layout is not torch.strided or not local.numel():
            return None
        with hidden_from_modes([local]):
            return reduce.amax(local) if local.is_cpu else torch.linalg.vector_norm(local, float("inf"))

    def keep(self) -> None:
        """Copy what it is now."""
        parameter = self.parameter()
        if parameter is None:
            return
        now = local_part(parameter.detach())
        copy = self._copy
        with hidden_from_modes([now]):
            if copy is None or copy.shape != now.shape or copy.device != now.device or copy.dtype != now.dtype:
                self._copy, self._change = now.clone(), torch.empty_like(now)
            else:
                copy.copy_(now)

    def change(self, *, is_likely: bool = False) -> Tensor | float | None:
        """The largest change of an element since the copy; None where there is none to compare with. `is_likely`: it is
        not looked first whether there is any."""
        parameter, copy, change = self.parameter(), self._copy, self._change
        now = None if parameter is None else local_part(parameter.detach())
        if now is None or copy is None or change is None or copy.shape != now.shape or copy.device != now.device:
            return None
        with hidden_from_modes([now]):
            if copy.dtype != now.dtype:  # as by `model.half()`: what that rounds is no write
                copy, change = copy.to(now.dtype), torch.empty_like(now)
            if not now.is_cpu:
                return torch.linalg.vector_norm(torch.sub(now, copy, out=change), float("inf"))
            if not is_likely and torch.equal(now, copy):
                return 0.0
            largest = float(torch.linalg.vector_norm(torch.sub(now, copy, out=change).float(), float("inf")))
        # Where there is a change, it is NaN or is lost in rounding if none is seen.
        return largest if largest > 0 or is_likely else float("inf")


class WeightSamples(StepReader, ForwardListener):
    """Called by the training thread."""

    def __init__(
        self, observer: Observer, values: LoggedValues, events: Events, model: nn.Module, selection: Selection,
        in_forward: list[ForwardListener],
    ) -> None:  # fmt: skip
        self._observer, self._values, self._events, self._in_forward = observer, values, events, in_forward
        self._samples = list(_chosen(model, selection))
        self._step = 0
        self._searched: dict[int, ref[Any]] = {}
        """Optimizers that were looked into for the samples, by `id`, which another may have once one is gone."""
        self._are_held: bool | None = None
        self._change: Tensor | float | None = None
        """Of the open step: recorded where it ends, so that a step that was never closed leaves nothing."""
        self._update: Tensor | float | None = None
        self._gradient: Tensor | float | None = None
        """Both of the last update."""

    def begin_step(self, step: int) -> None:
        """`step` is open: compare where its first forward begins."""
        self._step = step
        if self._samples and self not in self._in_forward:
            self._in_forward.append(self)

    def forward_begins(self) -> None:
        """Of training, the first of the step."""
        self._in_forward.remove(self)
        if _is_captured(self._samples[0]):
            return
        changes = [known for each in self._samples if (known := each.change()) is not None]
        on_host = [each for each in changes if isinstance(each, float)]
        self._change = max(on_host) if on_host else next(iter(changes), None)
        is_unwritten = len(on_host) == len(self._samples) and not any(on_host)  # on a device that is not known
        for each in self._samples:
            if not each.holders or not is_unwritten:
                each.keep()
        self._emit_held()

    def _emit_held(self) -> None:
        are_held = any(each.holders for each in self._samples)
        if are_held != self._are_held:
            self._are_held = are_held
            names = tuple(each.fqn[: limits.NAME_CHARACTERS] for each in self._samples)
            self._events.add(SampledWeights(names, are_held))

    def end_step(self) -> None:
        """The open step is about to be closed."""
        change, self._change = self._change, None
        update, self._update = self._update, None
        gradient, self._gradient = self._gradient, None
        for name, value in ((SERIES, change), (UPDATE, update), (GRADIENT, gradient)):
            if value is not None:
                self._values.record(name, self._step, value)

    def before(self, optimizer: Any) -> None:
        """It is about to update its parameters."""
        first = self._samples[0] if self._samples else None
        if first is not None and id(optimizer) in first.holders and not _is_captured(first):
            self._gradient = first.gradient()

    def after(self, optimizer: Any) -> None:
        """It has updated its parameters."""
        mine = id(optimizer)
        is_due = any(not each.holders for each in self._samples) and not self._step % SEARCHED_EVERY
        searched = self._searched.get(mine)
        if is_due or searched is None or searched() is not optimizer:
            self._searched[mine] = ref(optimizer)
            held = {id(each) for group in getattr(optimizer, "param_groups", ()) for each in group["params"]}
            for each in self._samples:
                if id(each.parameter()) in held:
                    each.holders.add(mine)
                else:
                    each.holders.discard(mine)
            self._emit_held()  # here too: a model that is never called itself has no forward
        for at, each in enumerate(self._samples):
            if mine in each.holders and not _is_captured(each):
                if at == 0:
                    self._update = each.change(is_likely=True)
                each.keep()


def _is_captured(sample: Sample) -> bool:
    """Whether it is gone, its device records a graph, or the model is being exported or compiled."""
    if torch.compiler.is_compiling():
        return True
    parameter = sample.parameter()
    return parameter is None or (not parameter.is_cpu and is_being_captured(parameter))


def _chosen(model: nn.Module, selection: Selection) -> Iterator[Sample]:
    """Biases rather than others, the first and the last: a scale that is near 1 hardly moves in bfloat16."""
    usable = [(fqn, each) for fqn, each in clean_parameters(model) if selection.has(fqn) and _is_usable(each)]
    biases = [(fqn, each) for fqn, each in usable if fqn.endswith("bias")]
    ordered = biases or usable
    most = len(ordered) if ordered and ordered[0][1].is_cpu else ON_DEVICE
    ends: Iterable[tuple[str, nn.Parameter]] = dict([*ordered[-1:], *ordered[:1]]).items()
    return (Sample(*each) for each in list(ends)[:most])


def _is_usable(parameter: nn.Parameter) -> bool:
    if is_lazy(parameter) or not parameter.requires_grad or hasattr(parameter, "_is_flat_param"):
        return False
    local = local_part(parameter.detach())
    is_plain = type(local) in (Tensor, nn.Parameter) and local.layout is torch.strided and local.device.type != "meta"
    is_wide = local.is_floating_point() and local.dtype.itemsize > 1
    return is_plain and is_wide and FEWEST_ELEMENTS <= local.numel() <= MOST_ELEMENTS
