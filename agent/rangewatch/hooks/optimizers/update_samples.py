"""What an optimizer's step does with single elements of some parameters: columns `sampled_count`, `pushed_count`,
`unmoved_count`, `zero_weight_count`, `unmoved_amin` and `sampled_rate` of their `grad`.

A gradient can be there when the backward has ended and gone when the optimizer takes it, as by a clip; and an update
can be smaller than half the distance to the next number that a weight's dtype holds: then nothing changes, and nothing
else shows it. So it is in 16 bits near 1, and in float32 far from 0, as of places in metres or of times in seconds.
Sampled are small parameters, whole, and the beginning of matrices of 16 bits and of parameters that may lie far from 0,
at the steps 1, 2, 4, 8, 16 and each 32nd. It waits for no device, and changes nothing.

At the same steps the beginning of a few matrices is compared with what it was before the update. Series
`update_fraction`: the update's norm over the weight's, of the matrix of which that is largest. Series `decay_fraction`:
the median over them of the part of itself that a weight loses, -<update, weight> / <weight, weight>; 0 for one whose
update does not point mainly against the weight. Of several optimizers the last one's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple, TypeVar
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rangewatch.core.selection import Selection
from rangewatch.hooks.optimizers.reads import parameters_of
from rangewatch.recording.level import LOW_PRECISION
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import Observer, StepReader, local_part
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.statistics import OF_UPDATES

MOST_ELEMENTS = 4_096
"""Of one parameter that are looked at: 3 us on a CPU."""

SMALL, WIDE = 32, 8
"""Small parameters, and matrices of 16 bits, that are looked at: of more, such as lie evenly among them."""

ON_DEVICE = 8
"""Of each on an accelerator, where one takes fifteen launches."""

FAR, FIRST, MOST_FAR, MOST_LOOKED = 256.0, 16, 8, 64
"""Magnitude from which on an element is far from 0: in float32 its neighbours are 3e-5 apart. So many first elements
say whether a parameter is, in host memory; of more parameters such as lie evenly among them are looked at, 15 us each:
at the steps that are powers of two, since what is far from 0 hardly moves."""

MOST_OPTIMIZERS = 64

LAYERS_OWN, NAMED_ON_DEVICE = ("weight", "bias"), 4
"""What a layer of torch calls its parameters. A value on an accelerator is not looked at: there those of another name,
which a module has made itself, may be far from 0."""

EVERY = 32

MATRICES, MATRICES_ON_DEVICE = 8, 4
"""Whose updates are compared with the weights: 20 us each on a CPU, six launches on an accelerator."""

UPDATE_FRACTION, DECAY_FRACTION = "update_fraction", "decay_fraction"

AGAINST = -0.5
"""Cosine of update and weight from which on the update points mainly against the weight."""

TINY, MOST_FRACTION = 1e-30, 1e6


T = TypeVar("T")


class _Sample(NamedTuple):
    """`was`: its elements before the update, where one that leaves them as they are has been rounded away. `rate`: the
    learning rate that the optimizer has for it."""

    fqn: str
    parameter: nn.Parameter
    pushed: Tensor
    was: Tensor | None
    rate: float | Tensor


class UpdateSamples(StepReader):
    """Called around each optimizer's step, by the training thread."""

    def __init__(
        self, observer: Observer, values: LoggedValues, names: TensorNames, model: nn.Module, selection: Selection,
        start_step: int,
    ) -> None:  # fmt: skip
        self._observer, self._names, self._model, self._selection = observer, names, ref(model), selection
        self._values, self._step = values, start_step
        self._matrices: list[tuple[nn.Parameter, Tensor]] = []
        """Each with what its beginning was before the update."""
        self._start_step = start_step
        self._is_due = self._is_looked_at = False
        self._samples: list[_Sample] = []
        self._far: dict[int, frozenset[str]] = {}
        """`id` of an optimizer -> names of its parameters that are far from 0; one that has come since may have the id
        of one that is gone, until they are looked at again."""

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        since = step - self._start_step
        self._is_looked_at = since > 0 and not since & (since - 1)
        self._is_due = since > 0 and (not since % EVERY or (since < EVERY and self._is_looked_at))
        self._step, self._samples, self._matrices = step, [], []

    @torch.no_grad()
    def before(self, optimizer: Any) -> None:
        """`optimizer` is about to update its parameters."""
        model = self._model()
        if not self._is_due or model is None or torch.compiler.is_compiling():
            return
        if not hasattr(optimizer, "param_groups"):  # an engine, or whatever else has a `step`
            return
        # Others may keep what is lost, or round at random: there an update that changes nothing is not lost.
        rounds = type(optimizer).__module__.startswith("torch.optim.")
        parameters, rates = parameters_of(model, optimizer, self._selection), _rates(optimizer)
        if self._is_looked_at or id(optimizer) not in self._far:
            if len(self._far) >= MOST_OPTIMIZERS:
                self._far.clear()
            self._far[id(optimizer)] = frozenset(_far(parameters, self._can_read))
        self._samples = [
            _Sample(fqn, each, _part(each.grad) != 0, _part(each).clone() if is_rounded else None, rate)
            for fqn, each in _chosen(parameters, self._far[id(optimizer)])
            if each.grad is not None and self._can_read(each) and self._can_read(each.grad)
            for rate in (rates.get(id(each), 0.0),)
            for is_rounded in (rounds and (isinstance(rate, Tensor) or rate != 0),)
        ]
        matrices = [each for _, each in parameters if each.grad is not None and _is_usable(each) and each.dim() > 1]
        compared = of_one_device(matrices, self._can_read)
        most = MATRICES if compared and compared[0].is_cpu else MATRICES_ON_DEVICE
        self._matrices = [(each, _part(each).clone()) for each in _spread(compared, most)]

    @torch.no_grad()
    def after(self) -> None:
        """It has updated them."""
        samples, self._samples = self._samples, []
        known: list[tuple[int, Tensor]] = []
        for sample in samples:
            number = self._names.find(sample.fqn, "grad", 0, str(sample.parameter.dtype).removeprefix("torch."))
            now = _part(sample.parameter)
            if number is not None and now.shape == sample.pushed.shape and now.numel():
                known.append((number, _values(sample, now)))
        self._observer.read_columns(OF_UPDATES, known)
        self._compare()

    def _compare(self) -> None:
        """The matrices with what they were."""
        matrices, self._matrices = self._matrices, []
        fractions, decays = [], []
        for parameter, was in matrices:
            now = _part(parameter)
            if now.shape != was.shape:
                continue
            old = was.float()
            change = torch.sub(now.float(), old)  # not in place: of float32 `float` gives the weight itself
            size, along = torch.linalg.vector_norm(old).clamp_(min=TINY), torch.dot(change, old)
            step = torch.linalg.vector_norm(change)
            fractions.append((step / size).clamp_(max=MOST_FRACTION))
            decays.append(torch.where(along < AGAINST * step * size, -along / size.square().clamp(min=TINY), 0.0))
        if fractions:
            self._values.record(UPDATE_FRACTION, self._step, torch.stack(fractions).max())
            self._values.record(DECAY_FRACTION, self._step, torch.stack(decays).median().clamp_(max=MOST_FRACTION))

    def _can_read(self, tensor: Tensor) -> bool:
        local = local_part(tensor.detach())
        return self._observer.can_read(local) and local.is_contiguous() and local.dtype.itemsize > 1


