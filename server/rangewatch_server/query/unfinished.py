"""Batches that are in no tile yet, of all ranks of a run at once: after a start of the server nobody has merged them.

One query says which there are and a few fetch them, where a thousand ranks read one by one took two each; their rows
are laid over one another before anything is made of them. They are decoded once, into the cache that single ranks are
read through.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select, tuple_

from rangewatch.wire.records import KINDS
from rangewatch_server.ingest.accumulators import PRESENT, Accumulators, blocks, rank_row, tiles_of
from rangewatch_server.ingest.fold import summarise
from rangewatch_server.numerics.pyramid import RANGES, SUMMARY, Block
from rangewatch_server.query.slices import StreamSlices
from rangewatch_server.store import tables
from rangewatch_server.store.batch_checks import NEEDED
from rangewatch_server.store.names import TensorArrays
from rangewatch_server.store.rows import Raw, clip
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
    names = streams[0].slices.names
    source = RANGES if part == SUMMARY else part
    columns = {*(NEEDED if part == SUMMARY else wanted), *PRESENT[source]}
    accumulators = Accumulators(names.fill, names.rules)
    observed = _Observed(names.arrays) if part == SUMMARY else None
    for stream_id, raw in _rows(connection, names.run_id, streams, source):
        laid = Raw(source, raw.steps, raw.rows, {name: raw.columns[name] for name in raw.columns if name in columns})
        accumulators.lay(laid)
        if observed is not None:
            observed.add(stream_id, laid)
    found = [each for each in blocks(accumulators.tiles, source, 0, 2**62) if len(each.rows)]
    if observed is None:
        return found
    if any(np.isnan(each.columns["amax"]).any() for each in found):
        return None  # that of one rank would stand for what the others have
    return [observed.said_of(summarise(each, names.arrays)) for each in found]


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


def _rows(connection: Connection, run_id: int, streams: Sequence[Shown], part: str) -> Iterator[tuple[int, Raw]]:
    """What is shown of each, without a gap before it, stream by stream and in sequence."""
    by_stream = {each.slices.stream.id: each for each in streams}
    waiting: list[tuple[Shown, int]] = []
    for stream_id, sequence in connection.execute(SELECT_SEQUENCES, {"run": run_id}):
        shown = by_stream.get(stream_id)
        if shown is not None and sequence <= shown.slices.stream.contiguous:
            waiting.append((shown, sequence))
    for first in range(0, len(waiting), BODIES_AT_ONCE):
        some = waiting[first : first + BODIES_AT_ONCE]
        bodies = _bodies(connection, run_id, some)
        for shown, sequence in some:
            body = bodies.get((shown.slices.stream.id, sequence))
            for raw in shown.slices.batch(sequence, body):
                if raw.part == part and len((cut := clip(raw, shown.start, shown.stop)).steps):
                    yield shown.slices.stream.id, cut


def _bodies(
    connection: Connection, run_id: int, waiting: Sequence[tuple[Shown, int]]
) -> dict[tuple[int, int], bytes]:  # fmt: skip
    """Of those that have not been decoded yet."""
    wanted = [(shown.slices.stream.id, sequence) for shown, sequence in waiting if not shown.slices.has_batch(sequence)]
    if not wanted:
        return {}
    rows = connection.execute(SELECT_BODIES, {"run": run_id, "wanted": wanted})
    return {(stream_id, sequence): body for stream_id, sequence, body in rows}
