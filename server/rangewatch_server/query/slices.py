"""Reading one stream's pyramid: any steps at any level, from whatever tiles and raw batches hold them.

A level's tiles end where its last complete span does. What lies beyond, and ragged edges that do not fall on its
columns, are read one level down and merged, to the raw batches at the bottom; so a slice costs its own columns and at
most some eight tiles a level more, however long the run is, and is exact for any [start, stop).

A tile whose checksum is wrong is read from the level below too; at the bottom its steps are absent. `Damage` says so.

`merged` and its kin lay pieces of slices into one block: side by side within a rank, the worst where ranks overlap.
Pure, no I/O.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection, bindparam, select

from rangewatch.statistics import UFUNCS
from rangewatch.wire import WireError, decode
from rangewatch_server.core import deadline
from rangewatch_server.ingest.accumulators import kind_of_row
from rangewatch_server.ingest.fold import placed, summarise
from rangewatch_server.numerics import pyramid
from rangewatch_server.numerics.pyramid import (
    AMAX_STEP,
    FANOUT,
    NONFINITE_STEP,
    RANGES,
    SERIES_PART,
    SUMMARY,
    Block,
)
from rangewatch_server.store import tables, tiles
from rangewatch_server.store.names import STATISTIC_BYTES, KnownCatalogue, TensorArrays, Tensors, load_catalogue
from rangewatch_server.store.rows import Raw, align, clip, dense, raws_of, union

Array = NDArray[Any]


def join(
    pieces: Sequence[Block], level: int, start: int, stop: int, wanted: Sequence[str], rows: Array,
    fill: Mapping[str, float], rules: Mapping[str, str],
) -> Block:  # fmt: skip
    """One block over the columns of [start, stop) with exactly `rows`; cells of no piece hold identities."""
    first, width = start // FANOUT**level, -(-stop // FANOUT**level) - start // FANOUT**level
    aligned = [align(piece, rows, fill) for piece in pieces if piece.width]
    depth = np.zeros(width, np.int64)
    for piece in aligned:
        depth[piece.first - first : piece.first - first + piece.width] += 1
    if any(rules[name] not in UFUNCS for name in wanted) and depth.size and depth.max() > 1:
        return _stacked(aligned, level, first, width, wanted, rows, fill, rules)
    columns: dict[str, Array] = {}
    for name in wanted:
        parts = [(piece.first - first, piece.columns[name]) for piece in aligned if name in piece.columns]
        constant = _constant([values for _, values in parts], depth, rules[name]) if parts else fill[name]
        if constant is not None:
            columns[name] = np.broadcast_to(constant, (len(rows), width))
            continue
        is_narrow = rules[name] != "sum" and all(v.dtype in (np.float32, np.uint8, np.uint16) for _, v in parts)
        ufunc = UFUNCS.get(rules[name]) if depth.size and depth.max() > 1 else None
        columns[name] = result = np.empty((len(rows), width), np.float32 if is_narrow else np.float64)
        if ufunc or sum(values.shape[1] for _, values in parts) != width:  # else every cell is written once
            result.fill(fill[name])
        for at, values in parts:
            place = result[:, at : at + values.shape[1]]
            if ufunc is None:
                place[:] = values
            else:
                ufunc(place, values, out=place)
    return Block(level, first, rows, columns)


def sharing_columns(pieces: Sequence[Block]) -> list[list[Block]]:
    """The pieces in groups with no column of the coarser level in common, in order of steps.

    Each group can be made coarser on its own: most are one tile, and nothing of it is copied before it is an eighth.
    """
    groups: list[list[Block]] = []
    past = 0  # the end of the last group, in columns of the coarser level
    for piece in sorted((each for each in pieces if each.width), key=lambda each: each.first):
        if not groups or piece.first // FANOUT >= past:
            groups.append([])
        groups[-1].append(piece)
        past = max(past, -(-(piece.first + piece.width) // FANOUT))
    return groups


def beside(
    pieces: Sequence[Block], wanted: Sequence[str], fill: Mapping[str, float], rules: Mapping[str, str]
) -> Block:
    """The one piece, or all joined over the columns that they span; `pieces` is not empty."""
    if len(pieces) == 1:
        return pieces[0]
    level, size = pieces[0].level, FANOUT ** pieces[0].level
    start, stop = min(each.first for each in pieces), max(each.first + each.width for each in pieces)
    rows = union([each.rows for each in pieces])
    return join(pieces, level, start * size, stop * size, wanted, rows, fill, rules)


def _constant(parts: list[Array], depth: Array, rule: str) -> float | None:
    """The one value of all cells, when every part is that constant and covers every column equally often."""
    if not parts or not depth.size or depth.min() == 0 or depth.min() != depth.max():
        return None
    if sum(values.shape[1] for values in parts) != depth.sum() or any(any(values.strides) for values in parts):
        return None
    value = float(parts[0].flat[0]) if parts[0].size else 0.0
    if any(values.size and float(values.flat[0]) != value for values in parts):
        return None
    return value * int(depth[0]) if rule == "sum" else value


def _stacked(
    pieces: list[Block], level: int, first: int, width: int, wanted: Sequence[str], rows: Array,
    fill: Mapping[str, float], rules: Mapping[str, str],
) -> Block:  # fmt: skip
    """As `join`, for columns whose merge looks at another column: overlapping pieces are laid over one another."""
    names = list(dict.fromkeys(name for piece in pieces for name in piece.columns))
    whole = [Block(level, first, rows, _spread(piece, first, width, names, fill)) for piece in pieces]
    merged = pyramid.merge_blocks(whole, rules)
    return Block(level, first, rows, {name: merged.columns[name] for name in wanted})


def _spread(block: Block, first: int, width: int, names: list[str], fill: Mapping[str, float]) -> dict[str, Array]:
    before, after = block.first - first, first + width - block.first - block.width
    shape = (len(block.rows), block.width)
    columns = {name: block.columns.get(name, np.broadcast_to(fill[name], shape)) for name in names}
    return {name: pyramid.padded(values, before, after, fill[name]) for name, values in columns.items()}


logger = logging.getLogger("rangewatch.server")

CACHE_BYTES = 256 << 20  # decoded tiles and batches; a 2,000-column heatmap of 300 tensors is about 3 MiB a rank
SUMMARY_BYTES = 32 << 20  # what is said of runs in a few kB each: 3,000 of them, which no names or tiles push out
FEW = 4  # rows are few when the run has so many times as many: they are taken out of tiles and kept on their own


# Built once: making a statement costs as much as running it.
_tile, _batch = tables.tiles.c, tables.batches.c
SELECT_TILES = (
    select(_tile.tile, _tile.payload)
    .where(_tile.run_id == bindparam("run"), _tile.stream_id == bindparam("stream"))
    .where(_tile.part == bindparam("part"), _tile.level == bindparam("level"))
    .where(_tile.tile.between(bindparam("first"), bindparam("last")))
    .order_by(_tile.tile)
)
_of_stream = (_batch.run_id == bindparam("run")) & (_batch.stream_id == bindparam("stream"))
SELECT_SEQUENCES = (
    select(_batch.sequence).where(_of_stream, _batch.sequence <= bindparam("contiguous")).order_by(_batch.sequence)
)
SELECT_BODY = select(_batch.body).where(_of_stream, _batch.sequence == bindparam("sequence"))


class Cache:
    """Decoded tiles and batches, least recently used first out. What is stored under a key never changes."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._entries: OrderedDict[Any, tuple[Any, int]] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: Any) -> Any:
        """The value, or None."""
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                return None
            self._entries.move_to_end(key)
            return entry[0]

    def put(self, key: Any, value: Any, nbytes: int) -> None:
        """Keep a value, and let the oldest go."""
        with self._lock:
            if key in self._entries:
                return
            self._entries[key] = (value, nbytes)
            self._bytes += nbytes
            while self._bytes > self.limit_bytes:
                _, (_, freed) = self._entries.popitem(last=False)
                self._bytes -= freed


