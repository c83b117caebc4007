"""The same collective on all its ranks: by the group, as its ranks name it, and the sequence that they share.

A group's sequence on one rank is cut where it began anew: a restarted process, a group made again. Ranks that called
different things at one sequence of one group are a desync.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import msgspec
import numpy as np

from rangewatch_server.collectives.records import (
    UNKNOWN,
    Array,
    Chunk,
    Group,
    Names,
    Records,
    newest_process,
    rank_records,
    uneven_ops,
)
from rangewatch_server.core.text import ranks_text, size_text

MAX_DESYNCS = 16
"""Told apart a block: after the first one everything that follows in the group may differ."""


class Side(msgspec.Struct, frozen=True):
    """What some ranks called."""

    op: str
    dtype: str
    bytes: float
    ranks: tuple[int, ...]


class Desync(msgspec.Struct, frozen=True):
    """One sequence at which ranks differ. `sides`: most ranks first. `odd_ranks`: all but the first side's; empty where
    no side has most ranks. `following`: later sequences of the group that differ too."""

    group: Group
    age: int
    sequence: int
    step: int
    sides: tuple[Side, ...]
    odd_ranks: tuple[int, ...]
    following: int
    sentence: str


def desyncs(block: Block, runs: Mapping[int, Records], names: Names) -> list[Desync]:
    """The first differing sequences of a block, whose `op`, `dtype` and `bytes` there become those of most ranks."""
    places = np.flatnonzero(block.is_desync)
    all_desyncs = []
    for number, place in enumerate(places[:MAX_DESYNCS].tolist()):
        sides = _sides(int(block.sequence[place]), runs)
        (block.op[place], block.dtype[place], block.bytes[place]), _ = sides[0]
        all_desyncs.append(_desync(block, place, sides, names, len(places) - 1 - number))
    return all_desyncs


_Called = tuple[int, int, float]


def _sides(sequence: int, runs: Mapping[int, Records]) -> list[tuple[_Called, list[int]]]:
    ranks_by_call: defaultdict[_Called, list[int]] = defaultdict(list)
    for rank, run in runs.items():
        at = int(np.searchsorted(run.sequence, sequence))
        if at < len(run) and run.sequence[at] == sequence:
            ranks_by_call[int(run.op[at]), int(run.dtype[at]), float(run.bytes[at])].append(rank)
    return sorted(ranks_by_call.items(), key=lambda side: (-len(side[1]), side[1]))


def _desync(block: Block, place: int, called: list[tuple[_Called, list[int]]], names: Names, following: int) -> Desync:
    sides = tuple(
        Side(names.ops[op], names.dtypes[dtype] if dtype >= 0 else "", size, tuple(ranks))
        for (op, dtype, size), ranks in called
    )
    has_most = len(sides) > 1 and len(sides[0].ranks) > len(sides[1].ranks)
    odd = tuple(sorted(rank for side in sides[1:] for rank in side.ranks)) if has_most else ()
    sequence, step = int(block.sequence[place]), int(block.step[place])
    sentence = mismatch(sides, block.group, sequence)
    return Desync(block.group, block.age, sequence, step, sides, odd, following, sentence)


def mismatch(sides: tuple[Side, ...], group: Group, sequence: int, where: Mapping[int, str] | None = None) -> str:
    """Who called what, the odd ones first. `where`: rank -> line of code."""
    reported = []
    for side in reversed(sides):
        places = sorted({where[rank] for rank in side.ranks if rank in where}) if where else []
        at = f" at {', '.join(places[:2])}" if places else ""
        reported.append(f"{ranks_text(side.ranks)} called {side.op} of {size_text(side.bytes, side.dtype)}{at}")
    return f"At collective {sequence} of group {group.title} {'; '.join(reported)}."


REORDERED = 64
"""Sequences that may arrive out of order when several threads call collectives: falling farther is a new beginning."""

MAX_GENERATIONS = 8
"""The newest that are kept: older ones are of no use, and nonsense in a column must not cost minutes."""


def generations(run: Records) -> list[Records]:
    """The records of one rank and group, in order of time, as generations, oldest first, each strictly ascending.

    A record that came twice counts once, with the duration that is known. Coalesced operations share a sequence: they
    become one record, of all their bytes, whose size and type are not compared with other ranks': one of its parts may
    have been lost there.
    """
    if len(run) < 2 or (run.incarnation[0] == run.incarnation[-1] and (np.diff(run.sequence) > 0).all()):
        return [run]
    run = _coalesced(_once(run))
    new_process = np.diff(run.incarnation) != 0
    fallen = np.diff(run.sequence) < -REORDERED
    parts = []
    for first, stop in _spans(np.flatnonzero(new_process | fallen) + 1, len(run)):
        part = run.take(slice(first, stop))
        parts += [part.take(slice(*span)) for span in _spans(_repeats(part.sequence), len(part))]
    return [part.take(np.argsort(part.sequence, kind="stable")) for part in parts[-MAX_GENERATIONS:]]


def _spans(starts: Array, count: int) -> list[tuple[int, int]]:
    firsts = [0, *starts.tolist()][-MAX_GENERATIONS:]
    return list(zip(firsts, [*firsts[1:], count], strict=True))


def _once(run: Records) -> Records:
    keys = (run.bytes, run.op, run.sequence, run.times_ns, run.incarnation)
    order = np.lexsort((np.nan_to_num(run.duration_s, nan=-1.0), *keys))
    same = np.ones(len(run) - 1, bool)
    for key in keys:
        ordered = np.nan_to_num(key[order], nan=-1.0)
        same &= ordered[1:] == ordered[:-1]
    return run.take(order[np.append(~same, True)])


def _coalesced(run: Records) -> Records:
    same = (np.diff(run.sequence) == 0) & (np.diff(run.incarnation) == 0)
    if not same.any():
        return run
    firsts = np.flatnonzero(np.append(True, ~same))
    one = run.take(firsts)
    one.bytes = np.add.reduceat(run.bytes, firsts)
    one.is_coalesced = np.diff(np.append(firsts, len(run))) > 1
    one.duration_s = np.fmax.reduceat(run.duration_s, firsts)
    return one


def _repeats(sequence: Array) -> Array:
    """Positions where a sequence comes that was there before, as often as never before."""
    order = np.argsort(sequence, kind="stable")
    ordered = sequence[order]
    firsts = np.append(True, ordered[1:] != ordered[:-1])
    place = np.arange(len(order))
    times_seen = np.empty(len(order), np.int64)
    times_seen[order] = place - np.maximum.accumulate(np.where(firsts, place, 0))
    most = np.maximum.accumulate(times_seen)
    return np.flatnonzero(np.diff(most) > 0) + 1


_NO_STEP = np.iinfo(np.int64).max
_DENSE = 4  # rows of sequences that nobody has are laid out too, as long as there are no more than this times the rest


class Block(msgspec.Struct, dict=True):
    """The m collectives of one group, in order of their sequence, on its k ranks.

    `age` 0 is the group's newest generation; after each restart of its ranks the older ones are one older. Of each
    collective `op`, `dtype`, `bytes` are those of most ranks, `bucket` is known where any rank knows it, and `step` is
    the least that a rank says (one that polls its recorder says a later one).
    """

    group: Group
    age: int
    ranks: Array
    """(k,) int64, ascending: those with records. `group.ranks` names all."""
    incarnation: Array
    """(k,) int64"""
    sequence: Array
    """(m,) int64, ascending"""
    step: Array
    """(m,) int64; -1 unknown"""
    op: Array
    """(m,) places in `Matched.ops`"""
    dtype: Array
    """(m,) places in `Matched.dtypes`; -1 unknown"""
    bucket: Array
    """(m,) DDP's numbers; -1 none"""
    bytes: Array
    """(m,) float64"""
    is_symmetric: Array
    """(m,) bool"""
    is_async: Array
    """(m,) 1: the ranks went on while it ran, 0: it blocked them, -1: they do not say"""
    is_coalesced: Array
    """(m,) bool: on any rank several operations in one"""
    is_desync: Array
    """(m,) bool: ranks called different things"""
    times_ns: Array
    """(k, m) int64, enqueued, each row by its own host's clock; -1 where the rank has no record"""
    duration_s: Array
    """(k, m) float64; NaN unknown"""

    @property
    def size(self) -> int:
        """Ranks of the group, those without records too."""
        return max(len(self.group.ranks), len(self.ranks))

    @cached_property
    def is_measured(self) -> Array:
        """(m,) bool: symmetric, the same on all ranks, and its duration is known on two ranks or more."""
        known = np.count_nonzero(~np.isnan(self.duration_s), axis=0)
        return self.is_symmetric & ~self.is_desync & (known >= 2)


