"""Who waits for whom: the time that each rank spends in symmetric collectives until the last of them has come.

    wait[r] = duration[r] - least duration over the ranks

An asynchronous collective does not stop the rank that calls it: a late rank shows in all that follow until they are
waited for, and that it was late for a while may cost nothing. So of the waits since the rank was last in step with the
others (after a blocking collective, at a new step) only the longest counts, `lost_s`. What is added up of it is time on
the wall, or less where the rank waited for an asynchronous one in between.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import msgspec
import numpy as np

from rangewatch_server.collectives.matching import Block, Matched
from rangewatch_server.collectives.records import UNKNOWN, Array

_NO_STEP = np.iinfo(np.int64).max
CLEAR_S = 0.2e-3
"""A rank is clearly the last one when it comes later than the next by more than this ..."""
CLEAR_SHARE = 0.05
"""... and by more than this share of the collective's median duration: less is the jitter of any machine."""


class BlockWaits(msgspec.Struct):
    """The waits of one block's k ranks in those n of its collectives that are measured."""

    block: Block
    columns: Array
    """(n,) places of the collectives in the block"""
    wait_s: Array
    """(k, n) float64; NaN where the duration is unknown"""
    lost_s: Array
    """(k, n) float64: the waits that count, 0 elsewhere"""
    least_s: Array
    """(n,) duration of the one that came last: what the collective itself takes"""
    last: Array
    """(n,) row of the rank with the least duration"""
    gap_s: Array
    """(n,) by how much it came later than the next; inf where no other is known"""
    is_clear: Array
    """(n,) bool: that is more than the noise"""
    known: Array
    """(n,) ranks whose duration is known"""


class Waits(msgspec.Struct):
    """By rank and step, R ranks and S steps. A share of times last is `last_count / clear_count`.

    With durations of some ranks missing, a wait is that for the last rank known: `known` of `expected` says how much
    that is.
    """

    blocks: list[BlockWaits]
    op_names: list[str]
    ranks: Array
    """(R,) ascending"""
    steps: Array
    """(S,) ascending"""
    wait_s: Array
    """(R, S) time on the wall that the rank waited for others"""
    blocked_s: Array
    """(R, S) waits in blocking collectives and each step's last one: by so much it comes late to what follows"""
    cost_to_others_s: Array
    """(R, S) the others' waits, summed, in collectives where this rank was clearly last"""
    delay_s: Array
    """(R, S) the same as time on the wall: the mean over the others, of the group where that is most"""
    gain_s: Array
    """(R, S) of that, what would be won without this rank: until the next one comes, which may be as late"""
    last_count: Array
    """(R, S) collectives in which it was clearly last"""
    clear_count: Array
    """(R, S) collectives of its groups in which somebody was"""
    known_count: Array
    """(R, S) measured collectives in which its duration is known: where it is 0 nothing is known of its waits"""
    collectives: Array
    """(S,) measured ones"""
    known: Array
    """(S,) durations known of all symmetric collectives, measured or not"""
    expected: Array
    """(S,) durations of them that full records would have"""
    left_out: dict[str, int]
    """Reason -> collectives: an op that does not end together on all ranks (by its name), "desync", "unmatched"
    (known on fewer than two ranks), "no step"; "point_to_point" counts records."""


def waits_of(matched: Matched) -> Waits:
    """The waits in all blocks. Vectorised: the loops are over ranks and groups."""
    blocks = [each for each in _shown(matched) if len(each.columns)]
    steps = _steps(blocks)
    shape, count = (len(matched.ranks), len(steps)), len(steps)
    waits = Waits(
        blocks=blocks,
        op_names=matched.ops,
        ranks=matched.ranks,
        steps=steps,
        wait_s=np.zeros(shape),
        blocked_s=np.zeros(shape),
        cost_to_others_s=np.zeros(shape),
        delay_s=np.zeros(shape),
        gain_s=np.zeros(shape),
        last_count=np.zeros(shape, np.int64),
        clear_count=np.zeros(shape, np.int64),
        known_count=np.zeros(shape, np.int64),
        collectives=np.zeros(count, np.int64),
        known=np.zeros(count, np.int64),
        expected=np.zeros(count, np.int64),
        left_out=_left_out(matched),
    )
    _fill_lost(waits)
    for each in blocks:
        _add_costs(waits, each)
    for block in matched.blocks:
        _add_coverage(waits, block)
    return waits


