"""Reading samples: the rows of one source by time or by steps, and the newest of each key.

A chunk is what one process recorded under one key while its details meant the same: usually there is one a process and
key. Details that only grow, such as a list of names that columns refer to by number, mean the same. Rows come
in the order of their times; those of the same time in the order in which they were sent.

Fewer rows of a chunk of samples, so that no spike of one second is lost: a plot has some 2,000 columns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import CTE, ColumnElement, Select, func, select

from rangewatch_server.core import deadline
from rangewatch_server.core.errors import ApiError
from rangewatch_server.query.reader import RunReader
from rangewatch_server.query.slices import Damage
from rangewatch_server.store import tables
from rangewatch_server.store.samples import SPAN_NS, STEP, Part, SamplesError, decode

Array = NDArray[Any]


def downsample(
    chunk: Chunk, columns: int, rules: Mapping[str, str], start_ns: int | None = None, stop_ns: int | None = None
) -> Chunk:
    """At most `columns` rows: of equal parts of [start_ns, stop_ns), the chunk's own time by default.

    `rules`: "min", "last", "sum" or "or" (of the bits of whole numbers) by a column's name; others have "max", and
    "step" has "last". What is unknown counts only where nothing is known. A row's time is the first of its part; parts
    without rows are left out, and so are rows outside the time. Raises `KeyError` for another rule.
    """
    start = int(chunk.times_ns[0]) if start_ns is None and len(chunk.times_ns) else start_ns or 0
    stop = int(chunk.times_ns[-1]) + 1 if stop_ns is None and len(chunk.times_ns) else stop_ns or 0
    low, high = np.searchsorted(chunk.times_ns, (start, stop))
    times = chunk.times_ns[low:high]
    part_ns = max(-(-(stop - start) // max(columns, 1)), 1)
    first = np.flatnonzero(np.diff((times - start) // part_ns, prepend=-1))
    usual = {STEP: "last", **rules}
    merged = {
        name: RULES[usual.get(name, "max")](values[low:high], first) if len(first) else values[:0]
        for name, values in chunk.columns.items()
    }
    return msgspec.structs.replace(chunk, times_ns=times[first], columns=merged)


def _last(values: Array, first: Array) -> Array:
    """The last known value of each part."""
    places = np.where(np.isnan(values), -1, np.arange(len(values)))
    last = np.maximum.reduceat(places, first)
    return np.where(last < first, np.nan, values[last])


def _sum(values: Array, first: Array) -> Array:
    is_known = ~np.isnan(values)
    sums = np.add.reduceat(np.where(is_known, values, 0.0), first)
    return np.where(np.logical_or.reduceat(is_known, first), sums, np.nan)


def _or(values: Array, first: Array) -> Array:
    is_known = np.isfinite(values)
    bits = np.bitwise_or.reduceat(np.where(is_known, values, 0.0).astype(np.int64), first)
    return np.where(np.logical_or.reduceat(is_known, first), bits.astype(np.float64), np.nan)


RULES: dict[str, Callable[[Array, Array], Array]] = {
    "max": np.fmax.reduceat,
    "min": np.fmin.reduceat,
    "last": _last,
    "sum": _sum,
    "or": _or,
}


Details = dict[str, Any]

__all__ = ["Chunk", "Latest", "downsample", "grown_details", "newest", "newest_times", "samples"]
logger = logging.getLogger("rangewatch.server")

PLACES_AT_ONCE = 32  # keys of processes in one query: one a rank costs PostgreSQL a millisecond each
MAX_ROWS = 1_000_000  # of one answer: with 30 columns 240 MB
_row, _stream = tables.samples.c, tables.streams.c


class Chunk(msgspec.Struct, frozen=True):
    """Rows of one rank and key: `times_ns` (n,) int64 ascending, `columns` (n,) float64 each, NaN where unknown."""

    rank: int
    key: str
    times_ns: Array
    columns: dict[str, Array]
    about: Details
    incarnation: str
    """The process: numbers that it counts, such as those of collectives, begin anew with the next one."""


class Latest(msgspec.Struct, frozen=True):
    """The newest row of a rank and key; NaN where unknown."""

    rank: int
    key: str
    time_ns: int
    columns: dict[str, float]
    about: Details


class _Place(msgspec.Struct, frozen=True):
    """Where chunks are searched for: one key of one process."""

    stream_id: int
    rank: int
    key: str
    incarnation: str = ""


class _Range(msgspec.Struct, frozen=True):
    """Rows in [start_ns, stop_ns) of the steps first_step to last_step; None for no limit."""

    start_ns: int | None
    stop_ns: int | None
    first_step: int | None
    last_step: int | None

    def wheres(self) -> Iterator[ColumnElement[bool]]:
        """What a row of the table must be to hold such rows."""
        if self.start_ns is not None:
            yield _row.last_ns >= self.start_ns
        if self.stop_ns is not None:
            yield _row.first_ns < self.stop_ns
            yield _row.last_ns < self.stop_ns + SPAN_NS
        if self.first_step is not None:
            yield _row.last_step >= self.first_step
        if self.last_step is not None:
            yield _row.first_step <= self.last_step

    def cut(self, part: Part) -> Part:
        """The rows of a part that are asked for."""
        wanted = np.ones(len(part.times_ns), np.bool_)
        if self.start_ns is not None:
            wanted &= part.times_ns >= self.start_ns
        if self.stop_ns is not None:
            wanted &= part.times_ns < self.stop_ns
        if self.first_step is not None or self.last_step is not None:
            wanted &= self._has_step(part)
        if wanted.all():
            return part
        return Part(part.times_ns[wanted], {name: each[wanted] for name, each in part.columns.items()}, part.about)

    def _has_step(self, part: Part) -> Array:
        steps = part.columns.get(STEP)
        if steps is None:
            return np.zeros(len(part.times_ns), np.bool_)
        low = -np.inf if self.first_step is None else self.first_step
        high = np.inf if self.last_step is None else self.last_step
        return np.asarray((steps >= low) & (steps <= high))


ANY = _Range(None, None, None, None)


def samples(
    run: RunReader, source: str, ranks: Sequence[int] | None = None, keys: Sequence[str] | None = None,
    start_ns: int | None = None, stop_ns: int | None = None, first_step: int | None = None,
    last_step: int | None = None, limit_rows: int = MAX_ROWS,
) -> list[Chunk]:  # fmt: skip
    """Rows of a source in [start_ns, stop_ns) and of the steps first_step to last_step, both included; by rank and key.

    Steps alone look at every chunk of the source: say the time, too, where it is known. What is damaged is left out,
    and is in `run.damage`. Raises `ApiError` when there are more than `limit_rows`.
    """
    wanted = _Range(start_ns, stop_ns, first_step, last_step)
    known: dict[bytes, Details] = {}  # decoded before
    chunks: list[Chunk] = []
    for place, rows in _rows(run, source, _places(run, source, ranks, keys), wanted):
        groups: list[list[Part]] = []  # a chunk each: for as long as the details mean the same
        details: list[Details] = []
        for part in _parts(run, place, rows, wanted):
            if groups and part.about == groups[-1][-1].about:
                groups[-1].append(part)
                continue
            about = known.get(part.about)
            if about is None:
                about = known[part.about] = msgspec.json.decode(part.about)
            grown = grown_details(details[-1], about) if groups else None
            if grown is None:
                groups.append([part])
                details.append(about)
            else:
                groups[-1].append(part)
                details[-1] = grown
        chunks += [_chunk(place, group, about) for group, about in zip(groups, details, strict=True)]
        limit_rows -= sum(len(part.times_ns) for group in groups for part in group)
        if limit_rows < 0:
            text = "there are too many samples; ask for fewer ranks, or a shorter time"
            raise ApiError(422, "too_many_samples", text)
    return chunks


def newest(run: RunReader, source: str) -> list[Latest]:
    """The newest row of each key of each rank's newest process, by rank and key; one query."""
    ranks = {rank.streams[-1].id: rank.rank for rank in run.ranks.values()}
    keys = _keys(run.id, source, list(ranks))
    mine = (_row.run_id == run.id) & (_row.source == source)
    # A scalar, as a join is planned from the wrong end: every chunk of the run, and then whether it is the newest.
    payload = (
        select(_row.payload)
        .where(mine, _row.stream_id == keys.c.stream_id, _row.sample_key == keys.c.sample_key)
        .order_by(_row.last_ns.desc(), _row.first_ns.desc())  # as the index has them: nothing is sorted
        .limit(1)
    )
    columns = (keys.c.stream_id, keys.c.sample_key, payload.correlate(keys).scalar_subquery().label("payload"))
    rows = run.connection.execute(select(*columns).where(_is_key(keys))).all() if ranks else []
    result: list[Latest] = []
    for row in sorted(rows, key=lambda each: (ranks[each.stream_id], each.sample_key)):
        deadline.check()
        place = _Place(row.stream_id, ranks[row.stream_id], row.sample_key)
        try:
            parts = decode(row.payload)
        except SamplesError:
            for _, stored in _rows(run, source, [place], ANY):
                list(_parts(run, place, stored, ANY))  # says which it is
            continue
        part = max(reversed(parts), key=lambda each: int(each.times_ns[-1]))
        last = {name: float(values[-1]) for name, values in part.columns.items()}
        about = msgspec.json.decode(part.about)
        result.append(Latest(place.rank, place.key, int(part.times_ns[-1]), last, about))
    return result


