"""Reading all ranks of a run at once: the merged ranks' tiles and memory, and what they do not hold yet."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from rangewatch.statistics import UFUNCS
from rangewatch.wire.records import KINDS
from rangewatch_server.ingest.accumulators import rank_row
from rangewatch_server.ingest.merged_ranks import NO_END, Snapshot
from rangewatch_server.numerics.pyramid import SUMMARY, Block
from rangewatch_server.query import unfinished
from rangewatch_server.query.slices import Damage, MergedSlices, Stream, few, join, with_needed
from rangewatch_server.query.unfinished import Shown

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

    @property
    def source(self) -> Any:
        """Where its rows come from."""

    @property
    def damage(self) -> set[Damage]:
        """What could not be read so far."""

    @property
    def stream_versions(self) -> dict[int, int]:
        """Stream -> its version, of every process of every rank."""

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
        blocks, gaps = self._merged(part, level, start, stop, wanted, rows=rows)
        for rank in self._behind(gaps):
            blocks += self._rest(rank, part, level, wanted, gaps, rows)
        return blocks

    def by_rank(self, level: int, start: int, stop: int, wanted: Sequence[str]) -> Block:
        """The summary of every rank, in order: rows `place of the rank * len(KINDS) + kind`, for every kind."""
        names = self.run.names()
        fill, rules = names.fill[SUMMARY], names.rules[SUMMARY]
        blocks, gaps = self._merged(SUMMARY, level, start, stop, wanted)
        ranks = np.array(sorted(self.run.ranks), np.int64)
        kinds = np.arange(len(KINDS))
        rows = rank_row(ranks[:, None], kinds).ravel()
        order = np.argsort(rows)
        block = join(blocks, level, start, stop, wanted, rows[order], fill, rules)
        places = np.argsort(order)
        columns = {name: np.array(values, np.float64)[places] for name, values in block.columns.items()}
        for rank in self._behind(gaps):
            place = int(np.searchsorted(ranks, rank))
            rest = list(self._rest(rank, SUMMARY, level, wanted, gaps))
            if rest:
                own = join(rest, level, start, stop, wanted, kinds, fill, rules)
                for name, values in own.columns.items():
                    here = columns[name][place * len(KINDS) : (place + 1) * len(KINDS)]
                    UFUNCS[rules[name]](here, values, out=here)
        return Block(level, block.first, np.arange(len(rows)), columns)

    def by_kind(self, level: int, start: int, stop: int, wanted: Sequence[str]) -> Block:
        """The summary of all ranks together: a row for each kind that was recorded."""
        names = self.run.names()
        blocks, gaps = self._merged(SUMMARY, level, start, stop, wanted, is_by_kind=True)
        for rank in self._behind(gaps):
            blocks += self._rest(rank, SUMMARY, level, wanted, gaps)
        fill, rules = names.fill[SUMMARY], names.rules[SUMMARY]
        return join(blocks, level, start, stop, wanted, np.arange(len(KINDS)), fill, rules)

    def _merged(
        self, part: str, level: int, start: int, stop: int, wanted: Sequence[str],
        rows: Array | None = None, *, is_by_kind: bool = False,
    ) -> tuple[list[Block], list[Gap]]:  # fmt: skip
        needed = with_needed(part, wanted)
        snapshot = self.memory(self.run.id, part, self.version, max(start, self.frontier), stop, needed)
        if snapshot is None or self._has_news(snapshot):
            snapshot = NOTHING
        slices = MergedSlices(self.run.connection, self.run.reader.cache, self.run.names(), self.stream)
        slices.is_by_kind = is_by_kind
        slices.memory, fed = snapshot.blocks, snapshot.fed
        if part != SUMMARY or is_by_kind:
            more, merged = self._unfinished(part, max(start, self.frontier), stop, needed, fed)
            slices.memory, fed = [*slices.memory, *more], fed | merged
        slices.rows = few(rows, part, self.run.names())
        blocks = slices.pieces(part, level, start, stop, wanted)
        # Of a tile that cannot be read the ranks have their own.
        broken = (Gap(*each) for each in slices.absent)
        return blocks, [Gap(max(start, self.frontier), stop, fed), *broken]

    def _unfinished(
        self, part: str, start: int, stop: int, wanted: Sequence[str], fed: frozenset[int]
    ) -> tuple[list[Block], frozenset[int]]:
        """Of streams that neither merged tiles nor memory have, as after a start: their worst from `start` on, and
        which streams that is of. Those that have tiles of their own from there on are left to be read one by one.
        """
        run, shown, streams = self.run, list[Shown](), set[int]()
        if start >= stop or not run.stream_versions.keys() - fed:
            return [], frozenset()
        names = run.names()
        for rank in run.ranks.values():
            newer_from = stop
            for stream in reversed(rank.streams):
                if stream.first_step is None or stream.last_step is None:
                    continue
                low, high = max(start, stream.first_step), min(newer_from, stream.last_step + 1)
                newer_from = min(newer_from, stream.first_step)
                if stream.id not in fed and low < high and stream.frontier <= start:
                    shown.append(Shown(run.source.slices(names, stream, run.damage, None), low, high))
                    streams.add(stream.id)
        found = unfinished.merged(run.connection, shown, part, wanted) if len(shown) > 1 else None
        return ([], frozenset()) if found is None else (found, frozenset(streams))

    def _has_news(self, snapshot: Snapshot) -> bool:
        """Whether another server has stored rows since memory last looked: they may hide what it holds."""
        known, seen = snapshot.versions, self.run.stream_versions
        if seen.items() <= known.items():  # mostly, and a thousand are compared at once
            return False
        return any(version > known.get(stream, -1) for stream, version in seen.items())

    def _behind(self, gaps: Sequence[Gap]) -> list[int]:
        """Ranks of which there may be more than merged ranks have; mostly none, and a thousand are not asked each."""
        streams = self.run.stream_versions.keys()
        missing = set[int]().union(*(streams - gap.without for gap in gaps if gap.start < gap.stop))
        if not missing:
            return []
        return [rank for rank, each in self.run.ranks.items() if any(stream.id in missing for stream in each.streams)]

    def _rest(
        self, rank: int, part: str, level: int, wanted: Sequence[str], gaps: Sequence[Gap], rows: Array | None = None
    ) -> Iterator[Block]:
        """What the rank's own streams say of the steps that merged ranks do not have."""
        for gap in gaps:
            if gap.start < gap.stop and any(stream.id not in gap.without for stream in self.run.ranks[rank].streams):
                yield from self.run.own_pieces(rank, part, level, gap.start, gap.stop, wanted, gap.without, rows)
