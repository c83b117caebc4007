"""Checksums of what each rank trains on, for the server to compare along the mesh: no collective, and no waiting.

Of the step's first forward: what the model is given, series `token_checksum` where that has tensors of whole numbers,
which are then the only ones that count, and `input_checksum` where all are floating. Of the rows that the loop names by
`batch(ids=...)`, `rows_checksum`. An input that a gradient goes through is what another stage of a pipeline has made,
and not read. Of large inputs the first `MOST_BYTES` count.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.nonfinite.batch_rows import Batches
from rangewatch.recording.observer import InputListener, Observer, StepReader, is_being_captured, why_unobservable
from rangewatch.recording.parallel.placements import Layout
from rangewatch.recording.parallel.schedule import Schedule
from rangewatch.recording.tensor_names import leaves
from rangewatch.statistics import checksum

TOKENS, INPUTS, ROWS = "token_checksum", "input_checksum", "rows_checksum"

MOST_BYTES = 1 << 16
"""Of each tensor. In host memory they are read in 10 us."""

MOST_TENSORS = 8

_WHOLE = 1 << 53


class BatchChecksums(StepReader, InputListener):
    """Called by the training thread."""

    def __init__(
        self, observer: Observer, values: LoggedValues, layout: Layout, schedule: Schedule,
        of_inputs: list[InputListener],
    ) -> None:  # fmt: skip
        self._observer, self._values, self._layout, self._schedule = observer, values, layout, schedule
        self._of_inputs = of_inputs
        self._step = 0
        self._found: dict[str, Tensor | float] = {}

    def begin_step(self, step: int) -> None:
        """`step` is open: look at its first forward, if it is its turn."""
        self._step = step
        if self._layout.world_size > 1 and self._schedule.is_due(step) and self not in self._of_inputs:
            self._of_inputs.append(self)

    def inputs_given(self, values: Any) -> None:
        """The model is called with these, for the first time in the step."""
        self._of_inputs.remove(self)
        tensors = [each for each in leaves(values) if isinstance(each, Tensor)][:MOST_TENSORS]
        whole = [each for each in tensors if not each.is_floating_point() and not each.is_complex()]
        chosen = [part for each in whole or tensors if (part := self._part(each)) is not None]
        if chosen and not any(each.requires_grad for each in tensors):
            self._found[TOKENS if whole else INPUTS] = self._sum(chosen)

    def _part(self, tensor: Tensor) -> Tensor | None:
        local: Any = getattr(tensor, "_local_tensor", tensor)
        reason = why_unobservable(local)
        is_there = isinstance(local, Tensor) and local.layout is torch.strided and local.device.type != "meta"
        if is_there and (local.is_nested or torch._C._functorch.is_functorch_wrapped_tensor(local)):
            return None  # of whole numbers, too
        if not is_there or not local.numel() or (reason and local.is_floating_point()) or is_being_captured(local):
            return None
        return local.detach().reshape(-1)[: max(1, MOST_BYTES // local.element_size())]

    @torch.no_grad()
    def _sum(self, parts: Sequence[Tensor]) -> Tensor | float:
        """One number for all, each weighted by its place."""
        on_host = [each for each in parts if not self._observer.is_on_device(each)]
        if len(on_host) == len(parts):
            return float(sum(int(checksum.of_host(each)) * place for place, each in _placed(parts)) % _WHOLE + 1)
        (first, *others) = {each.device for each in parts if self._observer.is_on_device(each)}
        there = [each for each in parts if each.device == first]
        if first.type == "mps" or others:  # which has no float64, or parts on several
            there = there[:1]
        sums = checksum.on_device(there)
        weights = torch.arange(1, len(there) + 1, device=sums.device, dtype=torch.int64)
        return (sums.to(torch.int64) * weights).sum().remainder(_WHOLE).double() + 1

    def end_step(self) -> None:
        """The open step is about to be closed."""
        found, self._found = self._found, {}
        for name, value in found.items():
            self._values.record(name, self._step, value)


def _placed(parts: Sequence[Tensor]) -> Iterator[tuple[int, Tensor]]:
    return enumerate(parts, 1)


class RowsChecksum(StepReader):
    """Of a step when the next one ends: a loop may name its rows after it. Called by the training thread."""

    def __init__(self, batches: Batches, values: LoggedValues, layout: Layout, schedule: Schedule) -> None:
        self._batches, self._values, self._layout, self._schedule = batches, values, layout, schedule
        self._step = self._due = -1

    def begin_step(self, step: int) -> None:
        """`step` is open."""
        self._step = step

    def end_step(self) -> None:
        """The open step is about to be closed."""
        self.flush()
        if self._layout.world_size > 1 and self._schedule.is_due(self._step):
            self._due = self._step

    def flush(self) -> None:
        """Record that of the last step."""
        step, self._due = self._due, -1
        ids = self._batches.ids_of(step) if step >= 0 else []
        if ids:
            self._values.record(ROWS, step, of_rows(ids))


def of_rows(ids: Sequence[Any]) -> float:
    """Of names of rows, as whole numbers or strings: their order counts. From 1 to 2^53."""
    text = "\n".join(map(str, ids)).encode("utf-8", "replace")
    return float(((zlib.crc32(text) << 32 | zlib.adler32(text)) % _WHOLE) + 1)
