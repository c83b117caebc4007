"""Records of collectives as they are stored: which steps can be matched at once, and those steps' records.

The parameters of DDP's buckets, where the records that are shown lack them: ranks report them once a minute.
"""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray
from sqlalchemy import func, select

from rangewatch_server.core import deadline
from rangewatch_server.query.reader import RunReader
from rangewatch_server.query.samples import samples
from rangewatch_server.store import tables
from rangewatch_server.store.samples import SamplesError, decode

Array = NDArray[Any]

SOURCE = "collective"
MOST_STEPS = 200  # looked at: what is older is history, and a verdict needs some ten
MOST_ROWS = 600_000  # of all ranks: half a second to read and match
FEWER = (MOST_STEPS, 128, 96, 64, 48, 32, 24, 16, 10)
NAMES_OF_A_GROUP = ("hash", "name", "desc", "backend", "instance")
_row = tables.samples.c


class Chunk(msgspec.Struct, frozen=True):
    """Samples as the analysis takes them: `incarnation` is a number there, and later processes have higher ones."""

    times_ns: Array
    columns: dict[str, Array]
    about: dict[str, Any]
    incarnation: int


def chunks(run: RunReader, first_step: int, last_step: int) -> dict[int, list[Chunk]]:
    """Records of the steps first_step to last_step, both included, by rank."""
    ordinals = {row.incarnation: row.ordinal for rank in run.ranks.values() for row in rank.rows}
    by_rank: dict[int, list[Chunk]] = {rank: [] for rank in run.ranks}
    details: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}  # of most ranks they are one object
    for each in samples(run, SOURCE, first_step=first_step, last_step=last_step, limit_rows=4 * MOST_ROWS):
        incarnation = ordinals.get(each.incarnation, 0)
        if id(each.about) not in details:
            details[id(each.about)] = each.about, _details(each.about)
        by_rank[each.rank].append(Chunk(each.times_ns, each.columns, details[id(each.about)][1], incarnation))
    for rank, known in by_rank.items():  # records of a process that has just begun may come seconds after others'
        newest = run.ranks[rank].row.ordinal
        if known and all(each.incarnation != newest for each in known):
            known.append(Chunk(np.zeros(0, np.int64), {}, {}, newest))
    return by_rank


def _details(about: dict[str, Any]) -> dict[str, Any]:
    """What columns refer to by number, as the analysis takes it, whatever an agent has sent."""
    return {
        "groups": [_group(each) for each in _listed(about.get("groups"))],
        "ops": [str(each) for each in _listed(about.get("ops"))],
        "dtypes": [str(each) for each in _listed(about.get("dtypes"))],
        "buckets": buckets if isinstance(buckets := about.get("buckets"), dict | list) else {},
    }


def _group(value: Any) -> dict[str, Any]:
    known = value if isinstance(value, dict) else {}
    ranks = [each for each in _listed(known.get("ranks")) if isinstance(each, int) and each >= 0]
    names = {name: str(known[name]) for name in NAMES_OF_A_GROUP if known.get(name) is not None}
    return {**names, "ranks": ranks}


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def searched_range(run: RunReader, start: int, stop: int, most_rows: int = MOST_ROWS) -> tuple[int, int]:
    """The last steps of [start, stop) with records, as many as have `most_rows`; the same step twice for none."""
    ids = [stream.id for rank in run.ranks.values() for stream in rank.streams]
    mine = (_row.run_id == run.id) & _row.stream_id.in_(ids) & (_row.source == SOURCE)
    last = run.connection.execute(select(func.max(_row.last_step)).where(mine, _row.first_step < stop)).scalar()
    if last is None or last < start:
        return start, start
    stop = min(int(last) + 1, stop)
    for steps in FEWER:
        low = max(start, stop - steps)
        held = select(func.coalesce(func.sum(_row.row_count), 0)).where(mine, _row.last_step >= low)
        if int(run.connection.execute(held.where(_row.first_step < stop)).scalar_one()) <= most_rows:
            break
    return low, stop


MOST_RANKS = 4  # that are asked: all ranks of a model have the same buckets
MOST_CHUNKS = 64  # of each: two minutes of a rank that sends every two seconds


def bucket_names(run: RunReader, source: str, last_step: int) -> Any:
    """What any rank's newest process has reported of its buckets last, until `last_step` or later; {} for nothing."""
    for rank in sorted(run.ranks)[:MOST_RANKS]:
        for payload in run.source.payloads(run.ranks[rank].streams[-1].id, source, last_step, MOST_CHUNKS):
            deadline.check()
            buckets = _reported(payload)
            if buckets:
                return buckets
    return {}


def _reported(payload: bytes) -> Any:
    try:
        parts = decode(payload)
    except SamplesError:
        return {}
    for part in reversed(parts):
        about = msgspec.json.decode(part.about)
        if isinstance(about, dict) and isinstance(buckets := about.get("buckets"), (dict, list)) and buckets:
            return buckets
    return {}
