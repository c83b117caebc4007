"""What ranks hold that are wrapped so that each reduces its gradients over itself alone, or not at all: whether they
began with the same bits and hold others now, and whether something else makes them alike from time to time.

A wrapper over one rank is right for whoever trains a model of its own: an ensemble, a sweep, a stage. So the checksums
of single ranks are compared, which are taken whether or not anybody should be alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from rangewatch.wire.events import NotReduced, OwnSteps
from rangewatch.wire.records import KINDS
from rangewatch_server.core import deadline
from rangewatch_server.machines.mesh import Ranks
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import WINDOW, Array, Evidence
from rangewatch_server.rules.loss.series import RATES, WRITTEN
from rangewatch_server.rules.mesh import values
from rangewatch_server.rules.mesh.values import DATA, SEQUENCE
from rangewatch_server.rules.replicas.along_axes import CHECKSUM, mesh_of

LASTING = 32
"""Steps for which it must have been so: ranks that are averaged every few steps are made alike before that."""

MOST_RANKS, MOST_TENSORS = 8, 64

BEGIN = 2
"""First steps, in which weights that are written by other code than the optimizer may be loaded; later ones may be an
average over the ranks, which may be hundreds of steps apart."""


class Apart(msgspec.Struct, frozen=True):
    """`ranks` began with the same bits (`began_alike`) and held others of `tensor` at `step`. `axes`: data-parallel
    ones along which they should be alike, () where no axis is known. `is_written`: something else writes weights.
    `has_one_rate`: the learning rates of all are known and the same."""

    ranks: Ranks
    axes: tuple[str, ...]
    tensor: str
    step: int
    began_alike: bool
    is_written: bool
    has_one_rate: bool

    @property
    def is_sure(self) -> bool:
        """Whether they are to train one model: along an axis, or by one setting, as no sweep and no ensemble does."""
        return self.began_alike and not self.is_written and (bool(self.axes) or self.has_one_rate)


def apart(evidence: Evidence, known: NotReduced | OwnSteps) -> Apart | None:
    """Of the ranks that say of themselves that they reduce alone; None where they do not differ, need not, or any is
    not trained, as one that evaluates what another trains."""
    axes = tuple(name for name in known.axes if values.role(name) in (DATA, SEQUENCE))
    if (known.axes and not axes) or evidence.whole_stop - known.first < LASTING:
        return None
    lines = mesh_of(evidence).groups_along(axes, evidence.ranks) if axes else [evidence.ranks]
    line = next((each for each in lines if len(each) > 1), ())[:MOST_RANKS]
    found = _compared(evidence, line) if len(line) > 1 else None
    if found is None or not (axes or found[2]):
        return None
    return Apart(tuple(line), axes, *found, _is_written(evidence, line), _has_one_rate(evidence, line))


def _compared(evidence: Evidence, ranks: Sequence[int]) -> tuple[str, int, bool] | None:
    """A parameter that differs in its newest reading, the first step at which any differed after the first reading,
    and whether all were alike in that one. None where none differs, or one that did was alike again."""
    entries = evidence.tensors.entries
    rows = np.flatnonzero(evidence.tensors.kind_rows == KINDS.index("grad"))[:MOST_TENSORS]
    start = values.started(evidence)
    stop = min(evidence.whole_stop, start + 2 * WINDOW)
    if not len(rows) or CHECKSUM not in evidence.run.names().fill[RANGES]:
        return None
    held: Array = np.stack([_checksums(evidence, rank, rows, start, stop) for rank in ranks])
    has = np.asarray((held > 0).any(axis=2))
    is_read = np.asarray((held > 0).all(axis=0))
    differs: Array = is_read & (held != held[:1]).any(axis=0)
    first = np.flatnonzero(is_read.any(axis=1))
    if not len(first) or (has != has[:1]).any():  # models of other parameters
        return None
    if not all(_is_trained(each) for each in held):
        return None
    begin = int(np.flatnonzero(is_read.any(axis=0))[0])
    apart_at: list[tuple[int, str]] = []
    for row in first.tolist():
        steps = np.flatnonzero(is_read[row])
        unlike = differs[row, steps]
        if unlike.any() and not unlike[int(np.argmax(unlike)) :].all():
            return None  # somebody makes them alike again
        if unlike[-1] and steps[-1] > begin:
            later = steps[unlike & (steps > begin)]
            apart_at.append((start + int(later[0]), entries[rows[row]].fqn))
    if not apart_at:
        return None
    step, name = min(apart_at)
    return name, step, not differs[:, begin].any()


def _checksums(evidence: Evidence, rank: int, rows: Array, start: int, stop: int) -> Array:
    """(t, n), 0 where none was taken."""
    deadline.check()
    block = evidence.run.slice(RANGES, [rank], 0, start, stop, (CHECKSUM,), rows)
    found: Any = np.asarray(block.columns[CHECKSUM], np.float64)
    return np.nan_to_num(found)


def _is_trained(held: Array) -> bool:
    """Whether any of a rank's parameters, (t, n), has been another in a later reading."""
    return any(len(np.unique(row[row > 0])) > 1 for row in held)


def _has_one_rate(evidence: Evidence, ranks: Sequence[int]) -> bool:
    name = next((each for each in RATES if evidence.has_series(each)), None)
    start = values.started(evidence)
    if name is None:
        return False
    held = np.array([evidence.series(name, start, min(evidence.whole_stop, start + WINDOW), rank) for rank in ranks])
    read = np.isfinite(held).all(axis=0)
    return bool(read.any()) and bool((held[:, read] == held[:1, read]).all())


def _is_written(evidence: Evidence, ranks: Sequence[int]) -> bool:
    if not evidence.has_series(WRITTEN):
        return False
    start, stop = values.started(evidence) + BEGIN, evidence.whole_stop
    parts = (start, min(stop, start + 2 * WINDOW)), (max(start, stop - 2 * WINDOW), stop)
    written = [evidence.largest(WRITTEN, low, high, rank=ranks[0]) for low, high in parts if low < high]
    return any((np.nan_to_num(each, nan=np.inf, neginf=0.0) > 0).any() for each in written)
