"""What is known of a run's optimizers by their class."""

from __future__ import annotations

from rangewatch.wire.events import Optimizers
from rangewatch_server.rules.evidence import Evidence

WITH_SQUARES = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta"})
"""Optimizers of torch that keep squares of gradients."""


def keeps_squares(evidence: Evidence) -> bool:
    """Whether all divide by squares of gradients that they keep: updates are as large as the rate then."""
    names = {name for _, known in evidence.details(Optimizers) for name in known.classes}
    return bool(names) and names <= WITH_SQUARES
