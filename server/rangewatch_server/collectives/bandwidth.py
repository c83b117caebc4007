"""How fast each kind of collective is, and whether one has become slower: algbw and busbw as nccl-tests defines them,
with the group's size.

The duration that counts is the least over the ranks, that of the last one to come: the rest is waiting.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch_server.collectives.matching import Block, Matched
from rangewatch_server.collectives.records import UNKNOWN, Array, Group, busbw_factor, kind_of, parts_of_size
from rangewatch_server.collectives.waits import BlockWaits, Waits


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


MIN_RATIO = 1.5
"""A collective is slow from so many times its own baseline on."""
MIN_BASELINE = 20
"""Earlier collectives of the same group, op and size that make a baseline."""
MIN_KNOWN = 0.6
"""Share of the window's collectives of the kind in which each rank's duration must be known."""
MIN_SLOW_SHARE = 0.6
"""Share of the window's steps in which it is slow."""


class Slowdown(msgspec.Struct, frozen=True):
    """The kind of collective that lost most. `duration_s` and `baseline_s`: medians of the last rank's durations, now
    and before. `cost_s`: seconds a step that collectives of the group take longer than before."""

    group: Group
    op: str
    least_bytes: int
    baseline_s: float
    duration_s: float
    ratio: float
    cost_s: float
    share: float
    since_step: int


def slowdown(waits: Waits, steps: Array) -> Slowdown | None:
    """The worst of any group in the window of `steps`, against all that came before it; None where nothing is slow."""
    slowdowns = [each for block in waits.blocks for each in _of_block(block, steps, waits.op_names)]
    return max(slowdowns, key=lambda each: each.cost_s, default=None)


def _of_block(each: BlockWaits, steps: Array, ops: list[str]) -> list[Slowdown]:
    block = each.block
    step = block.step[each.columns]
    sizes = size_class(block.bytes[each.columns])
    op = block.op[each.columns]
    in_window = (step >= steps[0]) & (step <= steps[-1])
    slowdowns = []
    for number, least in sorted(set(zip(op[in_window].tolist(), sizes[in_window].tolist(), strict=True))):
        mine = np.flatnonzero((op == number) & (sizes == least))
        slow = _of_kind(each, mine, step, steps)
        # A barrier moves nothing: it takes as long as its ranks' processes do to be woken up.
        if slow is not None and kind_of(ops[number]) != "barrier":
            slowdowns.append(msgspec.structs.replace(slow, op=ops[number], least_bytes=least))
    return slowdowns


def _of_kind(each: BlockWaits, mine: Array, step: Array, steps: Array) -> Slowdown | None:
    now, before = mine[step[mine] >= steps[0]], mine[step[mine] < steps[0]]
    if len(before) < MIN_BASELINE or not len(now) or not _all_are_known(each, now):
        return None
    # The better half of what came before: the slowness may have begun there.
    baseline_s = float(np.quantile(each.least_s[before], 0.25))
    duration_s = float(np.median(each.least_s[now]))
    is_slow = each.least_s > MIN_RATIO * baseline_s
    slow_steps = np.unique(step[now[is_slow[now]]])
    share = len(slow_steps) / len(steps)
    if duration_s <= MIN_RATIO * baseline_s or share < MIN_SLOW_SHARE:
        return None
    fast = mine[~is_slow[mine] & (step[mine] < slow_steps[0])]
    since_step = int(step[mine[mine > fast[-1]][0]]) if len(fast) else int(slow_steps[0])
    cost_s = min(_busy_s(each, now, each.least_s[now] - baseline_s) / len(steps), _longer_s(each, step, steps))
    ratio = duration_s / baseline_s if baseline_s > 0 else float("inf")
    return Slowdown(each.block.group, "", 0, baseline_s, duration_s, ratio, cost_s, share, since_step)


def _all_are_known(each: BlockWaits, now: Array) -> bool:
    """Whether no rank of the group is mostly unknown: it may be late each time, and all that is known wait for it."""
    known = np.count_nonzero(~np.isnan(each.wait_s[:, now]), axis=1)
    return len(known) >= each.block.size and bool((known >= MIN_KNOWN * len(now)).all())


def _busy_s(each: BlockWaits, now: Array, more_s: Array) -> float:
    """Seconds in which some collective takes longer than before: asynchronous ones overlap."""
    times_ns = each.block.times_ns[:, each.columns[now]]
    starts_ns = times_ns[int((times_ns != UNKNOWN).sum(axis=1).argmax())]
    order = np.argsort(starts_ns, kind="stable")
    starts_ns, ends_ns = starts_ns[order], (starts_ns + np.maximum(more_s, 0) * 1e9)[order]
    before_ns = np.append(starts_ns[:1], np.maximum.accumulate(ends_ns)[:-1])
    return float(np.maximum(ends_ns - np.maximum(starts_ns, before_ns), 0).sum() / 1e9)


def _longer_s(each: BlockWaits, step: Array, steps: Array) -> float:
    """Seconds by which a step takes longer than before: what is hidden behind computation costs nothing."""
    times_ns = each.block.times_ns[:, each.columns]
    row = times_ns[int((times_ns != UNKNOWN).sum(axis=1).argmax())]
    seen = np.flatnonzero(row != UNKNOWN)
    names, firsts = np.unique(step[seen], return_index=True)
    paces_s = np.diff(row[seen][firsts]) / 1e9 / np.diff(names)
    now, before = paces_s[names[:-1] >= steps[0]], paces_s[names[1:] <= steps[0]]
    return float(np.median(now) - np.median(before)) if len(now) and len(before) else 0.0
