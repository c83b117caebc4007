"""What arrived of operands that are cast by scales: rows by step, and how they are cast."""

from __future__ import annotations

from typing import Any

from rangewatch.statistics import scales
from rangewatch.statistics.formats import SCALE_BIAS
from rangewatch.wire.events import ScaledOperand, ScaledOperands, read
from rangewatch.wire.records import SCALED
from tests.agent.ingest_double import IngestDouble

Row = dict[str, float]
Operand = tuple[str, str, int]


def rows(ingest: IngestDouble) -> dict[int, dict[Operand, Row]]:
    """By step and operand: the statistics, and `low` and `high`, log2 of the least and largest scale."""
    found: dict[int, dict[Operand, Row]] = {}
    for batch in ingest.batches:
        if batch.ranges is None:
            continue
        tensors = ingest.catalogues[batch.catalogue]
        for row, number in enumerate(batch.ranges.tensors.tolist()):
            entry = tensors[number]
            if entry.kind not in SCALED:
                continue
            for at, step in enumerate(batch.ranges.steps.tolist()):
                values = {
                    name: float(column[row, at])
                    for name, column in batch.ranges.columns.items()
                    if name in {"amax", "call_count", "numel"} or name in {each.name for each in scales.ALL}
                }
                if values["call_count"] == 0:
                    continue
                if values.get(scales.HIGH):
                    values["high"] = values[scales.HIGH] - SCALE_BIAS
                    values["low"] = SCALE_BIAS - values[scales.LOW]
                found.setdefault(step, {})[entry.fqn, entry.kind, entry.index] = values
    return found


def operands(ingest: IngestDouble) -> dict[Operand, ScaledOperand]:
    """Of the newest event."""
    events = [each for batch in ingest.batches for each in batch.events if each.kind == ScaledOperands.KIND]
    details: Any = read(ScaledOperands, events[-1].data) if events else None
    return {(each.fqn, each.kind, each.index): each for each in details.operands} if details else {}
