"""The operands of a run that are cast by scales of low precision, as its ranks said, with the rows that they have."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import scales
from rangewatch.wire.events import ScaledOperand, ScaledOperands
from rangewatch.wire.records import SCALED, TensorEntry
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.store.names import Tensors

if TYPE_CHECKING:
    from rangewatch_server.query.reader import RunReader

COLUMNS = ("call_count", "amax", *(each.name for each in scales.ALL))

Array = NDArray[Any]
Place = tuple[str, str, int]

AT_ONCE = 4_096
"""Processes whose events are asked for in one query: a database takes so many values, and not many more."""


class OperandRow(msgspec.Struct, frozen=True):
    """An operand, and the ordinal of its row; None where nothing was read of it."""

    operand: ScaledOperand
    tensor: int | None

    def as_entry(self, tensors: Tensors) -> TensorEntry:
        """Its tensor; where it has no row one of its name and kind, of no known dtype or module."""
        if self.tensor is not None:
            return tensors.entries[self.tensor]
        of = self.operand
        return TensorEntry(of.fqn, of.kind, of.index, "", (), 0, "")


def said_of(run: RunReader, ranks: Sequence[int], start: int, stop: int) -> list[ScaledOperands]:
    """What the processes that recorded steps of [start, stop) on these ranks have said, the newest last; where there is
    none, what each rank's newest process has."""
    streams = [
        row.id
        for rank in ranks
        for row, newer_from in run.ranks[rank].visible()
        if row.first_step < stop and start < min(newer_from, row.last_step + 1)
    ]
    return _last_said(run, streams or [run.ranks[rank].streams[-1].id for rank in ranks])


def _last_said(run: RunReader, streams: Sequence[int]) -> list[ScaledOperands]:
    """By these processes, the newest last; what many ranks say alike once."""
    last = [
        event
        for at in range(0, len(streams), AT_ONCE)
        for event in run.source.last_events(streams[at : at + AT_ONCE], [ScaledOperands.KIND])
    ]
    alike = {event.data: event for event in sorted(last, key=lambda event: event.id)}
    details = [event.read(ScaledOperands) for event in sorted(alike.values(), key=lambda event: event.id)]
    return [each for each in details if each is not None]


def margins_of(run: RunReader) -> dict[Place, float]:
    """Bits that a delayed scale leaves free, by name, kind and index: the most that any process of the run has said, so
    that no other margin is taken for staleness.
    """
    margins: dict[Place, float] = {}
    for said in _last_said(run, [row.id for rank in run.ranks.values() for row in rank.rows]):
        for each in said.operands:
            if not each.unknown:
                place = each.fqn, each.kind, each.index
                margins[place] = max(each.margin, margins.get(place, each.margin))
    return margins


def is_stale(peak: Array, age: Array, margin: Array) -> Array:
    """Where a scale is made of an old entry of the history and too large by `scales.STALE` besides its margin, in bits:
    NaN where it is not known, and then nothing is. All of one shape, or as they broadcast.
    """
    with np.errstate(divide="ignore"):
        return np.asarray((age > 1) & (peak > 0) & (np.log2(peak) + margin <= np.log2(scales.STALE)))


def operands_of(tensors: Tensors, details: Iterable[ScaledOperands]) -> list[OperandRow]:
    """Those that any of `details` has, in call order, those without a row last; the later of one name stands, but what
    was read on any rank is not unknown. A place of a kind of which nothing is read goes where another of it is.
    """
    named: dict[Place, ScaledOperand] = {}
    for known in details:
        for each in known.operands:
            place = each.fqn, each.kind, each.index
            if not each.unknown or place not in named:
                named[place] = each
    rows = {
        (entry.fqn, entry.kind, entry.index): ordinal
        for ordinal, entry in enumerate(tensors.entries)
        if entry.kind in SCALED
    }
    read = {(each.fqn, each.kind) for each in named.values() if not each.unknown}
    found = [OperandRow(each, rows.get(place)) for place, each in named.items() if place in rows]
    found.sort(key=lambda each: (int(tensors.call_index[each.tensor or 0]), each.tensor))
    without = (each for place, each in named.items() if place not in rows)
    unread = [OperandRow(each, None) for each in without if not each.unknown or (each.fqn, each.kind) not in read]
    return [*found, *unread]


def columns_of(fill: dict[str, dict[str, float]]) -> list[str]:
    """The statistics to read of them, of those that the run has."""
    return [name for name in COLUMNS if name in fill[RANGES]]