def _left_out(matched: Matched) -> dict[str, int]:
    counts: Counter[str] = Counter()
    for block in matched.blocks:
        rooted = ~block.is_symmetric & ~block.is_desync
        for op, count in zip(*np.unique(block.op[rooted], return_counts=True), strict=True):
            counts[matched.ops[op]] += int(count)
        alike = block.is_symmetric & ~block.is_desync
        counts["desync"] += int(block.is_desync.sum())
        counts["unmatched"] += int((alike & ~block.is_measured).sum())
        counts["no step"] += int((block.is_measured & (block.step == UNKNOWN)).sum())
    counts["point_to_point"] += matched.left_out.get("point_to_point", 0)
    return {reason: count for reason, count in sorted(counts.items()) if count}


def _shown(matched: Matched) -> Iterator[BlockWaits]:
    """Steps that a restarted run has gone over again are those of its newer generation."""
    begun = _NO_STEP
    for block in matched.blocks:  # of one group, the newest generation first
        begun = begun if block.age else _NO_STEP
        yield _block_waits(block, np.flatnonzero(block.is_measured & (block.step != UNKNOWN) & (block.step < begun)))
        begun = min(begun, int(block.step.min(initial=_NO_STEP, where=block.step != UNKNOWN)))


def _block_waits(block: Block, columns: Array) -> BlockWaits:
    duration_s = block.duration_s if len(columns) == len(block.sequence) else block.duration_s[:, columns]
    known = np.count_nonzero(~np.isnan(duration_s), axis=0)
    filled = np.where(np.isnan(duration_s), np.inf, duration_s)
    last = filled.argmin(axis=0)
    least_s = np.take_along_axis(filled, last[None], 0)[0]
    gap_s = _gap(filled, least_s, last)
    return BlockWaits(
        block=block,
        columns=columns,
        wait_s=duration_s - least_s,
        lost_s=np.zeros(duration_s.shape),
        least_s=least_s,
        last=last,
        gap_s=gap_s,
        is_clear=_clear(filled, gap_s, known),
        known=known,
    )


def _gap(filled: Array, least_s: Array, last: Array) -> Array:
    """(n,) from the least duration to the next. `filled`: (k, n) with infinity where unknown, as it was afterwards."""
    np.put_along_axis(filled, last[None], np.inf, 0)
    gap_s = np.asarray(filled.min(axis=0, initial=np.inf) - least_s)
    np.put_along_axis(filled, last[None], least_s[None], 0)
    return gap_s


