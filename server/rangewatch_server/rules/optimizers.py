"""What is known of a run's optimizers by their class, and which small weights are looked at around their updates."""

from __future__ import annotations

from rangewatch.wire.events import Optimizers, SampledWeights
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.recent import tensors_of

WITH_SQUARES = frozenset({"Adam", "AdamW", "NAdam", "RAdam", "RMSprop", "Adagrad", "Adadelta"})
"""Optimizers of torch that keep squares of gradients."""


def keeps_squares(evidence: Evidence) -> bool:
    """Whether all divide by squares of gradients that they keep: updates are as large as the rate then."""
    names = {name for _, known in evidence.details(Optimizers) for name in known.classes}
    return bool(names) and names <= WITH_SQUARES


def newest_optimizers(evidence: Evidence, rank: int | None = None) -> Optimizers:
    """What was reported last of them, by that rank or by any; as of none where nothing was."""
    return next((known for _, known in reversed(evidence.details(Optimizers, rank))), Optimizers())


def sampled_weights(evidence: Evidence) -> SampledWeights | None:
    """The newest that any rank has sent; None where none has."""
    return next((known for _, known in reversed(evidence.details(SampledWeights))), None)


def sampled_gradient(evidence: Evidence) -> tuple[str, int] | None:
    """Name of the first of these weights, and the tensor that is its gradient as the backward made it; None where
    either is not known."""
    known = sampled_weights(evidence)
    if known is None or not known.names:
        return None
    entries = evidence.tensors.entries
    mine = (int(each) for each in tensors_of(evidence, "grad") if entries[int(each)].fqn == known.names[0])
    tensor = next(mine, None)
    return None if tensor is None else (known.names[0], tensor)
