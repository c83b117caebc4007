"""What the rule on formats in use looks at: the format that each tensor is rounded to, and its newest reading there.
It was declared, or its library's cast was seen; what is declared of a module's input, weight or gradient wins.

A reading says nothing of the format that it was made in. Only those are taken that were made since every rank's newest
process said its formats: a restart may have others, or none.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from fnmatch import translate
from typing import Any

import msgspec
import numpy as np

from rangewatch.statistics import in_use
from rangewatch.statistics.formats import BY_NAME, Format
from rangewatch.wire.events import FormatsInUse, ScaledOperands
from rangewatch_server.core import deadline
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.query.reader import Rank
from rangewatch_server.rules.evidence import WINDOW, Array, Evidence

WIDEST, CELLS = 2_048, 1 << 18
"""Of what is read at one step in many: more steps than `WINDOW` where rows are few, `CELLS` of both at most."""

FEWEST = 32
"""Elements of a reading that is judged."""


class Left(msgspec.Struct, frozen=True):
    """What is left of one tensor in its format by its newest reading, at `step`. `sqnr_db`: None where nothing is
    lost; `error`: mean relative error; `of_spread`: error over what elements differ by, both
    squared. What is not known is 0.
    """

    tensor: int
    format: Format
    step: int
    flushed: float
    saturated: float
    sqnr_db: float | None
    error: float
    of_spread: float
    of_square: float
    finer_gain: float
    finer_lost: float


def newest_readings(evidence: Evidence) -> list[Left]:
    """Of each tensor that was read in the last `WINDOW` steps (an operand: `rare_window`), in the format that it has
    now: all ranks together, in call order.
    """
    newest = {event.stream_id: (event.step, known) for event, known in evidence.details(FormatsInUse)}
    casts = {event.stream_id: known for event, known in evidence.details(ScaledOperands)}
    if not newest and not casts:
        return []
    ranks = evidence.run.ranks.values()
    processes = newest_processes(evidence)
    said = {process.id: newest[process.id] for process in processes if process.id in newest}
    since = [_since(*each, newest) for each in zip(ranks, processes, strict=True)]
    start = max(evidence.start, evidence.whole_stop - WINDOW, *since)
    # A rank that was left behind before says nothing of those that are read.
    gone = {row.id for row in processes if row.last_step is not None and row.last_step < start}
    declared = {known for stream, (_, known) in said.items() if stream not in gone}
    seen = [casts[process.id] for process in processes if process.id in casts and process.id not in gone]
    formats = _formats(evidence, declared, seen)
    position, entries = evidence.tensors.position, evidence.tensors.entries
    is_cast = {each: entries[each].kind in in_use.OF_SCALED for each in formats}
    casts_start = max(evidence.start, evidence.whole_stop - rare_window(sum(is_cast.values())), *since)
    parts = ((start, False), (casts_start, True))
    left = [
        each
        for first, of_casts in parts
        for each in _left(evidence, {at: of for at, of in formats.items() if is_cast[at] == of_casts}, first)
    ]
    left.sort(key=lambda each: int(position[each.tensor]))
    # A tensor that was read as what it is needs no reading of the same as an operand.
    read = {(entries[each.tensor].kind, entries[each.tensor].fqn) for each in left}
    operands = {each.tensor: entries[each.tensor] for each in left if entries[each.tensor].kind in in_use.OF_SCALED}
    twice = {number for number, of in operands.items() if (in_use.OF_SCALED[of.kind], of.fqn) in read}
    return [each for each in left if each.tensor not in twice]


def rare_window(rows: int) -> int:
    """Steps up to the last in which so many rows are looked for that are read at one step in many."""
    return min(max(WINDOW, CELLS // max(rows, 1)), WIDEST)


def newest_processes(evidence: Evidence) -> list[Any]:
    """Each rank's newest process that had begun by then: rows of `streams`, in the order of the ranks."""
    return [_process(evidence, rank) for rank in evidence.run.ranks.values()]


def _process(evidence: Evidence, rank: Rank) -> Any:
    begun = (row for row in reversed(rank.rows) if row.first_step is not None and row.first_step < evidence.stop)
    return rank.row if evidence.is_newest else next(begun, rank.rows[0])


def _since(rank: Rank, process: Any, newest: dict[int, tuple[int, FormatsInUse]]) -> int:
    """The first step of which a rank's readings are this process's and in the formats it said last; 0 where it has no
    others: a rank that joins later takes nothing from what those before it read.
    """
    said = newest[process.id][0] if process.id in newest else -1
    last = max((row.last_step for row in rank.rows if row.last_step is not None), default=-1)
    begun = 1 + last if process.first_step is None else int(process.first_step)
    return 0 if process.ordinal == 1 and said <= begun else max(begun, said)


