"""Chunks of samples that lie beside one another joined into one: a rank sends one every few seconds.

What was sent in a day is then hundreds of rows of the table and not tens of thousands. They are read and packed in the
caller's thread; the writer only deletes the old rows and inserts the new one. The same is read before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import Connection, Engine, case, delete, func, literal_column, select, tuple_, update

from rangewatch_server.maintenance.jobs import Jobs
from rangewatch_server.store import samples, tables
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
    found: dict[Place, list[Part]] = {}
    with engine.connect() as connection:
        for sequence, number, payload in connection.execute(query.order_by(_row.sequence, _row.number)):
            try:
                found[sequence, number] = samples.decode(payload)
            except SamplesError:
                continue  # it stays as it is, and readers say so
    return found


def _at(group: Group, places: Sequence[Place]) -> Any:
    return group.mine & tuple_(_row.sequence, _row.number).in_(places)


def _change(group: Group, places: Sequence[Place], found: dict[Place, list[Part]]) -> Change:
    """One row for those that were read. The others, or an only one, need not be looked at again."""
    parts = samples.join([part for each in found.values() for part in each])
    if len(found) < 2 or len(parts) > MAX_PARTS:
        return Change(list(places), [], [])
    sequence, number = next(iter(found))
    place = {"run_id": group.run_id, "stream_id": group.stream_id, "sequence": sequence, "number": number}
    row = place | samples.row_values(group.source, group.key, parts, joined=True)
    return Change([each for each in places if each not in found], list(found), [row])


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
