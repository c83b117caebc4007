"""The only reader: runs, ranks and slices as plain structs and arrays, in short read-only transactions."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, func, select

from rangewatch.wire.records import KINDS, RankInfo, Statistic
from rangewatch_server.ingest.accumulators import UNMERGED
from rangewatch_server.ingest.merged_ranks import ALL_RANKS
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.pyramid import FANOUT, PARTS, RANGES, SUMMARY, Block
from rangewatch_server.query import merged_ranks as shared_rows
from rangewatch_server.query.merged_ranks import Memory, MergedReader, no_memory
from rangewatch_server.query.slices import Cache, Damage, RunNames, Stream, StreamSlices, few, join
from rangewatch_server.store import run_metadata, tables
from rangewatch_server.store.names import Tensors, load_series, load_statistics, load_tensors
from rangewatch_server.store.rows import align, union
from rangewatch_server.store.tiles import WIDTH

Array = NDArray[Any]


NO_END = 2**62  # past any step
EXACT_RANKS = 64  # beyond, sums of fractions may differ by 1e-15 with the order in which ranks reported
MOST_LOOKED_AT = 256  # tiles of a stream, or streams: a wider range is drawn in coarser columns anyhow


class Thinned(msgspec.Struct, frozen=True):
    """Before `step` nothing finer than columns of `per` steps is there, but around events."""

    step: int
    per: int


class Rank(msgspec.Struct, frozen=True):
    """One rank of a run: its newest incarnation, and all of them for slices."""

    rank: int
    info: RankInfo
    row: Any
    """The newest incarnation's row of `streams`."""
    streams: tuple[Stream, ...]
    rows: tuple[Any, ...]
    """Every incarnation's row, oldest first."""

    def visible(self) -> list[tuple[Any, int]]:
        """Rows that have steps, with the step from which a newer incarnation's are shown instead; newest first."""
        found: list[tuple[Any, int]] = []
        newer_from = NO_END
        for row in reversed(self.rows):
            if row.first_step is not None and row.first_step < newer_from:
                found.append((row, newer_from))
                newer_from = row.first_step
        return found


class Queries:
    """Opens read transactions on the reader engine."""

    def __init__(self, engine: Engine, live_s: float, memory: Memory = no_memory) -> None:
        self.engine = engine
        self.memory = memory
        self.live_ns = int(live_s * 1e9)
        self.cache = Cache()

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """One consistent view of the database."""
        with self.engine.connect() as connection:
            yield Reader(connection, self.cache, self.live_ns, self.memory)


class Reader:
    """All reads of one request."""

    def __init__(self, connection: Connection, cache: Cache, live_ns: int, memory: Memory = no_memory) -> None:
        self.connection = connection
        self.cache = cache
        self.live_ns = live_ns
        self.memory = memory

    def run_ids(self, limit: int | None = None) -> list[int]:
        """Runs, newest first: all, or the first `limit`."""
        shown = select(tables.runs.c.id).where(tables.runs.c.deleted_ns.is_(None))
        return list(self.connection.execute(shown.order_by(tables.runs.c.id.desc()).limit(limit)).scalars())

    def run(self, run_id: int) -> RunReader | None:
        """One run, or None."""
        mine = (tables.runs.c.id == run_id) & tables.runs.c.deleted_ns.is_(None)
        row = self.connection.execute(select(tables.runs).where(mine)).first()
        return None if row is None else RunReader(self, row)


