"""Steps that share a row of statistics because the spool of their rank was full while no server was there."""

from __future__ import annotations

from collections.abc import Container, Iterable
from typing import Annotated, NamedTuple

import msgspec
from sqlalchemy import Connection, select

from rangewatch_server import deadline
from rangewatch_server.store import tables

EVENT = "spool_merged"
MOST_EVENTS = 20_000
"""The newest that are read: a rank tells of each time that it merged, which is seldom."""
MOST_STEPS = 1 << 24
"""Steps of one row that are believed: a spool that was full for months."""


class _Said(msgspec.Struct):
    first_step: int
    last_step: int
    steps_a_row: Annotated[int, msgspec.Meta(ge=2, le=MOST_STEPS)]


class Shared(NamedTuple):
    """Steps `first` to `last` of a rank have one row for up to `every` steps."""

    rank: int
    first: int
    last: int
    every: int


def read(connection: Connection, run_id: int) -> list[Shared]:
    """What the ranks of a run have told of."""
    events, streams = tables.events.c, tables.streams.c
    query = (
        select(streams.rank, events.data)
        .join(tables.events, events.stream_id == streams.id)
        .where(streams.run_id == run_id, events.kind == EVENT)
        .order_by(events.id.desc())
        .limit(MOST_EVENTS)
    )
    return [found for rank, data in connection.execute(query) if (found := _sound(rank, data)) is not None]


def most(shared: Iterable[Shared], ranks: Container[int], start: int, stop: int) -> int:
    """The most steps of [start, stop) that share a row on any of these ranks; 1 where none do."""
    found = (each.every for each in shared if each.rank in ranks and each.first < stop and each.last >= start)
    return max(found, default=1)


def _sound(rank: int, data: bytes) -> Shared | None:
    deadline.check()
    try:
        said = msgspec.json.decode(data, type=_Said)
    except msgspec.DecodeError:
        return None
    return Shared(rank, said.first_step, said.last_step, said.steps_a_row)