def _clear(filled: Array, gap_s: Array, known: Array) -> Array:
    """(n,) bool. `filled`: (k, n) with infinity where unknown. The median costs most, so only candidates have it."""
    is_clear = np.isfinite(gap_s) & (gap_s > CLEAR_S)
    candidates = np.flatnonzero(is_clear)
    # The median lies between the next to last duration and the largest: where the gap passes the floor of the
    # largest, it passes that of the median.
    most_s = np.max(filled, axis=0, initial=0, where=np.isfinite(filled))
    unsure = candidates[gap_s[candidates] <= CLEAR_SHARE * most_s[candidates]]
    if len(unsure):
        ordered = np.sort(np.ascontiguousarray(filled[:, unsure].T), axis=1)
        rows, count = np.arange(len(unsure)), known[unsure]
        median_s = (ordered[rows, (count - 1) // 2] + ordered[rows, count // 2]) / 2
        is_clear[unsure] = gap_s[unsure] > CLEAR_SHARE * median_s
    return is_clear


def _steps(blocks: list[BlockWaits]) -> Array:
    steps = [np.unique(each.block.step[each.columns]) for each in blocks]
    return np.unique(np.concatenate(steps)) if steps else np.zeros(0, np.int64)


class _Row(NamedTuple):
    waits: BlockWaits
    row: int


def _fill_lost(waits: Waits) -> None:
    """Fill `lost_s` of all blocks, and `wait_s`. Each process of a rank on its own: another one's clock may differ."""
    for (rank, _), rows in _rows_of_processes(waits):
        blocks = [(each.waits.block, each.row, each.waits.columns) for each in rows]
        step = np.concatenate([block.step[columns] for block, _, columns in blocks])
        lost_s, blocked_s = lost_of(
            times_ns=np.concatenate([block.times_ns[row, columns] for block, row, columns in blocks]),
            duration_s=np.concatenate([block.duration_s[row, columns] for block, row, columns in blocks]),
            is_async=np.concatenate([block.is_async[columns] for block, _, columns in blocks]),
            step=step,
            wait_s=np.concatenate([each.waits.wait_s[each.row] for each in rows]),
        )
        stops = np.cumsum([len(columns) for _, _, columns in blocks])
        for each, part in zip(rows, np.split(lost_s, stops[:-1]), strict=True):
            each.waits.lost_s[each.row] = part
        at, count = np.searchsorted(waits.steps, step), len(waits.steps)
        waits.wait_s[rank] += np.bincount(at, weights=lost_s, minlength=count)
        waits.blocked_s[rank] += np.bincount(at, weights=blocked_s, minlength=count)


def _rows_of_processes(waits: Waits) -> Iterator[tuple[tuple[int, int], list[_Row]]]:
    rows: defaultdict[tuple[int, int], list[_Row]] = defaultdict(list)
    for each in waits.blocks:
        places = np.searchsorted(waits.ranks, each.block.ranks).tolist()
        for row, (place, incarnation) in enumerate(zip(places, each.block.incarnation.tolist(), strict=True)):
            rows[place, incarnation].append(_Row(each, row))
    yield from rows.items()


def lost_of(times_ns: Array, duration_s: Array, is_async: Array, step: Array, wait_s: Array) -> tuple[Array, Array]:
    """(n,) seconds of each wait of one rank that count, and (n,) of those that it cannot but have been blocked by.

    All (n,), in any order. Where `is_async` is unknown, what another one follows before it is over did not block.
    """
    order = None if (np.diff(times_ns) >= 0).all() else np.argsort(times_ns, kind="stable")
    if order is not None:
        ordered = lost_of(times_ns[order], duration_s[order], is_async[order], step[order], wait_s[order])
        back = np.empty_like(order)
        back[order] = np.arange(len(order))
        return ordered[0][back], ordered[1][back]
    is_overlapped = np.diff(times_ns) < (duration_s[:-1] - CLEAR_S) * 1e9
    goes_on = (is_async[:-1] == 1) | ((is_async[:-1] == UNKNOWN) & is_overlapped)
    ends = np.append(~goes_on | (np.diff(step) != 0), True)
    starts = np.append(True, ends[:-1])
    wait_s, stretch = np.nan_to_num(wait_s), np.cumsum(starts) - 1
    longest_s = np.maximum.reduceat(wait_s, np.flatnonzero(starts))
    places = np.flatnonzero(wait_s == longest_s[stretch])
    places = places[np.append(True, np.diff(stretch[places]) != 0)]  # the first of equal ones
    lost_s = np.zeros(len(wait_s))
    lost_s[places] = wait_s[places]
    return lost_s, np.where(ends, wait_s, 0)


def _add_costs(waits: Waits, each: BlockWaits) -> None:
    at = np.searchsorted(waits.steps, each.block.step[each.columns])
    np.add.at(waits.collectives, at, 1)
    clear = np.flatnonzero(each.is_clear)
    members = np.searchsorted(waits.ranks, each.block.ranks)
    for row, member in enumerate(members.tolist()):
        waits.known_count[member] += np.bincount(at[~np.isnan(each.wait_s[row])], minlength=len(waits.steps))
    steps, counts = np.unique(at[clear], return_counts=True)
    waits.clear_count[np.ix_(members, steps)] += counts
    cost_s = each.lost_s[:, clear].sum(axis=0)
    cells, which = np.unique(members[each.last[clear]] * len(waits.steps) + at[clear], return_inverse=True)
    waits.last_count.flat[cells] += np.bincount(which, minlength=len(cells))
    waits.cost_to_others_s.flat[cells] += np.bincount(which, weights=cost_s, minlength=len(cells))
    mean_s = cost_s / (each.known[clear] - 1)
    for total_s, weights in ((waits.delay_s, mean_s), (waits.gain_s, np.minimum(mean_s, each.gap_s[clear]))):
        total_s.flat[cells] = np.maximum(total_s.flat[cells], np.bincount(which, weights=weights, minlength=len(cells)))


def _add_coverage(waits: Waits, block: Block) -> None:
    counted = np.flatnonzero(block.is_symmetric & ~block.is_desync & np.isin(block.step, waits.steps))
    at = np.searchsorted(waits.steps, block.step[counted])
    np.add.at(waits.known, at, np.count_nonzero(~np.isnan(block.duration_s), axis=0)[counted])
    np.add.at(waits.expected, at, block.size)
