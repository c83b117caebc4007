"""Series `target_share` and `target_class`: whether the classes of a batch are mixed, as the graph of its loss shows.

A cross entropy keeps its targets for the backward. Of one with a target a row the share that has the class of the first
row is recorded, and that class: 1 where all rows of a batch are of one class, as those of files that lie sorted on the
disk are. One step in `EVERY`, of at most `MOST_ROWS` rows; nothing waits for a device.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import is_being_captured
from rangewatch.steps.loss.kept_values import kept_value
from rangewatch.steps.loss.loss_function import loss_node

SHARE, CLASS = "target_share", "target_class"

EVERY = 8
"""Steps from one reading to the next: 15 us on a CPU, five launches on an accelerator."""

FEWEST_ROWS, MOST_ROWS = 8, 4_096
"""Fewer rows are of one class by chance now and then."""


class LossTargets:
    """Called with what each backward of the process began with, by the training thread."""

    def __init__(self, values: LoggedValues) -> None:
        self._values, self._last = values, -1

    def began(self, loss: Any, step: int) -> None:
        """A backward begins at `loss`; of a step the first counts."""
        if step % EVERY or step == self._last or not isinstance(loss, Tensor):
            return
        self._last = step
        target = _targets(loss.grad_fn)
        if target is None or is_being_captured(target):
            return
        target = target.detach()[:MOST_ROWS]
        if target.is_cpu:
            rows = target.numpy()
            self._values.record(SHARE, step, float((rows == rows[0]).mean()))
            self._values.record(CLASS, step, float(rows[0]))
            return
        same = (target == target[0]).double() if target.device.type != "mps" else (target == target[0]).float()
        self._values.record(SHARE, step, same.mean())
        self._values.record(CLASS, step, target[0])


def _targets(root: Any) -> Tensor | None:
    """(n,) whole numbers, the class of each row; None where the loss has none, or too few."""
    node = loss_node(root)
    if node is None or not str(node.name()).startswith("NllLossBackward"):
        return None
    target = kept_value(node, "target")
    is_by_row = isinstance(target, Tensor) and target.dim() == 1 and not target.is_floating_point()
    return target if is_by_row and len(target) >= FEWEST_ROWS else None
