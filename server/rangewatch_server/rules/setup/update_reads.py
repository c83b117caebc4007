"""What was read around the optimizer's steps of single elements of some parameters, as the rules here want it."""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rangewatch_server.numerics.pyramid import FANOUT, RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.recent import Array, tensors_of

LEVEL, STEPS = 1, 1_024
"""Columns of 8 steps, and the steps before the last in which they are looked at: a reading is made each 32nd step."""

COUNTS = ("sampled_count", "pushed_count", "unmoved_count", "zero_weight_count")

SIZES = ("unmoved_amin", "sampled_rate")
"""Newer than the others: an agent from before has sent neither."""

BITS = {"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53}
"""Significant ones."""


def spacing_at(dtype: str, size: float) -> float:
    """How far it is from a normal number of that magnitude to the next one further from 0."""
    return float(2.0 ** (np.frexp(size)[1] - BITS[dtype]))


class Reads(Struct, frozen=True):
    """Of t gradients, `tensors` their ordinals: `columns[name]` is (t, n), of n columns that begin at steps `at`."""

    tensors: Array
    at: Array
    columns: dict[str, Array]


def update_reads(evidence: Evidence) -> Reads | None:
    """Those gradients that were read at all; None where none was."""
    return evidence.once("update reads", lambda: _read(evidence))


def _read(evidence: Evidence) -> Reads | None:
    names = evidence.run.names().fill[RANGES]
    tensors, stop = tensors_of(evidence, "grad"), evidence.whole_stop
    start = max(evidence.start, (stop - STEPS) // FANOUT * FANOUT)
    if not len(tensors) or start >= stop or any(name not in names for name in COUNTS):
        return None
    block = evidence.run.slice(RANGES, list(evidence.ranks), LEVEL, start, stop, COUNTS[:1], tensors)
    sampled = np.asarray(block.columns[COUNTS[0]], np.float64)
    rows = np.flatnonzero(sampled.any(axis=1))
    if not len(rows):
        return None
    wanted = (*COUNTS[1:], *(each for each in SIZES if each in names), "amax")
    rest = evidence.run.slice(RANGES, list(evidence.ranks), LEVEL, start, stop, wanted, tensors[rows])
    columns = {name: np.asarray(rest.columns[name], np.float64) for name in wanted} | {COUNTS[0]: sampled[rows]}
    there = np.flatnonzero(columns[COUNTS[0]].any(axis=0))
    at = np.maximum(start, (block.first + there) * FANOUT**LEVEL)
    return Reads(tensors[rows], at, {name: values[:, there] for name, values in columns.items()})
