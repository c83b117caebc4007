"""Makes a full spool smaller without losing a spike: neighbouring batches become one, with half the rows of steps.

Rows of tensors merge by the statistics' own rules, as `ship_every` does. Series, events and samples stay as they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch import limits, statistics, wire
from rangewatch.records import Batch, Event, RangeRows, Samples, SeriesRows
from rangewatch.spool.record import Encoded
from rangewatch.statistics import exponents
from rangewatch.wire import messages

EVENT = "spool_merged"
_STATISTICS = {each.name: each for each in (*statistics.ALL, *exponents.ALL)}
_RULES = {"max": np.maximum, "min": np.minimum, "sum": np.add}


class _Read(NamedTuple):
    encoded: Encoded
    batch: Batch


def halved(batches: Iterable[Encoded], every: int) -> Iterator[Encoded]:
    """Each two neighbours as one, with one row for the steps of the same `step // every`.

    Where two would be too much for the wire, or have one row each that stay two, each by itself; and where nothing can
    be done, as it is. One that has one row waits for the neighbour that shares its group: a slow training has one step
    a batch, and pairs that lie across two groups would become no smaller at any time.
    """
    left: _Read | None = None
    for each in batches:
        right = _read(each)
        both = _pair(left, right, every)
        if both is not None:
            yield both
            left = None
            continue
        if left is not None:
            yield _one([left], every) or left.encoded
        if right is None:
            yield each
        left = right
    if left is not None:
        yield _one([left], every) or left.encoded


def merged(batches: Sequence[Encoded], every: int) -> Encoded | None:
    """One batch instead of several that follow one another, with one row for the steps of the same `step // every`.

    None where the wire would not take it, or they cannot be merged. It has the sequence and the catalogue of the last:
    a catalogue only grows, and `settled` tells the server that the sequences before it will not come.

    Steps with NaN or Inf, those in `whole`, and those that would be merged with either, keep their rows.
    """
    found = [read for each in batches if (read := _read(each)) is not None]
    return _one(found, every) if len(found) == len(batches) else None


def _read(encoded: Encoded) -> _Read | None:
    try:
        message = wire.decode(encoded.body)
    except wire.WireError:
        return None
    return _Read(encoded, message) if isinstance(message, Batch) else None


def _pair(left: _Read | None, right: _Read | None, every: int) -> Encoded | None:
    if left is None or right is None:
        return None
    steps = [each.batch.ranges.steps for each in (left, right) if each.batch.ranges is not None]
    are_apart = [len(each) for each in steps] == [1, 1] and steps[0][0] // every != steps[1][0] // every
    return None if are_apart else _one([left, right], every)


def _one(found: list[_Read], every: int) -> Encoded | None:
    batches = [each.encoded for each in found]
    whole = tuple(sorted(set(chain.from_iterable(each.whole for each in batches))))
    if not (result := _merged([each.batch for each in found], every, whole)):
        return None
    body = wire.encode(result)
    try:
        wire.decode(body)  # as the server will: what it would refuse for good is better left apart
    except wire.WireError:
        return None
    last = batches[-1]
    return Encoded(body, last.tensor_count, last.catalogue, last.sequence, whole, sum(each.batches for each in batches))


def _merged(batches: list[Batch], every: int, whole: tuple[int, ...]) -> Batch | None:
    rows = [each.ranges for each in batches if each.ranges is not None]
    joined = _joined_rows(rows) if rows else None
    series = _joined_series(each.series for each in batches)
    samples = _joined_samples(chain.from_iterable(each.samples for each in batches))
    if (rows and joined is None) or not _fits(series, samples):
        return None
    events = [event for each in batches for event in each.events if event.kind != EVENT]
    ranges = None if joined is None else _halved(joined, every, whole)
    if ranges is not None and joined is not None and (len(ranges.steps) < len(joined.steps) or _was_merged(batches)):
        events.append(_event(ranges, every, batches))
    return msgspec.structs.replace(
        batches[-1], ranges=ranges, series=series, events=tuple(events), samples=samples
    )  # fmt: skip


def _joined_rows(rows: list[RangeRows]) -> RangeRows | None:
    """All rows in one table: what was not observed in one holds the identities. None where that is too much."""
    steps = np.concatenate([each.steps for each in rows])
    tensors = np.unique(np.concatenate([each.tensors for each in rows]))
    names = dict.fromkeys(chain.from_iterable(each.columns for each in rows))
    is_known = all(name in _STATISTICS for name in names)
    values = len(steps) * len(tensors) * len(names)
    if not is_known or values > limits.SPOOL_MERGED_VALUES or not bool((np.diff(steps) > 0).all()):
        return None
    shape = len(tensors), len(steps)
    columns = {name: np.full(shape, _STATISTICS[name].identity) for name in names}
    stop = 0
    for each in rows:
        start, stop = stop, stop + len(each.steps)
        places = np.searchsorted(tensors, each.tensors)
        for name, values_of in each.columns.items():
            columns[name][places, start:stop] = values_of
    return RangeRows(steps, tensors, columns)


def _halved(rows: RangeRows, every: int, whole: tuple[int, ...]) -> RangeRows:
    if len(rows.steps) < 2:
        return rows
    starts = _starts(rows, every, whole)
    columns = {
        name: _RULES[_STATISTICS[name].merge].reduceat(values, starts, axis=1) for name, values in rows.columns.items()
    }
    return RangeRows(rows.steps[np.append(starts[1:], len(rows.steps)) - 1], rows.tensors, columns)


def _starts(rows: RangeRows, every: int, whole: tuple[int, ...]) -> NDArray[np.intp]:
    """Where each new row begins."""
    group = rows.steps // every
    is_kept = np.isin(rows.steps, whole)
    for name in ("nan_count", "inf_count"):
        if name in rows.columns:
            is_kept |= rows.columns[name].any(axis=0)
    is_alone = np.isin(group, np.unique(group[is_kept]))
    return np.flatnonzero(np.append(True, group[1:] != group[:-1]) | is_alone)


def _joined_series(parts: Iterable[tuple[SeriesRows, ...]]) -> tuple[SeriesRows, ...]:
    found: dict[str, dict[int, float]] = {}
    for rows in chain.from_iterable(parts):
        found.setdefault(rows.name, {}).update(zip(rows.steps.tolist(), rows.values.tolist(), strict=True))
    return tuple(
        SeriesRows(name, np.array(sorted(values), np.int64), np.array([values[step] for step in sorted(values)]))
        for name, values in found.items()
    )


def _joined_samples(tables: Iterable[Samples]) -> tuple[Samples, ...]:
    """Tables that continue one another as one: of the same source, key, columns and facts, and later."""
    found: list[Samples] = []
    newest: dict[tuple[str, str], int] = {}
    for each in tables:
        position = newest.get((each.source, each.key))
        if position is not None and _continues(found[position], each):
            found[position] = _appended(found[position], each)
        else:
            newest[each.source, each.key] = len(found)
            found.append(each)
    return tuple(found)


def _continues(before: Samples, after: Samples) -> bool:
    if before.about != after.about or list(before.columns) != list(after.columns):
        return False
    rows = len(before.times_ns) + len(after.times_ns)
    return rows <= messages.MAX_SAMPLE_ROWS and bool(before.times_ns[-1:] <= after.times_ns[:1])


def _appended(before: Samples, after: Samples) -> Samples:
    columns: dict[str, Any] = {
        name: np.concatenate([values, after.columns[name]]) for name, values in before.columns.items()
    }
    times_ns = np.concatenate([before.times_ns, after.times_ns])
    return msgspec.structs.replace(before, times_ns=times_ns, columns=columns)


def _fits(series: tuple[SeriesRows, ...], samples: tuple[Samples, ...]) -> bool:
    if len(series) > messages.MAX_SERIES or len(samples) > messages.MAX_SAMPLES:
        return False
    return all(len(rows.steps) <= messages.MAX_STEPS for rows in series)


def _was_merged(batches: list[Batch]) -> bool:
    return any(event.kind == EVENT for each in batches for event in each.events)


def _event(ranges: RangeRows, every: int, batches: list[Batch]) -> Event:
    """Says in the run itself which steps have shared rows: those between them are no gap."""
    earlier = [event for each in batches for event in each.events if event.kind == EVENT]
    first = min([int(ranges.steps[0]) // every * every, *(event.data["first_step"] for event in earlier)])
    last = int(ranges.steps[-1])
    message = f"steps {first} to {last} have one row for up to {every} steps: the server was away and the spool full"
    data = {"first_step": first, "last_step": last, "steps_a_row": every}
    return Event(EVENT, time.time_ns(), last, message, data)