class Matched(msgspec.Struct):
    """All collectives of a run. `left_out`: reason -> records that no block has."""

    blocks: list[Block]
    ops: list[str]
    dtypes: list[str]
    buckets: dict[int, Any]
    """DDP's bucket -> its parameters, where known"""
    ranks: Array
    desyncs: list[Desync]
    left_out: dict[str, int]


class _Run(NamedTuple):
    """One rank's part of a block."""

    rank: int
    records: Records


def match(by_rank: Mapping[int, Sequence[Chunk]]) -> Matched:
    """Lay the chunks of all ranks over one another. In time proportional to their rows; the order of chunks is free.

    A group's generations are counted from the newest, since no rank completes a collective in a new one before all its
    ranks are there. A rank's newest process has begun one even where it has no record of the group yet.
    """
    names = Names()
    runs: defaultdict[tuple[int, int], list[_Run]] = defaultdict(list)
    for rank in sorted(by_rank):
        records = rank_records(by_rank[rank], names)
        for group, run in _by_group(records):
            parts = generations(run)
            remaining = sum(map(len, parts))
            names.left_out["repeated"] += len(run) - remaining
            begun = int(run.incarnation[-1]) != newest_process(by_rank[rank])
            for age, part in enumerate(reversed(parts), begun):
                runs[group, age].append(_Run(rank, part))
    uneven = uneven_ops(names)
    newest = dict(sorted(runs, reverse=True))  # group -> its least age
    all_desyncs: list[Desync] = []
    blocks = []
    for (group, age), parts_of_ranks in sorted(runs.items()):
        block = _block(names.groups[group], age - newest[group], parts_of_ranks, uneven)
        blocks.append(block)
        if block.is_desync.any():
            all_desyncs += desyncs(block, dict(parts_of_ranks), names)
    left_out = {reason: count for reason, count in sorted(names.left_out.items()) if count}
    ranks = np.array(sorted(by_rank), np.int64)
    return Matched(blocks, names.ops, names.dtypes, names.buckets, ranks, all_desyncs, left_out)


