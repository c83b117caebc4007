"""Event `loss_changed`: from some step on the loss is computed by other operations than before, as its graph says.

Read are the names of the operations nearest to the loss, which dimensions of each result have one element, and whether
a function of torch's takes a mean or a sum. A training that has several losses, such as those of a GAN, shows all of
them at first: only an order that was not there before is a change.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from rangewatch.recording.events import Events
from rangewatch.wire.events import LossChanged

NEAREST = 8
"""Operations that are read, up to those that have parameters: 7 to 14 us a backward."""

SETTLED = 8
"""Backwards of orders that are known already, before another one is a change."""

MOST_ORDERS, MOST_EVENTS = 64, 8
"""Of a graph that is another one each time nothing is said."""

_REDUCTIONS = ("none", "mean", "sum")
"""By torch's own numbers."""

Order = tuple[tuple[str, tuple[bool, ...]], ...]


class LossChanges:
    """Called with what each backward of the process began with, by the training thread."""

    def __init__(self, events: Events) -> None:
        self._events = events
        self._known = set[Order]()
        self._last: Order = ()
        self._same, self._left = 0, MOST_EVENTS

    def began(self, loss: Any) -> bool:
        """A backward begins at `loss`; whether it is computed as never before, once it is known how it usually is."""
        if len(self._known) > MOST_ORDERS or not isinstance(loss, Tensor) or loss.grad_fn is None:
            return False
        order = _order(loss.grad_fn)
        is_known = order in self._known
        is_change = not is_known and self._same >= SETTLED
        if is_change and self._left:
            self._left -= 1
            self._events.add(LossChanged(_names(self._last), _names(order)))
        self._known.add(order)
        self._same, self._last = self._same + 1 if is_known else 0, order
        return is_change


def _order(root: Any) -> Order:
    """The operations nearest to the loss, each with which dimensions of its result have one element."""
    nodes, seen = [root], {root}
    for node in nodes:
        if len(nodes) >= NEAREST:
            break
        children = [child for child, _ in node.next_functions if child is not None]
        if any(child.name().endswith("AccumulateGrad") for child in children):
            continue
        for child in children:
            if child not in seen and len(nodes) < NEAREST:
                seen.add(child)
                nodes.append(child)
    return tuple((_name(each), _dimensions(each)) for each in nodes)


def _name(node: Any) -> str:
    name = str(node.name()).partition("Backward")[0]
    if not name.endswith(("Loss", "LossNd", "Logits", "Entropy", "Div")):
        return name
    reduction = getattr(node, "_saved_reduction", None)
    return f"{name} {_REDUCTIONS[reduction]}" if reduction in (0, 1, 2) else name


def _dimensions(node: Any) -> tuple[bool, ...]:
    try:
        return tuple(size == 1 for size in node._input_metadata[0].shape)
    except (AttributeError, IndexError, RuntimeError, TypeError):
        return ()


def _names(order: Order) -> tuple[str, ...]:
    return tuple(name for name, _ in order)
