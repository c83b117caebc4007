"""What is left of operands in the format that their library casts them to: nobody has to declare what is seen.

All operands in turn, in the steps in which their scales are read, within `limits.CAST_FORMATS_FRACTION` of the
training's time. Of operands in host memory whose values are seen before the cast. Where `attach(formats={...})` says
another format of the module's input, weight or gradient, that one is taken.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from torch import Tensor

from rangewatch.core import limits
from rangewatch.hooks.scales.operand import Operand
from rangewatch.recording.in_use import format_of, formats_in_use
from rangewatch.recording.observer import Observer
from rangewatch.statistics import in_use, sparse, whatif
from rangewatch.statistics.formats import Format
from rangewatch.statistics.scaled import Fit
from rangewatch.wire.events import ScaledOperand


class CastFormats:
    """Of one attached model. `declared`: the option `formats`."""

    def __init__(self, observer: Observer, declared: Sequence[tuple[str, str]]) -> None:
        self._observer = observer
        self._declared = formats_in_use(declared).formats
        self._read: set[Operand] = set()
        """Those that this round has read already."""
        self._left: int | None = None
        """How many the open step has left to those after it; None where it was asked for none."""
        self._is_round_over = True
        """Whether the last step that was asked for any left none."""
        self._step = self._next_round = 0
        self._began_ns = self._step_began_ns = time.perf_counter_ns()
        self._spent_ns = self._step_spent_ns = self._step_ns = 0

    def end_step(self) -> None:
        """Begin another round where it is time for one."""
        now_ns = time.perf_counter_ns()
        self._step_ns, self._step_began_ns = now_ns - self._step_began_ns, now_ns
        self._step_spent_ns = 0
        self._step += 1
        if self._left is not None:
            self._is_round_over, self._left = not self._left, None
        is_within = self._spent_ns <= limits.CAST_FORMATS_FRACTION * (now_ns - self._began_ns)
        if is_within and self._step >= self._next_round and self._is_round_over:
            self._next_round = self._step + limits.CAST_FORMATS_EVERY
            self._read.clear()

    def read(
        self, number: int, operand: Operand, values: Tensor, shape: torch.Size, fit: Fit, about: ScaledOperand
    ) -> int:  # fmt: skip
        """Measure the `values` of the operand of this number, where it has not been in this round. `shape`: of its
        scales, each of a row or block; `about`: how it is cast. Returns nanoseconds that it took.
        """
        self._left = self._left or 0
        if operand in self._read or not self._step:  # the first step has not been timed yet
            return 0
        if self._step_spent_ns > limits.WHATIF_STEP_FRACTION * self._step_ns:
            self._left += 1
            return 0
        began_ns = time.thread_time_ns()
        self._read.add(operand)
        each = self.format_of(operand, about)
        if each is not None and values.dim() > 1 and each.scaling != "none":
            if about.granularity == "row" and values.dim() == 2 and shape[0] == 1:
                values = values.t()  # it lies transposed: a column is what has a scale
            amax = float(fit.amax)
            left = whatif.measure_in_use(whatif.sample(values, whatif.IN_USE_ELEMENTS), each, amax, amax)
            self._observer.add_sums(number, sparse.IN_USE, torch.from_numpy(left))
        took_ns = time.thread_time_ns() - began_ns
        self._spent_ns += took_ns
        self._step_spent_ns += took_ns
        return took_ns

    def format_of(self, operand: Operand, about: ScaledOperand) -> Format | None:
        """What it is rounded to; None where that is none of `formats.FORMATS`."""
        declared = format_of(self._declared, in_use.OF_SCALED[operand.kind], operand.fqn)
        return declared or in_use.of_operand(about.format, about.granularity, about.scale_format, about.history)
