"""The only writer: one thread, a bounded queue, and one transaction for whatever waits in it (group commit).

A message is answered only after the commit that holds it. Nothing is stored in part: what a message would change is
checked before the first statement; an error of the database rolls the whole group back, forgets every cache and answers
503, so that the agents send again; any other error makes the messages of the group be tried in halves, until it is
found which of them cannot be stored.
"""

from __future__ import annotations

import logging
import queue
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import Connection
from sqlalchemy.exc import (
    DatabaseError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
    TimeoutError,
)

from rangewatch.wire.records import Batch, StreamHeader
from rangewatch_server.core.metrics import Metrics
from rangewatch_server.ingest.announce import announce
from rangewatch_server.ingest.commands import Ask, Withdraw
from rangewatch_server.ingest.memory import EXAMINE_EVERY_S, SYNC_S, Memory
from rangewatch_server.ingest.merged_ranks import Snapshot
from rangewatch_server.ingest.transaction import Answer, Changed, Refused, Transaction
from rangewatch_server.store.engine import Engines, first_line

logger = logging.getLogger("rangewatch.server")

QUEUE_MESSAGES = 1_024  # at about 30 KiB a body, 30 MiB; then agents are answered 429
GROUP_BYTES = 8 << 20  # bodies in one transaction: keeps a commit, and so an answer, under about 0.3 s
MAX_BACKLOG = 2_048  # streams that wait for tiles; with more of them messages wait too
PAUSE_S = 0.1  # between two looks at merged ranks that are behind, when nothing else is to do
EXAMINE_AFTER_S = 5.0  # the start: who opens a page, and ranks that waited, come first
TIDY_UP_S = 2.0  # at the end, for tiles: within what a stop may take (drain.py)
ATTEMPTS = 3  # of a group that ran into another server's locks
DEADLOCK = ("40P01", "40001")  # PostgreSQL's codes for that
DATA_CLASSES = ("22", "23", "54")  # of PostgreSQL's codes: data, constraints, limits such as an index row's 2.7 kB

# The database is at fault, not a message: away, locked, full, read-only; a table or a right that is gone.
DATABASE_TROUBLE = (OperationalError, InterfaceError, InternalError, ProgrammingError, TimeoutError)


class Busy(Exception):
    """The queue is full; try again in a moment."""


class Unavailable(Exception):
    """The database did not take the group; try again in a moment."""


class _Job(msgspec.Struct, frozen=True):
    run: Callable[[Connection], Any]
    forgets: bool


class _Item(msgspec.Struct):
    message: StreamHeader | Batch | Ask | Withdraw | _Job
    body: bytes
    future: Future[Any]
    """Of an `Answer`, or of a command's id."""
    has_ended: bool = False
    """Whether the process that made it is gone."""


