"""What a batch must hold against its catalogue before anything of it is stored. Raises `WireError`, in one line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.statistics import ALL, experts, exponents, formats, in_use, is_count, scales, sketches
from rangewatch.wire import WireError
from rangewatch.wire.records import (
    KINDS,
    Batch,
    Event,
    RangeRows,
    Samples,
    SeriesRows,
    Statistic,
    StreamHeader,
)
from rangewatch_server.store.samples import STEP, spans
from rangewatch_server.store.tiles import WIDTH

Array = NDArray[Any]

MAX_NAME_BYTES = 4_096  # of a run, module, host, series or event
# Of an incarnation and of an event's kind, which lie in indexes: PostgreSQL bounds a row of one by 2.7 kB, and the
# error is the whole transaction's, with all messages in it.
MAX_INDEXED_BYTES = 256
MAX_RANK = 1_000_000
MAX_STEP = 10**12
MAX_EVENTS = 1_000  # in one batch
MAX_COUNT = 2.0**53  # float64 holds whole numbers exactly up to here
MAX_SPANS = 128  # spans of 64 steps that one batch may touch: each is a tile to fold, 2 ms of the one writer
MAX_EVENT_BYTES = 1 << 20  # of one event's details as JSON
MAX_DIMS = 64
MAX_SOURCE_BYTES, MAX_KEY_BYTES = 100, 512  # of samples: both are in one index, whose rows PostgreSQL bounds by 2.7 KB
MAX_SAMPLE_COLUMNS = 128
MAX_ABOUT_BYTES = 256 << 10  # of the facts beside samples as JSON
MAX_HOURS = 64  # that one table of samples may lie in: each becomes a row of the database
MAX_TIME_NS = 2**62  # the year 2116: sums of two times stay within 63 bits
INT32, INT63 = 2**31, 2**63  # what the database columns hold
MERGES = ("max", "min", "sum")
# What the agent itself records of a step, by name: the least and the largest that can be, NaN apart. Loss scales are
# the user's own, and found_inf is what some scaler answered.
MAX_SERIES_S = 1e9  # of one step: 32 years
PHASES = ("data_wait", "forward", "backward", "exposed_comm", "optimizer", "other")
SERIES_BOUNDS = (
    dict.fromkeys(
        ("skipped_step", "weights_finite", "mask_share", "added_mask_share", "attention_share", "token_share"), 1.0
    )
    | dict.fromkeys(("eval_passes", "eval_nonfinite", "bad_norms", "untrained_norms"), MAX_COUNT)
    | dict.fromkeys(("memory_allocated_bytes", "memory_reserved_bytes", "memory_peak_bytes"), MAX_COUNT)
    | dict.fromkeys(("process_resident_bytes", "process_resident_peak_bytes"), MAX_COUNT)
    | {"wall_time_s": MAX_TIME_NS / 1e9}
    | dict.fromkeys(("step_time_s", "agent_time_s", "agent_device_time_s"), MAX_SERIES_S)
    | dict.fromkeys((f"{each}_s" for each in PHASES), MAX_SERIES_S)
)
NEEDED = ("call_count", "amax", "nan_count", "inf_count")
KNOWN = {
    each.name: each
    for each in (*ALL, *exponents.ALL, *formats.ALL, *in_use.ALL, *scales.ALL, *sketches.ALL, *experts.ALL)
}


def check_opening(opening: StreamHeader) -> None:
    """Names, numbers and statistics of an opening."""
    info = opening.info
    _names([info.run, info.host, info.incarnation, info.device, *info.versions, *info.versions.values()])
    if not info.run or not info.incarnation:
        raise WireError("bad_header", "run and incarnation must not be empty")
    _indexed("incarnation", info.incarnation)
    _rank(info.rank)
    _whole((info.world_size, info.local_rank, info.pid), INT32)
    _whole((info.started_ns,), INT63)
    names = [each.name for each in opening.catalogue.statistics]
    if len(set(names)) != len(names) or any(each.merge not in MERGES for each in opening.catalogue.statistics):
        raise WireError("bad_header", f"statistics need distinct names and a merge of {', '.join(MERGES)}")
    if missing := [name for name in NEEDED if name not in names]:
        raise WireError("bad_header", f"catalogue lacks the statistics {', '.join(missing)}")
    check_statistics(opening.catalogue.statistics, KNOWN)
    for entry in opening.catalogue.tensors:
        if entry.kind not in KINDS:
            raise WireError("bad_header", f"tensor kind {entry.kind[:40]!r} is not one of {', '.join(KINDS)}")
        _names([entry.fqn, entry.dtype, entry.module])
        _whole((entry.index, entry.call_index), INT32)
        _whole((len(entry.shape),), MAX_DIMS)
        _whole(entry.shape, INT63)


def check_statistics(given: Iterable[Statistic], known: Mapping[str, Statistic]) -> None:
    """None of a known name may mean something else: ranks are merged by one rule. Help texts may differ."""
    for each in given:
        expected = known.get(each.name, each)
        for field in ("merge", "unit", "identity"):
            sent, meant = repr(getattr(each, field)), repr(getattr(expected, field))  # NaN is no other than NaN
            if sent != meant:
                text = f"statistic {each.name[:60]!r}: its {field} is {sent[:60]}, and {meant[:60]} elsewhere"
                raise WireError("wrong_statistic", text)


def check_header(batch: Batch) -> None:
    """Names, numbers and sizes that need no catalogue."""
    _names([batch.run, batch.incarnation, batch.catalogue, *(rows.name for rows in batch.series)])
    _indexed("incarnation", batch.incarnation)
    _rank(batch.rank)
    if not 0 <= batch.sequence < 2**62:
        raise WireError("bad_header", f"sequence {batch.sequence} is out of bounds")
    if not 0 <= batch.settled <= batch.sequence:
        raise WireError("bad_header", f"settled {batch.settled} is not between 0 and sequence {batch.sequence}")
    if len(batch.events) > MAX_EVENTS:
        raise WireError("too_large", f"{len(batch.events)} events in one batch; at most {MAX_EVENTS} are taken")
    for event in batch.events:
        _names([event.kind, event.message])
        _indexed("kind of an event", event.kind)
        if not (0 <= event.time_ns < 2**63 and -1 <= event.step <= MAX_STEP):
            raise WireError("bad_header", "event time or step is out of bounds")
        _details(event)
    for samples in batch.samples:
        check_samples(samples)
    if len({rows.name for rows in batch.series}) != len(batch.series):
        raise WireError("bad_header", "a series appears twice")
    for rows in batch.series:
        _series(rows)
    for steps in [rows.steps for rows in (batch.ranges, *batch.series) if rows is not None]:
        if len(steps) and int(steps[-1]) > MAX_STEP:
            raise WireError("bad_header", f"step {steps[-1]} is past {MAX_STEP}")
        if len(np.unique(steps // WIDTH)) > MAX_SPANS:
            raise WireError("too_large", f"steps lie in more than {MAX_SPANS} spans of {WIDTH}; send fewer in a batch")


def _series(rows: SeriesRows) -> None:
    most = SERIES_BOUNDS.get(rows.name)
    if most is None or not len(rows.values):
        return
    least, largest = float(np.fmin.reduce(rows.values)), float(np.fmax.reduce(rows.values))  # NaN where all are
    if least < 0 or largest > most:
        raise WireError("invalid_value", f"series {rows.name!r}: a value that is not between 0 and {most:g}")


def check_samples(samples: Samples) -> None:
    """Names, facts, times and steps of a table of samples, whose lengths fit one another."""
    _names([samples.source, samples.key, *samples.columns])
    if not 0 < len(samples.source.encode()) <= MAX_SOURCE_BYTES or len(samples.key.encode()) > MAX_KEY_BYTES:
        raise WireError(
            "bad_header", f"the source of samples has 1 to {MAX_SOURCE_BYTES} bytes, their key at most {MAX_KEY_BYTES}"
        )
    if len(samples.columns) > MAX_SAMPLE_COLUMNS:
        raise WireError("too_large", f"{len(samples.columns)} columns of samples; at most {MAX_SAMPLE_COLUMNS}")
    if _json_bytes(samples.about, f"facts of samples {samples.source!r}") > MAX_ABOUT_BYTES:
        raise WireError("too_large", f"facts of samples {samples.source!r} have more than {MAX_ABOUT_BYTES} bytes")
    times = samples.times_ns
    if len(times) and not (times.min() >= 0 and times.max() < MAX_TIME_NS and bool((np.diff(times) >= 0).all())):
        raise WireError("bad_header", f"times of samples must be ascending, from 0 and below {MAX_TIME_NS} ns")
    if sum(1 for _ in islice(spans(times), MAX_HOURS + 1)) > MAX_HOURS:
        raise WireError("too_large", f"times of one table of samples lie in more than {MAX_HOURS} hours")
    _steps(samples)


def _steps(samples: Samples) -> None:
    steps = samples.columns.get(STEP)
    if steps is None or not len(steps):
        return
    # NaN and infinities fail the first comparison, which is with floats whatever the column's dtype.
    if not (float(steps.min()) >= -1 and float(steps.max()) <= MAX_STEP and bool((steps == np.floor(steps)).all())):
        raise WireError("invalid_value", f"steps of samples {samples.source!r} must be whole, from -1 to {MAX_STEP}")


def check_ranges(ranges: RangeRows, given: Sequence[Statistic], tensors: int) -> None:
    """Shapes and values of a batch's ranges."""
    if len(ranges.tensors) and ranges.tensors[-1] >= tensors:
        raise WireError("shape_mismatch", f"tensor {ranges.tensors[-1]} is not in its catalogue of {tensors}")
    statistics = {each.name: each for each in given}
    for name, values in ranges.columns.items():
        if name not in statistics:
            raise WireError("shape_mismatch", f"column {name[:60]!r} is not in the catalogue")
        _values(statistics[name], values)