def newest_times(run: RunReader, source: str) -> dict[int, int]:
    """Rank -> the time of its newest row of any key, of its newest process; nothing is unpacked."""
    ranks = {rank.streams[-1].id: rank.rank for rank in run.ranks.values()}
    if not ranks:
        return {}
    keys = _keys(run.id, source, list(ranks))
    last = select(func.max(_row.last_ns)).where(
        _row.run_id == run.id, _row.source == source, _row.stream_id == keys.c.stream_id,
        _row.sample_key == keys.c.sample_key,
    )  # fmt: skip
    rows = run.connection.execute(select(keys.c.stream_id, last.correlate(keys).scalar_subquery()).where(_is_key(keys)))
    times_ns: dict[int, int] = {}
    for stream, last_ns in rows:
        times_ns[ranks[stream]] = max(int(last_ns), times_ns.get(ranks[stream], 0))
    return times_ns


def _places(run: RunReader, source: str, ranks: Sequence[int] | None, keys: Sequence[str] | None) -> list[_Place]:
    """By rank, key and age of the process."""
    of_ranks = (
        run.ranks.values() if ranks is None else [run.ranks[rank] for rank in sorted(set(ranks)) if rank in run.ranks]
    )
    streams = {row.id: (each.rank, place, row.incarnation) for each in of_ranks for place, row in enumerate(each.rows)}
    if not streams:
        return []
    named = _keys(run.id, source, list(streams))
    rows = run.connection.execute(select(named.c.stream_id, named.c.sample_key).where(_is_key(named)))
    there = [(streams[stream], stream, key) for stream, key in rows if keys is None or key in keys]
    there.sort(key=lambda each: (each[0][0], each[2], each[0][1]))
    return [_Place(stream, rank, key, incarnation) for (rank, _, incarnation), stream, key in there]


