"""Reads tensors in host memory and merges what it finds into the open step's row: the agent's hot path on a CPU."""

from __future__ import annotations

import math
import time
from array import array
from collections.abc import Callable
from typing import Any
from weakref import ref

import torch
from torch import Tensor

from rangewatch.core.limits import SEEN_TENSORS
from rangewatch.recording.memory.layout import TENSOR
from rangewatch.recording.step_buffer import StepRow
from rangewatch.statistics import reduce
from rangewatch.statistics.reduce import FullSet

_INFINITY = math.inf
_FINITE = (0, 0)
_aminmax, _is_grad_enabled, _set_grad_enabled = torch.aminmax, torch.is_grad_enabled, torch._C._set_grad_enabled


class HostReader:
    """Measures each tensor once a step, however many modules show it, and merges it into `row`.

    A parent often returns its child's output unchanged. What was read is therefore kept until the step closes, by the
    tensor object (through a weak reference: nothing is kept alive) and its version (an in-place change raises it).
    Tensors that are not plain ones in host memory go to `elsewhere`. `passed` is told each number before it is read.
    `histograms`: the full set comes with the exponents.
    """

    def __init__(
        self,
        row: StepRow,
        elsewhere: Callable[[int, Tensor], None],
        passed: Callable[[int], None],
        *,
        reads_all: bool = True,
        histograms: bool = False,
    ) -> None:
        self.is_full = True
        self.saw_nonfinite = False
        self._began_ns = time.perf_counter_ns()
        self._elsewhere, self._passed, self._reads_all = elsewhere, passed, reads_all
        self._histograms = histograms
        self._seen: dict[int, tuple[Any, ...]] = {}
        self.position: Any = array("q", bytes(8 * (TENSOR + 1)))
        """The cells that say where this process is, see `recording.memory.layout`: the tensor last read is kept
        there.
        """
        self.nonfinite_seen: Callable[[int, int], None] = lambda number, nan_count: None
        """Told of each tensor that holds NaN or Inf as it is read, in the midst of the call that it comes from."""
        self._row = row
        self._call_count, self._numel, self._amax = row.call_count, row.numel, row.amax

    def begin_step(self, *, is_full: bool) -> None:
        """Forget the tensors of the last step; `is_full`: take the full set in this one."""
        self._seen.clear()
        self.is_full, self.saw_nonfinite = is_full, False
        self._began_ns = time.perf_counter_ns()

    def read(self, number: int, tensor: Tensor) -> None:
        """Measure `tensor`, any strided floating CPU tensor, and merge it as an observation of `number`.

        Raises what torch raises for tensors that cannot be reduced (sparse, quantized, wrapped by functorch).
        """
        self._passed(number)
        self.position[TENSOR] = number
        known = self._seen.get(id(tensor))
        if known is None or known[0]() is not tensor or known[1] != tensor._version:
            if type(tensor) is not Tensor or not tensor.is_cpu or not self._reads_all:
                self._elsewhere(number, tensor)
                return
            known = self._measure(tensor)
        _, _, numel, amax, nonfinite, full = known
        self._call_count[number] += 1.0
        self._numel[number] += numel
        if amax > self._amax[number]:
            self._amax[number] = amax
        if nonfinite is not _FINITE:
            self._count_nonfinite(number, *nonfinite)
        if full is not None:
            self._merge_full(number, numel, full)

    def _count_nonfinite(self, number: int, nan_count: int, inf_count: int) -> None:
        row = self._row
        row.nan_count[number] += nan_count
        row.inf_count[number] += inf_count
        # Which was first: a module that is called twice may be bad in its second call only, call order does not tell.
        row.nonfinite_ns[number] = min(row.nonfinite_ns[number], time.perf_counter_ns() - self._began_ns)
        self.nonfinite_seen(number, nan_count)

    def _measure(self, tensor: Tensor) -> tuple[Any, ...]:
        """(weak reference, version, numel, amax, non-finite counts, full set or None)"""
        was_enabled = _is_grad_enabled()
        _set_grad_enabled(False)
        try:
            # What `reduce.amax` does, written out: this runs for every tensor of every step.
            low, high = _aminmax(tensor if tensor.is_contiguous() else reduce.dense(reduce.distinct(tensor)))
            amax, least = high.item(), -low.item()
            if least > amax:
                amax = least
        except RuntimeError:
            amax = reduce.amax_of_blocks(tensor)
        finally:
            _set_grad_enabled(was_enabled)
        counts = _FINITE
        if not amax < _INFINITY:
            self.saw_nonfinite = True
            amax, nan_count, inf_count = reduce.count_nonfinite(tensor)
            counts = nan_count, inf_count
        full = reduce.full_set(tensor, histogram=self._histograms) if self.is_full else None
        if len(self._seen) > SEEN_TENSORS:
            self._seen.clear()
        try:
            known = self._seen[id(tensor)] = ref(tensor), tensor._version, tensor.numel(), amax, counts, full
        except RuntimeError:  # an inference tensor has no version to know it again by
            return None, 0, tensor.numel(), amax, counts, full
        return known

    def _merge_full(self, number: int, numel: int, full: FullSet) -> None:
        row = self._row
        row.full_numel[number] += numel
        row.amin[number] = min(row.amin[number], full.amin)
        row.zero_count[number] += full.zero_count
        row.subnormal_count[number] += full.subnormal_count
        row.sum_sq[number] += full.sum_sq
        if full.exponents is not None:
            row.add_exponents(number, full.exponents)
