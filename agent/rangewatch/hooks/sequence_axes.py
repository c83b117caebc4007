"""Event `sequence_axes`: a recurrent or attention module of torch's that runs along the rows of the batch.

With `batch_first=False`, torch's default, dimension 0 of what `nn.LSTM` or `nn.MultiheadAttention` is given is the
sequence. Given (batch, time, features) it runs from one sample to the next, and nothing fails. Which dimension is the
batch the loss tells: it has a row for each sample. So the module's two dimensions are compared, step by step, with the
rows of the loss and with what the model itself is given; shapes alone are read, of the first call of each in a step.

Nothing is said where the two may be told apart in no way: a loss of each place has both dimensions in it, a batch of
one is no axis, equal sizes are the same either way. And by chance a sequence may be as long as the batch has rows: so
the other dimension must be one that the model itself is given, or one that cannot hold the batch, or batches of another
size must be the other length, too, as the last of an epoch is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from rangewatch.core import limits
from rangewatch.hooks.module_hook import OutputHook
from rangewatch.recording.events import Events, sendable
from rangewatch.recording.observer import InputListener, StepReader
from rangewatch.recording.tensor_names import leaves
from rangewatch.wire.events import SequenceAxes

MOST_MODULES = 32
"""Modules that are looked at, from the input on: those of a model are alike."""

LEAST_STEPS = 4
"""Steps in which it must be so."""

MOST_STEPS = 1_024
"""Steps after which nothing more is looked at: a few us in each, and only of models with such a module."""

MOST_UNKNOWN = 32
"""Steps in a row that do not say which is the batch, after which nothing more is looked at."""

MOST_SIZES = 8
"""Of the shape of what the model is given, that are sent."""

FEWEST_ROWS = 4
"""Rows of a batch. Of fewer it may be chance that something else has as many."""

_FAMILIES: tuple[tuple[type[nn.Module], ...], ...] = (
    (nn.RNN, nn.LSTM, nn.GRU),
    (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer),
)


class ModuleAxes:
    """One such module. Called after its outputs were read: their first two dimensions are those of its input."""

    def __init__(self, fqn: str, module: nn.Module, family: int, *, batch_first: bool, hook: OutputHook) -> None:
        self.fqn, self.name, self.family, self.batch_first = fqn, type(module).__name__, family, batch_first
        self._hook = hook
        self.shape: tuple[int, ...] = ()
        """Of its first call in the open step; () where there was none yet."""
        self.first = -1
        """The first step in which it ran along the batch; -1 where it has not."""
        self.steps = 0
        self.sizes: set[int] = set()
        """Rows of the batches along which it ran."""
        self.others: set[int] = set()
        """Sizes of the dimension that it took for the batch, where the model is given none like it."""

    def read(self, leaves: Sequence[Any], numbers: Sequence[int]) -> None:
        """`leaves` were returned."""
        first = leaves[0] if leaves else None
        if not self.shape and type(first) is Tensor and not first.is_nested and first.dim() == 3:
            self.shape = tuple(first.shape)

    def compiled(self) -> None:
        """It runs inside a compiled graph, where no shape is asked for."""

    @property
    def along(self) -> int:
        """Size of the dimension along which it runs."""
        return self.shape[1 if self.batch_first else 0]

    @property
    def other(self) -> int:
        """And of that which it takes for the batch."""
        return self.shape[0 if self.batch_first else 1]

    def is_sure(self) -> bool:
        """Whether it is no chance that the one is as long as the batch has rows."""
        if self.steps < LEAST_STEPS:
            return False
        rows = max(self.sizes)
        can_hold = any(not each % rows or not rows % each for each in self.others)
        return len(self.sizes) > 1 or not self.others or (len(self.others) == 1 and not can_hold)

    def forget(self) -> None:
        """Read it no more."""
        self._hook.after = tuple(each for each in self._hook.after if each is not self)


class SequenceAxesReads(StepReader, InputListener):
    """Those of one attached model. Called by the training thread."""

    def __init__(self, events: Events, of_inputs: list[InputListener]) -> None:
        self._events, self._of_inputs = events, of_inputs
        self._modules: list[ModuleAxes] = []
        self._layers: set[str] = set()
        """Names of Transformer layers, whose own attentions are built as they are."""
        self._right = [0] * len(_FAMILIES)
        """Modules of each family that run along what is not the batch."""
        self._given: tuple[int, ...] = ()
        self._compared: tuple[int, ...] = ()
        self._step = self._steps = self._unknown = self._count = 0
        self._is_over = False
        self._emitted: ModuleAxes | None = None
        self._was_varied = False

    def listen(self, fqn: str, module: nn.Module, hook: OutputHook) -> None:
        """Look at `module`, whose outputs `hook` reads, where it is one of those."""
        family = next((at for at, each in enumerate(_FAMILIES) if isinstance(module, each)), None)
        if family is None or self._is_over or self._count >= MOST_MODULES or _is_own(module, family):
            return
        if fqn.rpartition(".")[0] in self._layers:
            return
        inner = module if hasattr(module, "batch_first") else getattr(module, "self_attn", None)
        batch_first = getattr(inner, "batch_first", None)
        if isinstance(batch_first, bool):
            self._count += 1
            if inner is not module:
                self._layers.add(fqn)
            axes = ModuleAxes(fqn, module, family, batch_first=batch_first, hook=hook)
            self._modules.append(axes)
            hook.after = (*hook.after, axes)

    def begin_step(self, step: int) -> None:
        """`step` is open: look at what the model is given in its first forward."""
        self._step, self._given, self._compared = step, (), ()
        if self._modules and self not in self._of_inputs:
            self._of_inputs.append(self)

    def inputs_given(self, values: Any) -> None:
        """The model is called with these, for the first time in the step."""
        self._of_inputs.remove(self)
        tensors = (each for each in leaves(values) if isinstance(each, Tensor) and not each.is_nested)
        self._given = next((tuple(each.shape) for each in tensors if each.dim() > 1), ())

    @property
    def is_due(self) -> bool:
        """Whether the rows of the loss are asked for: of a step the first backward counts."""
        return bool(self._given and not self._compared and any(each.shape for each in self._modules))

    def compared(self, shape: tuple[int, ...]) -> None:
        """The loss is of so many rows, and of each row of so many values; () where that is not known."""
        self._compared = shape

    def end_step(self) -> None:
        """The open step is about to be closed."""
        if not self._modules:
            return
        self._steps += 1
        seen = [each for each in self._modules if each.shape]
        known = [self._judge(each) for each in seen] if self._given and self._compared else []
        for each in seen:
            each.shape = ()
        self._unknown = 0 if any(known) else self._unknown + 1
        if self._steps >= MOST_STEPS or self._unknown >= MOST_UNKNOWN:
            self._end()

    def _judge(self, axes: ModuleAxes) -> bool:
        """Whether the step says along what a module runs."""
        (rows, *rest), along, other = self._compared, axes.along, axes.other
        if along == other or rows < FEWEST_ROWS or other < 2 or (along == rows and _holds(rest, other)):
            return False
        is_batch = self._given[0] == rows or (axes.batch_first and self._given[:2] == axes.shape[:2])
        if along != rows or not is_batch:
            self._right[axes.family] += other == rows
            self._drop(axes)
            return True
        if axes.first < 0:
            axes.first = self._step
        axes.steps += 1
        if len(axes.sizes) < 2:
            axes.sizes.add(rows)
        if not _is_given(self._given, other) and len(axes.others) < 2:
            axes.others.add(other)
        if axes.is_sure():
            self._emit(axes)
        return True

    def _emit(self, axes: ModuleAxes) -> None:
        """Once, and once more when batches of another size have been there."""
        is_varied = len(axes.sizes) > 1
        if self._emitted is None or (self._emitted is axes and is_varied and not self._was_varied):
            self._emitted, self._was_varied = axes, is_varied
            alike = sum(each.family == axes.family and each.first >= 0 for each in self._modules)
            self._events.add(
                SequenceAxes(
                    sendable(axes.fqn)[: limits.NAME_CHARACTERS], sendable(axes.name)[: limits.NAME_CHARACTERS],
                    axes.batch_first, axes.shape, self._given[:MOST_SIZES], self._compared[0], axes.steps,
                    is_varied, alike, self._right[axes.family],
                ),
                step=axes.first,
            )  # fmt: skip
            if is_varied:
                self._end()

    def _drop(self, axes: ModuleAxes) -> None:
        axes.forget()
        self._modules = [each for each in self._modules if each is not axes]
        if self._emitted is axes:  # it was chance
            self._events.add(SequenceAxes(sendable(axes.fqn)[: limits.NAME_CHARACTERS]), step=axes.first)
            self._end()

    def _end(self) -> None:
        self._is_over = True
        for each in self._modules:
            each.forget()
        self._modules = []
        if self in self._of_inputs:
            self._of_inputs.remove(self)


def _is_own(module: nn.Module, family: int) -> bool:
    """Whether a class of the user's has a forward of its own, which may give other dimensions."""
    return not any(type(module).forward is each.forward for each in _FAMILIES[family])


def _holds(sizes: Sequence[int], other: int) -> bool:
    """Whether a row of the loss may have a value for each of `other`, as one of each place does."""
    return any(not each % other for each in sizes)


def _is_given(shape: tuple[int, ...], other: int) -> bool:
    """Whether what the model is given has `other` for its second dimension; of (batch, channels, time) any."""
    return other in (shape[1:] if len(shape) == 3 else shape[1:2])
