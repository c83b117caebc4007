"""Event `loss_changed`: from some step on the loss is computed by other operations than before, as its graph says.

Read are the names of the operations nearest to the loss, which dimensions of each result behind the first have one
element, and whether a function of torch's takes a mean or a sum; of backwards that reach this model. A training that
has several losses, such as those of a GAN, shows all of them at first, and a penalty now and then is no change: only an
order that was not there before, and is there in some steps in a row.
"""

from __future__ import annotations

import re
from typing import Any

from torch import Tensor

from rangewatch.recording.events import Events
from rangewatch.steps.loss.graph_nodes import node_name, node_shape
from rangewatch.wire.events import LossChanged

NEAREST = 8
"""Operations that are read, up to those that have parameters: 7 to 14 us a backward."""

SETTLED = 8
"""Backwards of orders that are known already, before another one may be a change."""

IN_A_ROW = 4
"""Steps in a row in which the new one must be there."""

MOST_ORDERS, MOST_EVENTS = 64, 8
"""Of a graph that is another one each time nothing is said."""

_REDUCTIONS = ("none", "mean", "sum")
"""By torch's own numbers."""

_SUFFIX = re.compile(r"Backward\d*$")

Order = tuple[tuple[str, tuple[bool, ...]], ...]


class LossChanges:
    """Called around each backward of the process, by the training thread."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._known = set[Order]()
        self._begun: Order | None = None
        self._last: Order = ()
        self._same, self._left = 0, MOST_EVENTS
        self._new: Order | None = None
        """One that may be a change: since the step `_since`, last seen in `_seen`, in `_count` steps in a row."""
        self._old: Order = ()
        self._since = self._seen = self._count = 0

    def begins(self, loss: Any) -> bool:
        """A backward begins at `loss`; whether it is computed as never before, once it is known how it usually is."""
        self._begun = None
        if len(self._known) > MOST_ORDERS or not isinstance(loss, Tensor) or loss.grad_fn is None:
            return False
        self._begun = _order(loss.grad_fn)
        return self._begun not in self._known and self._same >= SETTLED

    def reached(self, step: int) -> None:
        """The backward that began last was of `step`, and has brought this model a gradient."""
        order, self._begun = self._begun, None
        if order is None:
            return
        if order not in self._known:
            if self._same >= SETTLED:
                self._new, self._old, self._since, self._count = order, self._last, step, 0
            self._same = 0
        else:
            self._same += 1
        self._known.add(order)
        self._last = order
        if order == self._new:
            self._go_on(step)

    def _go_on(self, step: int) -> None:
        """The new one is there in `step`."""
        if self._count and step > self._seen + 1:
            self._new = None  # now and then, as a penalty is
            return
        self._count += not self._count or step > self._seen
        self._seen = step
        if self._count >= IN_A_ROW and self._new is not None:
            new, self._new = self._new, None
            if self._left:
                self._left -= 1
                self._events.add(LossChanged(_names(self._old), _names(new)), step=self._since)


def _order(root: Any) -> Order:
    """The operations nearest to the loss, each with which dimensions of its result, behind the first, have one element:
    the first is that of rows, of which the last batch may have one."""
    nodes, seen = [root], {root}
    for node in nodes:
        if len(nodes) >= NEAREST:
            break
        children = [child for child, _ in node.next_functions if child is not None]
        if any(node_name(child) == "AccumulateGrad" for child in children):
            continue
        for child in children:
            if child not in seen and len(nodes) < NEAREST:
                seen.add(child)
                nodes.append(child)
    return tuple((_name(each), tuple(size == 1 for size in (node_shape(each) or ())[1:])) for each in nodes)


def _name(node: Any) -> str:
    name = _SUFFIX.sub("", node_name(node))
    if "Loss" not in name and not name.startswith("BinaryCrossEntropy"):
        return name
    reduction = getattr(node, "_saved_reduction", None)
    return f"{name} {_REDUCTIONS[reduction]}" if reduction in (0, 1, 2) else name


def _names(order: Order) -> tuple[str, ...]:
    return tuple(name for name, _ in order)
