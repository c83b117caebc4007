"""The only reader: runs, ranks and slices as plain structs and arrays, in short read-only transactions."""

from __future__ import annotations

import copy
import time
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache, partial
from operator import attrgetter
from typing import Any, Protocol, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, Engine, func, select

from rangewatch.wire.events import Scaler
from rangewatch.wire.records import KINDS, RankInfo, Statistic, TensorEntry
from rangewatch_server.ingest.accumulators import UNMERGED
from rangewatch_server.ingest.merged_ranks import ALL_RANKS
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.pyramid import FANOUT, PARTS, RANGES, SERIES_PART, SUMMARY, Block
from rangewatch_server.query import events, inf_by_design
from rangewatch_server.query.events import Shared, StoredEvent, most_sharing
from rangewatch_server.query.merged_ranks import Memory, MergedReader, no_memory
from rangewatch_server.query.slices import (
    SUMMARY_BYTES,
    Cache,
    Columns,
    Damage,
    RunNames,
    Stream,
    StreamSlices,
    few,
    join,
)
from rangewatch_server.store import run_metadata, tables
from rangewatch_server.store.names import (
    TensorArrays,
    Tensors,
    load_arrays,
    load_series,
    load_statistics,
    load_tensor,
    load_tensors,
)
from rangewatch_server.store.rows import align, union
from rangewatch_server.store.tiles import WIDTH

Array = NDArray[Any]
Made = TypeVar("Made")


NO_END = 2**62  # past any step
EXACT_RANKS = 64  # beyond, sums of fractions may differ by 1e-15 with the order in which ranks reported
MOST_CHECKED = 256  # tiles of a stream, or streams: a wider range is drawn in coarser columns anyhow
MOST_COLUMNS = 1 << 24  # a float64 row of them is 128 MiB; a run of more steps is read in coarser columns


class Thinned(msgspec.Struct, frozen=True):
    """Before `step` nothing finer than columns of `per` steps is there, but around events."""

    step: int
    per: int


class Rank(msgspec.Struct, frozen=True, gc=False):
    """One rank of a run: its newest incarnation, and all of them for slices. A thousand are made for each request, and
    are in no cycle.
    """

    rank: int
    info: RankInfo
    row: Any
    """The newest incarnation's row of `streams`."""
    streams: tuple[Stream, ...]
    rows: tuple[Any, ...]
    """Every incarnation's row, oldest first."""

    def visible(self) -> list[tuple[Any, int]]:
        """Rows that have steps, with the step from which a newer incarnation's are shown instead; newest first."""
        visible: list[tuple[Any, int]] = []
        newer_from = NO_END
        for row in reversed(self.rows):
            if row.first_step is not None and row.first_step < newer_from:
                visible.append((row, newer_from))
                newer_from = row.first_step
        return visible


class Queries:
    """Opens read transactions on the reader engine."""

    def __init__(self, engine: Engine, live_s: float, memory: Memory = no_memory) -> None:
        self.engine = engine
        self.memory = memory
        self.live_ns = int(live_s * 1e9)
        self.cache = Cache()
        self.summaries = Cache(SUMMARY_BYTES)

    @contextmanager
    def read(self) -> Iterator[Reader]:
        """One consistent view of the database."""
        with self.engine.connect() as connection:
            yield Reader(connection, self.cache, self.live_ns, self.memory, self.summaries)


class Reader:
    """All reads of one request."""

    def __init__(
        self, connection: Connection, cache: Cache, live_ns: int, memory: Memory = no_memory,
        summaries: Cache | None = None,
    ) -> None:  # fmt: skip
        self.connection = connection
        self.cache = cache
        self.summaries = cache if summaries is None else summaries
        """What is small and costs much to make, such as a line of the list of runs."""
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


StreamRow = namedtuple("StreamRow", tables.streams.c.keys())  # type: ignore[misc]
"""A row of `streams`. A thousand are asked for their columns again and again: a tuple's take a tenth of a `Row`'s."""


