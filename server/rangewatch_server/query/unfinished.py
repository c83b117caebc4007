"""Batches that are in no tile yet, of all ranks of a run at once: after a start of the server nobody has merged them.

One query says which there are and a few fetch them, where a thousand ranks read one by one took two each; those of one
layout are decoded together, into the cache that single ranks are read through, and rows of the same steps are laid over
one another before anything is made of them. The answer is kept until one of the processes has said more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select, tuple_

from rangewatch.wire import decode_alike
from rangewatch.wire.records import KINDS
from rangewatch_server.core import deadline
from rangewatch_server.ingest.accumulators import PRESENT, Accumulators, blocks, laid_over, rank_row, tiles_of
from rangewatch_server.ingest.fold import summarise
from rangewatch_server.numerics.pyramid import RANGES, SUMMARY, Block
from rangewatch_server.query.slices import StreamSlices, nbytes_of, nbytes_of_columns
from rangewatch_server.store import tables
from rangewatch_server.store.batch_checks import NEEDED
from rangewatch_server.store.names import TensorArrays
from rangewatch_server.store.rows import Raw, clip, raws_of_alike
from rangewatch_server.store.tiles import WIDTH

Array = NDArray[Any]

BODIES_AT_ONCE = 128  # fetched together: of 600 tensors and 8 steps some 3 MB

_batch = tables.batches.c
_of_run = _batch.run_id == bindparam("run")
SELECT_SEQUENCES = select(_batch.stream_id, _batch.sequence).where(_of_run).order_by(_batch.stream_id, _batch.sequence)
_wanted = tuple_(_batch.stream_id, _batch.sequence).in_(bindparam("wanted", expanding=True))
SELECT_BODIES = select(_batch.stream_id, _batch.sequence, _batch.body).where(_of_run, _wanted)


class Shown(msgspec.Struct, frozen=True):
    """Of one process the steps [start, stop) that are shown of it and are in no tile."""

    slices: StreamSlices
    start: int
    stop: int


def merged(connection: Connection, streams: Sequence[Shown], part: str, wanted: Collection[str]) -> list[Block] | None:
    """Level 0 blocks of the worst of all these processes, which are of one run; of the summary a row for each kind.

    None where only reading them one by one gives the same.
    """
    names, cache = streams[0].slices.names, streams[0].slices.cache
    source = RANGES if part == SUMMARY else part
    # All of a series, which are few: whoever shows a run asks for some again and again.
    columns = {*(NEEDED if part == SUMMARY else wanted if part == RANGES else names.fill[part]), *PRESENT[source]}
    of = tuple((each.slices.stream.id, each.slices.stream.contiguous, each.start, each.stop) for each in streams)
    key = ("unfinished", names.run_id, names.version, part, frozenset(columns), of)
    stored: list[Block] | None = cache.get(key)
    if stored is not None:
        return stored
    accumulators = Accumulators(names.fill, names.rules)
    observed = _Observed(names.arrays) if part == SUMMARY else None
    for some in _rows(connection, names.run_id, streams, source):
        alike: dict[tuple[bytes, bytes], list[Raw]] = {}
        for stream_id, raw in some:
            alike.setdefault((raw.steps.tobytes(), raw.rows.tobytes()), []).append(_only(raw, columns))
            if observed is not None:
                observed.add(stream_id, raw)
        for raws in alike.values():
            accumulators.lay(laid_over(raws, names.rules[source]))
    found = [each for each in blocks(accumulators.tiles, source, 0, 2**62) if len(each.rows)]
    if observed is not None:
        if any(np.isnan(each.columns["amax"]).any() for each in found):
            return None  # that of one rank would stand for what the others have
        found = [observed.said_of(summarise(each, names.arrays)) for each in found]
    if not any(each.part == "batch" for each in streams[0].slices.damage):  # else whoever asks is told of it
        cache.put(key, found, 100 * len(of) + sum(nbytes_of_columns(each.columns) for each in found))
    return found


def _only(raw: Raw, columns: Collection[str]) -> Raw:
    return Raw(raw.part, raw.steps, raw.rows, {name: raw.columns[name] for name in raw.columns if name in columns})


class _Observed:
    """How many processes observed a kind at a step, which their merged rows do not say."""

    def __init__(self, tensors: TensorArrays) -> None:
        self._tensors = tensors
        self._counts: dict[int, Array] = {}
        """By tile: (kinds, WIDTH)."""
        self._of_one: dict[int, Array] = {}
        self._stream = -1
        self._kinds: dict[bytes, tuple[Array, Array, Array]] = {}

    def add(self, stream_id: int, raw: Raw) -> None:
        """Rows of a process; all of one come one after another."""
        if stream_id != self._stream:
            self._close()
            self._stream = stream_id
        known, kinds, are_there = self._of_rows(raw.rows)
        calls = raw.columns["call_count"]
        if any(calls.strides) or not calls.size or not calls.flat[0] > 0:
            seen = np.zeros((len(KINDS), len(raw.steps)), bool)
            np.logical_or.at(seen, kinds, calls[known] > 0)
        else:  # as mostly: all of them at each step
            seen = np.broadcast_to(are_there, (len(KINDS), len(raw.steps)))
        for tile in tiles_of(raw.steps):
            low, high = np.searchsorted(raw.steps, [tile * WIDTH, (tile + 1) * WIDTH])
            of_tile = self._of_one.setdefault(tile, np.zeros((len(KINDS), WIDTH), bool))
            of_tile[:, raw.steps[low:high] - tile * WIDTH] |= seen[:, low:high]

    def _of_rows(self, rows: Array) -> tuple[Array, Array, Array]:
        """Places of those whose dtype has known limits, their kinds, and (kinds, 1) which kinds these are."""
        key = rows.tobytes()
        if key not in self._kinds:
            known = np.flatnonzero(~np.isnan(self._tensors.log2_max[rows]))
            kinds = self._tensors.kind_rows[rows[known]]
            self._kinds[key] = known, kinds, np.isin(np.arange(len(KINDS)), kinds)[:, None]
        return self._kinds[key]

    def _close(self) -> None:
        for tile, seen in self._of_one.items():
            self._counts[tile] = self._counts.get(tile, 0.0) + seen
        self._of_one = {}

    def said_of(self, summary: Block) -> Block:
        """The summary of a tile under the rows of rank 0, with these counts."""
        self._close()
        counts = self._counts[summary.first // WIDTH]
        columns = summary.columns | {"observed": counts[summary.rows]}
        return Block(0, summary.first, rank_row(0, summary.rows), columns)


def _rows(
    connection: Connection, run_id: int, streams: Sequence[Shown], part: str
) -> Iterator[list[tuple[int, Raw]]]:  # fmt: skip
    """What is shown of each, without a gap before it, stream by stream and in sequence: some at a time."""
    by_stream = {each.slices.stream.id: each for each in streams}
    waiting: list[tuple[Shown, int]] = []
    for stream_id, sequence in connection.execute(SELECT_SEQUENCES, {"run": run_id}):
        shown = by_stream.get(stream_id)
        if shown is not None and sequence <= shown.slices.stream.contiguous:
            waiting.append((shown, sequence))
    for first in range(0, len(waiting), BODIES_AT_ONCE):
        some = waiting[first : first + BODIES_AT_ONCE]
        bodies = _bodies(connection, run_id, some)
        for portion, decoded in _decoded(some, bodies):
            rows: list[tuple[int, Raw]] = []
            for shown, sequence in portion:
                id_ = shown.slices.stream.id
                place = id_, sequence
                raws = decoded[place] if place in decoded else shown.slices.batch(sequence, bodies.get(place))
                rows += [
                    (id_, cut) for raw in raws
                    if raw.part == part and len((cut := clip(raw, shown.start, shown.stop)).steps)
                ]  # fmt: skip
            yield rows


_Waiting = Sequence[tuple[Shown, int]]
_Place = tuple[int, int]
"""Stream and sequence."""


def _bodies(connection: Connection, run_id: int, waiting: _Waiting) -> dict[_Place, bytes]:
    """Of those that have not been decoded yet."""
    wanted = [(shown.slices.stream.id, sequence) for shown, sequence in waiting if not shown.slices.has_batch(sequence)]
    if not wanted:
        return {}
    rows = connection.execute(SELECT_BODIES, {"run": run_id, "wanted": wanted})
    return {(stream_id, sequence): body for stream_id, sequence, body in rows}


def _decoded(waiting: _Waiting, bodies: dict[_Place, bytes]) -> Iterator[tuple[_Waiting, dict[_Place, list[Raw]]]]:
    """As many of them as are decoded at once, in their order, and the rows of those that can be decoded beside others,
    which are kept for who reads one rank.
    """
    mine = [at for at, (shown, sequence) in enumerate(waiting) if (shown.slices.stream.id, sequence) in bodies]
    places = [(waiting[at][0].slices.stream.id, waiting[at][1]) for at in mine]
    start = 0
    for portion in decode_alike([bodies[place] for place in places]):
        found: dict[_Place, list[Raw]] = {}
        for alike in portion.alikes:
            deadline.check()
            slices = waiting[0][0].slices
            known = slices.catalogue(alike.first.catalogue)
            all_raws = raws_of_alike(alike, known.ordinals, known.statistics, slices.names.series)
            nbytes = nbytes_of(all_raws[0])  # as of all others
            for at, raws in zip(alike.places, all_raws, strict=True):
                shown, sequence = waiting[mine[at]]
                shown.slices.keep_batch(sequence, raws, nbytes)
                found[places[at]] = raws
        stop = mine[portion.stop] if portion.stop < len(mine) else len(waiting)
        yield waiting[start:stop], found
        start = stop
