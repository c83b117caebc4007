"""The one reader of events: rows as they are stored, with details that are read as structs of `wire.events`."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Sequence
from typing import Any, NamedTuple, TypeVar

from sqlalchemy import Connection, Select, func, literal, select

from rangewatch.wire import events
from rangewatch.wire.events import MergedSteps
from rangewatch_server.core import deadline
from rangewatch_server.store import tables

_event, _stream = tables.events.c, tables.streams.c
_COLUMNS = (_event.id, _stream.rank, _event.stream_id, _event.time_ns, _event.step, _event.kind, _event.message)
_SELECT = select(*_COLUMNS, _event.data).join(tables.streams, _stream.id == _event.stream_id)
_SELECT_HEADS = select(*_COLUMNS, literal(b"")).join(tables.streams, _stream.id == _event.stream_id)
T = TypeVar("T")


class StoredEvent(NamedTuple):
    """An event with the rank that sent it, or of which its watcher did. `step` is -1 where it belongs to none.

    `id`: ascending as events were stored, which of one process is the order of its messages. `data`: JSON.
    """

    id: int
    rank: int
    stream_id: int
    time_ns: int
    step: int
    kind: str
    message: str
    data: bytes

    def read(self, kind: type[T]) -> T | None:
        """The details; None where they cannot be read."""
        return events.read(kind, self.data)


def newest(
    connection: Connection, run_id: int, kind: str, most: int, *,
    rank: int | None = None, stream_id: int | None = None, before: int | None = None, step: int | None = None,
) -> list[StoredEvent]:  # fmt: skip
    """The newest `most` events of a kind, newest first: of a rank, of one process, of steps before `before`,
    of `step`."""
    query = _SELECT.where(_stream.run_id == run_id, _event.kind == kind).order_by(_event.id.desc()).limit(most)
    for column, value in ((_stream.rank, rank), (_event.stream_id, stream_id), (_event.step, step)):
        query = query if value is None else query.where(column == value)
    return _read(connection, query if before is None else query.where(_event.step < before))


def stamp(connection: Connection, run_id: int, kind: str) -> tuple[int, ...]:
    """Another one whenever an event of the kind has come or gone: how many there are, the newest, and their sum."""
    mine = _stream.run_id == run_id, _event.kind == kind
    numbers = select(func.count(_event.id), func.max(_event.id), func.sum(_event.id))
    query = numbers.join(tables.streams, _stream.id == _event.stream_id).where(*mine)
    return tuple(int(number or 0) for number in connection.execute(query).one())


def last(
    connection: Connection, streams: Collection[int], kinds: Sequence[str], *, each_message: bool = False
) -> list[StoredEvent]:
    """The last event of each kind of each of these processes, in order; with `each_message` of each message."""
    by = (_event.stream_id, _event.kind, _event.message) if each_message else (_event.stream_id, _event.kind)
    return _read(connection, _SELECT.where(_event.id.in_(_last_ids(streams, kinds, by))).order_by(_event.id))


def last_heads(connection: Connection, streams: Collection[int], kinds: Sequence[str]) -> list[StoredEvent]:
    """The same without details, which may be large: `data` is empty."""
    ids = _last_ids(streams, kinds, (_event.stream_id, _event.kind))
    return _read(connection, _SELECT_HEADS.where(_event.id.in_(ids)).order_by(_event.id))


def by_id(connection: Connection, ids: Collection[int]) -> list[StoredEvent]:
    """These events, in order."""
    return _read(connection, _SELECT.where(_event.id.in_(ids)).order_by(_event.id))


def _last_ids(streams: Collection[int], kinds: Sequence[str], by: Sequence[Any]) -> Select[Any]:
    return select(func.max(_event.id)).where(_event.stream_id.in_(streams), _event.kind.in_(kinds)).group_by(*by)


def about_step(connection: Connection, stream_id: int, kind: str, step: int) -> StoredEvent | None:
    """The event whose account covers a step: the first that was sent after it, or else the last of all.

    An account grows, and is sent with the first batch after what it reports.
    """
    query = _SELECT.where(_event.stream_id == stream_id, _event.kind == kind).limit(1)
    after = query.where(_event.step > step).order_by(_event.step, _event.id)
    latest = query.order_by(_event.step.desc(), _event.id.desc())
    return next(iter(_read(connection, after) or _read(connection, latest)), None)


def steps(connection: Connection, run_id: int, kinds: Sequence[str]) -> set[int]:
    """Steps of all events of these kinds."""
    query = select(_event.step).join(tables.streams, _stream.id == _event.stream_id)
    mine = query.where(_stream.run_id == run_id, _event.kind.in_(kinds), _event.step >= 0)
    return {int(step) for step in connection.execute(mine).scalars()}


def _read(connection: Connection, query: Select[Any]) -> list[StoredEvent]:
    return [StoredEvent(*row) for row in connection.execute(query)]


MOST_MERGED = 20_000
"""The newest that are read: a rank reports each time that it merged, which is seldom."""


class Shared(NamedTuple):
    """Steps `first` to `last` of a rank have one row for up to `every` steps."""

    rank: int
    first: int
    last: int
    every: int


def shared_rows(connection: Connection, run_id: int) -> list[Shared]:
    """The steps of a run that share rows, as its ranks' spools merged them."""
    shared = []
    for each in newest(connection, run_id, MergedSteps.KIND, MOST_MERGED):
        deadline.check()
        if (merged := each.read(MergedSteps)) is not None:
            shared.append(Shared(each.rank, merged.first_step, merged.last_step, merged.steps_a_row))
    return shared


def most_sharing(shared: Iterable[Shared], ranks: Container[int], start: int, stop: int) -> int:
    """The most steps of [start, stop) that share a row on any of these ranks; 1 where none do."""
    counts = (each.every for each in shared if each.rank in ranks and each.first < stop and each.last >= start)
    return max(counts, default=1)
