"""The only writer: one thread, a bounded queue, and one transaction for whatever waits in it (group commit).

A message is answered only after the commit that holds it. Nothing is stored in part: what a message would change is
checked before the first statement; an error of the database rolls the whole group back, forgets every cache and answers
503, so that the agents send again; any other error makes the messages of the group be tried one by one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, bindparam, delete, insert, select, update
from sqlalchemy.exc import InterfaceError, InternalError, OperationalError, TimeoutError

from rangewatch.records import Batch, Opening
from rangewatch.wire import WireError, decode
from rangewatch_server.store import tables
from rangewatch_server.store.checks import check_ranges
from rangewatch_server.store.command_rows import Ask, CommandRefused, Withdraw
from rangewatch_server.store.commands import NO_COMMANDS, Commands
from rangewatch_server.store.engine import Engines
from rangewatch_server.store.fold import Folder
from rangewatch_server.store.names import Names
from rangewatch_server.store.rows import Raw, raw_ranges, raw_series
from rangewatch_server.store.stream import SUMMARY_FIELDS, Pending, StreamState
from rangewatch_server.store.stream_tiles import INSERT_TILE, StreamTiles

logger = logging.getLogger("rangewatch.server")

QUEUE_MESSAGES = 1_024  # at about 30 KiB a body, 30 MiB; then agents are told 429
GROUP_BYTES = 8 << 20  # bodies in one transaction: keeps a commit, and so an answer, under about 0.3 s
MAX_AHEAD = 4_096  # batches kept beyond a gap in the sequence
CACHED_STREAMS = 4_096  # states in memory; others are read back when they speak again


# The database is at fault, not a message: away, locked, full, read-only.
DATABASE_TROUBLE = (OperationalError, InterfaceError, InternalError, TimeoutError)

# Built once: making a statement costs as much as running it.
_batch = tables.batches.c
INSERT_EVENT = insert(tables.events)
INSERT_BATCH = insert(tables.batches)
DELETE_BATCH = delete(tables.batches).where(
    _batch.run_id == bindparam("run"), _batch.stream_id == bindparam("stream"), _batch.sequence == bindparam("number")
)
UPDATE_STREAM = (
    update(tables.streams)
    .where(tables.streams.c.id == bindparam("b_id"))
    .values({name: bindparam(name) for name in SUMMARY_FIELDS})
)


class Answer(msgspec.Struct, frozen=True):
    """What an agent is told: the highest sequence up to which everything is stored (-1 for none), and what to do.

    `commands` are JSON objects as they stand.
    """

    contiguous: int
    duplicate: bool = False
    commands: tuple[msgspec.Raw, ...] = NO_COMMANDS


class Busy(Exception):
    """The queue is full; try again in a moment."""


class Unavailable(Exception):
    """The database did not take the group; try again in a moment."""


class Refused(Exception):
    """The message cannot be taken now or ever; `code` says why (docs/wire.md)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class _Job(msgspec.Struct, frozen=True):
    run: Callable[[Engine], Any]
    forgets: bool


class _Item(msgspec.Struct):
    message: Opening | Batch | Ask | Withdraw | _Job
    body: bytes
    future: Future[Any]
    """Of an `Answer`, or of a command's id."""


class Changed(msgspec.Struct, frozen=True):
    """A run got something new: sent to live pages."""

    run: int
    last_step: int | None


