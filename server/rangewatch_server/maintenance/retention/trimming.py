"""Samples of one run: how much there is of each hour, and what is old deleted, a few chunks at a time.

A chunk's times are of its process's clock, which may be wrong. Its last row is put as long before the process was last
heard of as it lies before the row that came last; and not before the run was made. `corrected` is when processes were
last heard of whose server's clock was wrong (clocks.py).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Select, case, delete, func, select, tuple_

from rangewatch_server.maintenance.jobs import Deadline, Jobs
from rangewatch_server.maintenance.retention.policy import HOUR_NS, StoredSamples, Trim
from rangewatch_server.store import tables, tiles

SLICE = 64  # chunks looked at in one statement
_row, _stream, _run = tables.samples.c, tables.streams.c, tables.runs.c
_newer = tables.samples.alias("newer")


def stored_samples(
    connection: Connection, run_id: int, kept: Iterable[int], corrected: Mapping[int, int]
) -> tuple[tuple[StoredSamples, ...], int]:  # fmt: skip
    """Chunks that may go, by hour; and the bytes of all chunks."""
    tiles_kept, total = sorted(kept), 0
    hours: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])
    for hour, first, last, chunks, size in connection.execute(_by_hour(run_id, corrected)):
        total += int(size)
        if not _touches(tiles_kept, first, last):
            hours[int(hour)][0] += chunks
            hours[int(hour)][1] += int(size)
    return tuple(StoredSamples(hour, *hours[hour]) for hour in sorted(hours)), total


def _by_hour(run_id: int, corrected: Mapping[int, int]) -> Select[Any]:
    """(hour, first tile, last tile, chunks, bytes): many chunks have the same steps, as ranks have."""
    begun = _begun(run_id, corrected)
    keys = ((_reported(begun) // HOUR_NS), _row.first_step // tiles.WIDTH, _row.last_step // tiles.WIDTH)
    query = select(*keys, func.count(), func.sum(func.length(_row.payload)))
    return query.join(begun, begun.c.id == _row.stream_id).where(_row.run_id == run_id).group_by(*keys)


def _begun(run_id: int, corrected: Mapping[int, int]) -> Any:
    """Each process of the run: when it was last heard of, and what its own clock said with its last batch."""
    newest = (
        select(_newer.c.last_ns)
        .where(_newer.c.run_id == run_id, _newer.c.stream_id == _stream.id)
        .order_by(_newer.c.sequence.desc(), _newer.c.number.desc())
        .limit(1)
        .correlate(tables.streams)
    )
    seen = case(dict(corrected), value=_stream.id, else_=_stream.last_seen_ns) if corrected else _stream.last_seen_ns
    query = select(_stream.id, seen.label("last_seen_ns"), newest.scalar_subquery().label("clock_ns"), _run.created_ns)
    return query.join(tables.runs, _run.id == _stream.run_id).where(_stream.run_id == run_id).subquery()


def _reported(begun: Any) -> Any:
    """When a chunk's last row was, by our clock."""
    reported = begun.c.last_seen_ns - (begun.c.clock_ns - _row.last_ns)
    return case((reported < begun.c.created_ns, begun.c.created_ns), else_=reported)


def _touches(kept: Sequence[int], first: int | None, last: int | None) -> bool:
    """Whether one of the tiles `kept`, ascending, is among [first, last]; chunks without steps have none."""
    if first is None or last is None:
        return False
    place = bisect_left(kept, first)
    return place < len(kept) and kept[place] <= last


def trim(jobs: Jobs, action: Trim) -> tuple[int, int]:
    """Do it; the chunks and bytes that went."""
    streams: deque[tuple[int, int, int]] = deque(jobs(lambda connection: _streams(connection, action.run)))
    kept, chunks, freed = sorted(action.kept), 0, 0
    while streams:
        gone, size = jobs(lambda connection: _delete_some(connection, action, kept, streams))
        chunks, freed = chunks + gone, freed + size
    return chunks, freed


def _streams(connection: Connection, run_id: int) -> list[tuple[int, int, int]]:
    """(stream, sequence, number) before the first chunk of each."""
    mine = select(_stream.id).where(_stream.run_id == run_id, _stream.rank >= 0).order_by(_stream.id)
    return [(each, -1, -1) for each in connection.execute(mine).scalars()]


def _delete_some(
    connection: Connection, action: Trim, kept: Sequence[int], streams: deque[tuple[int, int, int]]
) -> tuple[int, int]:
    deadline, chunks, freed = Deadline(), 0, 0
    while streams and not deadline.is_over:
        stream, sequence, number = streams.popleft()
        rows = connection.execute(_old_chunks(action, stream, (sequence, number))).all()
        going = [row for row in rows if not _touches(kept, *(_tile(step) for step in (row.first_step, row.last_step)))]
        if going:
            places = [(row.sequence, row.number) for row in going]
            mine = (_row.run_id == action.run) & (_row.stream_id == stream)
            connection.execute(delete(tables.samples).where(mine, tuple_(_row.sequence, _row.number).in_(places)))
        chunks, freed = chunks + len(going), freed + sum(row.size for row in going)
        if len(rows) == SLICE:
            streams.appendleft((stream, rows[-1].sequence, rows[-1].number))
    return chunks, freed


def _tile(step: int | None) -> int | None:
    return None if step is None else step // tiles.WIDTH


def _old_chunks(action: Trim, stream: int, after: tuple[int, int]) -> Select[Any]:
    begun = _begun(action.run, action.corrected)
    sequence, number = after
    is_after = (_row.sequence > sequence) | ((_row.sequence == sequence) & (_row.number > number))
    return (
        select(_row.sequence, _row.number, _row.first_step, _row.last_step, func.length(_row.payload).label("size"))
        .join(begun, begun.c.id == _row.stream_id)
        .where(_row.run_id == action.run, _row.stream_id == stream, _row.sequence >= sequence, is_after)
        .where(_reported(begun) < action.before_ns)
        .order_by(_row.sequence, _row.number)
        .limit(SLICE)
    )