def _values(sample: _Sample, now: Tensor) -> Tensor:
    """(6,) of `OF_UPDATES`, float64, where the elements are `now`."""
    pushed, was, rate = sample.pushed, sample.was, sample.rate
    double = torch.float64
    if was is None:
        unmoved, smallest = (now.new_full((), each, dtype=double) for each in (0.0, math.inf))
    else:
        lost = pushed & (now == was)
        unmoved, smallest = lost.sum(), torch.where(lost, now.abs(), math.inf).amin().double()
    if isinstance(rate, Tensor):
        known = rate.to(double).nan_to_num(0.0, 0.0, 0.0).clamp(min=0.0)
    else:
        known = now.new_full((), rate if 0 < rate < math.inf else 0.0, dtype=double)
    sampled = now.new_full((), pushed.numel(), dtype=double)
    return torch.stack((sampled, pushed.sum(), unmoved, (now == 0).sum(), smallest, known))


def _is_low(parameter: nn.Parameter) -> bool:
    return parameter.dtype in LOW_PRECISION


def _part(tensor: Tensor) -> Tensor:
    return local_part(tensor.detach()).view(-1)[:MOST_ELEMENTS]


def _rates(optimizer: Any) -> dict[int, float | Tensor]:
    """`id` of each parameter -> the learning rate of its group, as a number or as one element on the parameter's
    device; what is neither is left out."""
    known: dict[int, float | Tensor] = {}
    for group in optimizer.param_groups:
        rate = group.get("lr")
        if isinstance(rate, Tensor) and rate.is_cpu and rate.numel() == 1:
            rate = float(rate)
        if isinstance(rate, (int, float)):
            known.update(dict.fromkeys(map(id, group["params"]), float(rate)))
        elif isinstance(rate, Tensor) and rate.numel() == 1:
            lies_there = (each for each in group["params"] if each.device == rate.device)
            known.update(dict.fromkeys(map(id, lies_there), rate.detach().reshape(())))
    return known


