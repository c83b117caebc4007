"""Which of the NaN and Inf of one rank's step was there first. Pure numpy, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import KINDS, MOMENTS

Array = NDArray[Any]

NONFINITE_NS = "nonfinite_ns"
COLUMNS = ("call_count", "nan_count", "inf_count", NONFINITE_NS)
"""The statistics that `first_bad` looks at; the last may be missing."""

# Read once a step, however many microbatches it has: that they have fewer calls than an output says nothing.
_ONCE = [KINDS.index(kind) for kind in ("weight", "reduced_grad", "update", *MOMENTS)]


def first_bad(columns: Mapping[str, Array], call_index: Array, kind_rows: Array) -> int | None:
    """Position among t tensors of the one that held NaN or Inf first; None when all are finite.

    `columns[name]`: (t,) statistics of one rank and step. `call_index`: (t,) order of first use in the step, of equal
    ones the first counts. `kind_rows`: (t,) places in `KINDS`.

    The agent's clock says it where it could (`nonfinite_ns` is finite: on a CPU); a tensor without a time comes after
    those that have one. Where none has, call order says it, but see `_is_late`.
    """
    order = np.argsort(call_index, kind="stable")
    is_bad = (columns["nan_count"] > 0) | (columns["inf_count"] > 0)
    bad = order[is_bad[order]]
    if not len(bad):
        return None
    seen_ns = columns[NONFINITE_NS][bad] if NONFINITE_NS in columns else np.full(len(bad), np.inf)
    timed = np.isfinite(seen_ns)
    if timed.any():
        return int(bad[np.where(timed, seen_ns, np.inf).argmin()])
    late = _is_late(columns["call_count"], is_bad, order, kind_rows)
    return next((int(each) for each in bad if not late[each]), int(bad[0]))


def _is_late(calls: Array, is_bad: Array, order: Array, kind_rows: Array) -> Array:
    """(t,) bool: tensors that, if they are bad, got it in a later call than the one that gives them their place.

    A module that runs twice stands at its first call. When the next tensor in call order that has fewer calls is
    finite, or late itself, nothing bad had come there yet. Next smaller elements with a stack: one pass, whatever the
    counts are.
    """
    is_counted = (calls > 0) & ~np.isin(kind_rows, _ONCE)
    late = np.zeros(len(order), bool)
    later: list[int] = []
    for each in order[::-1]:
        while later and calls[later[-1]] >= calls[each]:
            later.pop()
        late[each] = bool(later) and bool(late[later[-1]] or not is_bad[later[-1]])
        if is_counted[each]:
            later.append(int(each))
    return late
