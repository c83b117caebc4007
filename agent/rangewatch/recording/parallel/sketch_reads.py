"""Sketches by the elements' places in the whole tensor (`statistics.sketches`), every `sketch_every` steps.

Right before the step's first update, when nothing has gathered the parameters for a forward, all weights and the
gradients that the optimizer gets; and what else is read in that step, where this process is alone or it is a DTensor.
Each element of the whole is in the sketch of one rank, the first of those that hold the same part: the server adds them
up. Where it is not known how a tensor lies on the ranks there is no sketch of it, which is said once.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rangewatch.core.guard import Guard, logger
from rangewatch.core.selection import Selection
from rangewatch.recording.observer import Observer, StepReader
from rangewatch.recording.parallel.gradient_sums import copies_of
from rangewatch.recording.parallel.placements import REPLICATE, Layout, Placed, plain_part, why_not
from rangewatch.recording.tensor_names import TensorNames, clean_parameters
from rangewatch.recording.weights import read_parameters
from rangewatch.statistics import sketch, sparse
from rangewatch.statistics.sketch import Places

_NONE: Collection[int] = ()
_ALL: Collection[int] = range(1 << 31)
_AS_READ = frozenset({"output", "input", "grad_output", "grad"})
"""Kinds that are sketched whenever they are read; `weight` and `reduced_grad` are right before the update."""


class SketchReads(StepReader):
    """Called by the training thread. `every` 0: never.

    `due` and `read` are those of a `DueReader`, for plain tensors in host memory; `is_due` and `read_as_given` for all
    others.
    """

    def __init__(
        self, observer: Observer, names: TensorNames, guard: Guard, model: nn.Module, selection: Selection,
        layout: Layout, every: int,
    ) -> None:  # fmt: skip
        self._observer, self._names, self._guard, self._model = observer, names, guard, ref(model)
        self._selection, self._layout, self._every = selection, layout, every
        self._step = 0
        self.due, self.is_due = _NONE, False
        self._is_alone = True
        self._are_weights_read = False
        self._gradients_read: set[str] = set()
        self._readings: dict[int, int] = {}
        """How often a tensor was read in the open step, by number."""
        self._named: dict[int, tuple[str, nn.Parameter]] = {}
        """Of the open step, from its first update on: the name of each parameter, by `id`."""
        self._placed: dict[int, Placed] = {}
        self._has_warned = False

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        self._step = step
        self.is_due = bool(self._every) and step % self._every == 0
        self._are_weights_read = False
        self._is_alone = self._layout.world_size == 1
        self.due = _ALL if self.is_due and self._is_alone else _NONE
        self._readings.clear()
        self._gradients_read.clear()

    def before_update(self, optimizer: Any, *, has_gradients: bool) -> None:
        """An optimizer (None: none, the step is over) is about to update its parameters. The first time in a step all
        weights are read, and each time its gradients, where it has them already.
        """
        model = self._model()
        if not self.is_due or model is None:
            return
        mine = None if optimizer is None else [id(each) for at in optimizer.param_groups for each in at["params"]]
        if mine is None or not self._named.keys() >= set(mine):  # once a step, though there may be one a parameter
            self._look_up(model)
        if not self._are_weights_read:
            self._are_weights_read = True
            self._read_parameters("weight", [(fqn, each, each.detach()) for fqn, each in self._named.values()])
        if has_gradients:
            named = [self._named[each] for each in (self._named if mine is None else mine) if each in self._named]
            gradients = [
                (fqn, each, each.grad.detach())
                for fqn, each in named
                if each.grad is not None and fqn not in self._gradients_read
            ]
            self._gradients_read.update(fqn for fqn, _, _ in gradients)
            self._read_parameters("reduced_grad", gradients)

    def _look_up(self, model: nn.Module) -> None:
        """What the model's parameters are right now: some wrappers exchange them."""
        self._named = {
            id(each): (fqn, each)
            for fqn, each in clean_parameters(model)
            if not is_lazy(each) and self._selection.has(fqn)
        }
        self._placed = {
            id(parameter): each
            for each in ([] if self._is_alone else self._layout.parameters())
            if (parameter := each.parameter()) is not None
        }

    def end_step(self) -> None:
        """Read what no optimizer has taken."""
        self.before_update(None, has_gradients=True)
        self._named, self._placed = {}, {}

    def read(self, number: int, tensor: Tensor, amax: float) -> None:
        """A plain tensor in host memory was read, in a process that is alone."""
        if self._names.entries[number].kind in _AS_READ:
            self._guard.run("sketch", lambda: self._sketch(number, tensor, [None] * tensor.dim(), tensor.shape))

    def read_as_given(self, number: int, tensor: Tensor, local: Tensor) -> None:
        """Of this number a DTensor or a tensor on an accelerator was read, whose part here is `local`."""
        if self._names.entries[number].kind in _AS_READ:
            self._guard.run("sketch", lambda: self._sketch_as_given(number, tensor, local))

    def _sketch_as_given(self, number: int, tensor: Any, local: Tensor) -> None:
        if self._is_alone:
            if self._observer.is_on_device(local):  # else it comes to `read`
                self._sketch(number, local, [None] * local.dim(), local.shape)
        elif hasattr(tensor, "placements") and tensor.device_mesh.size() == self._layout.world_size:
            coordinate = tensor.device_mesh.get_coordinate()
            places = places_of(tensor, local)
            if places is not None and is_first_copy(tensor.placements, coordinate):
                self._sketch(number, local, places, tensor.shape)

    def _read_parameters(self, kind: str, named: Iterable[tuple[str, nn.Parameter, Any]]) -> None:
        unknown = []
        for fqn, parameter, tensor in named:
            local = plain_part(tensor)
            if local is None:  # nothing of it is here, or nothing that can be read
                continue
            places, is_mine = self._places(parameter, tensor, local, kind)
            if places is None:
                unknown.append(fqn)
                continue
            number = self._observer.number(tensor, fqn, kind, 0, "Parameter")
            if number < 0:
                continue
            if not self._observer.is_read(number):
                read_parameters(self._observer, kind, [(fqn, tensor)])
            if is_mine:
                self._sketch(number, local, places, tensor.shape)
        self._warn_of_unknown(unknown)

    def _places(self, parameter: Any, tensor: Any, local: Tensor, kind: str) -> tuple[Places | None, bool]:
        """Where its elements lie, None where that is not known; and whether of all ranks that hold this part this one
        is the first."""
        whole: Places = [None] * local.dim()
        if self._is_alone:
            return whole, True
        layout, known = self._layout, self._placed.get(id(parameter))
        if known is None or getattr(tensor, "placements", None) != getattr(parameter, "placements", None):
            return None, False
        copies = copies_of(known, layout.axes, layout.world_size)
        size, index = layout.group_of(known.alike)
        keeper = None if known.by is None else known.by()
        if copies is None or size != copies or (kind == "reduced_grad" and keeper is not None and why_not(keeper)):
            return None, False
        if hasattr(tensor, "placements"):
            return places_of(tensor, local), index == 0
        is_whole = all(placement == REPLICATE for placement in known.axes.values())
        return whole if is_whole else None, index == 0

    def _sketch(self, number: int, local: Tensor, places: Places, whole: Sequence[int]) -> None:
        # Without float64 there is nothing to hold a hash.
        if not self._observer.can_read(local) or not local.numel() or local.device.type == "mps":
            return
        reading = self._readings[number] = self._readings.get(number, -1) + 1
        sums = sketch.measure(local, places, tuple(whole), self._step, reading)
        size = torch.full((1,), float(math.prod(whole)), dtype=torch.float64, device=sums.device)
        self._observer.add_sums(number, sparse.SKETCH, sums)
        self._observer.add_sums(number, sparse.SKETCHED_WHOLE, size)

    def _warn_of_unknown(self, unknown: Sequence[str]) -> None:
        if unknown and not self._has_warned and self._layout.axes.is_first:
            self._has_warned = True
            logger.warning(
                "rangewatch: there are no sketches of %d parameters or gradients, of which it is not known how they "
                "lie on the ranks, such as %s. attach(mesh=..., replicated=...) says it",
                len(unknown),
                unknown[0],
            )