class Writer:
    """Start with `start`, hand messages to `submit`, end with `stop`, which drains the queue first."""

    def __init__(
        self, engines: Engines, on_change: Callable[[list[Changed]], None] = lambda _: None,
        metrics: Metrics | None = None, server_id: str = "", reserved_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.engine = engines.writer
        self._reserved_bytes = reserved_bytes
        """Room on a SQLite file's disk that messages leave: deleting and pruning take some, and so does the audit."""
        self._is_refusing = False
        self.on_change = on_change
        self.metrics = metrics or Metrics()
        self.server_id = server_id or uuid.uuid4().hex
        """Under which other servers hear of this one's commits."""
        self._are_commands_stale = False
        self.memory = Memory(engines.writer)
        self._tidy_at_s = 0.0
        self._examine_at_s = 0.0
        self._queue: queue.Queue[_Item | None] = queue.Queue(QUEUE_MESSAGES)
        self._thread = threading.Thread(target=self._run, name="rangewatch-writer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Commit what is queued, then end the thread."""
        self._queue.put(None)
        self._thread.join()

    def submit(
        self, message: StreamHeader | Batch | Ask | Withdraw | _Job, body: bytes = b"", *, has_ended: bool = False
    ) -> Future[Any]:
        """Queue a message: its `Answer`. Raises `Busy` when the queue is full, `Unavailable` when the disk nearly is;
        the future `Unavailable`, `Refused` or `WireError`. `has_ended`: another sends what a process left that is gone.
        """
        item = _Item(message, body, Future(), has_ended)
        if isinstance(message, StreamHeader | Batch) and not self._has_room():
            raise Unavailable("the disk is nearly full: make room, or prune or delete runs")
        try:
            self._queue.put_nowait(item)
        except queue.Full:
            raise Busy("ingest queue is full") from None
        return item.future

    def _has_room(self) -> bool:
        path = self.engine.url.database
        if not self._reserved_bytes or self.engine.dialect.name != "sqlite" or not path:
            return True
        free = shutil.disk_usage(Path(path).parent).free  # 10 us on a loaded machine, once a message
        is_refusing = free < self._reserved_bytes
        if is_refusing and not self._is_refusing:
            logger.error(
                "messages are refused: %d bytes are left on the disk of %s, and %d are for pruning and deleting",
                free, path, self._reserved_bytes,
            )  # fmt: skip
        self._is_refusing = is_refusing
        return not is_refusing

    def command(self, message: Ask | Withdraw) -> Future[int]:
        """Queue a change of commands: the command's id. Raises as `submit`, and the future also `CommandRefused`."""
        return self.submit(message)

    def work(self, job: Callable[[Connection], Any], *, forgets: bool = False) -> Future[Any]:
        """Queue something else that writes: in a transaction of its own, in the writer's thread, between two groups.

        It must be short (100 ms: agents wait meanwhile), so long work is many jobs, each queued when the one before is
        done. `forgets`: it changes rows that the writer remembers. Raises `Busy`; the future raises what the job does.
        """
        return self.submit(_Job(job, forgets))

    def reload_commands(self) -> None:
        """Another server changed commands: they are read anew before the next group. From any thread."""
        self._are_commands_stale = True

    def merged(
        self, run_id: int, part: str, version: int, start: int, stop: int, wanted: Sequence[str]
    ) -> Snapshot | None:
        """What memory holds of a run's merged ranks, beside stored tiles of that version. From any thread."""
        merged_run = self.memory.merged.get(run_id)
        return None if merged_run is None else merged_run.snapshot(part, version, start, stop, wanted)

    def is_catching_up(self, run_id: int) -> bool:
        """Whether ranks of the run are still to be merged, as after a start: to read all of them is dear until then.
        From any thread.
        """
        return run_id in self.memory.unmerged

    @property
    def queued(self) -> int:
        """Messages waiting."""
        return self._queue.qsize()

    @property
    def is_alive(self) -> bool:
        """Whether messages are being taken."""
        return self._thread.is_alive()

    def _run(self) -> None:
        self._resume()
        is_ended = False
        while not is_ended:
            try:
                item = self._queue.get(timeout=self._idle_s())
            except queue.Empty:  # meanwhile tiles that had to wait are made, and pages hear when a command expires
                self._tidy()
                self._emit([Changed(run, self._last_step(run)) for run in self.memory.commands.expire()])
                continue
            group: list[_Item] = []
            size = 0
            while item is not None:
                group.append(item)
                size += len(item.body)
                if size >= GROUP_BYTES:
                    break
                try:
                    item = self._queue.get_nowait()
                except queue.Empty:
                    break
            is_ended = item is None
            live = [each for each in group if each.future.set_running_or_notify_cancel()]
            messages = [each for each in live if not isinstance(each.message, _Job)]
            if messages:
                self._commit(messages)
            for each in live:
                if isinstance(each.message, _Job):
                    self._do(each.message, each.future)
            if not is_ended:
                self._tidy()
        self._tidy_up()
        self.memory.ownership.close()

    def _tidy_up(self) -> None:
        """At the end: what waits for tiles gets them, if that is soon done; else the next start goes on with it."""
        end_s = time.monotonic() + TIDY_UP_S
        while self.memory.backlog and time.monotonic() < end_s:
            self._tidy_at_s = 0.0
            before = len(self.memory.backlog)
            self._tidy()
            if len(self.memory.backlog) >= before:
                return

    def _resume(self) -> None:
        try:
            with self.engine.begin() as connection:
                self.memory.load_backlog(connection)
            self._examine_at_s = time.monotonic() + EXAMINE_AFTER_S
        except Exception as error:  # whatever it is, the thread must live: nobody else takes messages
            logger.error("database did not say which steps are to be made into tiles: %s", first_line(error))

    def _idle_s(self) -> float | None:
        waits = [each for each in (self.memory.commands.expires_in_s(),) if each is not None]
        if self.memory.backlog or self.memory.runs_behind():
            waits.append(max(self._tidy_at_s - time.monotonic(), 0.0))
        if self.memory.unexamined:
            waits.append(max(self._examine_at_s - time.monotonic(), 0.0))
        return min(waits, default=None)

    def _tidy(self) -> None:
        """One transaction for what had to wait; as many as it takes when too much does."""
        if self.memory.unexamined and time.monotonic() >= self._examine_at_s:
            self._examine_at_s = time.monotonic() + EXAMINE_EVERY_S
            self.memory.examine()
        while (self.memory.backlog or self.memory.runs_behind()) and time.monotonic() >= self._tidy_at_s:
            folding: int | None = None
            try:
                with self.engine.begin() as connection:
                    transaction = Transaction(connection, self.memory, ())
                    try:
                        transaction.drain_backlog()
                    finally:
                        folding = transaction.folding
            except Exception as error:
                self._tidy_failed(error, folding)
                return
            transaction.committed()
            if not self.memory.backlog:
                self._tidy_at_s = time.monotonic() + (PAUSE_S if self.memory.unmerged else SYNC_S)
            if len(self.memory.backlog) < MAX_BACKLOG:
                return

    def _tidy_failed(self, error: Exception, folding: int | None) -> None:
        self.memory.forget()
        self._tidy_at_s = time.monotonic() + SYNC_S
        if _is_the_databases(error):
            logger.error("database did not take tiles: %s", first_line(error))
            return
        logger.error("tiles cannot be made; their steps are read from the batches", exc_info=error)
        self.memory.unmerged.clear()
        if folding is not None:
            self.memory.backlog.pop(folding, None)

    def _last_step(self, run: int) -> int | None:
        steps = (stream.last_step for stream in self.memory.streams.values() if stream.run_id == run)
        return max((step for step in steps if step is not None), default=None)

    def _do(self, job: _Job, future: Future[Any]) -> None:
        try:
            with self.engine.begin() as connection:
                result = job.run(connection)
        except Exception as error:
            future.set_exception(error)
        else:
            future.set_result(result)
        if job.forgets:
            self.memory.forget()

    def _commit(self, group: list[_Item], *, folds: bool = True, attempt: int = 1) -> None:
        answers: list[Answer | int | Exception] = []
        began_s = time.monotonic()
        if self._are_commands_stale:
            self._are_commands_stale = False
            self.memory.commands.forget()
        try:
            with self.engine.begin() as connection:
                transaction = Transaction(connection, self.memory, [item.message for item in group], folds=folds)
                answers = [transaction.take(item.message, item.body, has_ended=item.has_ended) for item in group]  # type: ignore[arg-type]
                transaction.finish()
                changed = [(each.run, each.last_step) for each in transaction.changes()]
                announce(connection, self.server_id, changed, transaction.recommanded)
        except Exception as error:
            self._failed(group, error, folds, attempt)
            return
        self.metrics.committed(len(group), time.monotonic() - began_s)
        self._answer(group, answers)
        transaction.committed()
        asked = {run: self._last_step(run) for run in transaction.commanded}
        self._emit([*(Changed(*each) for each in asked.items()), *transaction.changes()])

    def _emit(self, changes: list[Changed]) -> None:
        if not changes:
            return
        try:
            self.on_change(changes)
        except Exception:
            logger.exception("live pages were not informed of a change")

    def _answer(self, group: list[_Item], answers: list[Answer | int | Exception]) -> None:
        for item, answer in zip(group, answers, strict=True):
            if isinstance(answer, Exception):
                item.future.set_exception(answer)
            else:
                item.future.set_result(answer)

    def _failed(self, group: list[_Item], error: Exception, folds: bool, attempt: int) -> None:
        self.memory.forget()
        if _is_the_databases(error):
            if attempt < ATTEMPTS and getattr(getattr(error, "orig", None), "sqlstate", None) in DEADLOCK:
                self._commit(group, folds=folds, attempt=attempt + 1)
                return
            self.metrics.commit_failed()
            logger.error("database did not take a group of %d messages: %s", len(group), first_line(error))
            for item in group:
                item.future.set_exception(Unavailable("the database did not take the message"))
        elif folds and (len(group) == 1 or not _is_of_data(error)):
            logger.error("a group of %d messages is stored without making tiles", len(group), exc_info=error)
            self._commit(group, folds=False)
        elif len(group) == 1:
            logger.error("a message cannot be stored", exc_info=error)
            group[0].future.set_exception(Refused("unstorable", "the message cannot be stored"))
        else:  # one message must not cost the others: it is found by halves, and refused
            middle = len(group) // 2
            self._commit(group[:middle])
            self._commit(group[middle:])


def _is_the_databases(error: Exception) -> bool:
    """`DatabaseError` itself, and none of what derives from it, is how SQLite says that its file is malformed."""
    return not _is_of_data(error) and (isinstance(error, DATABASE_TROUBLE) or type(error) is DatabaseError)


def _is_of_data(error: Exception) -> bool:
    """Whether the database finds a value wrong or too large, as psycopg may say by an `OperationalError`."""
    state = getattr(getattr(error, "orig", None), "sqlstate", None) or ""
    return state[:2] in DATA_CLASSES
