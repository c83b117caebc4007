"""A layer of ReLUs that gives nothing but zeros from the very step of a jump on, and did not before."""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.activations.dead_activation import RELU_LIKE
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.phrases import capital, the
from rangewatch_server.rules.recent import tensors_of

BEFORE, SINCE, USUAL = 32, 4, 0.9
"""Steps before the jump in this part of which, or more, it gave something; and those behind it in which it gives none:
in the step itself code without gradient may have called it before it died."""


class DeadSince(msgspec.Struct, frozen=True):
    """What it speaks for, and the output of the first such layer."""

    candidate: Candidate
    entry: TensorEntry


def dead_since(evidence: Evidence, step: int) -> DeadSince | None:
    """Of a jump at `step`, the first layer in call order."""
    entries, position = evidence.tensors.entries, evidence.tensors.position
    layers = [int(each) for each in tensors_of(evidence, "output") if RELU_LIKE.fullmatch(entries[int(each)].module)]
    low, stop = step - BEFORE, min(evidence.whole_stop, step + 1 + SINCE)
    if not layers or low < evidence.start or stop < step + 1 + SINCE:
        return None
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("amax", "call_count"), np.array(layers))
    gives = np.asarray(block.columns["amax"], np.float64) > 0
    calls = np.asarray(block.columns["call_count"], np.float64) > 0
    is_dead = calls[:, BEFORE + 1 :].all(axis=1) & ~gives[:, BEFORE + 1 :].any(axis=1)
    dead = np.flatnonzero(is_dead & (gives[:, :BEFORE].mean(axis=1) >= USUAL)).tolist()
    if not dead:
        return None
    entry = entries[layers[min(dead, key=lambda at: int(position[layers[at]]))]]
    text = (
        f"{capital(the(entry))} ({entry.module}) is 0 in every element from that step on, and was not in the steps "
        "before: all of its units died at once, as by a bias or weights that were overwritten, or by one update that "
        "was far too large."
    )
    return DeadSince(Candidate("dead_units", 0.82, (text,)), entry)
