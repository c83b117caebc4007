"""When tensors are read for what is left of them in the format that they are said to be rounded to: all of them in
turn, again and again, within `limits.FORMATS_FRACTION` of the training's time. Tensors in host memory only.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import Tensor

from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.recording.observer import StepReader
from rangewatch.recording.rows.step_buffer import StepRow
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.statistics import sparse, whatif
from rangewatch.statistics.formats import BY_NAME, Format
from rangewatch.wire.events import FormatOf, FormatsInUse

_NONE: frozenset[int] = frozenset()
_FIRST = 2
"""Steps before the first round: delayed scaling has an `amax` of the one before then."""


def formats_in_use(declared: Sequence[tuple[str, str]]) -> FormatsInUse:
    """The event of `attach(formats={...})`."""
    places = ((place.partition(":"), name) for place, name in declared)
    return FormatsInUse(tuple(FormatOf(kind, pattern, name) for (kind, _, pattern), name in places))


class InUseReader(StepReader):
    """Sets `due`, and measures each of these tensors when it is next read."""

    def __init__(self, names: TensorNames, row: StepRow, guard: Guard, declared: Sequence[tuple[str, str]]) -> None:
        self.due: Collection[int] = _NONE
        self._names, self._row, self._guard = names, row, guard
        self._declared = formats_in_use(declared).formats
        self._formats: list[Format | None] = []
        """Of each tensor that the names had when last looked at."""
        self._waiting: set[int] = set()
        self._previous_amax = array("d")
        self._has_delayed = any(BY_NAME[each.format].scaling == "delayed" for each in self._declared)
        self._next_round = -1
        self._began_ns = self._step_began_ns = time.perf_counter_ns()
        self._spent_ns = self._step_spent_ns = self._step_ns = 0

    @property
    def has_read(self) -> bool:
        """Whether anything was read in the open step."""
        return self._step_spent_ns > 0

    def begin_step(self, step: int) -> None:
        """Go on with the round, or begin the next."""
        now_ns = time.perf_counter_ns()
        self._step_ns, self._step_began_ns, self._step_spent_ns = now_ns - self._step_began_ns, now_ns, 0
        if self._next_round < 0:
            self._next_round = step + _FIRST
        is_within = self._spent_ns <= limits.FORMATS_FRACTION * (now_ns - self._began_ns)
        if step >= self._next_round and is_within:
            self._next_round = step + limits.FORMATS_EVERY
            self._waiting = {at for at, each in enumerate(self._known()) if each is not None}
        self.due = self._waiting or _NONE

    def end_step(self) -> None:
        """Keep the step's `amax`, where delayed scaling has it in the next one."""
        if self._has_delayed:
            self._previous_amax = self._row.amax[:]

    def _known(self) -> list[Format | None]:
        for entry in self._names.entries[len(self._formats) :]:
            self._formats.append(format_of(self._declared, entry.kind, entry.fqn))
        return self._formats

    def read(self, number: int, tensor: Tensor, amax: float) -> None:
        """Measure a tensor of `due`, whose largest finite magnitude is `amax`, and add it to the open step."""
        began_ns = time.perf_counter_ns()
        self._waiting.discard(number)
        self._guard.run("formats in use", lambda: self._measure(number, tensor, amax))
        took_ns = time.perf_counter_ns() - began_ns
        self._spent_ns += took_ns
        self._step_spent_ns += took_ns
        if self._step_spent_ns > limits.WHATIF_STEP_FRACTION * self._step_ns:
            self.due = _NONE

    def _measure(self, number: int, tensor: Tensor, amax: float) -> None:
        each = self._formats[number]
        if each is None or not tensor.numel():
            return
        before = self._previous_amax[number] if number < len(self._previous_amax) else 0.0
        rows = whatif.sample(tensor, whatif.IN_USE_ELEMENTS)
        self._row.sparse.add(number, sparse.IN_USE, whatif.measure_in_use(rows, each, amax, before or amax))


def format_of(declared: Sequence[FormatOf], kind: str, fqn: str) -> Format | None:
    """Of the tensors of this kind and name, by the first that matches; None where it is not said, and of biases."""
    if fqn.rpartition(".")[2] == "bias":
        return None
    for each in declared:
        if each.kind == kind and (not each.pattern or fnmatchcase(fqn, each.pattern)):
            return BY_NAME.get(each.format)
    return None