def _values(statistic: Statistic, values: Array) -> None:
    if not values.size:
        return
    if not any(values.strides):
        values = values[:1, :1]
    if values.dtype.kind == "u":  # unsigned whole numbers of at most 4 bytes: nothing can be wrong
        return
    least, largest = float(values.min()), float(values.max())  # NaN comes through both
    if not least >= 0:
        raise WireError("invalid_value", f"{statistic.name}: NaN or a negative number where none can be")
    if is_count(statistic) and (largest > MAX_COUNT or bool((values != np.floor(values)).any())):
        raise WireError("invalid_value", f"{statistic.name}: not a whole number of {statistic.unit}")
    if statistic.merge == "max" and largest == np.inf:
        raise WireError("invalid_value", f"{statistic.name}: Inf where a finite magnitude belongs")


def _whole(values: Iterable[int], below: int) -> None:
    for value in values:
        if not 0 <= value < below:
            raise WireError("bad_header", f"the number {value} is out of bounds")


def _details(event: Event) -> None:
    what = f"details of the event {event.kind[:40]!r}"
    if (size := _json_bytes(event.data, what)) > MAX_EVENT_BYTES:
        raise WireError("too_large", f"{what} have {size} bytes")


def _json_bytes(details: dict[str, Any], what: str) -> int:
    try:
        return len(msgspec.json.encode(details))
    except (TypeError, ValueError, OverflowError, RecursionError):
        raise WireError("bad_header", f"{what} are not plain values") from None


def _rank(rank: int) -> None:
    if not 0 <= rank < MAX_RANK:
        raise WireError("bad_header", f"rank {rank} is out of bounds")


def _names(names: Iterable[str]) -> None:
    for name in names:
        if "\0" in name or len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
            raise WireError("bad_header", f"a name holds NUL or is longer than {MAX_NAME_BYTES} bytes")


def _indexed(what: str, name: str) -> None:
    if len(name.encode("utf-8", "replace")) > MAX_INDEXED_BYTES:
        raise WireError("bad_header", f"the {what} is longer than {MAX_INDEXED_BYTES} bytes")