def _keys(run_id: int, source: str, streams: list[int]) -> CTE:
    """(stream_id, sample_key) of each key of each process, and a row with none at its end.

    Each key is found by the one before, so it costs the keys that there are and not the chunks.
    """
    begin = select(_stream.id.label("stream_id")).where(_stream.id.in_(streams)).subquery()
    least = select(func.min(_row.sample_key)).where(
        _row.run_id == run_id, _row.source == source, _row.stream_id == begin.c.stream_id
    )
    keys = select(begin.c.stream_id, least.correlate(begin).scalar_subquery().label("sample_key")).cte(
        "keys", recursive=True
    )
    after = select(func.min(_row.sample_key)).where(
        _row.run_id == run_id, _row.source == source, _row.stream_id == keys.c.stream_id,
        _row.sample_key > keys.c.sample_key,
    )  # fmt: skip
    following: Select[Any] = select(keys.c.stream_id, after.correlate(keys).scalar_subquery())
    return keys.union_all(following.where(_is_key(keys)))


def _is_key(keys: CTE) -> ColumnElement[bool]:
    return keys.c.sample_key.is_not(None)


def _rows(run: RunReader, source: str, places: Sequence[_Place], wanted: _Range) -> Iterator[tuple[_Place, list[Any]]]:
    """The rows of the table that hold what is asked for, by place, in the order in which they were sent."""
    columns = (
        _row.stream_id, _row.sequence, _row.number, _row.source, _row.first_step, _row.last_step, _row.payload,
    )  # fmt: skip
    mine = (_row.run_id == run.id) & (_row.source == source)
    for key, alike in groupby(places, key=lambda place: place.key):
        for some in batched(alike, PLACES_AT_ONCE):
            streams = [place.stream_id for place in some]
            query = select(*columns).where(mine, _row.sample_key == key, _row.stream_id.in_(streams), *wanted.wheres())
            # Sorted here: in the query it would be read by the primary key, all sources and times of it.
            rows = sorted(run.connection.execute(query).all(), key=lambda each: each[:3])
            of_stream = {stream: list(group) for stream, group in groupby(rows, key=lambda each: each[0])}
            yield from ((place, of_stream.get(place.stream_id, [])) for place in some)


