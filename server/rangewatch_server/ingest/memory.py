"""What the writer remembers between transactions. All of it can be read back: `forget` after a rollback.

Which server keeps a run's merged ranks is one, by an advisory lock of PostgreSQL that dies with its connection.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, Engine, func, select, text
from sqlalchemy.exc import SQLAlchemyError

from rangewatch.wire import WireError, decode
from rangewatch_server.ingest.also_live import AlsoLive
from rangewatch_server.ingest.commands import Commands
from rangewatch_server.ingest.merged_ranks import MergedRun
from rangewatch_server.ingest.pace import Pace
from rangewatch_server.ingest.skipped import decoded
from rangewatch_server.ingest.stream import StreamState
from rangewatch_server.store import tables
from rangewatch_server.store.names import Names
from rangewatch_server.store.rows import raws_of
from rangewatch_server.store.tiles import WIDTH

LOCK_CLASS = 0x7277  # "rw": apart from other programs' advisory locks in the same database
RETRY_S = 2.0  # a run of another server is asked for again: that server may be gone
CHECK_S = 2.0  # a connection that was cut has lost its locks: at most this long ago


class Ownership:
    """Used by the writer's thread alone. On SQLite this server owns everything."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._connection: Connection | None = None
        self._owned: set[int] = set()
        self._refused_s: dict[int, float] = {}
        self._checked_s = 0.0

    def owns(self, run_id: int) -> bool:
        """Whether the run is ours; asks for it when it is nobody's. Never waits for another server."""
        if self._engine.dialect.name == "sqlite":
            return True
        self._check()
        if run_id not in self._owned and self._is_due(run_id) and self._try(run_id):
            self._owned.add(run_id)
            self._refused_s.pop(run_id, None)
        return run_id in self._owned

    def release(self, run_id: int) -> None:
        """Let go of a run: another server may keep it."""
        if run_id not in self._owned or self._connection is None:
            return
        self._owned.discard(run_id)
        self._ask("pg_advisory_unlock", run_id)

    def close(self) -> None:
        """Let go of everything."""
        self._owned.clear()
        if self._connection is not None:
            connection, self._connection = self._connection, None
            try:
                connection.invalidate()  # the pool must not hand a connection with locks to others
                connection.close()
            except SQLAlchemyError:
                logger.debug("the connection with the locks was gone already")

    def _is_due(self, run_id: int) -> bool:
        return time.monotonic() - self._refused_s.get(run_id, -RETRY_S) >= RETRY_S

    def _check(self) -> None:
        if self._connection is None or time.monotonic() - self._checked_s < CHECK_S:
            return
        self._checked_s = time.monotonic()
        try:
            self._connection.execute(text("SELECT 1"))
        except SQLAlchemyError:
            logger.warning("the connection that holds this server's runs was cut; they are asked for again")
            self.close()

    def _try(self, run_id: int) -> bool:
        if self._connection is None:
            try:
                self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
            except SQLAlchemyError:
                return False
            self._checked_s = time.monotonic()
        is_ours = self._ask("pg_try_advisory_lock", run_id)
        if not is_ours:
            self._refused_s[run_id] = time.monotonic()
        return is_ours

    def _ask(self, function: str, run_id: int) -> bool:
        assert self._connection is not None, "connected before"
        query = text(f"SELECT {function}(CAST(:kind AS int), CAST(:run AS int))")
        try:
            return bool(self._connection.execute(query, {"kind": LOCK_CLASS, "run": run_id}).scalar())
        except SQLAlchemyError:
            self.close()  # cut since the last look: every lock is gone, and this one was not got
            return False


logger = logging.getLogger("rangewatch.server")

CACHED_STREAMS = 4_096  # states in memory; others are read back when they speak again
CACHED_RUNS = 64  # merged ranks in memory
MERGED_BYTES = 512 << 20  # of all runs' merged ranks that wait for tiles, but the one that is spoken of
NAMES_BYTES = 512 << 20  # of all runs' names, about, but those that are spoken of: 60 runs of 30,000 tensors
SYNC_S = 1.0  # how often the owner of a run looks at what other servers have stored of it
RECENT_S = 60.0  # after which it looks no more, until somebody speaks of the run

EXAMINED_AT_ONCE = 16  # streams, once in `EXAMINE_EVERY_S`: of 600 tensors 1 ms each
EXAMINE_EVERY_S = 1.0

