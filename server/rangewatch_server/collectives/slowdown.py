"""Collectives that take longer than they used to, on all ranks alike."""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch_server.collectives.bandwidth import size_class
from rangewatch_server.collectives.ops import kind_of
from rangewatch_server.collectives.records import UNKNOWN, Array, Group
from rangewatch_server.collectives.waits import BlockWaits, Waits

MIN_RATIO = 1.5
"""A collective is slow from so many times its own baseline on."""
MIN_BASELINE = 20
"""Earlier collectives of the same group, op and size that make a baseline."""
MIN_KNOWN = 0.6
"""Share of the window's collectives of the kind in which each rank's duration must be known."""
MIN_SHARE = 0.6
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
    found = [each for block in waits.blocks for each in _of_block(block, steps, waits.op_names)]
    return max(found, key=lambda each: each.cost_s, default=None)


def _of_block(each: BlockWaits, steps: Array, ops: list[str]) -> list[Slowdown]:
    block = each.block
    step = block.step[each.columns]
    sizes = size_class(block.bytes[each.columns])
    op = block.op[each.columns]
    in_window = (step >= steps[0]) & (step <= steps[-1])
    found = []
    for number, least in sorted(set(zip(op[in_window].tolist(), sizes[in_window].tolist(), strict=True))):
        mine = np.flatnonzero((op == number) & (sizes == least))
        slow = _of_kind(each, mine, step, steps)
        # A barrier moves nothing: it takes as long as its ranks' processes do to be woken up.
        if slow is not None and kind_of(ops[number]) != "barrier":
            found.append(msgspec.structs.replace(slow, op=ops[number], least_bytes=least))
    return found


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
    if duration_s <= MIN_RATIO * baseline_s or share < MIN_SHARE:
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