class Stream(msgspec.Struct, frozen=True, gc=False):
    """What reading needs of a row of `streams`."""

    id: int
    rank: int
    ordinal: int
    contiguous: int
    frontier: int
    rewrites: int
    first_step: int | None
    last_step: int | None


class Damage(msgspec.Struct, frozen=True):
    """A stored tile that cannot be read, over the steps [start, stop); at level 0 they are absent."""

    rank: int
    part: str
    level: int
    tile: int
    start: int
    stop: int


class Columns(msgspec.Struct, frozen=True):
    """What the columns of a run's parts are. `version`: another where its tensors, series or statistics are others."""

    series: dict[str, int]
    fill: dict[str, dict[str, float]]
    rules: dict[str, dict[str, str]]
    version: Any


class RunNames:
    """What a run's rows mean. Its tensors, which may be 200,000, are loaded where they are first asked for, and held in
    memory without their names where nobody asks for these.
    """

    def __init__(
        self,
        run_id: int,
        columns: Columns,
        load_tensors: Callable[[], Tensors],
        load_arrays: Callable[[], TensorArrays],
    ) -> None:
        self.run_id = run_id
        self.series, self.fill, self.rules, self.version = columns.series, columns.fill, columns.rules, columns.version
        self._load_tensors, self._load_arrays = load_tensors, load_arrays

    @cached_property
    def tensors(self) -> Tensors:
        """All of them, by ordinal."""
        return self._load_tensors()

    @cached_property
    def arrays(self) -> TensorArrays:
        """The same without names."""
        return self._load_arrays()


