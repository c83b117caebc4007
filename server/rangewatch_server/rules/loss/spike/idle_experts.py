"""Experts that get no gradient from the very step of a jump on: the rows that were theirs go elsewhere. One that is
called as before and has no gradient at all is frozen, and rows reach it.
"""

from __future__ import annotations

from collections.abc import Iterable

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
        outputs = _outputs(evidence, fqn, rows)
        has, were_read = _by_expert(evidence, rows, low, stop)
        _, are_called = _by_expert(evidence, outputs, low, stop)
        idle = [n for n, row in sorted(has.items()) if row[:BEFORE].mean() >= USUAL and not row[BEFORE:].any()]
        idle = [n for n in idle if were_read[n][BEFORE:].any() or not (n in outputs and are_called[n][BEFORE:].any())]
        if idle and len(idle) < len(rows):
            names = ", ".join(str(each) for each in idle[:8])
            text = (
                f"From that very step on {len(idle)} of the {len(rows)} experts of {fqn} ({names}) get no gradient, "
                "and did before: no row reaches them, and others are given theirs."
            )
            return IdleSince(Candidate(CAUSE, 0.9, (text,)), entries[rows[idle[0]][0]])
    return None


def _outputs(evidence: Evidence, fqn: str, numbers: Iterable[int]) -> dict[int, list[int]]:
    """Of each expert of a list what it and the modules in it give; those of which nothing is recorded left out."""
    entries, found = evidence.tensors.entries, dict[int, list[int]]()
    places = {f"{fqn}.{each}": each for each in numbers}
    depth = fqn.count(".") + 2
    for each in tensors_of(evidence, "output").tolist():
        number = places.get(".".join(entries[each].fqn.split(".")[:depth]))
        if number is not None:
            found.setdefault(number, []).append(each)
    return found


def _by_expert(
    evidence: Evidence, rows: dict[int, list[int]], low: int, stop: int
) -> tuple[dict[int, Array], dict[int, Array]]:
    """Number -> in which steps any of its tensors was not 0, and in which any was read."""
    if not rows:
        return {}, {}
    every = np.unique(np.concatenate([np.array(each) for each in rows.values()]))
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, ("amax", "call_count"), every)
    amax, calls = (
        {
            n: np.any(np.asarray(block.columns[name])[np.searchsorted(every, each)] > 0, axis=0)
            for n, each in rows.items()
        }
        for name in ("amax", "call_count")
    )
    return amax, calls