class RunSource(Protocol):
    """Where a `RunReader` has a run's rows from."""

    has_merged_ranks: bool
    """Whether all ranks are stored merged beside each one's own."""

    def stream_rows(self) -> Iterable[Any]:
        """Rows of `streams`, by rank and age."""

    def names(self) -> RunNames:
        """Tensors, series and statistics."""

    def tensor(self, ordinal: int) -> TensorEntry:
        """One of them, without all others. Raises `LookupError`."""

    def slices(self, names: RunNames, stream: Stream, damage: set[Damage], rows: Array | None) -> StreamSlices:
        """The slices of one process."""

    def events(
        self, kind: str, most: int, *, rank: int | None = None, stream_id: int | None = None,
        before: int | None = None, step: int | None = None,
    ) -> list[StoredEvent]:  # fmt: skip
        """See `RunReader.events`."""

    def last_events(self, streams: Sequence[int], kinds: Sequence[str]) -> list[StoredEvent]:
        """The last event of each of these kinds of each of these processes."""

    def events_version(self, kind: str) -> tuple[int, ...]:
        """Another one whenever an event of the kind has come or gone."""

    def payloads(self, stream_id: int, source: str, last_step: int, most: int) -> Iterable[bytes]:
        """Samples of a process that begin by `last_step`, as they are stored: the newest `most`."""

    def shared_rows(self) -> list[Shared]:
        """Steps that share rows."""


class StoredRun:
    """The source of a run in the database."""

    has_merged_ranks = True

    def __init__(self, connection: Connection, cache: Cache, run_id: int) -> None:
        self.connection, self.cache, self.id = connection, cache, run_id

    def stream_rows(self) -> Iterable[Any]:
        streams = tables.streams
        query = select(streams).where(streams.c.run_id == self.id).order_by(streams.c.rank, streams.c.ordinal)
        return map(StreamRow._make, self.connection.execute(query))

    def tensor(self, ordinal: int) -> TensorEntry:
        entry = load_tensor(self.connection, self.id, ordinal)
        if entry is None:
            raise LookupError(f"run {self.id} has no tensor {ordinal}")
        return entry

    def names(self) -> RunNames:
        """Cached by how many there are, since none ever changes."""
        query = select(func.max(tables.catalogues.c.id)).where(tables.catalogues.c.run_id == self.id)
        newest = self.connection.execute(query).scalar() or 0
        query = select(func.count()).where(tables.series.c.run_id == self.id)
        version = newest, self.connection.execute(query).scalar()
        columns: Columns | None = self.cache.get((self.id, "columns", version))
        if columns is None:
            series, statistics = load_series(self.connection, self.id), load_statistics(self.connection, self.id)
            columns = columns_of(series, statistics, version)
            self.cache.put((self.id, "columns", version), columns, 100 * len(series) + 60_000)
        return RunNames(self.id, columns, partial(self._tensors, newest), partial(self._arrays, newest))

    def _tensors(self, newest: int) -> Tensors:
        tensors: Tensors | None = self.cache.get((self.id, "tensors", newest))
        if tensors is None:
            tensors = load_tensors(self.connection, self.id)
            self.cache.put((self.id, "tensors", newest), tensors, 500 * len(tensors.entries) + 1_000)
        return tensors

    def _arrays(self, newest: int) -> TensorArrays:
        """Cached apart: names that a page of many runs does not ask for must not push out what others read."""
        arrays: TensorArrays | None = self.cache.get((self.id, "arrays", newest))
        if arrays is None:
            arrays = load_arrays(self.connection, self.id)
            self.cache.put((self.id, "arrays", newest), arrays, 32 * len(arrays) + 1_000)
        return arrays

    def slices(self, names: RunNames, stream: Stream, damage: set[Damage], rows: Array | None) -> StreamSlices:
        return StreamSlices(self.connection, self.cache, names, stream, damage, rows)

    def events(
        self, kind: str, most: int, *, rank: int | None = None, stream_id: int | None = None,
        before: int | None = None, step: int | None = None,
    ) -> list[StoredEvent]:  # fmt: skip
        if rank is None and stream_id is None and before is None and step is None:
            return self._all_events(kind, most)
        return events.newest(
            self.connection, self.id, kind, most, rank=rank, stream_id=stream_id, before=before, step=step
        )

    def last_events(self, streams: Sequence[int], kinds: Sequence[str]) -> list[StoredEvent]:
        return events.last(self.connection, streams, kinds)

    def events_version(self, kind: str) -> tuple[int, ...]:
        return events.stamp(self.connection, self.id, kind)

    def _all_events(self, kind: str, most: int) -> list[StoredEvent]:
        """Those of all ranks are kept for as long as there are the same: of a thousand ranks they are a thousand."""
        key = (self.id, "events", kind, most, self.events_version(kind))
        stored: list[StoredEvent] | None = self.cache.get(key)
        if stored is None:
            stored = events.newest(self.connection, self.id, kind, most)
            self.cache.put(key, stored, sum(400 + len(each.data) + len(each.message) for each in stored))
        return stored

    def payloads(self, stream_id: int, source: str, last_step: int, most: int) -> Iterable[bytes]:
        row = tables.samples.c
        mine = (row.run_id == self.id) & (row.source == source) & (row.stream_id == stream_id)
        until = select(row.payload).where(mine, row.first_step <= last_step)
        return self.connection.execute(until.order_by(row.last_ns.desc()).limit(most)).scalars()

    def shared_rows(self) -> list[Shared]:
        return events.shared_rows(self.connection, self.id)