def _chosen(parameters: list[tuple[str, nn.Parameter]], far: Collection[str]) -> Iterator[tuple[str, nn.Parameter]]:
    """Those that are `far` from 0 first, then single numbers, such as the gain of a branch."""
    usable = [(fqn, each) for fqn, each in parameters if _is_usable(each)]
    small = [each for each in usable if each[1].numel() <= MOST_ELEMENTS]
    wide = [each for each in usable if each[1].dim() > 1 and _is_low(each[1])]
    is_on_host = bool(usable) and usable[0][1].is_cpu
    small.sort(key=lambda each: (each[1].numel() > 1, each[1].dim() > 1))
    chosen = {fqn: each for fqn, each in usable if fqn in far}
    chosen |= dict(_spread(small, SMALL if is_on_host else ON_DEVICE))
    chosen |= dict(_spread(wide, WIDE if is_on_host else ON_DEVICE))
    yield from chosen.items()


def _far(parameters: list[tuple[str, nn.Parameter]], can_read: Callable[[nn.Parameter], bool]) -> Iterator[str]:
    """Names of those in host memory whose first elements are all far from 0, and of others that may be."""
    usable = [(fqn, each) for fqn, each in parameters if _is_usable(each)]
    on_host = _spread([each for each in usable if each[1].is_cpu], MOST_LOOKED)
    firsts = ((fqn, _part(each)[:FIRST].tolist()) for fqn, each in on_host if can_read(each))
    yield from _spread([fqn for fqn, first in firsts if first and min(map(abs, first)) >= FAR], MOST_FAR)
    own = [fqn for fqn, each in usable if not each.is_cpu and fqn.rpartition(".")[2] not in LAYERS_OWN]
    yield from _spread(own, NAMED_ON_DEVICE)


def _spread(parameters: list[T], most: int) -> list[T]:
    step = max(1, -(-len(parameters) // most))
    return parameters[::step]


def of_one_device(parameters: list[nn.Parameter], can_read: Callable[[nn.Parameter], bool]) -> list[nn.Parameter]:
    """Those that can be read, on the device of the first such one: a model may be split over several."""
    first = next((each for each in parameters if can_read(each)), None)
    return [] if first is None else [each for each in parameters if each.device == first.device and can_read(each)]


def _is_usable(parameter: nn.Parameter) -> bool:
    return not is_lazy(parameter) and parameter.requires_grad and not hasattr(parameter, "_is_flat_param")