class StreamSlices:
    """Slices of one stream, inside one read transaction."""

    is_by_kind = False
    """Whether ranks are merged away in what is read: see `MergedSlices`."""

    def __init__(
        self, connection: Connection, cache: Cache, names: RunNames, stream: Stream, damage: set[Damage] | None = None,
        rows: Array | None = None,
    ) -> None:  # fmt: skip
        self.connection = connection
        self.cache = cache
        self.names = names
        self.stream = stream
        self.damage: set[Damage] = set() if damage is None else damage
        """What could not be read; bounded by the tiles that a request reads."""
        self.rows = rows
        """The only rows that are read, ascending; None for all. See `few`."""
        self.absent: list[tuple[int, int]] = []
        """Steps [start, stop) that were asked for and are in none of the pieces, for that reason."""

    def pieces(self, part: str, level: int, start: int, stop: int, wanted: Sequence[str]) -> list[Block]:
        """Columns of the steps [start, stop) at `level`, as blocks side by side with perhaps gaps between them.

        An edge column holds only the steps inside. `wanted` are the columns to read; what merging needs comes along.
        """
        if start >= stop:
            return []
        wanted = with_needed(part, wanted)
        if level == 0:
            split = min(max(start, self.stream.frontier), stop)
            return [*self._tiles(part, 0, start, split, wanted), *self._raw(part, split, stop, wanted)]
        size = FANOUT**level
        complete = self.stream.frontier // (size * tiles.WIDTH) * size * tiles.WIDTH
        inner_start, inner_stop = -(-start // size) * size, min(stop, complete) // size * size
        if inner_start >= inner_stop:
            return self._below(part, level, start, stop, wanted)
        return [
            *self._below(part, level, start, inner_start, wanted),
            *self._tiles(part, level, inner_start, inner_stop, wanted),
            *self._below(part, level, inner_stop, stop, wanted),
        ]

    def _below(self, part: str, level: int, start: int, stop: int, wanted: tuple[str, ...]) -> list[Block]:
        if start >= stop:
            return []
        groups = sharing_columns(self.pieces(part, level - 1, start, stop, wanted))
        return [self._coarser(part, group, start, stop, wanted) for group in groups]

    def _coarser(self, part: str, group: list[Block], start: int, stop: int, wanted: tuple[str, ...]) -> Block:
        """The group in columns of the next level. Of whole columns that are in tiles it never changes: it is kept, for
        whoever looks at a run again and again.
        """
        fill, rules = self.names.fill[part], self.names.rules[part]
        size, first = FANOUT ** group[0].level, group[0].first
        width = max(each.first + each.width for each in group) - first
        if first * size < start or (first + width) * size > min(stop, self.stream.frontier):
            return pyramid.coarser(beside(group, wanted, fill, rules), rules, fill)
        key = ("coarser", *self._key(part, group[0].level, wanted), first, width)
        block: Block | None = self.cache.get(key)
        if block is None:
            block = pyramid.coarser(beside(group, wanted, fill, rules), rules, fill)
            self.cache.put(key, block, nbytes_of_columns(block.columns))
        return block

    def _key(self, part: str, level: int, wanted: tuple[str, ...]) -> tuple[Any, ...]:
        """Of what is read of tiles."""
        rows = None if self.rows is None else self.rows.tobytes()
        return self.stream.id, self.stream.rewrites, self.is_by_kind, part, level, wanted, rows

    def _tiles(self, part: str, level: int, start: int, stop: int, wanted: tuple[str, ...]) -> list[Block]:
        """Stored tiles over [start, stop), cut to it; both fall on columns of the level."""
        if start >= stop:
            return []
        span = FANOUT**level * tiles.WIDTH
        numbers = range(start // span, -(-stop // span))
        key = self._key(part, level, wanted)
        stored = {each: found for each in numbers if (found := self.cache.get((*key, each))) is not None}
        missing = [each for each in numbers if each not in stored]
        if missing:
            place = {"run": self.names.run_id, "stream": self.stream.id, "part": part, "level": level}
            ends = {"first": missing[0], "last": missing[-1]}
            for tile, payload in self.connection.execute(SELECT_TILES, place | ends):
                deadline.check()
                if tile in stored:
                    continue
                try:
                    block = Block(level, tile * tiles.WIDTH, *tiles.decode(payload, wanted, self.rows))
                except tiles.TileError as error:
                    stored[tile] = self._damaged(part, level, tile, error)
                    self.cache.put((*key, tile), stored[tile], 256)
                    continue
                stored[tile] = block = self._by_kind(block) if self.is_by_kind else block
                self.cache.put((*key, tile), block, nbytes_of_columns(block.columns))
        low, high = start // FANOUT**level, stop // FANOUT**level
        pieces: list[Block] = []
        for each in (stored[number] for number in numbers if number in stored):
            if isinstance(each, Block):
                cut = _cut(each, low, high)
                pieces.append(placed(part, cut) if has_places(wanted) else cut)
                continue
            self.damage.add(each)
            if level:
                pieces += self._below(part, level, max(start, each.start), min(stop, each.stop), wanted)
            else:
                self.absent.append((max(start, each.start), min(stop, each.stop)))
        return pieces

    def _by_kind(self, block: Block) -> Block:
        """A block of the summary of all ranks with a row for each kind."""
        kinds = kind_of_row(block.rows)
        order = np.argsort(kinds, kind="stable")
        rows, edges = np.unique(kinds[order], return_index=True)
        rules = self.names.rules[SUMMARY]
        columns = {
            name: UFUNCS[rules[name]].reduceat(values[order], edges, axis=0) if len(rows) else values
            for name, values in block.columns.items()
        }
        return Block(block.level, block.first, rows, columns)

    def _damaged(self, part: str, level: int, tile: int, error: tiles.TileError) -> Damage:
        span = FANOUT**level * tiles.WIDTH
        damage = Damage(self.stream.rank, part, level, tile, tile * span, (tile + 1) * span)
        key = (self.stream.id, self.stream.rewrites, "damage", part, level, tile)
        if self.cache.get(key) is None:  # once a tile, not once for each set of columns that is asked for
            self.cache.put(key, damage, 256)
            logger.warning("run %d, stream %d: %s: %s", self.names.run_id, self.stream.id, error, damage)
        return damage

    def _raw(self, part: str, start: int, stop: int, wanted: tuple[str, ...]) -> list[Block]:
        """Level 0 over [start, stop), which are not in tiles yet."""
        if start >= stop:
            return []
        source = RANGES if part == SUMMARY else part
        raws = [clip(raw, start, stop) for raw in self._batches(start) if raw.part == source]
        raws = [raw if part == SUMMARY else _named(raw, wanted) for raw in raws if len(raw.steps)]
        if not raws:
            return []
        block = dense(raws, self.names.fill[source], self.names.rules[source], start, stop)
        if part == SUMMARY:
            return [summarise(block, self.names.arrays)]
        block = self._only_rows(part, block)
        block = placed(part, block) if has_places(wanted) else block
        return [Block(0, start, block.rows, {name: block.columns[name] for name in wanted if name in block.columns})]

    def _only_rows(self, part: str, block: Block) -> Block:
        return block if self.rows is None else align(block, self.rows, self.names.fill[part])

    def _batches(self, start: int) -> list[Raw]:
        """Rows not in tiles; those beyond a gap in the sequence show when the gap has closed."""
        mine = {"run": self.names.run_id, "stream": self.stream.id, "contiguous": self.stream.contiguous}
        raws: list[Raw] = []
        for sequence in self.connection.execute(SELECT_SEQUENCES, mine).scalars().all():
            raws += self.batch(sequence)
        return [clip(raw, max(start, self.stream.frontier), 2**62) for raw in raws]

    def has_batch(self, sequence: int) -> bool:
        """Whether that batch is decoded already."""
        return self.cache.get((self.stream.id, "batch", sequence)) is not None

    def batch(self, sequence: int, body: bytes | None = None) -> list[Raw]:
        """Rows of a stored batch; none, and damage, where it cannot be read. `body`: as who has it gives it."""
        deadline.check()
        key = (self.stream.id, "batch", sequence)
        raws: list[Raw] | None = self.cache.get(key)
        if raws is None:
            if body is None:
                mine = {"run": self.names.run_id, "stream": self.stream.id, "sequence": sequence}
                body = self.connection.execute(SELECT_BODY, mine).scalar_one()
            try:
                batch: Any = decode(body, rows_only=True)
            except WireError as error:
                return self._damaged_batch(sequence, error)
            known = self.catalogue(batch.catalogue)
            raws = raws_of(batch, known.ordinals, known.statistics, self.names.series)
            self.keep_batch(sequence, raws, nbytes_of(raws))
        return raws

    def keep_batch(self, sequence: int, raws: list[Raw], nbytes: int) -> None:
        """Keep the rows of that batch for whoever reads it next."""
        self.cache.put((self.stream.id, "batch", sequence), raws, nbytes)

    def _damaged_batch(self, sequence: int, error: WireError) -> list[Raw]:
        """Its steps are absent; which they were nobody can say, but that they are not in tiles."""
        stop = (self.stream.last_step or 0) + 1
        self.damage.add(Damage(self.stream.rank, "batch", 0, sequence, min(self.stream.frontier, stop), stop))
        logger.warning("run %d, stream %d: batch %d: %s", self.names.run_id, self.stream.id, sequence, error)
        return []

    def catalogue(self, digest: str) -> KnownCatalogue:
        """What rows of batches mean that name this catalogue."""
        key = (self.names.run_id, "catalogue", digest)
        known = self.cache.get(key)
        if known is None:
            known = load_catalogue(self.connection, self.names.run_id, digest)
            assert known is not None, "a stored batch's catalogue is stored before it"
            self.cache.put(key, known, known.ordinals.nbytes + STATISTIC_BYTES * len(known.statistics))
        return known


class MergedSlices(StreamSlices):
    """Slices of the stream of all ranks: what is not in tiles yet comes from the writer's memory, not from batches.

    `is_by_kind`: of the summary, with the ranks merged away as tiles are read: a row for each kind.
    """

    memory: Sequence[Block] = ()

    def _raw(self, part: str, start: int, stop: int, wanted: tuple[str, ...]) -> list[Block]:
        pieces: list[Block] = []
        for each in self.memory:
            cut = _cut(self._by_kind(each) if self.is_by_kind else each, start, stop)
            block = self._only_rows(part, cut)
            if block.width > 0 and len(block.rows):
                block = placed(part, block) if has_places(wanted) else block
                columns = {name: block.columns[name] for name in wanted if name in block.columns}
                pieces.append(Block(0, block.first, block.rows, columns))
        return pieces


def with_needed(part: str, wanted: Sequence[str]) -> tuple[str, ...]:
    """The columns to read so that `wanted` can be merged and placed."""
    needed = set(wanted)
    if part == SERIES_PART and "last" in needed:
        needed.add("count")
    if part == RANGES and needed & {AMAX_STEP, NONFINITE_STEP}:
        needed |= {"amax", "call_count", "nan_count", "inf_count", AMAX_STEP, NONFINITE_STEP}
    return tuple(sorted(needed))


def few(rows: Array | None, part: str, names: RunNames) -> Array | None:
    """`rows` where it pays to read them alone, else None: whole tiles serve whoever asks for other rows next."""
    if rows is None or part not in (RANGES, SERIES_PART):
        return None
    known = len(names.arrays if part == RANGES else names.series)
    return None if len(rows) * FEW > known else rows


def _named(raw: Raw, wanted: Sequence[str]) -> Raw:
    columns = {name: values for name, values in raw.columns.items() if name in wanted}
    return Raw(raw.part, raw.steps, raw.rows, columns)


def has_places(wanted: Sequence[str]) -> bool:
    """Whether a column that says where is wanted."""
    return AMAX_STEP in wanted or NONFINITE_STEP in wanted


def _cut(block: Block, low: int, high: int) -> Block:
    left, right = max(low - block.first, 0), max(min(high - block.first, block.width), 0)
    if left == 0 and right == block.width:
        return block
    columns = {name: values[:, left:right] for name, values in block.columns.items()}
    return Block(block.level, block.first + left, block.rows, columns)


def nbytes_of(raws: Sequence[Raw]) -> int:
    """Bytes held by rows of a batch."""
    return sum(nbytes_of_columns(raw.columns) for raw in raws)


def nbytes_of_columns(columns: dict[str, Array]) -> int:
    """Bytes held by columns of a block; of a constant next to nothing."""
    return 256 + sum(values.nbytes if any(values.strides) else 8 for values in columns.values())
