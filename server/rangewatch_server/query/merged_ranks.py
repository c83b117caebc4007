"""Reading all ranks of a run at once: the merged ranks' tiles and memory, and what they do not hold yet.

Also steps that share a row of statistics because the spool of their rank was full while no server was there.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from typing import Annotated, Any, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, select

from rangewatch.wire.records import KINDS
from rangewatch_server.core import deadline
from rangewatch_server.ingest.merged_ranks import NO_END, Snapshot
from rangewatch_server.numerics.pyramid import SUMMARY, UFUNCS, Block
from rangewatch_server.query.slices import KindSlices, MergedSlices, Stream, few, join, with_needed
from rangewatch_server.store import tables

Array = NDArray[Any]

Memory = Callable[[int, str, int, int, int, Sequence[str]], "Snapshot | None"]
"""(run, part, version of the stored tiles, start, stop, columns) -> what the writer of this process holds besides."""

NOTHING = Snapshot({}, frozenset(), [])


class Gap(msgspec.Struct, frozen=True):
    """Steps [start, stop) for which ranks are read one by one, but for the streams `without`, which memory holds."""

    start: int
    stop: int
    without: frozenset[int] = frozenset()


def no_memory(*_: Any) -> Snapshot | None:
    """For readers without a writer beside them."""
    return None


class RunOfRanks(Protocol):
    """A run inside one read transaction, as `query.reader.RunReader` is."""

    @property
    def id(self) -> int: ...
    @property
    def connection(self) -> Connection: ...
    @property
    def reader(self) -> Any:
        """Its `cache` has what was read before."""

    @property
    def ranks(self) -> Any:
        """Rank -> its streams and its row."""

    def names(self) -> Any:
        """Numbers of tensors and series, and the statistics of both."""

    def own_pieces(
        self,
        rank: int,
        part: str,
        level: int,
        start: int,
        stop: int,
        wanted: Sequence[str],
        without: frozenset[int] = ...,
        rows: Array | None = ...,
    ) -> list[Block]:
        """What one rank's own streams hold, but those `without`."""