SAYS_ORDER = torch.torch_version.TorchVersion(torch.__version__) >= "2.5"
"""Whether FSDP2 says by a `split_factor` that it has cut a dimension after tensor parallelism, not before."""


def places_of(tensor: Any, local: Tensor) -> Places | None:
    """Of a DTensor and its local part; None where that is not known, or the part is one of a sum."""
    mesh, coordinate = tensor.device_mesh, tensor.device_mesh.get_coordinate()
    orders = getattr(getattr(tensor, "_spec", None), "shard_order", None) or ()
    if coordinate is None or any(list(each.mesh_dims) != sorted(each.mesh_dims) for each in orders):
        return None
    return part_of(tuple(tensor.shape), local, tensor.placements, tuple(mesh.shape), tuple(coordinate))


def part_of(
    whole: Sequence[int], local: Tensor, placements: Sequence[Any], sizes: Sequence[int], coordinate: Sequence[int]
) -> Places | None:
    """The same, on a mesh of these `sizes` at this `coordinate`.

    Each dimension of the mesh cuts what those before it have left as `torch.chunk` does; a placement with a
    `split_factor` (FSDP2 over tensor parallelism) cuts each of so many pieces, which a later one then deals out.
    """
    places: list[Tensor | None] = [None] * len(whole)
    for placement, size, at in zip(placements, sizes, coordinate, strict=True):
        if size == 1 or placement.is_replicate():
            continue
        dim = getattr(placement, "dim", None)
        if placement.is_partial() or not isinstance(dim, int) or not whole:
            return None
        dim %= len(whole)
        now = places[dim]
        if now is not None and not SAYS_ORDER:
            return None
        now = torch.arange(whole[dim], device=local.device) if now is None else now
        factor = getattr(placement, "split_factor", 1)
        if factor > 1 and len(now) % (factor * size):
            return None  # who has how many of an uneven cut is not the same in all releases of torch
        places[dim] = torch.cat([_chunk(each, size, at) for each in now.chunk(factor)])
    lengths = [whole[dim] if each is None else len(each) for dim, each in enumerate(places)]
    return places if lengths == list(local.shape) else None


def is_first_copy(placements: Sequence[Any], coordinate: Sequence[int]) -> bool:
    """Whether of all ranks of the mesh that hold the same part this one is the first."""
    return all(not each.is_replicate() or at == 0 for each, at in zip(placements, coordinate, strict=True))


def _chunk(values: Tensor, size: int, at: int) -> Tensor:
    chunks = values.chunk(size)
    return chunks[at] if at < len(chunks) else values[:0]