class RunReader:
    """One run inside one read transaction."""

    def __init__(self, reader: Reader, row: Any) -> None:
        self.reader = reader
        self.connection = reader.connection
        self.id: int = row.id
        self.name: str = row.name
        self.created_ns: int = row.created_ns
        self.about = run_metadata.of_row(row)
        self._all_ranks: Any = None
        self._is_history = False
        self.ranks = self._ranks()
        self.now_ns = time.time_ns()
        self.damage: set[Damage] = set()
        """Stored tiles that slices found damaged so far."""
        self._names: RunNames | None = None

    def as_of(self, incarnation: int) -> None:
        """Show the run as it was before restarts after `incarnation` (1: before any), whose history later ones hide."""
        kept = {rank: [row for row in each.rows if row.ordinal <= incarnation] for rank, each in self.ranks.items()}
        self.ranks = {rank: _rank(rank, rows) for rank, rows in kept.items() if rows}
        self._is_history = True

    @property
    def merged(self) -> MergedReader:
        """All ranks at once. Not kept: it holds this object, and a cycle would wait for Python's collector."""
        return MergedReader(self, self._all_ranks, self.reader.memory)

    @cached_property
    def first_step(self) -> int | None:
        """The smallest step of any rank; None before the first."""
        return min(
            (s.first_step for r in self.ranks.values() for s in r.streams if s.first_step is not None), default=None
        )

    @cached_property
    def last_step(self) -> int | None:
        """The largest step that a newest incarnation reached."""
        return max((step for rank in self.ranks.values() if (step := last_step(rank)) is not None), default=None)

    @cached_property
    def ship_every(self) -> int:
        """The most steps that any agent merges, or merged before a restart, into one row: a level's column, or 1."""
        return max((_ship_every(row) for rank in self.ranks.values() for row in rank.rows), default=1)

    @cached_property
    def _shared(self) -> list[shared_rows.Shared]:
        return shared_rows.read(self.connection, self.id)

    def steps_a_row(self, ranks: Iterable[int], start: int, stop: int) -> int:
        """The most steps of [start, stop) that share a row: as agents merge them, or a full spool had to."""
        return max(self.ship_every, shared_rows.most(self._shared, frozenset(ranks), start, stop))

    def thinned(self, ranks: Sequence[int], start: int, stop: int) -> Thinned | None:
        """What retention left of the steps [start, stop) of these ranks; None where all of it is there."""
        rows = [row for rank in ranks for row in self.ranks[rank].rows]
        marks = [(row, min(stop, row.thin_step)) for row in rows if row.first_step is not None and row.thin_level]
        inside = [(row, max(start, row.first_step), end) for row, end in marks if max(start, row.first_step) < end]
        if not inside or self._has_all(inside):
            return None
        return Thinned(max(row.thin_step for row, *_ in inside), FANOUT ** max(row.thin_level for row, *_ in inside))

    def _has_all(self, inside: Sequence[tuple[Any, int, int]]) -> bool:
        """Whether every level 0 tile of (stream, start, stop) is there; not looked at where they are many."""
        spans = {row.id: (start // WIDTH, -(-end // WIDTH)) for row, start, end in inside}
        if max(last - first for first, last in spans.values()) > MOST_LOOKED_AT or len(spans) > MOST_LOOKED_AT:
            return False
        tiles = tables.tiles.c
        first, last = min(first for first, _ in spans.values()), max(last for _, last in spans.values())
        query = (
            select(tiles.stream_id, tiles.tile)
            .where(tiles.run_id == self.id, tiles.stream_id.in_(list(spans)), tiles.part == RANGES, tiles.level == 0)
            .where(tiles.tile >= first, tiles.tile < last)
        )
        found = {(stream, tile) for stream, tile in self.connection.execute(query)}
        return all((stream, tile) in found for stream, (low, high) in spans.items() for tile in range(low, high))

    def steps_a_row_at(self, rank: int, step: int) -> int:
        """The same of one step, in the incarnation of the rank that it is shown of."""
        merged = shared_rows.most(self._shared, (rank,), step, step + 1)
        return max(_ship_every(self._row_at(rank, step)), merged)

    def _row_at(self, rank: int, step: int) -> Any:
        """The row of `streams` of the incarnation whose record of the step is shown; the newest where there is none."""
        found = self.ranks[rank]
        return next((row for row, _ in found.visible() if row.first_step <= step), found.row)

    def is_live(self, rank: Rank) -> bool:
        """Whether the rank spoke lately and has not said goodbye."""
        return self._speaks(rank.row)

    def also_live(self, rank: Rank) -> int:
        """Processes that claim the rank beside the newest and are live: two jobs of one name, or a restart just now."""
        return sum(self._speaks(row) for row in rank.rows[:-1])

    def _speaks(self, row: Any) -> bool:
        """Whether it spoke lately. A time ahead of ours was told by a clock that has been put back since."""
        return row.state == "open" and abs(self.now_ns - row.last_seen_ns) < self.reader.live_ns

    def silent_since(self, rank: int) -> int | None:
        """The rank's last step when it neither speaks nor said goodbye, while the run went on; else None."""
        found = self.ranks[rank]
        step = last_step(found)
        went_on = step is not None and self.last_step is not None and self.last_step > step
        return step if went_on and found.row.state == "open" and not self.is_live(found) else None

    def names(self) -> RunNames:
        """Tensors, series and statistics; cached by how many there are, since none ever changes."""
        if self._names is None:
            self._names = self._read_names()
        return self._names

    def _read_names(self) -> RunNames:
        query = select(func.max(tables.catalogues.c.id)).where(tables.catalogues.c.run_id == self.id)
        newest = self.connection.execute(query).scalar() or 0
        query = select(func.count()).where(tables.series.c.run_id == self.id)
        key = (self.id, "names", newest, self.connection.execute(query).scalar())
        found: RunNames | None = self.reader.cache.get(key)
        if found is None:
            tensors = load_tensors(self.connection, self.id)
            found = run_names(self.id, tensors, load_series(self.connection, self.id), self.statistics())
            self.reader.cache.put(key, found, 500 * len(tensors.entries) + 1_000)
        return found

    def statistics(self) -> tuple[Statistic, ...]:
        """The run's statistics."""
        return load_statistics(self.connection, self.id)

    def events(self, kind: str, most: int, *, before: int | None = None, stream_id: int | None = None) -> Sequence[Any]:
        """(id, stream_id, step, kind, message, data) rows: the newest `most` events of a kind, newest first.

        Of steps before `before`, and of one process, where they are given.
        """
        events, streams = tables.events.c, tables.streams.c
        query = select(events.id, events.stream_id, events.step, events.kind, events.message, events.data)
        if stream_id is None:
            query = query.join(tables.streams, streams.id == events.stream_id).where(streams.run_id == self.id)
        else:
            query = query.where(events.stream_id == stream_id)
        if before is not None:
            query = query.where(events.step < before)
        return self.connection.execute(query.where(events.kind == kind).order_by(events.id.desc()).limit(most)).all()

    def payloads(self, rank: int, source: str, last_step: int, most: int) -> Iterable[bytes]:
        """Samples of a rank's newest process that begin by `last_step`, as they are stored: the newest `most`."""
        row = tables.samples.c
        mine = (row.run_id == self.id) & (row.source == source) & (row.stream_id == self.ranks[rank].streams[-1].id)
        until = select(row.payload).where(mine, row.first_step <= last_step)
        return self.connection.execute(until.order_by(row.last_ns.desc()).limit(most)).scalars()

    def newest_events(self, kinds: Sequence[str]) -> list[Any]:
        """(rank, kind, message, data) rows: of each rank's newest incarnation the last event of each of these kinds."""
        events = tables.events.c
        ids = [rank.streams[-1].id for rank in self.ranks.values()]
        newest = (
            select(func.max(events.id))
            .where(events.stream_id.in_(ids), events.kind.in_(kinds))
            .group_by(events.stream_id, events.kind)
        )
        query = (
            select(tables.streams.c.rank, events.kind, events.message, events.data)
            .join(tables.streams, tables.streams.c.id == events.stream_id)
            .where(events.id.in_(newest))
        )
        return list(self.connection.execute(query))

    def account(self, kind: str, rank: int, step: int) -> bytes | None:
        """The details of the event that tells of a step, as JSON: the first sent after it, or else the last of all.

        An account grows, and is sent with the first batch after what it tells of.
        """
        events = tables.events.c
        mine = (events.stream_id == self._row_at(rank, step).id) & (events.kind == kind)
        query = select(events.data).where(mine).limit(1)
        after = query.where(events.step > step).order_by(events.step, events.id)
        last = query.order_by(events.step.desc(), events.id.desc())
        found: bytes | None = self.connection.execute(after).scalar()
        return found if found is not None else self.connection.execute(last).scalar()

    def slice(
        self, part: str, ranks: Sequence[int], level: int, start: int, stop: int, wanted: Sequence[str],
        rows: Array | None = None,
    ) -> Block:  # fmt: skip
        """Steps [start, stop) at `level`, the worst of `ranks`. A rank's newer incarnation counts."""
        names = self.names()
        fill, rules = names.fill[part], names.rules[part]
        if part == SUMMARY and self._are_all(ranks, wanted):
            block = self.merged.by_kind(level, start, stop, wanted)
            return block if rows is None else align(block, rows, fill)
        if self._are_all(ranks, wanted):
            pieces = self.merged.pieces(part, level, start, stop, wanted, rows)
        else:
            own = [self.own_pieces(rank, part, level, start, stop, wanted, rows=rows) for rank in ranks]
            pieces = [each for found in own for each in found]
        rows = union([piece.rows for piece in pieces]) if rows is None else rows
        return join(pieces, level, start, stop, wanted, rows, fill, rules)

    def by_rank(self, ranks: Sequence[int], level: int, start: int, stop: int, wanted: Sequence[str]) -> Block:
        """The summary of each of `ranks`: row `place in ranks * len(KINDS) + kind`."""
        if self._are_all(ranks, wanted) and list(ranks) == sorted(ranks):
            return self.merged.by_rank(level, start, stop, wanted)
        rows = np.arange(len(KINDS))
        blocks = [self.slice(SUMMARY, [rank], level, start, stop, wanted, rows) for rank in ranks]
        first, width = start // FANOUT**level, -(-stop // FANOUT**level) - start // FANOUT**level
        empty = np.zeros((0, width))
        columns = {name: np.concatenate([each.columns[name] for each in blocks] or [empty]) for name in wanted}
        return Block(level, first, np.arange(len(ranks) * len(KINDS)), columns)

    def _are_all(self, ranks: Sequence[int], wanted: Sequence[str]) -> bool:
        """Whether these are all the ranks, several, and what is wanted has the same merge in any order of them.

        Sums of fractions have not, in their last bits: of up to EXACT_RANKS ranks they are added in the ranks' order.
        """
        if self._is_history:
            return False  # merged ranks are what is shown now
        if ("sum" in wanted and len(ranks) <= EXACT_RANKS) or not set(UNMERGED).isdisjoint(wanted):
            return False
        return (
            len(ranks) > 1 and "last" not in wanted and len(ranks) == len(self.ranks) and set(ranks) == set(self.ranks)
        )

    def own_pieces(
        self, rank: int, part: str, level: int, start: int, stop: int, wanted: Sequence[str],
        without: frozenset[int] = frozenset(), rows: Array | None = None,
    ) -> list[Block]:  # fmt: skip
        """What one rank's own streams hold, but those `without`; each up to where a newer one is shown.

        Of `rows` at least, where they are given; ascending.
        """
        rows = few(rows, part, self.names())
        pieces: list[Block] = []
        newer_from = stop
        for stream in reversed(self.ranks[rank].streams):
            if stream.first_step is None or stream.last_step is None:
                continue
            low, high = max(start, stream.first_step), min(newer_from, stream.last_step + 1)
            newer_from = min(newer_from, stream.first_step)
            if low < high and stream.id not in without:
                found = self._stream_slices(stream, rows).pieces(part, level, low, high, wanted)
                pieces = [*found, *pieces]  # oldest first: the last value wins
        return pieces

    def _stream_slices(self, stream: Stream, rows: Array | None) -> StreamSlices:
        return StreamSlices(self.connection, self.reader.cache, self.names(), stream, self.damage, rows)

    def _ranks(self) -> dict[int, Rank]:
        grouped: dict[int, list[Any]] = {}
        for row in self._stream_rows():
            if row.rank == ALL_RANKS:
                self._all_ranks = row
            else:
                grouped.setdefault(row.rank, []).append(row)
        return {rank: _rank(rank, rows) for rank, rows in grouped.items()}

    def _stream_rows(self) -> Iterable[Any]:
        """Rows of `streams`, by rank and age."""
        streams = tables.streams
        query = select(streams).where(streams.c.run_id == self.id).order_by(streams.c.rank, streams.c.ordinal)
        return self.connection.execute(query)


def run_names(run_id: int, tensors: Tensors, series: dict[str, int], statistics: tuple[Statistic, ...]) -> RunNames:
    """With every column that these statistics have."""
    fill = {part: pyramid.identities(part, statistics) for part in PARTS}
    return RunNames(run_id, tensors, series, fill, {part: pyramid.merge_rules(part, statistics) for part in PARTS})


def _ship_every(row: Any) -> int:
    given = msgspec.json.decode(row.info, type=RankInfo).ship_every
    return given if given in (FANOUT, FANOUT**2) else 1


def last_step(rank: Rank) -> int | None:
    """The last step of the newest incarnation that has any."""
    steps = [stream.last_step for stream in rank.streams if stream.last_step is not None]
    return steps[-1] if steps else None


def _rank(rank: int, rows: list[Any]) -> Rank:
    streams = [
        Stream(row.id, row.rank, row.ordinal, row.contiguous, row.frontier, row.rewrites, row.first_step, row.last_step)
        for row in rows
    ]
    return Rank(rank, msgspec.json.decode(rows[-1].info, type=RankInfo), rows[-1], tuple(streams), tuple(rows))