def _formats(evidence: Evidence, said: set[FormatsInUse], seen: list[ScaledOperands]) -> dict[int, Format]:
    """By tensor, as `said` or else as the casts were `seen`; without those of which two ranks have different ones, as
    their readings are added up.
    """
    names: dict[tuple[str, str], set[str]] = {}
    for entry in evidence.tensors.entries:
        names[in_use.OF_SCALED.get(entry.kind, entry.kind), entry.fqn] = set()
    for known in said:
        patterns = {kind: _Patterns(known, kind) for kind in {each.kind for each in known.formats}}
        for (kind, fqn), found in names.items():
            deadline.check()
            if kind in patterns and (name := patterns[kind].format_of(fqn)) is not None:
                found.add(name)
    casts = _casts(seen)
    formats: dict[int, Format] = {}
    for ordinal, entry in enumerate(evidence.tensors.entries):
        found = names[in_use.OF_SCALED.get(entry.kind, entry.kind), entry.fqn]
        found = found or casts.get((entry.fqn, entry.kind, entry.index), set())
        each = BY_NAME.get(next(iter(found))) if len(found) == 1 else None
        if each is not None:
            formats[ordinal] = each
    return formats


def _casts(seen: list[ScaledOperands]) -> dict[tuple[str, str, int], set[str]]:
    """Names of formats by operand."""
    casts: dict[tuple[str, str, int], set[str]] = {}
    for known in {id(each): each for each in seen}.values():
        deadline.check()
        for of in known.operands:
            each = in_use.of_operand(of.format, of.granularity, of.scale_format, of.history)
            if each is not None and not of.unknown:
                casts.setdefault((of.fqn, of.kind, of.index), set()).add(each.name)
    return casts


class _Patterns:
    """Those of one kind, as one expression: whoever may send can send hundreds, for thousands of tensors."""

    def __init__(self, known: FormatsInUse, kind: str) -> None:
        mine = [each for each in known.formats if each.kind == kind]
        self._names = {f"of_{at}": each.format for at, each in enumerate(mine)}
        parts = (f"(?P<of_{at}>{translate(each.pattern or '*')})" for at, each in enumerate(mine))
        self._expression = re.compile("|".join(parts))

    def format_of(self, fqn: str) -> str | None:
        """By the first that matches."""
        matched = self._expression.match(fqn)
        return None if matched is None else self._names[matched.lastgroup or ""]


def _left(evidence: Evidence, formats: dict[int, Format], start: int) -> Iterator[Left]:
    rows = np.array(sorted(formats))
    known = evidence.run.names().fill[RANGES]
    names = [each.name for each in in_use.ALL if each.name in known]
    if not formats or start >= evidence.whole_stop or in_use.ALL[0].name not in names:
        return
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, evidence.whole_stop, tuple(names), rows)
    columns = {name.removeprefix(in_use.PREFIX): np.asarray(block.columns[name], np.float64) for name in names}
    for at, tensor in enumerate(rows.tolist()):
        read = np.flatnonzero(columns["count"][at] >= FEWEST)
        left = _newest(tensor, formats[tensor], start, int(read[-1]), at, columns) if len(read) else None
        if left is not None:
            yield left


def _newest(tensor: int, each: Format, start: int, column: int, at: int, columns: dict[str, Array]) -> Left | None:
    """None where sums of squares have become Inf, or too small for a quotient: such a reading says nothing."""
    sums = {name: float(columns[name][at, column]) if name in columns else 0.0 for name in in_use.NAMES}
    count, square, error = sums["count"], sums["sum_sq"], sums["error_sq"]
    signal = _ratio(square, error)
    if error > 0 and signal == 0:
        return None
    return Left(
        tensor, each, start + column,
        flushed=_ratio(sums["flushed_count"], count), saturated=_ratio(sums["saturated_count"], count),
        sqnr_db=10 * math.log10(signal) if signal > 0 else None,
        error=_ratio(sums["relative_error"], count),
        of_spread=_ratio(error, sums["spread_sq"]),
        of_square=_ratio(error, square),
        finer_gain=_ratio(error, sums["finer_error_sq"]),
        finer_lost=_ratio(sums["finer_lost_count"], count),
    )  # fmt: skip


def _ratio(over: float, under: float) -> float:
    """0 where it is not known."""
    found = over / under if under > 0 else 0.0
    return found if math.isfinite(found) else 0.0