def batched(places: Iterable[_Place], count: int) -> Iterator[list[_Place]]:
    """`count` at a time; the last ones are fewer."""
    rest = iter(places)
    while some := list(islice(rest, count)):
        yield some


def _parts(run: RunReader, place: _Place, rows: Sequence[Any], wanted: _Range) -> Iterator[Part]:
    """What is asked for of a place's rows; a damaged one is left out, which is said."""
    for row in rows:
        deadline.check()
        try:
            parts = decode(row.payload)
        except SamplesError as error:
            first, last = row.first_step or 0, row.last_step or 0
            run.damage.add(Damage(place.rank, f"samples {row.source}", 0, row.sequence, first, last + 1))
            logger.warning("run %d, stream %d, batch %d: %s", run.id, row.stream_id, row.sequence, error)
            continue
        yield from (part for part in map(wanted.cut, parts) if len(part.times_ns))


class _Other(Exception):
    """A detail has become another."""


def grown_details(before: Details, after: Details) -> Details | None:
    """Details that hold for both: what is new is added, a list goes on; None where something has become another."""
    try:
        return _both(before, after)
    except _Other:
        return None


def _both(before: Any, after: Any) -> Any:
    if isinstance(before, dict) and isinstance(after, dict):
        return before | after | {name: _both(before[name], after[name]) for name in before if name in after}
    if isinstance(before, list) and isinstance(after, list):
        shorter, longer = sorted((before, after), key=len)
        before, after = shorter, longer[: len(shorter)]
        if before == after:
            return longer
    if before != after:
        raise _Other
    return after


def _chunk(place: _Place, parts: Sequence[Part], about: Details) -> Chunk:
    times = np.concatenate([part.times_ns for part in parts])
    names = dict.fromkeys(name for part in parts for name in part.columns)
    columns: dict[str, Array] = {}
    for name in names:
        values = (part.columns.get(name) for part in parts)
        known = [np.full(len(part.times_ns), np.nan) if v is None else v for part, v in zip(parts, values, strict=True)]
        columns[name] = np.concatenate(known, dtype=np.float64)
    if not bool((np.diff(times) >= 0).all()):
        order = np.argsort(times, kind="stable")
        times, columns = times[order], {name: values[order] for name, values in columns.items()}
    return Chunk(place.rank, place.key, times, columns, about, place.incarnation)