Key = tuple[int, int, str]
"""(run, rank, incarnation)"""


class Memory:
    """Names, commands, streams and merged ranks."""

    def __init__(self, engine: Engine) -> None:
        self.is_shared = engine.dialect.name != "sqlite"
        """Whether other servers may write to the same database."""
        self.names = Names()
        self.commands = Commands()
        self.ownership = Ownership(engine)
        self.streams: dict[Key, StreamState] = {}
        self.local: set[int] = set()
        """Streams whose messages came to this server last, as far as it knows."""
        self.merged: dict[int, MergedRun] = {}
        self.backlog: dict[int, Key] = {}
        """Streams with complete spans that are not in tiles yet, oldest first."""
        self.unexamined: dict[int, Key] = {}
        """Since the start: streams with batches that are not in tiles, most likely as their spans are not complete."""
        self.unmerged: set[int] = set()
        """Runs whose merged ranks are behind."""
        self._touched_s: dict[int, float] = {}
        """When a run was last spoken of, or changed by another server."""
        self._turn = 0
        self.pace = Pace(self.streams)
        self.also_live = AlsoLive()

    def forget(self) -> None:
        """Drop all that was read or changed: after a rollback it may never have been stored. What waits, waits on."""
        self.names.forget()
        self.commands.forget()
        self.streams.clear()
        self.local.clear()
        self.unmerged |= set(self.merged)
        self.merged = {}

    def load_backlog(self, connection: Connection) -> None:
        """Streams that wait for tiles, of which nobody may ever speak again. Those of which the rows say so come first;
        of the others, as all that are live have batches, only these themselves say whether they are `unexamined`.
        """
        streams, batches = tables.streams.c, tables.batches.c
        waiting = select(batches.sequence).where(
            batches.run_id == streams.run_id, batches.stream_id == streams.id, batches.sequence <= streams.contiguous
        )
        columns = (streams.id, streams.run_id, streams.rank, streams.incarnation)
        rows = connection.execute(
            select(*columns, streams.state, streams.frontier, streams.last_step).where(waiting.exists())
        )
        for row in rows:
            is_whole = row.state != "open" or (row.last_step or 0) // WIDTH * WIDTH > row.frontier
            (self.backlog if is_whole else self.unexamined)[row.id] = (row.run_id, row.rank, row.incarnation)

    def examine(self) -> None:
        """Have some of the streams that are `unexamined` looked at as those of the backlog; the others wait on."""
        for stream_id in list(self.unexamined)[:EXAMINED_AT_ONCE]:
            self.backlog.setdefault(stream_id, self.unexamined.pop(stream_id))

    def stream(self, connection: Connection, key: Key, keep: Iterable[int]) -> StreamState | None:
        """A stream's state, read back if need be; `keep`: streams of this transaction, which must stay."""
        state = self.streams.pop(key, None)
        if state is None:
            state = self._load(connection, key)
            if state is None:
                return None
            self._evict(set(keep))
        self.streams[key] = state  # at the end: the least recently used come first
        return state

    def _evict(self, keep: set[int]) -> None:
        """Make room for one more stream; those of this transaction are not in the database yet and stay."""
        while len(self.streams) >= CACHED_STREAMS:
            idle = next((key for key, stream in self.streams.items() if stream.id not in keep), None)
            if idle is None:
                return
            del self.streams[idle]

    def _load(self, connection: Connection, key: Key) -> StreamState | None:
        streams, batches = tables.streams, tables.batches
        run_id, rank, incarnation = key
        mine = (streams.c.run_id == run_id) & (streams.c.rank == rank) & (streams.c.incarnation == incarnation)
        row = connection.execute(select(streams).where(mine)).first()
        if row is None:
            return None
        values = {name: row._mapping[name] for name in StreamState.__struct_fields__ if name in row._mapping}
        state = StreamState(**values | {"skipped": decoded(row.skipped)})
        query = (
            select(batches.c.sequence, batches.c.body)
            .where(batches.c.run_id == run_id, batches.c.stream_id == row.id)
            .order_by(batches.c.sequence)
        )
        for sequence, body in connection.execute(query).all():
            try:
                # Of what has been counted the rows are all that may still be wanted.
                batch: Any = decode(body, rows_only=sequence <= state.contiguous)
                known, series = self.names.meaning(connection, run_id, batch)
            except WireError as error:  # damaged where it lies: the rest of the stream goes on
                logger.error("run %d, stream %d: stored batch %d is damaged: %s", run_id, row.id, sequence, error)
                continue
            raws = raws_of(batch, known.ordinals, known.statistics, series)
            state.restore(sequence, body, raws, batch)
        return state

    def begin(self, connection: Connection, keys: Iterable[Key], runs: Iterable[int]) -> None:
        """At the start of a transaction on these streams and runs: make what is remembered of them true.

        Several servers: each run is locked until the transaction ends, in one order for all; what another server has
        changed meanwhile is forgotten, and read again when it is needed.
        """
        stream_keys = set(keys)
        known = {run for run, _, _ in stream_keys} | set(runs)
        now_s = time.monotonic()
        self._touched_s |= dict.fromkeys((run for run, _, _ in stream_keys), now_s)
        self._make_room(known)
        if not self.is_shared or not known:
            return
        for run_id in sorted(known):
            connection.execute(select(func.pg_advisory_xact_lock(run_id)))
        deleted = self.names.forget_deleted(connection, known)
        for key in [key for key in self.streams if key[0] in deleted]:
            del self.streams[key]
        self._drop_changed(connection, stream_keys)
        for run_id in sorted(known & set(self.merged)):
            if self._sync(connection, run_id, [key for key in stream_keys if key[0] == run_id]):
                self._touched_s[run_id] = now_s

    def _make_room(self, known: set[int]) -> None:
        """Runs that nobody speaks of go from memory, the oldest first; what they waited for is read back."""
        while (
            len(self.merged) > CACHED_RUNS
            or self._merged_bytes() > MERGED_BYTES
            or (len(self.merged) > 1 and self.names.nbytes > NAMES_BYTES)
        ):
            idle = min(set(self.merged) - known, key=lambda run: self._touched_s.get(run, 0.0), default=None)
            if idle is None:
                return
            del self.merged[idle]
            self._touched_s.pop(idle, None)
            self.unmerged.discard(idle)
            self.names.forget_run(idle)
            self.ownership.release(idle)

    def _merged_bytes(self) -> int:
        return sum(each.accumulators.nbytes for each in self.merged.values()) if len(self.merged) > 1 else 0

    def _drop_changed(self, connection: Connection, keys: set[Key]) -> None:
        cached = {self.streams[key].id: key for key in keys if key in self.streams}
        columns = tables.streams.c
        query = select(columns.id, columns.version).where(columns.id.in_(sorted(cached)))
        versions = {row.id: row.version for row in connection.execute(query)} if cached else {}
        for stream_id, key in cached.items():
            if versions.get(stream_id) != self.streams[key].version:
                del self.streams[key]
                self.local.discard(stream_id)

    def _sync(self, connection: Connection, run_id: int, keys: list[Key]) -> bool:
        versions = {state.id: state.version for key in keys if (state := self.stream(connection, key, ())) is not None}
        return self.merged[run_id].sync(connection, versions, is_owner=self.ownership.owns(run_id))

    def runs_behind(self) -> set[int]:
        """Runs whose merged ranks have work left: their own, or tiles that other servers may have made."""
        if not self.is_shared:
            return self.unmerged
        since_s = time.monotonic() - RECENT_S
        return self.unmerged | {run for run, at_s in self._touched_s.items() if at_s > since_s and run in self.merged}

    def in_turn(self, runs: set[int]) -> list[int]:
        """The runs in an order that begins with another one each time."""
        ordered = sorted(runs)
        self._turn += 1
        start = self._turn % len(ordered) if ordered else 0
        return ordered[start:] + ordered[:start]

    def merged_run(self, connection: Connection, run_id: int) -> MergedRun:
        """The run's merged ranks."""
        merged = self.merged.get(run_id)
        if merged is None:
            merged = self.merged[run_id] = MergedRun(
                connection, self.names, run_id, is_owner=self.ownership.owns(run_id)
            )
        return merged

    def reread(self, connection: Connection, key: Key, stream_id: int, keep: Iterable[int]) -> StreamState | None:
        """The state of a stream that this transaction is not about, as it is stored now."""
        cached = self.streams.get(key)
        if self.is_shared and cached is not None:
            query = select(tables.streams.c.version).where(tables.streams.c.id == stream_id)
            if connection.execute(query).scalar() != cached.version:  # another server has had messages of it
                del self.streams[key]
                self.local.discard(stream_id)
        return self.stream(connection, key, keep)
