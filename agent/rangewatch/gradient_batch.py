"""Gradients of parameters on an accelerator, read together when the backward ends: few launches, not one for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from rangewatch import limits
from rangewatch.cost import Cost, TimedHook
from rangewatch.guard import Guard

_graph_task_id = torch._C._current_graph_task_id
_engine: Any = torch.autograd.Variable._execution_engine


class GradientBatch:
    """Holds gradients until their backward ends, some at a time. Their reads are queued as if they were made at once.

    Only such as stay what they are until then: not where DDP reduces them in place as soon as they are there, and not
    where another hook on the parameter may use them up.
    """

    def __init__(self, read_many: Callable[[Iterable[tuple[int, Tensor]]], None], guard: Guard, cost: Cost) -> None:
        self._read_many = read_many
        self._at_end = TimedHook(guard, "grad at the end of the backward", self.read, cost)
        self._waiting: list[tuple[int, Tensor]] = []
        self._task = -1

    def add(self, number: int, parameter: Tensor, gradient: Tensor) -> bool:
        """Take a gradient; False when it must be read now."""
        task = _graph_task_id()
        if task == -1 or not _stays(parameter, gradient):
            return False
        if task != self._task:  # a backward inside another has a task, and an end, of its own
            self.read()
            _engine.queue_callback(self._at_end)
            self._task = task
        self._waiting.append((number, gradient))
        if len(self._waiting) >= limits.GRADIENTS_AT_ONCE:
            self.read()
        return True

    def read(self) -> None:
        """Read those that wait. Called when their backward ends; a backward that raises calls nothing."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._read_many(waiting)


def _stays(parameter: Tensor, gradient: Tensor) -> bool:
    hooks: Any = parameter._post_accumulate_grad_hooks
    if hooks is None or len(hooks) > 1:
        return False
    # FSDP2's gradients, DTensors, are reduced before they are here.
    return hasattr(gradient, "to_local") or not _is_distributed()


def _is_distributed() -> bool:
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
