"""The worst of all ranks, kept as ranks report: a stream of rank -1 that no agent sends.

Its tiles hold every row that is shown (a restarted rank's older process counts below the newer one's first step only)
of the steps below its frontier; what is past the frontier waits in memory, fed as batches are counted. So "all ranks"
is read without reading any rank. Streams that are not in memory (after a start of the server, or sent to another
server) are unfed: they are read one by one until they have been caught up with.

One rule holds it together: a row below the frontier is merged into its tile in the transaction that counts it.
Where several servers share a database one of them owns the run's merged ranks; the others only take back what they
change below the frontier.

The database's side of merged ranks, in the writer's transaction: the stream of rank -1, its siblings, its tiles.

Merged ranks catch up with streams that memory does not hold: after a start, or when a first rank gets company.

Far behind, the tile at the frontier is made of all streams, over as many transactions as it takes; near it, one stream
after another is read into memory.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from sqlalchemy import Connection, delete, func, insert, select, update

from rangewatch_server.ingest.accumulators import Accumulators, Tiles, blocks
from rangewatch_server.ingest.fold import Folder
from rangewatch_server.ingest.stream import StreamState, StreamTiles
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, SERIES_PART, Block
from rangewatch_server.store import tables
from rangewatch_server.store.names import Names
from rangewatch_server.store.rows import Raw, clip
from rangewatch_server.store.tiles import WIDTH, TileError

ALL_RANKS = -1
LEVELS = 12  # 64 * 8**12 steps are more than a run can have
_streams = tables.streams.c


class Sibling(msgspec.Struct):
    """One stream of the run, as far as merging must know it."""

    id: int
    rank: int
    incarnation: str
    ordinal: int
    first_step: int | None
    last_step: int | None
    state: str
    last_seen_ns: int
    version: int


VERSION_OF = attrgetter("version")
"""In C: each figure of a page and each rule asks for those of a thousand."""


def reaches(sibling: Sibling, step: int) -> bool:
    """Whether it has rows from `step` on."""
    return sibling.last_step is not None and sibling.last_step >= step


def siblings(connection: Connection, run_id: int) -> dict[int, Sibling]:
    """All streams of the run's ranks by id."""
    columns = [_streams[name] for name in Sibling.__struct_fields__]
    rows = connection.execute(select(*columns).where(_streams.run_id == run_id, _streams.rank >= 0))
    return {row.id: Sibling(*row) for row in rows}


def stamp(connection: Connection, run_id: int) -> tuple[int, int]:
    """How many streams the run's ranks have, and the sum of their versions: what changes when any of them does."""
    query = select(func.count(), func.coalesce(func.sum(_streams.version), 0))
    count, versions = connection.execute(query.where(_streams.run_id == run_id, _streams.rank >= 0)).one()
    return count, int(versions)


def thin_step(connection: Connection, run_id: int) -> int:
    """The step below which level 0 tiles may be gone."""
    query = select(func.coalesce(func.max(_streams.thin_step), 0)).where(_streams.run_id == run_id)
    return int(connection.execute(query).scalar_one())


def load(connection: Connection, run_id: int) -> StreamState | None:
    """The stream of all ranks; None before its first tile."""
    mine = (_streams.run_id == run_id) & (_streams.rank == ALL_RANKS)
    row = connection.execute(select(tables.streams).where(mine)).first()
    if row is None:
        return None
    return StreamState(
        row.id, run_id, ALL_RANKS, frontier=row.frontier, rewrites=row.rewrites, version=row.version,
        first_step=row.first_step, last_step=row.last_step,
    )  # fmt: skip


def make(connection: Connection, run_id: int) -> StreamState:
    """The stream of all ranks, new."""
    values = {
        "run_id": run_id, "rank": ALL_RANKS, "incarnation": "", "ordinal": 0, "info": b"", "started_ns": 0,
        "last_seen_ns": 0, "state": "merged",
    }  # fmt: skip
    made = connection.execute(insert(tables.streams).values(values).returning(_streams.id)).scalar_one()
    return StreamState(made, run_id, ALL_RANKS)


