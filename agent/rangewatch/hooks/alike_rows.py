"""Series `alike_rows`: the share of a model's weight matrices, but for the last, all rows of which are alike.

Units of a layer that begin with the same weights get the same gradients and stay the same, as where everything was
initialised to one constant: a layer is then as good as one unit. What lies before the loss is told apart by the
targets. Read once, after some steps, by when a checkpoint is loaded, and what may begin with zeros has moved, though
the first steps of a loss scaler are skipped and a warm-up begins with a rate of 0; and of a matrix the beginnings of
some rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any
from weakref import ref

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from rangewatch.hooks.parameter_hooks import flat_parameters
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import StepReader, is_being_captured, why_unobservable
from rangewatch.recording.tensor_names import clean_parameters

SERIES = "alike_rows"

AT = 16
"""Steps after which it is read."""

ROUNDING = 1e-5
"""Part of a row's largest element by which rows may differ: one row's products are not added up in another's order."""

MOST = 8
"""Matrices that are read, from the input on."""

ROWS, COLUMNS = 32, 128
"""Of a matrix that are compared."""


class AlikeRows(StepReader):
    """Called by the training thread, which waits for no device."""

    def __init__(self, values: LoggedValues, model: nn.Module, start_step: int) -> None:
        self._values, self._model, self._step = values, ref(model), start_step
        self._left = AT

    def end_step(self) -> None:
        """The open step is about to be closed."""
        self._left -= 1
        if not self._left:
            self._read()
        self._step += 1

    @torch.no_grad()
    def _read(self) -> None:
        model = self._model()
        if model is None or flat_parameters(model):
            return
        matrices = list(islice(_matrices(model), MOST + 1))
        flags = [_is_alike(each) for each in matrices[:-1]]
        if not flags:
            return
        if all(each.is_cpu for each in flags):
            self._values.record(SERIES, self._step, sum(float(each) for each in flags) / len(flags))
        elif len({each.device for each in flags}) == 1:
            self._values.record(SERIES, self._step, torch.stack(flags).float().mean())


def _matrices(model: nn.Module) -> Iterator[Tensor]:
    """Those that are trained, have several rows and are no table of embeddings, in the order of the modules."""
    tables = {
        id(each) for module in model.modules() if isinstance(module, (nn.Embedding, nn.EmbeddingBag))
        for each in module.parameters(recurse=False)
    }  # fmt: skip
    for _, parameter in clean_parameters(model):
        value: Any = parameter
        if (
            is_lazy(parameter)
            or not parameter.requires_grad
            or id(parameter) in tables
            or type(value) is not nn.Parameter
        ):
            continue
        tensor = value.detach()
        is_read = tensor.dim() > 1 and tensor.shape[0] > 1 and tensor.layout is torch.strided and tensor.numel() > 0
        if is_read and tensor.dtype.itemsize > 1 and why_unobservable(tensor) is None and not is_being_captured(tensor):
            yield tensor


def _is_alike(matrix: Tensor) -> Tensor:
    rows = matrix[:ROWS].flatten(1)[:, :COLUMNS]
    return (rows - rows[:1]).abs().amax() <= ROUNDING * rows[0].abs().amax()
