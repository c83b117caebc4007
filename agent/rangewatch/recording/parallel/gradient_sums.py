"""Sums over this rank's parts of the gradients, of which the server makes the norm and the zeros of the whole model.

Series, at the steps of the schedule: `grad_sum_sq`, the sum of squares in which each element of the model counts once
when those of all ranks are added up; `grad_local_sum_sq`, that of all that this rank holds; `grad_zero_count`, zeros as
the first counts. Read where torch's own clip is given its norm, or else right before the update. Where it is not known
how many ranks hold the same part of a parameter, along each axis, there are none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn

from rangewatch.core import limits
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import Observer, StepReader
from rangewatch.recording.parallel.axes import Axes, Axis
from rangewatch.recording.parallel.placements import PARTIAL, REPLICATE, WORLD, Layout, Placed, plain_part
from rangewatch.recording.parallel.schedule import Schedule

SUM_SQ, LOCAL_SUM_SQ, ZEROS = "grad_sum_sq", "grad_local_sum_sq", "grad_zero_count"

STAGES = "pp"
"""Along it ranks hold other layers: each counts."""


class GradientSums(StepReader):
    """Called by the training thread."""

    def __init__(
        self, observer: Observer, values: LoggedValues, model: nn.Module, layout: Layout, schedule: Schedule
    ) -> None:
        self._observer, self._values, self._model = observer, values, ref(model)
        self._layout, self._schedule = layout, schedule
        self._copies: dict[int, int | None] = {}
        self._copies_until = -1
        self._step = 0
        self._is_due = False
        self._found: list[dict[str, Tensor | float]] = []
        self._is_clipped = False

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        self._step, self._found, self._is_clipped = step, [], False
        self._is_due = self._layout.world_size > 1 and self._schedule.is_due(step)

    def clipped(self, parameters: Sequence[Any], *, is_known: bool) -> None:
        """Gradients of these are about to be clipped by their norm; `is_known`: one of squares."""
        self._is_clipped = True
        if self._is_due and is_known:
            self._read(parameters)

    def before_update(self) -> None:
        """An optimizer is about to update the parameters."""
        model = self._model()
        if self._is_due and not self._is_clipped and not self._found and model is not None:
            self._read(list(model.parameters()))

    def end_step(self) -> None:
        """The open step is about to be closed. Of several clips nobody knows which is meant."""
        if len(self._found) == 1:
            for name, value in self._found[0].items():
                self._values.record(name, self._step, value)
        self._found = []

    def _read(self, parameters: Sequence[Any]) -> None:
        model = self._model()
        if model is None:
            return
        given = [each for each in parameters if each.grad is not None]
        every = [each for each in model.parameters() if each.grad is not None]
        is_whole = {id(each) for each in given} == {id(each) for each in every}
        parts = list(self._parts(given)) if is_whole and given else [None]
        known = [each for each in parts if each is not None]
        if len(known) == len(parts):
            self._found.append(_sums(known, [self._observer.is_on_device(part) for part, _, _ in known]))

    def _parts(self, parameters: Iterable[Any]) -> Iterator[tuple[Tensor, int, bool] | None]:
        """Gradient, how many ranks hold the same, and whether it counts; None where that is not known."""
        self._refresh()
        for parameter in parameters:
            copies = self._copies.get(id(parameter))
            if copies is None or any(each.is_partial() for each in getattr(parameter.grad, "placements", ())):
                yield None
                return
            local: Any = getattr(parameter.grad, "_local_tensor", parameter.grad)
            if local.numel() == 0:  # a shard of nothing
                continue
            part = plain_part(local)
            if part is None:
                yield None
                return
            yield part.detach(), copies, not getattr(parameter, "shared", False)

    def _refresh(self) -> None:
        """How parameters lie may change: they may be wrapped or sharded later than they were attached."""
        if self._step < self._copies_until:
            return
        placed = self._layout.parameters()
        axes = self._layout.axes
        self._copies = {
            id(parameter): copies_of(each, axes, self._layout.world_size)
            for each in placed
            if (parameter := each.parameter()) is not None
        }
        self._copies_until = self._step + (1 if self._step < limits.REPLICA_SEARCHES else limits.REPLICA_ASSIGN_EVERY)


def copies_of(placed: Placed, axes: Axes, world_size: int) -> int | None:
    """How many ranks hold the same part of a parameter; None where that is not known along an axis of the mesh."""
    if WORLD in placed.axes:
        return world_size if placed.axes[WORLD] == REPLICATE else None
    if PARTIAL in placed.axes.values():
        return None
    named = [axes.axes[name] for name in placed.axes if name in axes.axes]
    if any(not _is_covered(axis, named) for axis in axes if axis.size > 1 and axis.name != STAGES):
        return None
    if not named and not any(axis.name == STAGES and axis.size == world_size for axis in axes):
        return None
    taken: list[Axis] = []
    replicated = (axis for axis in named if placed.axes[axis.name] == REPLICATE)
    for axis in sorted(replicated, key=lambda each: -each.size):
        if not any(set(axis.ranks) <= set(each.ranks) for each in taken):
            taken.append(axis)
    copies = 1
    for axis in taken:
        copies *= axis.size
    return copies


def _is_covered(axis: Axis, known: Sequence[Axis]) -> bool:
    """Whether it is known how a parameter lies along an axis: one of the known, a part of one, or made of some."""
    ranks = set(axis.ranks)
    if any(ranks <= set(each.ranks) for each in known):
        return True
    product = 1
    for each in known:
        product *= each.size if set(each.ranks) < ranks else 1
    return product == axis.size


@torch.no_grad()
def _sums(parts: Sequence[tuple[Tensor, int, bool]], on_device: Sequence[bool]) -> dict[str, Tensor | float]:
    norms = [torch.linalg.vector_norm(part, dtype=torch.float32) for part, _, _ in parts]
    zeros = [part.numel() - torch.count_nonzero(part) for part, _, _ in parts]
    if not any(on_device):
        squares = [float(each) ** 2 for each in norms]
        counted = [1 / copies if counts else 0.0 for _, copies, counts in parts]
        return {
            SUM_SQ: sum(square * weight for square, weight in zip(squares, counted, strict=True)),
            LOCAL_SUM_SQ: sum(squares),
            ZEROS: sum(float(count) * weight for count, weight in zip(zeros, counted, strict=True)),
        }
    device = next(part.device for (part, _, _), there in zip(parts, on_device, strict=True) if there)
    there = [each.to(device, non_blocking=True).square() for each in norms]
    count = [each.to(device, non_blocking=True).float() for each in zeros]
    weights = [1 / copies if counts else 0.0 for _, copies, counts in parts]
    return {SUM_SQ: _weighted(there, weights), LOCAL_SUM_SQ: torch.stack(there).sum(), ZEROS: _weighted(count, weights)}


def _weighted(values: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Their sum, by numbers that the host knows: a tensor of those would have to be copied to the device."""
    groups: dict[float, list[Tensor]] = {}
    for value, weight in zip(values, weights, strict=True):
        groups.setdefault(weight, []).append(value)
    return torch.stack([torch.stack(each).sum() * weight for weight, each in groups.items()]).sum()
