"""Series `target_share` and `target_class`: whether the classes of a batch are mixed, `target_count`: how many of them
count, and `target_rms`: how large the targets of a regression are, as the graph of its loss shows.

A cross entropy keeps its targets for the backward. Of one with a target a row the share that has the class of the first
row is recorded, and that class: 1 where all rows of a batch are of one class, as those of files that lie sorted on the
disk are. One step in `EVERY`, of at most `MOST_ROWS` rows; nothing waits for a device. By what it divides, or would,
the targets are counted that it does not ignore, weighted as it weights them: in each step, on an accelerator in each
fourth. Batches of another length or with more padding show there, whatever the inputs are padded to.

A squared, smooth L1, Huber or binary cross entropy loss keeps its targets, too, wherever it stands in the graph of the
loss: the root of the mean square of a sample is recorded in each step, on an accelerator in each fourth. Targets in
another unit, and what stands for missing ones, show there before any loss says why it jumped. Of several that keep
targets the first is read, and only in steps with as many as at first: a term that comes brings targets of its own.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rangewatch.recording.input_scale import ON_DEVICE, rms_of, sampled
from rangewatch.recording.logged_values import LoggedValues
from rangewatch.recording.observer import Observer, is_being_captured, why_unobservable
from rangewatch.steps.loss.graph_nodes import kept_value, node_name
from rangewatch.steps.loss.loss_function import loss_node

SHARE, CLASS = "target_share", "target_class"

EVERY = 8
"""Steps from one reading to the next: 15 us on a CPU, five launches on an accelerator."""

FEWEST_ROWS, MOST_ROWS = 8, 4_096
"""Fewer rows are of one class by chance now and then."""


RMS, COUNT = "target_rms", "target_count"

MOST_NODES = 16
"""Of the graph of a loss that are looked through for one that keeps targets: 20 us of a step at most."""

_KEEPS = ("MseLoss", "SmoothL1Loss", "HuberLoss", "BinaryCrossEntropy")


class LossTargets:
    """Called with what each backward of the process began with, by the training thread."""

    def __init__(self, values: LoggedValues, observer: Observer) -> None:
        self._values, self._observer = values, observer
        self._last, self._sized = -1, -1
        self._count = 0
        """Operations of the first loss with any that keep targets."""

    def began(self, loss: Any, step: int) -> None:
        """A backward begins at `loss`; of a step the first counts."""
        if not isinstance(loss, Tensor):
            return
        if step != self._sized:
            self._sized = step
            self._size(loss.grad_fn, step)
            self._count_targets(loss, step)
        if step % EVERY or step == self._last:
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

    def _size(self, root: Any, step: int) -> None:
        keeping = _keeping_targets(root)
        self._count = self._count or len(keeping)
        target = kept_value(keeping[0], "target") if keeping and len(keeping) == self._count else None
        if type(target) is not Tensor or target.requires_grad or why_unobservable(target) or is_being_captured(target):
            return
        is_on_device = self._observer.is_on_device(target)
        part = None if is_on_device and step % ON_DEVICE else sampled(target.detach())
        if part is None:
            return
        rms = rms_of(part)
        self._values.record(RMS, step, rms if is_on_device else float(rms))

    def _count_targets(self, loss: Tensor, step: int) -> None:
        is_on_device = self._observer.is_on_device(loss)
        node = None if is_on_device and step % ON_DEVICE else loss_node(loss.grad_fn)
        if node is None or not node_name(node).startswith("NllLoss") or not getattr(node, "_saved_reduction", 0):
            return  # of losses of each row nothing is added up
        # Before torch 2.8 it is not known whether a hook has packed it, which to undo in each step may cost a forward.
        if not hasattr(getattr(node, "_raw_saved_total_weight", None), "unpack_hook"):
            return
        weight = kept_value(node, "total_weight")
        if type(weight) is not Tensor or weight.numel() != 1 or why_unobservable(weight) or is_being_captured(weight):
            return
        self._values.record(COUNT, step, weight.detach() if is_on_device else float(weight))


def _keeping_targets(root: Any) -> list[Any]:
    """The first nodes from a loss backwards that keep targets, each level before the next."""
    nodes, keeping = [] if root is None else [root], []
    for at in range(MOST_NODES):
        if at == len(nodes):
            break
        if node_name(nodes[at]).startswith(_KEEPS):
            keeping.append(nodes[at])
        else:
            nodes += [each for each, _ in nodes[at].next_functions if each is not None]
    return keeping


def _targets(root: Any) -> Tensor | None:
    """(n,) whole numbers, the class of each row; None where the loss has none, or too few."""
    node = loss_node(root)
    if node is None or not node_name(node).startswith("NllLossBackward"):
        return None
    target = kept_value(node, "target")
    is_by_row = isinstance(target, Tensor) and target.dim() == 1 and not target.is_floating_point()
    return target if is_by_row and len(target) >= FEWEST_ROWS else None