def store(connection: Connection, stream: StreamState) -> None:
    """What changed of it."""
    names = ("frontier", "rewrites", "version", "first_step", "last_step")
    values = {name: getattr(stream, name) for name in names}
    connection.execute(update(tables.streams).where(_streams.id == stream.id).values(values))


def delete_tiles(connection: Connection, stream: StreamState, frontier: int) -> None:
    """Tiles of every level that hold steps from `frontier` on."""
    tiles = tables.tiles.c
    mine = (tiles.run_id == stream.run_id) & (tiles.stream_id == stream.id)
    for level in range(LEVELS):
        first = frontier // (WIDTH * FANOUT**level)
        connection.execute(delete(tables.tiles).where(mine, tiles.level == level, tiles.tile >= first))


def stored_rows(stream_tiles: StreamTiles, start: int, stop: int) -> Iterator[Raw]:
    """Rows of the level 0 tiles of a stream over [start, stop)."""
    for tile in range(start // WIDTH, -(-stop // WIDTH)):
        for part in (RANGES, SERIES_PART):
            try:
                block = stream_tiles.get(part, 0, tile)
            except TileError:  # the reader says so, and folding replaces it
                continue
            if block is not None and len(block.rows):
                steps = np.arange(block.first, block.first + WIDTH)
                yield clip(Raw(part, steps, block.rows, block.columns), start, stop)


NEAR = 4 * WIDTH  # steps: streams with no more than these to read are caught up with in one go
HOLD_S = 20.0  # after a rank has gone back: the other ranks will do so too

ReadRows = Callable[[Sibling, int, int], list[Raw]]
"""(stream, start, stop) -> its counted rows of these steps, from tiles and from batches that are not in tiles yet."""


class CatchUp:
    """Of one run, in the writer's thread."""

    def __init__(self, run: MergedRun) -> None:
        self.run = run
        self._hold_until_s = 0.0
        self._begun: tuple[int, Accumulators, list[int]] | None = None
        """The frontier after the tile that is being made, what it has so far, and the streams still to be read."""

    def hold(self) -> None:
        """A rank has gone back."""
        self._hold_until_s = time.monotonic() + HOLD_S

    def interrupt(self, first: int = 0) -> None:
        """Rows from step `first` on have come or gone: a tile that may be without them is made anew."""
        if self._begun is not None and first < self._begun[0]:
            self._begun = None

    def go_on(
        self, connection: Connection, deadline_s: float, read: ReadRows, local: Callable[[int], bool]
    ) -> bool:  # fmt: skip
        """As much as time (`time.perf_counter`) allows, one thing at least; whether there is more to do.

        `local`: whether a stream is sent to this server.
        """
        run = self.run
        if thin_step(connection, run.run_id) > run.frontier:
            run.give_up(connection)
            return False
        if time.monotonic() < self._hold_until_s:
            return True
        while unfed := run.unfed():
            near = [each for each in unfed if local(each.id) and self._is_near(each)]
            behind = run.foldable() - run.frontier
            if behind >= WIDTH and (behind > NEAR or not near):
                self._backfill(connection, deadline_s, read)
            elif near and run.is_moved:
                return True  # readers are at the frontier before this transaction: to be fed from this one on, it waits
            elif near:
                self._feed_some(connection, near, deadline_s, read)
            else:
                return False  # other servers', or far ahead of ranks that still speak: read one by one until then
            if time.perf_counter() >= deadline_s:
                break
        return bool(run.unfed())

    def _is_near(self, sibling: Sibling) -> bool:
        return min(sibling.last_step or 0, self.run.end(sibling)) - self.run.frontier <= 2 * NEAR

    def _feed_some(self, connection: Connection, near: list[Sibling], deadline_s: float, read: ReadRows) -> None:
        """In one go: to look again at a thousand others after each was as dear as all else."""
        for each in near:
            self._feed(connection, each, read)
            if time.perf_counter() >= deadline_s or self.run.accumulators.nbytes > MEMORY_BYTES:
                return

    def _feed(self, connection: Connection, sibling: Sibling, read: ReadRows) -> None:
        run = self.run
        raws = read(sibling, run.frontier, run.end(sibling))
        tensors = run.names.tensors(connection, run.run_id)
        with run.lock:
            run.accumulators.feed(sibling.rank, raws, tensors)
            run.now_fed(sibling)

    def _backfill(self, connection: Connection, deadline_s: float, read: ReadRows) -> None:
        run, target = self.run, self.run.frontier + WIDTH
        if self._begun is None or self._begun[0] != target:
            todo = [each.id for each in run.siblings.values() if reaches(each, run.frontier)]
            self._begun = (target, run.empty(connection), todo)
        _, accumulators, todo = self._begun
        tensors = run.names.tensors(connection, run.run_id)
        while todo:
            sibling = run.siblings[todo.pop()]
            raws = read(sibling, run.frontier, min(target, run.end(sibling)))
            accumulators.feed(sibling.rank, raws, tensors)
            if time.perf_counter() >= deadline_s:
                break
        if not todo:
            run.fold(connection, target, accumulators)
            self._begun = None


NO_END = 2**62
ACTIVE_NS = 60 * 10**9  # a rank that was silent for longer does not hold up the others' tiles
MEMORY_BYTES = 256 << 20  # of one run: about 40 tiles of 600 tensors; then tiles are stored before all ranks passed


class Snapshot(msgspec.Struct, frozen=True):
    """What memory adds to the stored tiles: level 0 blocks of what the streams `fed` say past the frontier."""

    versions: dict[int, int]
    """Of every stream, as memory knows it: with a later one its newest rows came to another server."""
    fed: frozenset[int]
    blocks: list[Block]


class MergedRun:
    """The merged ranks of one run. All but `snapshot` belongs to the writer's thread."""

    def __init__(self, connection: Connection, names: Names, run_id: int, *, is_owner: bool) -> None:
        self.run_id, self.names = run_id, names
        self.is_owner = is_owner
        self.lock = threading.RLock()
        self._stored_below = 0
        self._committed = 0
        self._before: tuple[int, Tiles] = (-1, {})
        """The version before the last commit, and what that has stored since."""
        self.catch_up = CatchUp(self)
        self.accumulators = self.empty(connection)
        self.fed: set[int] = set()
        """Streams whose rows past the frontier are in memory."""
        self.is_given_up = False
        """Whether ranks are read one by one: what is left of thinned steps cannot be merged again."""
        self.reload(connection)

    def reload(self, connection: Connection) -> None:
        """Begin anew from what is stored."""
        with self.lock:
            self.stream = load(connection, self.run_id)
            self.siblings: dict[int, Sibling] = {}
            self._by_rank: dict[int, list[Sibling]] = {}
            for each in siblings(connection, self.run_id).values():
                self._add(each)
            self._forget_past(connection)
            self.is_given_up = False
            self._stored_below, self._committed, self._before = 0, self.version, (-1, {})

    def sync(self, connection: Connection, versions: dict[int, int], *, is_owner: bool) -> bool:
        """Several servers, before a transaction counts any row: take in what another one has changed; whether it has.

        `versions` are those of the streams, by id, that the transaction is about.
        """
        stored = load(connection, self.run_id)
        known = ((self.siblings[each], version) for each, version in versions.items() if each in self.siblings)
        is_other = (stored.version if stored else 0) != self.version or self.is_owner != is_owner
        self.is_owner = is_owner
        if is_other or any(each.version != version for each, version in known):
            self.reload(connection)
            return True
        mine = (len(self.siblings), sum(each.version for each in self.siblings.values()))
        if stamp(connection, self.run_id) == mine:
            return False
        self._sync_siblings(connection)
        return True

    def _sync_siblings(self, connection: Connection) -> None:
        self.catch_up.interrupt()  # rows of its tile may have come
        for each in siblings(connection, self.run_id).values():
            known = self.siblings.get(each.id)
            begins = each.first_step if known is None or known.first_step != each.first_step else None
            if begins is not None and any(old.id in self.fed for old in self._hidden_by(each, begins)):
                self.reload(connection)  # what memory holds of an older process is hidden now
                return
            if known is None:
                self._add(each)
            elif known.version != each.version:
                if each.id in self.fed and reaches(each, self.frontier):
                    self.reload(connection)  # it has rows now that memory does not hold
                    return
                self.fed.discard(each.id)
                for name in ("first_step", "last_step", "state", "last_seen_ns", "version"):
                    setattr(known, name, getattr(each, name))

    @property
    def frontier(self) -> int:
        """Every row that is shown of the steps below is in the stored tiles."""
        return self.stream.frontier if self.stream else 0

    @property
    def version(self) -> int:
        """Of the stored tiles; 0 while there are none."""
        return self.stream.version if self.stream else 0

    def is_needed(self) -> bool:
        """Whether there is anything to merge: more than one rank."""
        return len(self._by_rank) > 1

    def of_rank(self, rank: int) -> Sequence[Sibling]:
        """The rank's processes, those that are gone too."""
        return self._by_rank.get(rank, ())

    def opened(self, connection: Connection, stream: StreamState) -> None:
        """A stream has said hello, perhaps with statistics that are new."""
        self._learn(connection)
        if stream.id not in self.siblings:
            self._add(
                Sibling(
                    stream.id, stream.rank, stream.incarnation, stream.ordinal, None, None, stream.state,
                    stream.last_seen_ns, stream.version,
                )
            )  # fmt: skip

    def _learn(self, connection: Connection) -> None:
        with self.lock:
            self.accumulators.learn(*self.names.columns(connection, self.run_id))
        if self.stream is not None:
            self.stream.folder = None

    def _add(self, sibling: Sibling) -> None:
        self.siblings[sibling.id] = sibling
        self._by_rank.setdefault(sibling.rank, []).append(sibling)

    def counted(self, connection: Connection, stream: StreamState, raws: Sequence[Raw], *, is_kept: bool) -> None:
        """Rows of a stream count from now on; unless `is_kept` they are not merged now, but read again later."""
        me = self.siblings[stream.id]
        rows = [raw for raw in raws if len(raw.steps)]
        if rows and self.is_needed():
            first = min(int(raw.steps[0]) for raw in rows)
            if me.first_step is None or first < me.first_step:
                self._begins(connection, me, first)
            if self.is_owner and is_kept and not self.is_given_up:
                self._feed(connection, me, rows, first)
            else:
                self.fed.discard(stream.id)
                self.catch_up.interrupt(first)
                if first < self.frontier:
                    self.go_back(connection, first)
        elif rows:
            self.fed.discard(stream.id)  # with a second rank they will be needed
        me.first_step, me.last_step, me.version = stream.first_step, stream.last_step, stream.version
        me.state, me.last_seen_ns = stream.state, stream.last_seen_ns

    def stored(self, stream: StreamState) -> None:
        """The stream's row has changed in the database."""
        if stream.id in self.siblings:
            self.siblings[stream.id].version = stream.version

    def _begins(self, connection: Connection, me: Sibling, first: int) -> None:
        """The stream begins at `first`: what older processes of its rank recorded from there on is hidden."""
        hidden = self._hidden_by(me, first)
        me.first_step = first
        if hidden:
            self.catch_up.interrupt()
        if any(old.id in self.fed or first < self.frontier for old in hidden):
            self.go_back(connection, first)

    def _hidden_by(self, newer: Sibling, first: int) -> list[Sibling]:
        """Older processes of the same rank, of which some steps are hidden when `newer` begins at `first`."""
        return [
            old for old in self._by_rank.get(newer.rank, ())
            if old.ordinal < newer.ordinal and reaches(old, first) and first < self.end(old)
        ]  # fmt: skip

    def end(self, sibling: Sibling) -> int:
        """The step from which a newer process of the same rank is shown instead."""
        newer = (
            each.first_step for each in self._by_rank[sibling.rank]
            if each.ordinal > sibling.ordinal and each.first_step is not None
        )  # fmt: skip
        return min(newer, default=NO_END)

    def _feed(self, connection: Connection, me: Sibling, rows: Sequence[Raw], first: int) -> None:
        if me.id not in self.fed and not reaches(me, self.frontier):
            self.now_fed(me)
        self.catch_up.interrupt(first)
        end = self.end(me) if me.id in self.fed else min(self.end(me), self.frontier)
        shown = [cut for raw in rows if len((cut := clip(raw, 0, end)).steps)]
        with self.lock:
            if any(name not in self.accumulators.rules[raw.part] for raw in shown for name in raw.columns):
                self._learn(connection)  # a catalogue that another server has stored has more statistics
            self.accumulators.feed(me.rank, shown, self.names.tensors(connection, self.run_id))

    def go_back(self, connection: Connection, step: int) -> None:
        """What is merged from `step` on has changed: forget it, and merge it again in a while."""
        frontier = step // WIDTH * WIDTH
        if self.stream and frontier < self.stream.frontier:
            delete_tiles(connection, self.stream, frontier)
            self.stream.frontier, self.stream.folder = frontier, None
            self.stream.rewrites += 1
            self._store(connection)
        self._fold_late(connection)  # in this transaction, for tiles that stay
        self._forget_past(connection)
        self.catch_up.hold()

    def _forget_past(self, connection: Connection) -> None:
        with self.lock:
            self._before, self._stored_below = (-1, {}), 0
            self.accumulators = self.empty(connection)
            self.fed = {each.id for each in self.siblings.values() if not reaches(each, self.frontier)}
            self.catch_up.interrupt()

    def unfed(self) -> list[Sibling]:
        """Streams with rows past the frontier that memory does not hold."""
        return [each for each in self.siblings.values() if each.id not in self.fed and reaches(each, self.frontier)]

    def finish(self, connection: Connection, deadline_s: float, read: ReadRows, local: Callable[[int], bool]) -> bool:
        """The owner's part of a transaction: store what must be, then as much as time (`time.perf_counter`) allows.

        `local`: whether a stream is sent to this server. Returns whether there is more to do.
        """
        if not self.is_needed() or self.is_given_up:
            return False
        self._fold_late(connection)
        if self.unfed():
            return self.catch_up.go_on(connection, deadline_s, read, local)
        foldable = self.foldable()
        if foldable <= self.frontier or not self.accumulators.below(foldable // WIDTH):
            return False
        if time.perf_counter() < deadline_s:
            self.fold(connection, foldable, self.accumulators)
            return False
        return True

    def _fold_late(self, connection: Connection) -> None:
        if self.accumulators.below(self.frontier // WIDTH):
            self.fold(connection, self.frontier, self.accumulators)

    def foldable(self) -> int:
        """The frontier that the streams allow: all that still speak have passed it."""
        now_ns = time.time_ns()
        steps = [(each, each.last_step) for each in self.siblings.values() if each.last_step is not None]
        active = [
            last // WIDTH * WIDTH for each, last in steps
            if each.state == "open" and abs(now_ns - each.last_seen_ns) < ACTIVE_NS
        ]  # fmt: skip
        last = max((last for _, last in steps), default=-1) // WIDTH * WIDTH
        foldable = min(active) if active else last + WIDTH
        return max(foldable, self.frontier, last if self.accumulators.nbytes > MEMORY_BYTES else 0)

    def fold(self, connection: Connection, frontier: int, source: Accumulators) -> None:
        """Store what `source` has of the steps below `frontier`, which is the new one."""
        stream = self.stream = self.stream or make(connection, self.run_id)
        if stream.folder is None:
            tensors = self.names.tensors(connection, self.run_id)
            stream.folder = Folder(tensors, self.names.statistics(connection, self.run_id), summarises=False)
        # What this transaction has stored already waits in memory until it is committed.
        stored = self._stored_below if source is self.accumulators else 0
        numbers = [tile for tile in source.below(frontier // WIDTH) if tile >= stored]
        stream.rewrites += any(tile * WIDTH < stream.frontier for tile in numbers)
        rows: list[dict[str, Any]] = []
        stream_tiles = StreamTiles(connection, self.run_id, stream.id, rows)
        stream.folder.fold(stream_tiles, _raws(source, numbers), stream.frontier, frontier)
        stream_tiles.flush()
        stream.frontier = frontier
        self._store(connection)
        # Also after a backfill: what streams that were fed say of its tile is in the stored one.
        self._stored_below = frontier // WIDTH

    def _store(self, connection: Connection) -> None:
        assert self.stream is not None
        self.stream.version += 1
        firsts = [each.first_step for each in self.siblings.values() if each.first_step is not None]
        lasts = [each.last_step for each in self.siblings.values() if each.last_step is not None]
        self.stream.first_step, self.stream.last_step = min(firsts, default=None), max(lasts, default=None)
        store(connection, self.stream)

    def committed(self) -> None:
        """The transaction is done: what it stored need not wait in memory, but for readers that began before it."""
        with self.lock:
            if self.version != self._committed:
                self._before = (self._committed, self.accumulators.drop_below(self._stored_below))
                self._committed, self._stored_below = self.version, 0

    def snapshot(self, part: str, version: int, start: int, stop: int, wanted: Sequence[str]) -> Snapshot | None:
        """From any thread: what memory holds of the steps [start, stop); None when tiles of `version` do not fit it."""
        with self.lock:
            if not self.is_owner or version not in (self._committed, self._before[0]):
                return None
            versions = dict(zip(self.siblings, map(VERSION_OF, self.siblings.values()), strict=True))
            tiles = self.accumulators.tiles
            if version != self._committed:
                if not self._before[1].keys().isdisjoint(tiles):
                    return None  # late rows have come for what was stored
                tiles = self._before[1] | tiles
            return Snapshot(versions, frozenset(self.fed), blocks(tiles, part, start, stop, wanted))

    def now_fed(self, sibling: Sibling) -> None:
        """Memory holds the stream from this frontier on: not for readers that are at an older one."""
        with self.lock:
            self.fed.add(sibling.id)
            self._before = (-1, {})

    def give_up(self, connection: Connection) -> None:
        """Level 0 of thinned steps is gone: what would be merged of the rest would lose the levels above."""
        with self.lock:
            self.is_given_up = True
            self.accumulators = self.empty(connection)
            self.fed.clear()

    @property
    def is_moved(self) -> bool:
        """Whether this transaction has stored tiles: readers are at the frontier before."""
        return self.version != self._committed

    def empty(self, connection: Connection) -> Accumulators:
        """Accumulators of the run's columns with nothing in them."""
        return Accumulators(*self.names.columns(connection, self.run_id))


def _raws(source: Accumulators, numbers: Sequence[int]) -> list[Raw]:
    keys = sorted(key for key in source.tiles if key[1] in numbers)
    blocks = [(part, source.tiles[part, tile].block(part, tile)) for part, tile in keys]
    return [
        Raw(part, np.arange(block.first, block.first + WIDTH), block.rows, block.columns)
        for part, block in blocks
        if len(block.rows)
    ]
