"""The server's own retention: every few minutes a thread finishes deletions, joins samples and applies the policy.

A rank sends a chunk of samples every few seconds: joined, a day of them is hundreds of rows and not tens of thousands.
They are read and packed in this thread; the writer only deletes the old rows and inserts the new one.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, case, delete, func, literal_column, select, tuple_, update
from sqlalchemy.exc import SQLAlchemyError

from rangewatch_server.ingest.announce import announce
from rangewatch_server.ingest.transaction import Changed
from rangewatch_server.ingest.writer import Writer
from rangewatch_server.maintenance.jobs import Jobs, QueuedJobs, Stopped
from rangewatch_server.maintenance.retention.clocks import SteadyClock
from rangewatch_server.maintenance.retention.plan import planned, run_ids
from rangewatch_server.maintenance.retention.policy import Policy
from rangewatch_server.maintenance.retention.prune import OnProgress, apply, finish_deletions
from rangewatch_server.maintenance.retention.space import give_back
from rangewatch_server.store import samples, tables
from rangewatch_server.store.engine import Engines
from rangewatch_server.store.samples import MAX_PARTS, SPAN_NS, Part, SamplesError

AT_ONCE = 64
NEWEST = 32  # of a key of a live process stay as they came: about a minute, and what came out of order has come by then
MOST_ROWS = 4_096  # of a joined chunk: a reader of one second unpacks all of it
MOST_BYTES = 1 << 20  # of payloads that are joined at once
_row, _stream = tables.samples.c, tables.streams.c
_waits = _row.joined == literal_column("0")  # as the index says it: with a parameter the index would not be found


class Group(msgspec.Struct, frozen=True):
    """Chunks of one key of one process that wait. `newest`: so many stay as they are."""

    run_id: int
    stream_id: int
    source: str
    key: str
    newest: int

    @property
    def mine(self) -> Any:
        """Which rows they are."""
        return (_row.run_id == self.run_id) & (_row.stream_id == self.stream_id) & _waits

    @property
    def of_key(self) -> Any:
        """The same of this key."""
        return self.mine & (_row.source == self.source) & (_row.sample_key == self.key)


Place = tuple[int, int]
"""Sequence and number of a chunk."""


class Change(msgspec.Struct, frozen=True):
    """What a job does: `left` wait no more, `rows` come for those that are `gone`."""

    left: list[Place]
    gone: list[Place]
    rows: list[dict[str, Any]]


class _Changed(Exception):
    """Other rows are there than were read: another server joins them, or they are thinned or deleted."""


def join_samples(jobs: Jobs, engine: Engine, run_id: int) -> int:
    """Join what waits of one run; how many rows fewer there are. Raises what `jobs` raises."""
    with engine.connect() as connection:
        groups = _groups(connection, run_id)
    return sum(_join_group(jobs, engine, group) for group in groups)


def _groups(connection: Connection, run_id: int) -> list[Group]:
    newest = case((_stream.state == "open", NEWEST), else_=0)
    keys = (_row.stream_id, _row.source, _row.sample_key)
    query = (
        select(*keys, newest)
        .join(tables.streams, _stream.id == _row.stream_id)
        .where(_row.run_id == run_id, _waits)
        .group_by(*keys, _stream.state)
        .having(func.count() >= case((_stream.state == "open", NEWEST + AT_ONCE), else_=1))
    )
    return [Group(run_id, *row) for row in connection.execute(query)]


def _join_group(jobs: Jobs, engine: Engine, group: Group) -> int:
    fewer = 0
    while places := _next(engine, group):
        change = _change(group, places, _read(engine, group, places))
        try:
            jobs(lambda connection, change=change: _apply(connection, group, change))  # type: ignore[misc]
        except _Changed:
            return fewer
        fewer += max(len(change.gone) - 1, 0)
    return fewer


def _next(engine: Engine, group: Group) -> list[Place]:
    """The oldest that can be one; none while too few wait."""
    size = func.length(_row.payload).label("size")
    query = select(_row.sequence, _row.number, _row.first_ns, _row.last_ns, _row.row_count, size).where(group.of_key)
    with engine.connect() as connection:
        rows = connection.execute(query.order_by(_row.sequence, _row.number).limit(AT_ONCE + group.newest)).all()
    if group.newest and len(rows) < AT_ONCE + group.newest:
        return []
    taken = 1
    while taken < min(len(rows), AT_ONCE) and _fit(rows[: taken + 1]):
        taken += 1
    return [(row.sequence, row.number) for row in rows[:taken]]


def _fit(rows: Sequence[Any]) -> bool:
    span_ns = max(row.last_ns for row in rows) - min(row.first_ns for row in rows)
    count, size = sum(row.row_count for row in rows), sum(row.size for row in rows)
    return bool(span_ns <= SPAN_NS and count <= MOST_ROWS and size <= MOST_BYTES)


def _read(engine: Engine, group: Group, places: Sequence[Place]) -> dict[Place, list[Part]]:
    """The chunks, in order; without those that are damaged."""
    query = select(_row.sequence, _row.number, _row.payload).where(_at(group, places))
    by_place: dict[Place, list[Part]] = {}
    with engine.connect() as connection:
        for sequence, number, payload in connection.execute(query.order_by(_row.sequence, _row.number)):
            try:
                by_place[sequence, number] = samples.decode(payload)
            except SamplesError:
                continue  # it stays as it is, and readers say so
    return by_place


def _at(group: Group, places: Sequence[Place]) -> Any:
    return group.mine & tuple_(_row.sequence, _row.number).in_(places)


def _change(group: Group, places: Sequence[Place], by_place: dict[Place, list[Part]]) -> Change:
    """One row for those that were read. The others, or an only one, need not be looked at again."""
    parts = samples.join([part for each in by_place.values() for part in each])
    if len(by_place) < 2 or len(parts) > MAX_PARTS:
        return Change(list(places), [], [])
    sequence, number = next(iter(by_place))
    place = {"run_id": group.run_id, "stream_id": group.stream_id, "sequence": sequence, "number": number}
    row = place | samples.row_values(group.source, group.key, parts, joined=True)
    return Change([each for each in places if each not in by_place], list(by_place), [row])


def _apply(connection: Connection, group: Group, change: Change) -> None:
    if change.left:
        left = update(tables.samples).where(_at(group, change.left)).values(joined=1)
        _all_of_them(connection.execute(left), change.left)
    if change.gone:
        _all_of_them(connection.execute(delete(tables.samples).where(_at(group, change.gone))), change.gone)
        connection.execute(samples.INSERT_SAMPLES, change.rows)


def _all_of_them(result: Any, expected: Sequence[Place]) -> None:
    if result.rowcount != len(expected):
        raise _Changed


logger = logging.getLogger("rangewatch.server")

EVERY_S = 300.0
JOIN_S = 3.0  # at shutdown it ends after the job it is in; below drain.CLOSE_S, which bounds all that ends then


class Retention:
    """Start it after the writer, stop it before. One thing at a time: `alone` is held while rows go or come."""

    def __init__(self, writer: Writer, engines: Engines, policy: Policy) -> None:
        self.engines, self.policy, self.clock = engines, policy, SteadyClock()
        self.jobs = QueuedJobs(writer, lambda: self._ended)
        self._alone = threading.Lock()
        self._wake = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="rangewatch-retention", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """End it; deletions that are not done go on at the next start."""
        self._ended = True
        self._wake.set()
        self._thread.join(JOIN_S)

    def wake(self) -> None:
        """There is a deletion to finish."""
        self._wake.set()

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nothing else prunes, deletes rows or restores meanwhile. Raises `Stopped` when the server shuts down."""
        with self._alone:
            if self._ended:
                raise Stopped("the server is shutting down")
            yield

    def prune(self, policy: Policy, reported: OnProgress) -> None:
        """Apply a policy now, in the caller's thread."""
        with self.alone():
            finish_deletions(self.jobs, self.engines.reader)
            actions = planned(self.engines.reader, policy, self.clock.now_ns())
            apply(self.jobs, self.engines.writer, actions, reported, self.changed)

    def changed(self, run_id: int) -> None:
        """Tell pages that a run came, went or lost detail: those of this server, and of others on PostgreSQL."""
        writer = self.jobs.writer
        if writer.engine.dialect.name == "postgresql":
            self.jobs(lambda connection: announce(connection, writer.server_id, [(run_id, None)]))
        writer.on_change([Changed(run_id, None)])

    def _run(self) -> None:
        while not self._ended:
            try:
                self._once()
            except Stopped:
                return
            except SQLAlchemyError as error:
                if not self._ended:  # the engines may be closed by then
                    logger.error("retention stopped at a fault of the database: %s", str(error).splitlines()[0])
            except Exception:  # whatever it is, the thread must live: nobody else finishes deletions
                logger.exception("retention failed; it tries again in %.0f s", EVERY_S)
            self._wake.wait(EVERY_S)
            self._wake.clear()

    def _once(self) -> None:
        with self.alone():
            gone = finish_deletions(self.jobs, self.engines.reader)
            if gone:
                logger.warning("removed the rows of %d deleted runs", len(gone))
                give_back(self.jobs, self.engines.writer, [], lambda line: logger.info("%s", line))
        for run_id in run_ids(self.engines.reader):  # not `alone`: rows that are not as they were read are left
            join_samples(self.jobs, self.engines.reader, run_id)
        if self.policy.is_set:
            self.prune(self.policy, lambda line: logger.warning("retention: %s", line))