def _by_group(records: Records) -> list[tuple[int, Records]]:
    if not len(records):
        return []
    if (records.group == records.group[0]).all():
        return [(int(records.group[0]), records)]
    narrow = records.group.astype(np.uint16) if records.group.max() < 1 << 16 else records.group  # a radix sort
    records = records.take(np.argsort(narrow, kind="stable"))
    starts = np.flatnonzero(np.append(True, np.diff(records.group) != 0)).tolist()
    edges = zip(starts, [*starts[1:], len(records)], strict=True)
    return [(int(records.group[first]), records.take(slice(first, stop))) for first, stop in edges]


def _block(group: Group, age: int, runs: Sequence[_Run], uneven: Array) -> Block:
    ranks = np.array([run.rank for run in runs], np.int64)
    sequence = _all_sequences(runs)
    block = _empty(group, age, ranks, sequence)
    is_unlike = np.zeros(len(sequence), bool)
    for row, run in enumerate(runs):
        is_unlike |= _lay(block, row, run.records, uneven)
    block.is_desync |= is_unlike & ~block.is_coalesced
    block.step[block.step == _NO_STEP] = UNKNOWN
    empty = block.op == UNKNOWN
    return _without(block, empty) if empty.any() else block


def _all_sequences(runs: Sequence[_Run]) -> Array:
    """(m,) ascending, of all runs together; where they lie close, with those between that nobody has."""
    least = min(int(run.records.sequence[0]) for run in runs)
    most = max(int(run.records.sequence[-1]) for run in runs)
    if most - least < _DENSE * max(len(run.records) for run in runs) + 1:
        return np.arange(least, most + 1)
    return np.unique(np.concatenate([run.records.sequence for run in runs]))


