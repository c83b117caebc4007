"""When tensors are read for what would be left of them in smaller formats: all in turn every `whatif_every` steps, and
those that somebody asks for.

All formats together cost some milliseconds a tensor, so a round is spread over as many steps as it needs, and the next
one waits until all rounds together have taken no more than `limits.WHATIF_FRACTION` of the training's time. Tensors in
host memory only: an accelerator would have to be waited for.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Collection
from typing import NamedTuple

from torch import Tensor

from rangewatch.core import limits
from rangewatch.core.guard import Guard
from rangewatch.core.selection import matches
from rangewatch.recording.observer import StepReader
from rangewatch.recording.rows.step_buffer import StepRow
from rangewatch.recording.tensor_names import TensorNames
from rangewatch.statistics import sparse, whatif

_NONE: frozenset[int] = frozenset()


class Reading(NamedTuple):
    """What became of a request: how many of the tensors it named were read, up to `last_step`."""

    command: int
    first_step: int
    last_step: int
    read: int
    asked: int


class WhatIfReader(StepReader):
    """Sets `due`, and measures each of these tensors when it is next read. `every` 0: on request only."""

    def __init__(self, names: TensorNames, row: StepRow, guard: Guard, every: int) -> None:
        self._names, self._row, self._guard, self._every = names, row, guard, every
        self.due: Collection[int] = _NONE
        self._waiting: set[int] = set()
        self._previous_amax = array("d")
        self._request: Reading | None = None
        self._next_round = every
        self._began_ns = self._step_began_ns = time.perf_counter_ns()
        self._spent_ns = self._step_spent_ns = 0
        self._step_ns = 0
        self._step = 0

    @property
    def has_read(self) -> bool:
        """Whether anything was read in the open step."""
        return self._step_spent_ns > 0

    def begin_step(self, step: int) -> None:
        """Read what still waits, or begin a round with the step after this one."""
        now_ns = time.perf_counter_ns()
        self._step_ns, self._step_began_ns = now_ns - self._step_began_ns, now_ns
        self._step, self._step_spent_ns = step, 0
        # The first step of a round has no `amax` of the one before; a tensor that is not read in each never has.
        self.due = self._waiting if self._waiting and self._previous_amax else _NONE
        if self._is_round_due(step, now_ns):
            self._next_round = step + self._every
            self._waiting = set(range(len(self._names)))

    def end_step(self) -> None:
        """Keep the step's `amax` while anything waits: what delayed scaling has in the next one."""
        self._previous_amax = self._row.amax[:] if self._waiting else array("d")

    def _is_round_due(self, step: int, now_ns: int) -> bool:
        if not self._every or step < self._next_round or self._request is not None:
            return False
        return self._spent_ns <= limits.WHATIF_FRACTION * (now_ns - self._began_ns)

    def request(self, command: int, modules: tuple[str, ...], step: int) -> str:
        """Read the tensors of these modules (patterns; none: all) once, in the steps after `step`. Why not, or ""."""
        if self._request is not None:
            return f"command {self._request.command} is being read for"
        numbers = {
            number
            for number, entry in enumerate(self._names.entries)
            if not modules or matches(entry.fqn, modules)
        }  # fmt: skip
        if not numbers:
            return f"no tensor is recorded of {', '.join(modules)[: limits.NAME_CHARACTERS] or 'any module'}"
        self._waiting = numbers
        self._request = Reading(command, step + 1, step + 1, 0, len(numbers))
        return ""

    def take_ended(self, step: int) -> Reading | None:
        """The request, where it is over with the end of `step`: all were read, or have had the steps for it."""
        request = self._request
        if request is None or (self._waiting and step < request.first_step + limits.WHATIF_REQUEST_STEPS):
            return None
        read = request.asked - len(self._waiting)
        self._waiting, self._request = set(), None
        return request._replace(last_step=step, read=read)

    def read(self, number: int, tensor: Tensor, amax: float) -> None:
        """Measure a tensor of `due`, whose largest finite magnitude is `amax`, and add it to the open step."""
        began_ns = time.perf_counter_ns()
        self._waiting.discard(number)
        self._guard.run("what if", lambda: self._measure(number, tensor, amax))
        took_ns = time.perf_counter_ns() - began_ns
        self._spent_ns += took_ns
        self._step_spent_ns += took_ns
        share = 1.0 if self._request is not None else limits.WHATIF_STEP_FRACTION
        if self._step_spent_ns > share * self._step_ns:
            self.due = _NONE

    def _measure(self, number: int, tensor: Tensor, amax: float) -> None:
        if not tensor.numel():
            return
        is_asked = self._request is not None
        rows = whatif.sample(tensor, whatif.REQUEST_ELEMENTS if is_asked else whatif.SAMPLE_ELEMENTS)
        before = self._previous_amax[number] if number < len(self._previous_amax) else 0.0
        self._row.sparse.add(number, sparse.WHATIF, whatif.measure(rows, amax, before or amax))