class RunReader:
    """One run inside one read transaction."""

    def __init__(self, reader: Reader, row: Any, source: RunSource | None = None) -> None:
        self.reader = reader
        self.connection = reader.connection
        self.id: int = row.id
        self.source = source or StoredRun(reader.connection, reader.cache, row.id)
        self.name: str = row.name
        self.created_ns: int = row.created_ns
        self.about = run_metadata.of_row(row)
        self._all_ranks: Any = None
        self._is_history = False
        self._known_stop: int | None = None
        self.ranks = self._ranks()
        self.now_ns = time.time_ns()
        self.damage: set[Damage] = set()
        """Stored tiles that slices found damaged so far."""
        self._names: RunNames | None = None

    def as_of(self, incarnation: int) -> None:
        """Show the run as it was before restarts after `incarnation` (1: before any), whose history later ones hide."""
        rows_by_rank = {
            rank: [row for row in each.rows if row.ordinal <= incarnation] for rank, each in self.ranks.items()
        }
        self.ranks = {rank: _rank(rank, rows) for rank, rows in rows_by_rank.items() if rows}
        self._is_history = True
        self.__dict__.pop("_all", None)

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
    def _all(self) -> tuple[int, ...]:
        """All ranks, ascending: as most who read all of them name them."""
        return tuple(sorted(self.ranks))

    @cached_property
    def is_all_finite(self) -> bool:
        """Whether no process has recorded a NaN or Inf in any tensor, masks included."""
        return all(getattr(row, "bad_step", 0) is None for rank in self.ranks.values() for row in rank.rows)

    @cached_property
    def stream_versions(self) -> dict[int, int]:
        """Stream -> its version, of every process of every rank."""
        return {row.id: row.version for rank in self.ranks.values() for row in rank.rows}

    @cached_property
    def ship_every(self) -> int:
        """The most steps that any agent merges, or merged before a restart, into one row: a level's column, or 1."""
        return max((_ship_every(row) for rank in self.ranks.values() for row in rank.rows), default=1)

    @cached_property
    def _shared(self) -> list[Shared]:
        return self.source.shared_rows()

    def steps_a_row(self, ranks: Iterable[int], start: int, stop: int) -> int:
        """The most steps of [start, stop) that share a row: as agents merge them, or a full spool had to."""
        return max(self.ship_every, most_sharing(self._shared, frozenset(ranks), start, stop))

    def thinned(self, ranks: Sequence[int], start: int, stop: int) -> Thinned | None:
        """What retention left of the steps [start, stop) of these ranks; None where all of it is there."""
        rows = [row for rank in ranks for row in self.ranks[rank].rows]
        marks = [(row, min(stop, row.thin_step)) for row in rows if row.first_step is not None and row.thin_level]
        inside = [(row, max(start, row.first_step), end) for row, end in marks if max(start, row.first_step) < end]
        if not inside or self._has_all(inside):
            return None
        return Thinned(max(row.thin_step for row, *_ in inside), FANOUT ** max(row.thin_level for row, *_ in inside))

    def _has_all(self, inside: Sequence[tuple[Any, int, int]]) -> bool:
        """Whether every level 0 tile of (stream, start, stop) is there; not examined where they are many."""
        spans = {row.id: (start // WIDTH, -(-end // WIDTH)) for row, start, end in inside}
        if max(last - first for first, last in spans.values()) > MOST_CHECKED or len(spans) > MOST_CHECKED:
            return False
        tiles = tables.tiles.c
        first, last = min(first for first, _ in spans.values()), max(last for _, last in spans.values())
        query = (
            select(tiles.stream_id, tiles.tile)
            .where(tiles.run_id == self.id, tiles.stream_id.in_(list(spans)), tiles.part == RANGES, tiles.level == 0)
            .where(tiles.tile >= first, tiles.tile < last)
        )
        stored = {(stream, tile) for stream, tile in self.connection.execute(query)}
        return all((stream, tile) in stored for stream, (low, high) in spans.items() for tile in range(low, high))

    def steps_a_row_at(self, rank: int, step: int) -> int:
        """The same of one step, in the incarnation of the rank that it is shown of."""
        merged = most_sharing(self._shared, (rank,), step, step + 1)
        return max(_ship_every(self._row_at(rank, step)), merged)

    def _row_at(self, rank: int, step: int) -> Any:
        """The row of `streams` of the incarnation whose record of the step is shown; the newest where there is none."""
        streams = self.ranks[rank]
        return next((row for row, _ in streams.visible() if row.first_step <= step), streams.row)

    def is_live(self, rank: Rank) -> bool:
        """Whether the rank spoke lately and has not said goodbye."""
        return self._speaks(rank.row)

    def also_live(self, rank: Rank) -> int:
        """Processes that claim the rank beside the newest and are live: two jobs of one name, or a restart just now."""
        return len(self.also_live_hosts(rank))

    def also_live_hosts(self, rank: Rank) -> list[str]:
        """Where these run, a host for each."""
        return [_info(row.info).host for row in rank.rows[:-1] if self._speaks(row)]

    def _speaks(self, row: Any) -> bool:
        """Whether it spoke lately. A time ahead of ours is of a clock that has been put back since."""
        return row.state == "open" and abs(self.now_ns - row.last_seen_ns) < self.reader.live_ns

    def silent_since(self, rank: int) -> int | None:
        """The rank's last step when it neither speaks nor said goodbye, while the run went on; else None."""
        streams = self.ranks[rank]
        step = last_step(streams)
        went_on = step is not None and self.last_step is not None and self.last_step > step
        return step if went_on and streams.row.state == "open" and not self.is_live(streams) else None

    def names(self) -> RunNames:
        """Tensors, series and statistics; cached by how many there are, since none ever changes."""
        if self._names is None:
            self._names = self.source.names()
        return self._names

    def tensor(self, ordinal: int) -> TensorEntry:
        """One tensor, for whoever names one alone. Raises `LookupError`."""
        return self.source.tensor(ordinal)

    def statistics(self) -> tuple[Statistic, ...]:
        """The run's statistics."""
        return load_statistics(self.connection, self.id)

    def events(
        self, kind: str, most: int, *, rank: int | None = None, stream_id: int | None = None,
        before: int | None = None, step: int | None = None,
    ) -> list[StoredEvent]:  # fmt: skip
        """The newest `most` events of a kind, newest first: of a rank, of one process, of steps before `before`, of
        `step`."""
        return self.source.events(kind, most, rank=rank, stream_id=stream_id, before=before, step=step)

    def is_loss_scaled(self, ranks: Iterable[int]) -> bool:
        """Whether gradients of any of these ranks are multiplied by a loss scale."""
        if any(self.ranks[rank].info.loss_scaled for rank in ranks):
            return True
        found = next(
            (known for event in self.events(Scaler.KIND, 1) if (known := event.read(Scaler)) is not None), None
        )
        return found is not None and not found.was_passed

    def newest_events(self, kinds: Sequence[str]) -> list[StoredEvent]:
        """The last event of each of these kinds of each rank's newest process, by rank."""
        newest = self.source.last_events([rank.streams[-1].id for rank in self.ranks.values()], kinds)
        return sorted(newest, key=lambda event: event.rank)

    def made_of_newest(self, kind: str, make: Callable[[RunReader], Made]) -> Made:
        """What `make` makes of this run's `newest_events` of a kind and of nothing that changes, kept for as long as
        they are the same: of 1,024 ranks' places that is 35 ms each time. Nobody changes what it returns."""
        streams = tuple(rank.streams[-1].id for rank in self.ranks.values())
        key = (self.id, "made", make, self.source.events_version(kind), streams)
        made: Made | None = self.reader.cache.get(key)
        if made is None:
            made = make(self)
            self.reader.cache.put(key, made, 4_000 * len(streams))
        return made

    def account(self, kind: str, rank: int, step: int) -> StoredEvent | None:
        """The event whose account covers a step of a rank."""
        return events.about_step(self.connection, self._row_at(rank, step).id, kind, step)

    def slice(
        self, part: str, ranks: Sequence[int], level: int, start: int, stop: int, wanted: Sequence[str],
        rows: Array | None = None,
    ) -> Block:  # fmt: skip
        """Steps [start, stop) at `level`, the worst of `ranks`, Inf by design not counted. A rank's newer incarnation
        counts.
        """
        block = self.stored(part, ranks, level, start, stop, wanted, rows)
        if part == SERIES_PART or not len(self.inf_by_design):
            return block
        return inf_by_design.taken_out(self, self.inf_by_design, block, part, ranks, start, stop)

    @cached_property
    def inf_by_design(self) -> Array:
        """(d,) ordinals of tensors in which Inf is meant, as in masks."""
        return inf_by_design.find(self, self._known_stop)

    def known_before(self, stop: int) -> RunReader:
        """The same run, in which Inf by design is what was known of it before the step `stop`."""
        other = copy.copy(self)
        other._known_stop = stop
        other.__dict__.pop("inf_by_design", None)
        return other

    def stored(
        self, part: str, ranks: Sequence[int], level: int, start: int, stop: int, wanted: Sequence[str],
        rows: Array | None = None,
    ) -> Block:  # fmt: skip
        """What `slice` gives, with all Inf that was recorded. Raises `ValueError` for more than `MOST_COLUMNS`."""
        if (columns := (stop - start) // FANOUT**level) > MOST_COLUMNS:
            raise ValueError(f"{columns} columns at level {level} are too many to be read at once")
        names = self.names()
        fill, rules = names.fill[part], names.rules[part]
        if part == SUMMARY and self._are_all(ranks, wanted):
            block = self.merged.by_kind(level, start, stop, wanted)
            return block if rows is None else align(block, rows, fill)
        if self._are_all(ranks, wanted):
            pieces = self.merged.pieces(part, level, start, stop, wanted, rows)
        else:
            own = [self.own_pieces(rank, part, level, start, stop, wanted, rows=rows) for rank in ranks]
            pieces = [each for blocks in own for each in blocks]
        rows = union([piece.rows for piece in pieces]) if rows is None else rows
        return join(pieces, level, start, stop, wanted, rows, fill, rules)

    def by_rank(self, ranks: Sequence[int], level: int, start: int, stop: int, wanted: Sequence[str]) -> Block:
        """The summary of each of `ranks`: row `place in ranks * len(KINDS) + kind`."""
        if self._are_all(ranks, wanted) and list(ranks) == sorted(ranks):
            block = self.merged.by_rank(level, start, stop, wanted)
            meant = self.inf_by_design
            return inf_by_design.taken_out_by_rank(self, meant, block, ranks, start, stop) if len(meant) else block
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
        if self._is_history or not self.source.has_merged_ranks:
            return False  # merged ranks are what is shown now
        if ("sum" in wanted and len(ranks) <= EXACT_RANKS) or not set(UNMERGED).isdisjoint(wanted):
            return False
        if len(ranks) < 2 or len(ranks) != len(self.ranks) or "last" in wanted:
            return False
        return tuple(ranks) == self._all or set(ranks) == set(self._all)

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
                slices = self.source.slices(self.names(), stream, self.damage, rows)
                stored = slices.pieces(part, level, low, high, wanted)
                pieces = [*stored, *pieces]  # oldest first: the last value wins
        return pieces

    def _ranks(self) -> dict[int, Rank]:
        grouped: dict[int, list[Any]] = {}
        for row in self.source.stream_rows():
            if row.rank == ALL_RANKS:
                self._all_ranks = row
            else:
                grouped.setdefault(row.rank, []).append(row)
        return {rank: _rank(rank, rows) for rank, rows in grouped.items()}


def columns_of(series: dict[str, int], statistics: tuple[Statistic, ...], version: Any) -> Columns:
    """Every column that these statistics have."""
    fill = {part: pyramid.identities(part, statistics) for part in PARTS}
    return Columns(series, fill, {part: pyramid.merge_rules(part, statistics) for part in PARTS}, version)


def _ship_every(row: Any) -> int:
    given = _info(row.info).ship_every
    return given if given in (FANOUT, FANOUT**2) else 1


def last_step(rank: Rank) -> int | None:
    """The last step of the newest incarnation that has any."""
    steps = [stream.last_step for stream in rank.streams if stream.last_step is not None]
    return steps[-1] if steps else None


def _rank(rank: int, rows: list[Any]) -> Rank:
    streams = tuple([Stream(*_stream_of(row)) for row in rows])
    return Rank(rank, _info(rows[-1].info), rows[-1], streams, tuple(rows))


_stream_of = attrgetter(*Stream.__struct_fields__)


@lru_cache(maxsize=8_192)
def _info(stored: bytes) -> RankInfo:
    """A run of a thousand ranks is opened for every request, and what a rank says of itself does not change."""
    return msgspec.json.decode(stored, type=RankInfo)