class MergedReader:
    """All ranks of one run, inside one read transaction. `stored` is the row of the stream of all ranks, or None."""

    def __init__(self, run: RunOfRanks, stored: Any, memory: Memory) -> None:
        self.run = run
        self.memory = memory
        self.version: int = stored.version if stored is not None else 0
        self.frontier: int = stored.frontier if stored is not None else 0
        id_, rewrites = (stored.id, stored.rewrites) if stored is not None else (0, 0)
        # Steps beyond those of every rank are in neither tiles nor memory, so the stream needs no end of its own.
        self.stream = Stream(id_, -1, 0, -1, self.frontier, rewrites, 0, NO_END)

    def pieces(
        self, part: str, level: int, start: int, stop: int, wanted: Sequence[str], rows: Array | None = None
    ) -> list[Block]:
        """Blocks over one another whose merge is the worst of all ranks; `rows`: those that are wanted."""
        found, gaps = self._merged(part, level, start, stop, wanted, rows=rows)
        for rank in self.run.ranks:
            found += self._rest(rank, part, level, wanted, gaps, rows)
        return found

    def by_rank(self, level: int, start: int, stop: int, wanted: Sequence[str]) -> Block:
        """The summary of every rank, in order: rows `rank * len(KINDS) + kind`, for every kind."""
        names = self.run.names()
        fill, rules = names.fill[SUMMARY], names.rules[SUMMARY]
        found, gaps = self._merged(SUMMARY, level, start, stop, wanted)
        ranks = np.array(sorted(self.run.ranks), np.int64)
        kinds = np.arange(len(KINDS))
        rows = (ranks[:, None] * len(KINDS) + kinds).ravel()
        block = join(found, level, start, stop, wanted, rows, fill, rules)
        columns = {name: np.array(values, np.float64) for name, values in block.columns.items()}
        for place, rank in enumerate(ranks.tolist()):
            rest = list(self._rest(rank, SUMMARY, level, wanted, gaps))
            if rest:
                own = join(rest, level, start, stop, wanted, kinds, fill, rules)
                for name, values in own.columns.items():
                    here = columns[name][place * len(KINDS) : (place + 1) * len(KINDS)]
                    UFUNCS[rules[name]](here, values, out=here)
        return Block(level, block.first, rows, columns)

    def by_kind(self, level: int, start: int, stop: int, wanted: Sequence[str]) -> Block:
        """The summary of all ranks together: a row for each kind that was recorded."""
        names = self.run.names()
        found, gaps = self._merged(SUMMARY, level, start, stop, wanted, KindSlices)
        for rank in self.run.ranks:
            found += self._rest(rank, SUMMARY, level, wanted, gaps)
        fill, rules = names.fill[SUMMARY], names.rules[SUMMARY]
        return join(found, level, start, stop, wanted, np.arange(len(KINDS)), fill, rules)

    def _merged(
        self, part: str, level: int, start: int, stop: int, wanted: Sequence[str],
        kind: type[MergedSlices] = MergedSlices, rows: Array | None = None,
    ) -> tuple[list[Block], list[Gap]]:  # fmt: skip
        needed = with_needed(part, wanted)
        snapshot = self.memory(self.run.id, part, self.version, max(start, self.frontier), stop, needed)
        if snapshot is None or self._has_news(snapshot):
            snapshot = NOTHING
        slices = kind(self.run.connection, self.run.reader.cache, self.run.names(), self.stream)
        slices.memory = snapshot.blocks
        slices.rows = few(rows, part, self.run.names())
        found = slices.pieces(part, level, start, stop, wanted)
        # Of a tile that cannot be read the ranks have their own.
        broken = (Gap(*each) for each in slices.absent)
        return found, [Gap(max(start, self.frontier), stop, snapshot.fed), *broken]

    def _has_news(self, snapshot: Snapshot) -> bool:
        """Whether another server has stored rows since memory last looked: they may hide what it holds."""
        rows = (row for rank in self.run.ranks.values() for row in rank.rows)
        return any(row.version > snapshot.versions.get(row.id, -1) for row in rows)

    def _rest(
        self, rank: int, part: str, level: int, wanted: Sequence[str], gaps: Sequence[Gap], rows: Array | None = None
    ) -> Iterator[Block]:
        """What the rank's own streams say of the steps that merged ranks do not have."""
        for gap in gaps:
            if gap.start < gap.stop and any(stream.id not in gap.without for stream in self.run.ranks[rank].streams):
                yield from self.run.own_pieces(rank, part, level, gap.start, gap.stop, wanted, gap.without, rows)


EVENT = "spool_merged"
MOST_EVENTS = 20_000
"""The newest that are read: a rank tells of each time that it merged, which is seldom."""
MOST_STEPS = 1 << 24
"""Steps of one row that are believed: a spool that was full for months."""


class _Said(msgspec.Struct):
    first_step: int
    last_step: int
    steps_a_row: Annotated[int, msgspec.Meta(ge=2, le=MOST_STEPS)]


class Shared(NamedTuple):
    """Steps `first` to `last` of a rank have one row for up to `every` steps."""

    rank: int
    first: int
    last: int
    every: int


def read(connection: Connection, run_id: int) -> list[Shared]:
    """What the ranks of a run have told of."""
    events, streams = tables.events.c, tables.streams.c
    query = (
        select(streams.rank, events.data)
        .join(tables.events, events.stream_id == streams.id)
        .where(streams.run_id == run_id, events.kind == EVENT)
        .order_by(events.id.desc())
        .limit(MOST_EVENTS)
    )
    return [found for rank, data in connection.execute(query) if (found := _sound(rank, data)) is not None]


def most(shared: Iterable[Shared], ranks: Container[int], start: int, stop: int) -> int:
    """The most steps of [start, stop) that share a row on any of these ranks; 1 where none do."""
    found = (each.every for each in shared if each.rank in ranks and each.first < stop and each.last >= start)
    return max(found, default=1)


def _sound(rank: int, data: bytes) -> Shared | None:
    deadline.check()
    try:
        said = msgspec.json.decode(data, type=_Said)
    except msgspec.DecodeError:
        return None
    return Shared(rank, said.first_step, said.last_step, said.steps_a_row)