class Writer:
    """Start with `start`, hand messages to `submit`, end with `stop`, which drains the queue first."""

    def __init__(self, engines: Engines, on_change: Callable[[list[Changed]], None] = lambda _: None) -> None:
        self.engine = engines.writer
        self.on_change = on_change
        self.names = Names()
        self.commands = Commands()
        self.streams: dict[tuple[int, int, str], StreamState] = {}
        self._queue: queue.Queue[_Item | None] = queue.Queue(QUEUE_MESSAGES)
        self._thread = threading.Thread(target=self._run, name="rangewatch-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def submit(self, message: Opening | Batch, body: bytes) -> Future[Answer]:
        """Queue a message. Raises `Busy` when the queue is full; the future `Unavailable`, `Refused` or `WireError`."""
        return self._put(_Item(message, body, Future()))

    def command(self, message: Ask | Withdraw) -> Future[int]:
        """Queue a change of commands: the command's id. Raises as `submit`, and the future also `CommandRefused`."""
        return self._put(_Item(message, b"", Future()))

    def work(self, job: Callable[[Engine], Any], *, forgets: bool = False) -> Future[Any]:
        """Queue something else that writes; it gets the writer's engine, in the writer's thread, between two groups.

        It must be short (100 ms: agents wait meanwhile), so long work is many jobs, each queued when the one before is
        done. `forgets`: it changes rows that the writer remembers. Raises `Busy`; the future raises what the job does.
        """
        return self._put(_Item(_Job(job, forgets), b"", Future()))

    def _put(self, item: _Item) -> Future[Any]:
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            raise Busy("ingest queue is full") from None
        return item.future

    @property
    def queued(self) -> int:
        """Messages waiting."""
        return self._queue.qsize()

    @property
    def is_alive(self) -> bool:
        """Whether messages are being taken."""
        return self._thread.is_alive()

    def _run(self) -> None:
        while (first := self._next()) is not None:
            group, ended = self._group(first)
            live = [item for item in group if item.future.set_running_or_notify_cancel()]
            messages = [item for item in live if not isinstance(item.message, _Job)]
            if messages:
                self._commit(messages)
            for item in live:
                if isinstance(item.message, _Job):
                    self._do(item.message, item.future)
            if ended:
                return

    def _next(self) -> _Item | None:
        """Wait for an item; meanwhile live pages are told when a command expires."""
        while True:
            try:
                return self._queue.get(timeout=self.commands.expires_in_s())
            except queue.Empty:
                self._tell([Changed(run, self._last_step(run)) for run in self.commands.expire()])

    def _last_step(self, run: int) -> int | None:
        steps = (stream.last_step for stream in self.streams.values() if stream.run_id == run)
        return max((step for step in steps if step is not None), default=None)

    def _group(self, first: _Item) -> tuple[list[_Item], bool]:
        group, size = [first], len(first.body)
        while size < GROUP_BYTES:
            try:
                item = self._queue.get_nowait()
            except queue.Empty:
                break
            if item is None:
                return group, True
            group.append(item)
            size += len(item.body)
        return group, False

    def _do(self, job: _Job, future: Future[Any]) -> None:
        try:
            result = job.run(self.engine)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        if job.forgets:
            self._forget()

    def _forget(self) -> None:
        self.names.forget()
        self.commands.forget()
        self.streams.clear()

    def _commit(self, group: list[_Item]) -> None:
        answers: list[Answer | int | Exception] = []
        try:
            with self.engine.begin() as connection:
                self.commands.load(connection)
                transaction = _Transaction(connection, self)
                answers = [transaction.take(item) for item in group]
                transaction.finish()
        except Exception as error:
            self._failed(group, error)
            return
        self._answer(group, answers)
        for stream in transaction.touched.values():
            if stream.state != "open":  # a rank that said goodbye speaks no more: its rows need no memory
                self.streams.pop((stream.run_id, stream.rank, stream.incarnation), None)
        asked = {run: self._last_step(run) for run in transaction.commanded}
        self._tell([*(Changed(*each) for each in asked.items()), *transaction.changes()])

    def _tell(self, changes: list[Changed]) -> None:
        if not changes:
            return
        try:
            self.on_change(changes)
        except Exception:
            logger.exception("live pages were not told of a change")

    def _answer(self, group: list[_Item], answers: list[Answer | int | Exception]) -> None:
        for item, answer in zip(group, answers, strict=True):
            if isinstance(answer, Exception):
                item.future.set_exception(answer)
            else:
                item.future.set_result(answer)

    def _failed(self, group: list[_Item], error: Exception) -> None:
        self._forget()
        if isinstance(error, DATABASE_TROUBLE):
            logger.error("database did not take a group of %d messages: %s", len(group), str(error).splitlines()[0])
            for item in group:
                item.future.set_exception(Unavailable("the database did not take the message"))
        elif len(group) == 1:
            logger.error("a message cannot be stored", exc_info=error)
            group[0].future.set_exception(Refused("unstorable", "the message cannot be stored"))
        else:  # one message must not cost the others: each by itself, and the culprit is refused
            for item in group:
                self._commit([item])


class _Transaction:
    """One group's work inside one transaction."""

    def __init__(self, connection: Connection, writer: Writer) -> None:
        self.connection = connection
        self.names = writer.names
        self.commands = writer.commands
        self.streams = writer.streams
        self.touched: dict[int, StreamState] = {}
        self.commanded: set[int] = set()
        """Runs that were asked something."""

    def take(self, item: _Item) -> Answer | int | Exception:
        """Apply one message; an answer, or the error that concerns this message only."""
        try:
            if isinstance(item.message, Opening):
                with self.connection.begin_nested():  # refused in the middle, it leaves no run behind
                    return self._opening(item.message)
            if isinstance(item.message, Batch):
                return self._batch(item.message, item.body)
            assert not isinstance(item.message, _Job), "jobs run by themselves"
            return self._command(item.message)
        except (Refused, CommandRefused, WireError) as error:
            if isinstance(item.message, Opening):
                self.names.forget()
            return error

    def finish(self) -> None:
        """Fold what became complete, then write what changed: a few statements, each for all streams at once."""
        tile_rows: list[dict[str, Any]] = []
        folded: list[dict[str, int]] = []
        for stream in self.touched.values():
            folded += [
                {"run": stream.run_id, "stream": stream.id, "number": each} for each in self._fold(stream, tile_rows)
            ]
            if stream.state != "open":
                self.commands.ended(self.connection, stream.run_id, stream.id)
        self._execute(INSERT_TILE, tile_rows)
        self._execute(DELETE_BATCH, folded)
        self._execute(INSERT_BATCH, [row for stream in self.touched.values() for row in stream.unstored()])
        self._execute(UPDATE_STREAM, [stream.values() for stream in self.touched.values()])

    def _execute(self, statement: Any, rows: list[dict[str, Any]]) -> None:
        if rows:
            self.connection.execute(statement, rows)

    def changes(self) -> list[Changed]:
        """Which runs got something, with their last step."""
        last: dict[int, int | None] = {}
        for stream in self.touched.values():
            steps = [step for step in (last.get(stream.run_id), stream.last_step) if step is not None]
            last[stream.run_id] = max(steps, default=None)
        return [Changed(run, step) for run, step in last.items()]

    def _opening(self, opening: Opening) -> Answer:
        run_id = self.names.open_run(self.connection, opening.info.run)
        self.names.open_catalogue(self.connection, run_id, opening)
        self.names.open_stream(self.connection, run_id, opening.info)
        stream = self._stream(run_id, opening.info.rank, opening.info.incarnation)
        assert stream is not None
        stream.last_seen_ns = time.time_ns()
        stream.folder = None  # the catalogue may have grown
        self.touched[stream.id] = stream
        if stream.state == "open":
            self.commands.opened(self.connection, run_id, stream.rank, stream.id)
        return self._reply(stream)

    def _command(self, asked: Ask | Withdraw) -> int:
        self.commanded.add(asked.run_id)
        if isinstance(asked, Ask):
            return self.commands.ask(self.connection, asked)
        return self.commands.withdraw(self.connection, asked)

    def _reply(self, stream: StreamState, *, duplicate: bool = False) -> Answer:
        return Answer(stream.contiguous, duplicate, self.commands.waiting(stream.run_id, stream.id))

    def _batch(self, batch: Batch, body: bytes) -> Answer:
        run_id = self.names.run(self.connection, batch.run)
        stream = None if run_id is None else self._stream(run_id, batch.rank, batch.incarnation)
        if run_id is None or stream is None:
            raise Refused(
                "unknown_run", f"run {batch.run[:80]!r}, rank {batch.rank} has not been opened; send its opening"
            )
        if stream.has(batch.sequence):
            return self._reply(stream, duplicate=True)
        if batch.sequence > max(stream.contiguous, batch.settled) + MAX_AHEAD:
            raise Refused(
                "too_far_ahead", f"sequence {batch.sequence} is far past {stream.contiguous}; send the gap first"
            )
        raws = self._raws(run_id, batch)
        tensors = self.names.tensors(self.connection, run_id)
        stream.add(batch, raws, body, tensors, time.time_ns())
        self._events(stream, batch)
        self.touched[stream.id] = stream
        return self._reply(stream)

    def _raws(self, run_id: int, batch: Batch) -> list[Raw]:
        known = self.names.catalogue(self.connection, run_id, batch.catalogue)
        if known is None:
            raise Refused("unknown_catalogue", f"catalogue {batch.catalogue[:40]!r} is not known; send the opening")
        if batch.ranges is not None:
            check_ranges(batch.ranges, known.catalogue)
        series = self.names.series(self.connection, run_id, [rows.name for rows in batch.series])
        ranges = raw_ranges(batch, known.ordinals, known.catalogue.statistics)
        return [*([ranges] if ranges else []), *raw_series(batch, series)]

    def _events(self, stream: StreamState, batch: Batch) -> None:
        rows = [
            {"stream_id": stream.id, "time_ns": event.time_ns, "step": event.step, "kind": event.kind,
             "message": event.message, "data": msgspec.json.encode(event.data)}
            for event in batch.events
        ]  # fmt: skip
        self._execute(INSERT_EVENT, rows)
        self.commands.acknowledge(self.connection, stream.run_id, stream.id, batch.events)

    def _fold(self, stream: StreamState, tile_rows: list[dict[str, Any]]) -> list[int]:
        """Make tiles of what is complete; the stored batches that nobody needs any more are returned."""
        ripe, raws = stream.ripe(), stream.contiguous_raws()
        late = any(raw.steps[0] < stream.frontier for raw in raws)
        if ripe == stream.frontier and not late:
            return stream.folded_to(ripe)
        if stream.folder is None:
            tensors = self.names.tensors(self.connection, stream.run_id)
            stream.folder = Folder(tensors, self.names.statistics(self.connection, stream.run_id))
        stream.rewrites += late
        stream.folder.fold(
            StreamTiles(self.connection, stream.run_id, stream.id, tile_rows), raws, stream.frontier, ripe
        )
        return stream.folded_to(ripe)

    def _stream(self, run_id: int, rank: int, incarnation: str) -> StreamState | None:
        key = (run_id, rank, incarnation)
        if key not in self.streams:
            found = self._load(run_id, rank, incarnation)
            if found is None:
                return None
            self._evict()
        else:
            found = self.streams.pop(key)
        self.streams[key] = found  # at the end: the least recently used come first
        return found

    def _evict(self) -> None:
        """Make room for one more stream; those of this transaction are not in the database yet and stay."""
        idle = (key for key, stream in self.streams.items() if stream.id not in self.touched)
        while len(self.streams) >= CACHED_STREAMS and (key := next(idle, None)) is not None:
            del self.streams[key]
            idle = (key for key, stream in self.streams.items() if stream.id not in self.touched)

    def _load(self, run_id: int, rank: int, incarnation: str) -> StreamState | None:
        streams, batches = tables.streams, tables.batches
        mine = (streams.c.run_id == run_id) & (streams.c.rank == rank) & (streams.c.incarnation == incarnation)
        row = self.connection.execute(select(streams).where(mine)).first()
        if row is None:
            return None
        values = {name: row._mapping[name] for name in StreamState.__struct_fields__ if name in row._mapping}
        state = StreamState(**values)
        query = (
            select(batches.c.sequence, batches.c.body)
            .where(batches.c.run_id == run_id, batches.c.stream_id == row.id)
            .order_by(batches.c.sequence)
        )
        for sequence, body in self.connection.execute(query).all():
            batch: Any = decode(body)
            waits = batch if sequence > state.contiguous else None
            state.pending[sequence] = Pending(self._raws(run_id, batch), None, waits)
        state.folded_to(state.frontier)  # what a stored batch holds of steps before the frontier is in tiles already
        return state
