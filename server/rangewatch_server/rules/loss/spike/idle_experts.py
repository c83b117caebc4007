"""Experts that get no gradient from the very step of a jump on: the rows that were theirs go elsewhere."""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.experts.without_gradient import FEWEST, expert_lists
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.recent import Array, tensors_of

CAUSE = "dead_units"

BEFORE, SINCE, USUAL = 32, 3, 0.9
"""Steps before the jump in which they had a gradient, in this part of them or more; and steps since that must be there,
in none of which they have one."""


class IdleSince(msgspec.Struct, frozen=True):
    """What it speaks for, and the gradient of the first parameter of the first of them."""

    candidate: Candidate
    entry: TensorEntry


def idle_since(evidence: Evidence, step: int) -> IdleSince | None:
    """Of a jump at `step`, of the first list of experts that has some."""
    low, stop = step - BEFORE, min(evidence.whole_stop, step + 2 * SINCE)
    lists = expert_lists(evidence) if low >= evidence.start and stop - step >= SINCE else {}
    entries = evidence.tensors.entries
    recorded = {entries[each].fqn: each for each in tensors_of(evidence, "grad").tolist()}
    for fqn, experts in lists.items():
        rows = {number: [recorded[each] for each in names if each in recorded] for number, names in experts.items()}
        rows = {number: each for number, each in rows.items() if each}
        if len(rows) < FEWEST:
            continue
        every = np.unique(np.concatenate([np.array(each) for each in rows.values()]))
        block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("amax",), every)
        has: Array = np.asarray(block.columns["amax"], np.float64) > 0
        by_expert = {n: np.any(has[np.searchsorted(every, each)], axis=0) for n, each in rows.items()}
        idle = [n for n, row in sorted(by_expert.items()) if row[:BEFORE].mean() >= USUAL and not row[BEFORE:].any()]
        if idle and len(idle) < len(rows):
            names = ", ".join(str(each) for each in idle[:8])
            text = (
                f"From that very step on {len(idle)} of the {len(rows)} experts of {fqn} ({names}) get no gradient, "
                "and did before: no row reaches them, and others are given theirs."
            )
            return IdleSince(Candidate(CAUSE, 0.9, (text,)), entries[rows[idle[0]][0]])
    return None
