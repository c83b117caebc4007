"""What died at the very step of a jump: experts that get no gradient from then on, since the rows that were theirs go
elsewhere, and layers of ReLUs that give nothing but zeros. An expert that is called as before and has no gradient at
all is frozen, and rows reach it.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.activations.dead_activation import RELU_LIKE
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.experts.without_gradient import FEWEST, expert_lists
from rangewatch_server.rules.loss.spike.bands import Placed
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.phrases import capital, the
from rangewatch_server.rules.recent import Array, tensors_of

CAUSE = "dead_units"

BEFORE, SINCE, USUAL = 32, 3, 0.9
"""Steps before the jump in which they had a gradient, or gave something, in this part of them or more; and steps since
that must be there, in none of which an expert has one."""

AFTER = 4
"""Steps behind the jump in which a layer gives nothing: in the step itself code without gradient may have called it
before it died."""


def idle_experts(evidence: Evidence, step: int) -> Placed | None:
    """Of a jump at `step`, of the first list of experts that has some: the gradient of the first one's parameter."""
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
            return Placed(Candidate(CAUSE, 0.9, (text,)), entries[rows[idle[0]][0]])
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


def dead_layer(evidence: Evidence, step: int) -> Placed | None:
    """Of a jump at `step`, the output of the first such layer in call order."""
    entries, position = evidence.tensors.entries, evidence.tensors.position
    layers = [int(each) for each in tensors_of(evidence, "output") if RELU_LIKE.fullmatch(entries[int(each)].module)]
    low, stop = step - BEFORE, min(evidence.whole_stop, step + 1 + AFTER)
    if not layers or low < evidence.start or stop < step + 1 + AFTER:
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
    return Placed(Candidate(CAUSE, 0.82, (text,)), entry)