def _empty(group: Group, age: int, ranks: Array, sequence: Array) -> Block:
    shape, count = (len(ranks), len(sequence)), len(sequence)
    return Block(
        group=group,
        age=age,
        ranks=ranks,
        incarnation=np.zeros(len(ranks), np.int64),
        sequence=sequence,
        step=np.full(count, _NO_STEP, np.int64),
        op=np.full(count, UNKNOWN, np.int32),
        dtype=np.full(count, UNKNOWN, np.int32),
        bucket=np.full(count, UNKNOWN, np.int32),
        bytes=np.full(count, np.nan),
        is_symmetric=np.ones(count, bool),
        is_async=np.full(count, UNKNOWN, np.int8),
        is_coalesced=np.zeros(count, bool),
        is_desync=np.zeros(count, bool),
        times_ns=np.full(shape, UNKNOWN, np.int64),
        duration_s=np.full(shape, np.nan),
    )


def _lay(block: Block, row: int, run: Records, uneven: Array) -> Array:
    """(m,) bool: where the size or type is another than on the ranks before."""
    at = _places(block.sequence, run.sequence)
    block.incarnation[row] = run.incarnation[-1]
    block.times_ns[row, at] = run.times_ns
    block.duration_s[row, at] = run.duration_s
    op, size = block.op[at], block.bytes[at]
    is_first = op == UNKNOWN
    other_size = (size != run.bytes) & ~(np.isnan(size) | np.isnan(run.bytes)) & ~uneven[run.op]
    dtype = block.dtype[at]
    other_dtype = (dtype != run.dtype) & (dtype != UNKNOWN) & (run.dtype != UNKNOWN)
    block.is_coalesced[at] |= run.is_coalesced
    block.is_desync[at] |= ~is_first & (op != run.op)
    block.op[at] = np.where(is_first, run.op, op)
    block.dtype[at] = np.where(dtype == UNKNOWN, run.dtype, dtype)
    block.bytes[at] = np.where(np.isnan(size), run.bytes, size)
    block.bucket[at] = np.maximum(block.bucket[at], run.bucket)
    block.step[at] = np.minimum(block.step[at], np.where(run.step == UNKNOWN, _NO_STEP, run.step))
    block.is_symmetric[at] &= run.is_symmetric
    block.is_async[at] = np.maximum(block.is_async[at], run.is_async)
    is_unlike = np.zeros(len(block.sequence), bool)
    is_unlike[at] = ~is_first & (other_dtype | other_size)
    return is_unlike


def _places(sequence: Array, mine: Array) -> Array | slice:
    first = int(np.searchsorted(sequence, mine[0]))
    stop = first + len(mine)
    if stop <= len(sequence) and np.array_equal(sequence[first:stop], mine):
        return slice(first, stop)
    return np.searchsorted(sequence, mine)


def _without(block: Block, empty: Array) -> Block:
    columns = {}
    for name in block.__struct_fields__:
        value = getattr(block, name)
        is_along = name not in {"group", "age", "ranks", "incarnation"}
        columns[name] = value[..., ~empty] if is_along else value
    return Block(**columns)
