"""One group of messages inside one transaction: what is stored of them, and what tiles are made on the way.

What a message would change is checked before its first statement. Tiles are made within a time: a thousand ranks
pass the end of a span together, and their acknowledgements must not wait for all of its tiles. What is not made yet is
read from the batches meanwhile, and made in the transactions that follow.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import Connection, bindparam, delete, insert, select, update

from rangewatch.wire import WireError, decode
from rangewatch.wire.events import Stderr
from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.ingest import merged_ranks
from rangewatch_server.ingest.also_live import OtherProcess
from rangewatch_server.ingest.commands import NO_COMMANDS, Ask, CommandRefused, Withdraw, answered
from rangewatch_server.ingest.fold import Folder
from rangewatch_server.ingest.memory import Key, Memory
from rangewatch_server.ingest.merged_ranks import ReadRows, Sibling
from rangewatch_server.ingest.stream import INSERT_TILE, SUMMARY_FIELDS, StreamState, StreamTiles
from rangewatch_server.store import samples, tables
from rangewatch_server.store.rows import Raw, clip, raws_of

FOLD_S = 0.1  # for tiles in one transaction; a tile of 600 tensors takes about 8 ms
KEPT_STREAMS = 64  # with more of them rows are not kept decoded: 1,024 ranks of 600 tensors would hold 3 GiB
MAX_AHEAD = 4_096  # batches kept beyond a gap in the sequence

# Built once: making a statement costs as much as running it.
_batch = tables.batches.c
INSERT_EVENT = insert(tables.events)
# Of a process's stderr the newest lines stand, in whatever order they come.
_newer = tables.events.alias("newer")
DELETE_OLD_STDERR = delete(tables.events).where(
    tables.events.c.stream_id == bindparam("stream"),
    tables.events.c.kind == Stderr.KIND,
    tables.events.c.id
    != select(_newer.c.id)
    .where(_newer.c.stream_id == bindparam("stream"), _newer.c.kind == Stderr.KIND)
    .order_by(_newer.c.time_ns.desc(), _newer.c.id.desc())
    .limit(1)
    .scalar_subquery(),
)
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
    """What an agent is answered: the highest sequence up to which everything is stored (-1 for none), and what to do.

    `commands` are JSON objects as they stand.
    """

    contiguous: int
    duplicate: bool = False
    commands: tuple[msgspec.Raw, ...] = NO_COMMANDS
    send_every_s: float = 0.0
    """Least seconds between two batches of a rank, so that a crowd of ranks sends fewer and larger ones."""
    also_live: OtherProcess | None = None
    """Another process that sends as the same rank."""


class Refused(Exception):
    """The message cannot be taken now or ever; `code` says why (docs/wire.md)."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class Changed(msgspec.Struct, frozen=True):
    """A run got something new: sent to live pages."""

    run: int
    last_step: int | None


