"""How fast each kind of collective is: algbw and busbw as nccl-tests defines them, with the group's size.

The duration that counts is the least over the ranks, that of the last one to come: the rest is waiting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch_server.collectives.matching import Block, Matched
from rangewatch_server.collectives.records import Array, Group, busbw_factor, parts_of_size


class Speed(msgspec.Struct, frozen=True):
    """One row: a group's collectives of one op and size class. None where it is not known, or would mean nothing.

    Of an op that does not end on all ranks together the durations are the longest of the ranks, and there is no wait.
    `algbw` and `busbw` are the median's, in bytes a second.
    """

    group: Group
    op: str
    least_bytes: int
    """The size class: from this power of two, up to the next. 0: no data."""
    count: int
    timed_count: int
    """Those whose duration is known on any rank."""
    bytes: float
    """All together."""
    is_symmetric: bool
    duration_p50_s: float | None
    duration_p99_s: float | None
    duration_max_s: float | None
    algbw: float | None
    busbw: float | None
    wait_p50_s: float | None
    wait_p99_s: float | None


def speeds(matched: Matched) -> list[Speed]:
    """The table, by group, op and size."""
    rows: list[Speed] = []
    by_group: dict[str, list[Block]] = {}
    for block in matched.blocks:
        by_group.setdefault(f"{block.group.hash} {block.group.name}", []).append(block)
    for blocks in by_group.values():
        rows += _of_group(blocks, matched.ops)
    return sorted(rows, key=lambda row: (row.group.title, row.op, row.least_bytes))


def _of_group(blocks: list[Block], ops: list[str]) -> Iterator[Speed]:
    op, size, symmetric, duration_s = (
        np.concatenate(parts) for parts in zip(*(_timed(block) for block in blocks), strict=True)
    )
    wait_s = [block.duration_s - _along(block, np.fmin) for block in blocks]
    firsts = np.cumsum([0, *(len(block.sequence) for block in blocks)])
    least_bytes = size_class(size)
    classes, which = np.unique(np.stack([op, least_bytes, symmetric]), axis=1, return_inverse=True)
    for number, (op_number, least, is_symmetric) in enumerate(classes.T.tolist()):
        mine = which.reshape(-1) == number
        waited = (
            [each[:, mine[first : first + each.shape[1]]] for each, first in zip(wait_s, firsts, strict=False)]
            if is_symmetric
            else []
        )
        yield _speed(blocks[0], ops[op_number], least, size[mine], duration_s[mine], waited)


def _timed(block: Block) -> tuple[Array, Array, Array, Array]:
    duration_s = np.where(block.is_symmetric, _along(block, np.fmin), _along(block, np.fmax))
    return block.op, block.bytes, block.is_symmetric, np.where(block.is_desync, np.nan, duration_s)


def _along(block: Block, over_ranks: np.ufunc) -> Array:
    return over_ranks.reduce(block.duration_s, axis=0)


def size_class(size: Array) -> Array:
    """(n,) int64: the power of two at or below each number of bytes; 0 for none or unknown."""
    known = np.nan_to_num(size, nan=0.0, posinf=0.0)
    _, exponent = np.frexp(np.maximum(known, 1))
    return np.where(known >= 1, np.int64(1) << np.minimum(exponent - 1, 62).astype(np.int64), 0)


def _speed(block: Block, op: str, least: int, size: Array, duration_s: Array, waited: list[Array]) -> Speed:
    timed = ~np.isnan(duration_s)
    duration = _percentiles(duration_s[timed])
    wait = _percentiles(np.concatenate([each[~np.isnan(each)] for each in waited])) if waited else (None,) * 3
    with np.errstate(divide="ignore", invalid="ignore"):
        rate = size[timed] / duration_s[timed]
    algbw = _finite(float(np.median(rate[np.isfinite(rate)]))) if least and np.isfinite(rate).any() else None
    algbw = algbw and algbw * parts_of_size(op, block.size)
    factor = busbw_factor(op, block.size)
    return Speed(
        group=block.group,
        op=op,
        least_bytes=least,
        count=len(size),
        timed_count=int(timed.sum()),
        bytes=float(np.nansum(size)),
        is_symmetric=bool(waited),
        duration_p50_s=duration[0],
        duration_p99_s=duration[1],
        duration_max_s=duration[2],
        algbw=algbw,
        busbw=None if algbw is None else _finite(algbw * factor),
        wait_p50_s=wait[0],
        wait_p99_s=wait[1],
    )


def _percentiles(values: Array) -> tuple[float | None, float | None, float | None]:
    if not len(values):
        return None, None, None
    p50, p99 = np.percentile(values, [50, 99])
    return float(p50), float(p99), float(values.max())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
