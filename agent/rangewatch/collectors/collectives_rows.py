"""Records of collectives as samples that travel."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from rangewatch.collectors.collectives_ledger import ENDED, FAILED, Record
from rangewatch.collectors.collectives_ops import POINT_TO_POINT
from rangewatch.collectors.ddp_buckets import Bucket
from rangewatch.records import Samples

SOURCE = "collective"

_Key = TypeVar("_Key", bound=Hashable)


class _Numbers(dict[_Key, int]):
    """Numbers things in the order in which they come."""

    def __missing__(self, key: _Key) -> int:
        self[key] = len(self)
        return self[key]


def samples(records: Sequence[Record], rung: str, buckets: Sequence[Bucket]) -> Samples:
    """One row a record, in the order of their calls. Columns `group`, `op` and `dtype` are numbers of `about`'s lists.

    `bytes`, `sequence` (NaN for send and recv), `duration_s` (NaN where it is not known), `bucket` (NaN where it is
    none), `is_symmetric`, `is_async`, `has_failed` (0 or 1) and `step`. `buckets`: given when they are to travel.
    """
    rows = sorted((record for record in records if record.group is not None), key=lambda record: record.enqueued_ns)
    groups: _Numbers[Any] = _Numbers()
    ops: _Numbers[str] = _Numbers()
    dtypes: _Numbers[str] = _Numbers()
    columns = {
        "step": _column(record.step for record in rows),
        "group": _column(groups[record.group] for record in rows),
        "op": _column(ops[record.kind.name] for record in rows),
        "dtype": _column(dtypes[record.dtype] for record in rows),
        "bytes": _column(record.bytes for record in rows),
        "sequence": _column(np.nan if record.kind.name in POINT_TO_POINT else record.sequence for record in rows),
        "duration_s": _column(record.duration_s if record.state == ENDED else np.nan for record in rows),
        "bucket": _column(record.bucket if record.bucket >= 0 else np.nan for record in rows),
        "is_symmetric": _column(record.kind.is_symmetric for record in rows),
        "is_async": _column(record.is_async for record in rows),
        "has_failed": _column(record.state == FAILED for record in rows),
    }
    about: dict[str, Any] = {
        "groups": [group.about() for group in groups],
        "ops": list(ops),
        "dtypes": list(dtypes),
        "rung": rung,
    }
    if buckets:
        about["buckets"] = {str(number): bucket.parameters for number, bucket in enumerate(buckets)}
    times_ns = np.fromiter((record.enqueued_ns for record in rows), np.int64, len(rows))
    return Samples(SOURCE, "", times_ns, columns, about)


def _column(values: Iterable[float]) -> Any:
    return np.array(list(values), np.float64)