class Transaction:
    """One group's work. `messages` are all that `take` will be given, so that their streams can be locked in order."""

    def __init__(self, connection: Connection, memory: Memory, messages: Sequence[Any], *, folds: bool = True) -> None:
        self.connection = connection
        self.folds = folds
        """Whether tiles are made; without, messages are only stored: when making tiles has failed."""
        self.memory = memory
        self.names, self.commands = memory.names, memory.commands
        self.touched: dict[int, StreamState] = {}
        self.folding: int | None = None
        """The stream whose tiles are being made."""
        self.done: list[int] = []
        """Streams that need not wait for tiles any more."""
        self.sample_rows: list[dict[str, Any]] = []
        """What the messages' samples are in their table: stored with their batches."""
        self.commanded: set[int] = set()
        """Runs that were asked something."""
        self.recommanded: set[int] = set()
        """Runs whose commands another server should read anew."""
        self.commands.load(connection)
        opened = [self.names.run(connection, each.info.run) for each in messages if isinstance(each, StreamHeader)]
        memory.begin(connection, filter(None, map(self._key, messages)), filter(None, opened))
        self._restart_clock()

    def _key(self, message: Any) -> Key | None:
        if not isinstance(message, Batch):
            return None
        run_id = self.names.run(self.connection, message.run)
        return None if run_id is None else (run_id, message.rank, message.incarnation)

    def take(
        self, message: StreamHeader | Batch | Ask | Withdraw, body: bytes, *, has_ended: bool = False
    ) -> Answer | int | Exception:
        """Apply one message; an answer, or the error that concerns this message only.

        A process that `has_ended` does not speak by what is sent of it: it is neither live nor another job.
        """
        try:
            if isinstance(message, StreamHeader):
                with self.connection.begin_nested():  # refused in the middle, it leaves no run behind
                    return self._opening(message, has_ended=has_ended)
            if not isinstance(message, Batch):
                self.commanded.add(message.run_id)
                self.recommanded.add(message.run_id)
                if isinstance(message, Ask):
                    return self.commands.ask(self.connection, message)
                return self.commands.withdraw(self.connection, message)
            run_id = self.names.run(self.connection, message.run)
            stream = None if run_id is None else self._stream((run_id, message.rank, message.incarnation))
            if run_id is None or stream is None:
                text = f"run {message.run[:80]!r}, rank {message.rank} has not been opened; send its opening"
                raise Refused("unknown_run", text)
            if stream.has(message.sequence):
                return self._reply(stream, message.sequence, duplicate=True)
            if message.sequence > max(stream.contiguous, message.settled) + MAX_AHEAD:
                text = f"sequence {message.sequence} is far past {stream.contiguous}; send the gap first"
                raise Refused("too_far_ahead", text)
            known, series = self.names.meaning(self.connection, run_id, message)
            raws = raws_of(message, known.ordinals, known.statistics, series)
            seen_ns = stream.last_seen_ns if has_ended else time.time_ns()
            sample_rows = samples.rows_of(run_id, stream.id, message)
            counted = stream.add(message, raws, body, self.names.tensors(self.connection, run_id), seen_ns)
            self._touch(stream)
            merged = self.memory.merged_run(self.connection, run_id)
            if stream.id not in merged.siblings:
                merged.opened(self.connection, stream)
            merged.counted(self.connection, stream, counted, is_kept=self.folds)
            self._events(stream, message)
            self.sample_rows += sample_rows
            if has_ended:
                return self._reply(stream, message.sequence)
            other = self.memory.also_live.look(self.connection, stream, merged.of_rank(stream.rank))
            return self._reply(stream, message.sequence, also_live=other)
        except (Refused, CommandRefused, WireError) as error:
            if isinstance(message, StreamHeader):
                self.names.forget()
            return error

    def _opening(self, opening: StreamHeader, *, has_ended: bool) -> Answer:
        self.names.lock(self.connection, opening.info.run)
        run_id = self.names.open_run(self.connection, opening.info.run)
        self.names.open_catalogue(self.connection, run_id, opening)
        self.names.open_stream(self.connection, run_id, opening.info)
        stream = self._stream((run_id, opening.info.rank, opening.info.incarnation))
        assert stream is not None
        stream.last_seen_ns = stream.last_seen_ns if has_ended else time.time_ns()
        stream.folder = None  # the catalogue may have grown
        self._touch(stream)
        self.memory.merged_run(self.connection, run_id).opened(self.connection, stream)
        self.memory.pace.opened(run_id, opening.info.world_size)
        if stream.state == "open":
            self.commands.opened(self.connection, run_id, stream.rank, stream.id)
        return self._reply(stream)

    def _reply(
        self, stream: StreamState, sequence: int = 0, *, duplicate: bool = False, also_live: OtherProcess | None = None
    ) -> Answer:  # fmt: skip
        commands = self.commands.waiting(stream.run_id, stream.id)
        send_every_s = self.memory.pace.send_every_s(stream.rank)
        return Answer(stream.stored_up_to(sequence), duplicate, commands, send_every_s, also_live)

    def _events(self, stream: StreamState, batch: Batch) -> None:
        rows = [
            {"stream_id": stream.id, "time_ns": event.time_ns, "step": event.step, "kind": event.kind,
             "message": event.message, "data": msgspec.json.encode(event.data)}
            for event in batch.events
        ]  # fmt: skip
        if rows:
            self.connection.execute(INSERT_EVENT, rows)
        if any(event.kind == Stderr.KIND for event in batch.events):
            self.connection.execute(DELETE_OLD_STDERR, {"stream": stream.id})
        self.commands.acknowledge(self.connection, stream.run_id, stream.id, batch.events)
        if any(answered(event) is not None for event in batch.events):
            self.recommanded.add(stream.run_id)

    def _stream(self, key: Key) -> StreamState | None:
        return self.memory.stream(self.connection, key, self.touched)

    def _touch(self, stream: StreamState) -> None:
        self.touched[stream.id] = stream
        self.memory.unexamined.pop(stream.id, None)
        self.memory.local.add(stream.id)

    def drain_backlog(self) -> None:
        """Make tiles that had to wait, of streams and of merged ranks, without any message."""
        backlog, runs = self.memory.backlog, self.memory.runs_behind()
        self.memory.begin(self.connection, backlog.values(), runs)
        self._restart_clock()  # whatever the locks cost: something must be done each time
        self.finish(runs, list(backlog))

    def _restart_clock(self) -> None:
        self.deadline_s = time.perf_counter() + FOLD_S

    def finish(self, runs: Iterable[int] = (), backlog: Iterable[int] = ()) -> None:
        """Make tiles of what is complete, of the streams that got messages and of those of `backlog`, and merge ranks
        of their runs and of `runs`; write what changed in a few statements, each for all streams at once.
        """
        for stream in self.touched.values():
            if stream.state != "open":
                self.commands.ended(self.connection, stream.run_id, stream.id)
        merging = {*runs, *(stream.run_id for stream in self.touched.values())}
        tile_rows: list[dict[str, Any]] = []
        folded = self._fold([*self.touched, *backlog], tile_rows) if self.folds else []
        streams = self.touched.values()
        for stream in streams:
            stream.version += 1
        for statement, rows in (
            (INSERT_TILE, tile_rows),
            (DELETE_BATCH, folded),
            (INSERT_BATCH, [row for stream in streams for row in stream.unstored()]),
            (samples.INSERT_SAMPLES, self.sample_rows),
            (UPDATE_STREAM, [stream.values() for stream in streams]),
        ):
            if rows:
                self.connection.execute(statement, rows)
        for stream in streams:
            self.memory.merged_run(self.connection, stream.run_id).stored(stream)
        if self.folds:
            self._merge_runs(merging)

    def _fold(self, stream_ids: list[int], tile_rows: list[dict[str, Any]]) -> list[dict[str, int]]:
        """Tiles of these streams while there is time, the others wait; the batches that nobody needs any more.

        Late rows never wait: a stream that is read back takes what lies below its frontier for folded.
        """
        backlog = self.memory.backlog
        folded: list[dict[str, int]] = []
        for stream_id in stream_ids:
            stream = self.touched.get(stream_id)
            is_late = stream is not None and stream.is_late()
            if self.done and not is_late and time.perf_counter() >= self.deadline_s:
                if stream is not None and stream.is_foldable():
                    backlog.setdefault(stream_id, (stream.run_id, stream.rank, stream.incarnation))
                continue
            self.folding = stream_id
            stream = stream or self._stream(backlog[stream_id])
            if stream is not None and stream.is_foldable():
                self.touched[stream_id] = stream
                foldable = stream.foldable()
                if foldable > stream.frontier or stream.is_late():
                    if stream.folder is None:
                        tensors = self.names.tensors(self.connection, stream.run_id)
                        stream.folder = Folder(tensors, self.names.statistics(self.connection, stream.run_id))
                    stream.rewrites += stream.is_late()
                    raws = stream.waiting_rows(partial(self._reread, stream.run_id))
                    stream.folder.fold(self._tiles(stream, tile_rows), raws, stream.frontier, foldable)
                done = stream.folded_to(foldable)
                folded += [{"run": stream.run_id, "stream": stream.id, "number": each} for each in done]
            self.done.append(stream_id)
        return folded

    def _reread(self, run_id: int, body: bytes) -> list[Raw]:
        """Rows of a stored batch."""
        batch = decode(body, rows_only=True)
        assert isinstance(batch, Batch), "only batches wait"
        known, series = self.names.meaning(self.connection, run_id, batch)
        return raws_of(batch, known.ordinals, known.statistics, series)

    def _tiles(self, stream: StreamState, rows: list[dict[str, Any]]) -> StreamTiles:
        return StreamTiles(self.connection, stream.run_id, stream.id, rows)

    def _merge_runs(self, runs: set[int]) -> None:
        for place, run_id in enumerate(self.memory.in_turn(runs)):
            merged = self.memory.merged_run(self.connection, run_id)
            is_behind = False
            if not place:
                self._restart_clock()  # whatever looking took: at least one run gets on
            if merged.is_owner:
                is_behind = merged.finish(self.connection, self.deadline_s, self._reader(run_id), self._is_local)
            (self.memory.unmerged.add if is_behind else self.memory.unmerged.discard)(run_id)

    def _is_local(self, stream_id: int) -> bool:
        return not self.memory.is_shared or stream_id in self.memory.local

    def _reader(self, run_id: int) -> ReadRows:
        def rows(sibling: Sibling, start: int, stop: int) -> list[Raw]:
            """Counted rows of a stream over [start, stop), from tiles and from what is not in tiles yet."""
            key = (run_id, sibling.rank, sibling.incarnation)
            stream = self.touched.get(sibling.id) or self.memory.reread(self.connection, key, sibling.id, self.touched)
            if stream is None:
                return []
            stored = merged_ranks.stored_rows(self._tiles(stream, []), start, min(stop, stream.frontier))
            waiting = (clip(raw, start, stop) for raw in stream.waiting_rows(partial(self._reread, run_id)))
            return [raw for raw in (*stored, *waiting) if len(raw.steps)]

        return rows

    def committed(self) -> None:
        """The transaction is done: memory may let go of what it stored."""
        for stream_id in self.done:
            self.memory.backlog.pop(stream_id, None)
        for merged in self.memory.merged.values():
            merged.committed()
        for stream in self.touched.values():
            if len(self.memory.streams) > KEPT_STREAMS:
                stream.let_go()
            if stream.state != "open" and stream.id not in self.memory.backlog and not stream.pending:
                # A rank that said goodbye speaks no more: its rows need no memory.
                self.memory.streams.pop((stream.run_id, stream.rank, stream.incarnation), None)

    def changes(self) -> list[Changed]:
        """Which runs got something, with their last step."""
        last: dict[int, int | None] = {}
        for stream in self.touched.values():
            steps = [step for step in (last.get(stream.run_id), stream.last_step) if step is not None]
            last[stream.run_id] = max(steps, default=None)
        return [Changed(run, step) for run, step in last.items()]
