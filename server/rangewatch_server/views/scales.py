"""How the scales of each operand in low precision have fitted it, over some steps and ranks together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import scales
from rangewatch.statistics.formats import SCALE_BIAS
from rangewatch.wire.events import ScaledOperand
from rangewatch_server.figures.base import grid
from rangewatch_server.figures.lines import to_grid
from rangewatch_server.figures.name_filter import name_filter
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.query.reader import RunReader
from rangewatch_server.query.scales import OperandRow, columns_of, is_stale, operands_of, said_of

Array = NDArray[Any]

COLUMNS = 8  # into which the steps are merged as they are read
MOST = 2_000  # operands of one answer


def scales_of_run(run: RunReader, ranks: Sequence[int], start: int, stop: int, q: str = "") -> dict[str, Any]:
    """The answer of docs/api.md: operands in call order, those that match `q`. Raises `ApiError` for a bad `q`."""
    names = run.names()
    cut = grid(start, stop, COLUMNS)
    said = said_of(run, ranks, cut.start, cut.stop)
    known = operands_of(names.tensors, said)
    if q:
        is_wanted = name_filter(q)
        known = [each for each in known if is_wanted(each.as_entry(names.tensors))]
    rows = np.array(sorted(each.tensor for each in known[:MOST] if each.tensor is not None), np.int64)
    columns: dict[str, Array] = {}
    if len(rows) and cut.stop > cut.start:
        block = run.stored(RANGES, ranks, cut.level, cut.start, cut.stop, columns_of(names.fill), rows)
        rules = names.rules[RANGES]
        parts = {name: np.asarray(values, np.float64) for name, values in to_grid(block, cut, rules).items()}
        columns = {name: each.max(axis=1) if rules[name] == "max" else each.sum(axis=1) for name, each in parts.items()}
        if scales.PEAK in parts:
            margins = {each.tensor: each.operand.margin for each in known}
            columns |= _worst_part(parts, np.array([margins[ordinal] for ordinal in rows.tolist()]))
    places = {ordinal: at for at, ordinal in enumerate(rows.tolist())}
    listed = [_operand(each, places, columns) for each in known[:MOST]]
    return {
        "run": run.name, "start": max(run.first_step or 0, cut.first * cut.per),
        "stop": min((run.last_step or 0) + 1, (cut.first + cut.width) * cut.per), "of": len(known),
        "every": max((each.every for each in said), default=0) or None, "operands": listed,
    }  # fmt: skip


def _worst_part(parts: dict[str, Array], margin: Array) -> dict[str, Array]:
    """`PEAK` and `AGE` of the part of the steps with the gravest state: too small, or else stale, or else any.
    `margin`: (rows,) bits."""
    peak, age = parts[scales.PEAK], parts.get(scales.AGE, np.zeros_like(parts[scales.PEAK]))
    stale = is_stale(peak, age, margin[:, None])
    gravity = np.where(peak >= scales.TOO_SMALL, 2 + peak, np.where(stale, 2 - peak, peak / 2))
    at = gravity.argmax(axis=1)[:, None]
    return {name: np.take_along_axis(each, at, 1)[:, 0] for name, each in ((scales.PEAK, peak), (scales.AGE, age))}


def _operand(row: OperandRow, places: dict[int, int], columns: dict[str, Array]) -> dict[str, Any]:
    of, at = row.operand, places.get(-1 if row.tensor is None else row.tensor)
    values = {name: float(each[at]) for name, each in columns.items()} if at is not None else {}
    peak, age, count = (values.get(name, 0.0) for name in (scales.PEAK, scales.AGE, scales.COUNT))
    high, low = values.get(scales.HIGH, 0.0), values.get(scales.LOW, 0.0)
    return {
        "tensor": row.tensor, "name": of.fqn, "kind": of.kind, "index": of.index, "format": of.format,
        "granularity": of.granularity, "scale_format": of.scale_format, "source": of.source, "recipe": of.recipe,
        "history": of.history, "margin": of.margin, "unknown": of.unknown, "state": _state(of, peak, age),
        "headroom_bits": -math.log2(peak) if peak else None,
        "scale_log2": [SCALE_BIAS - low, high - SCALE_BIAS] if high and low else None,
        "history_age": int(age) or None, "amax": values.get("amax"),
        "saturated_fraction": values.get(scales.SATURATED, 0.0) / count if count else None,
        "flushed_fraction": values.get(scales.FLUSHED, 0.0) / count if count else None,
    }  # fmt: skip


def _state(of: ScaledOperand, peak: float, age: float) -> str:
    """Of the worst of the steps: as in the heatmap."""
    if of.unknown:
        return "unknown"
    if not peak:
        return "not_observed"
    if peak >= scales.TOO_SMALL:
        return "scale_too_small"
    return "scale_stale" if is_stale(np.float64(peak), np.float64(age), np.float64(of.margin)) else "value"
