"""Whether one rank keeps the others waiting, or communication itself has become slow. Only what goes on is said.

Also collectives that take longer than they used to, on all ranks alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from rangewatch_server.collectives.bandwidth import size_class
from rangewatch_server.collectives.location import COMMUNICATION, PhaseSeries, location_of
from rangewatch_server.collectives.matching import Block
from rangewatch_server.collectives.records import UNKNOWN, Array, Group, kind_of
from rangewatch_server.collectives.waits import BlockWaits, Waits
from rangewatch_server.collectives.wording import lasting, named

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


MIN_COLLECTIVES = 50
"""A window has at least so many collectives ..."""
MIN_STEPS = 8
"""... and so many steps: less is an incident. ..."""
MIN_SPAN_S = 1.0
"""... And it lasts so long: a busy host's scheduler may keep one rank from its core for some tenths of a second ..."""
ENOUGH_STEPS = 100
"""... or has so many steps."""
MIN_SHARE = 0.6
"""Share of the window's steps in which the rank cost the others most, and of all that such ranks cost."""
CHANCE = 1e-4
"""What is less likely by chance, were all ranks alike, is none. Of few ranks one is often last a while."""
WIDENED = (1, 2, 4, 8)
"""Windows that are looked at, in lengths of the shortest: what is not clear in one may be in the next."""
MIN_COST_SHARE = 0.05
"""Share of the step's time that it costs."""
MIN_COVERAGE = 0.5
"""Share of durations that must be known: else the one that is late may be among those that are not."""

LATE_SHARE = 0.5
"""Who waits less than this share of what the usual rank waits is late, too."""
MOST_LATE = 8
"""Late ranks that are told of where none stands out."""
MIN_REPORTED = 0.9
"""Share of the usual coverage from which on a step counts as reported by all ranks."""

NON_COMMUNICATION_SLOW = "non-communication slow"
COMMUNICATION_SLOW = "communication slow"
NON_COMMUNICATION_HANG = "non-communication hang"
COMMUNICATION_HANG = "communication hang"
"""The classes of a verdict; hangs are those of `hang_verdict`."""


class Verdict(msgspec.Struct, frozen=True):
    """`rank`: the one that the others wait for; None where communication itself is slow, or all late ranks are of one
    `host`: then `ranks` are its late ones. `where`: what delays it.

    `cost_s`: seconds on the wall that a step takes longer for it. `share`: of the window's steps, those in which this
    rank cost most. `since_step`: from where on that has been so, as far as the records reach.
    """

    kind: str
    rank: int | None
    where: str
    cost_s: float
    share: float
    since_step: int
    sentence: str
    evidence: dict[str, Any]
    host: str = ""
    ranks: tuple[int, ...] = ()


class Judgement(msgspec.Struct, frozen=True):
    """`verdict` None: nobody stands out, or it cannot be said; `reason` says why, in a sentence."""

    verdict: Verdict | None
    reason: str


def judge(
    waits: Waits,
    phases: Mapping[int, PhaseSeries] | None = None,
    who: Callable[[int], str] = "rank {}".format,
    chances: Array | None = None,
) -> Judgement:
    """The verdict on the newest steps. `phases`: rank -> its phases, as far as they are known.

    `who`: what a sentence calls a rank. `chances`: (R,) how often each would be last by chance; all alike by default.
    """
    windows = _windows(waits, phases or {})
    if not windows:
        return _none(
            f"Fewer than {MIN_COLLECTIVES} symmetric collectives in {MIN_STEPS} steps, over {lasting(MIN_SPAN_S)} or "
            f"{ENOUGH_STEPS} steps, are known on two ranks."
        )
    judgements = []
    for window in windows:
        judgements.append(_judge(waits, window, phases or {}, who, chances))
        if judgements[-1].verdict is not None:
            return judgements[-1]
    return judgements[0]


def _judge(
    waits: Waits,
    window: slice,
    phases: Mapping[int, PhaseSeries],
    who: Callable[[int], str],
    chances: Array | None,
) -> Judgement:
    coverage = float(waits.known[window].sum() / waits.expected[window].sum())
    if coverage < MIN_COVERAGE:
        return _none(f"Only {coverage:.0%} of the collectives' durations are known.")
    step_time_s = _step_time_s(waits, window, phases)
    if step_time_s is None:
        return _none("It is not known how long a step takes.")
    found = _Costs(waits, window, chances)
    if found.stands_out and found.cost_s > MIN_COST_SHARE * step_time_s:
        return _straggler(waits, window, found, step_time_s, coverage, phases, who)
    slow = slowdown(waits, waits.steps[window])
    if slow is not None and slow.cost_s > MIN_COST_SHARE * step_time_s:
        return _slow(slow, waits, window, step_time_s, coverage)
    unknown = _unmeasured(waits, waits.steps[window])
    unsure = [f"Of {named(unknown)} nothing is known: it may be late, or several of them."] if unknown else []
    return _none(" ".join([_why_nobody(found, step_time_s, who), *_together(waits, window, step_time_s, who), *unsure]))


def _none(reason: str) -> Judgement:
    return Judgement(None, reason)


def _windows(waits: Waits, phases: Mapping[int, PhaseSeries]) -> list[slice]:
    """The newest steps that hold enough, and more. Without the very newest, which have not come from all ranks: each
    sends when it is its turn."""
    counts = waits.collectives[: _reported(waits)]
    from_the_end = np.cumsum(counts[::-1])
    enough = max(MIN_STEPS, int(np.searchsorted(from_the_end, MIN_COLLECTIVES)) + 1)
    step_time_s = _step_time_s(waits, slice(0, len(counts)), phases) if len(counts) else None
    if step_time_s:
        enough = max(enough, min(math.ceil(MIN_SPAN_S / step_time_s), ENOUGH_STEPS))
    if enough > len(counts):
        return []
    lengths = sorted({min(enough * times, len(counts)) for times in WIDENED})
    return [slice(len(counts) - length, len(counts)) for length in lengths]


def _reported(waits: Waits) -> int:
    """How many steps there are to the last of which about as much is known as of the others, without the newest."""
    share = waits.known[:-1] / np.maximum(waits.expected[:-1], 1)
    places = np.flatnonzero(share >= MIN_REPORTED * np.median(share)) if len(share) else share
    return int(places[-1]) + 1 if len(places) else 0


def _together(waits: Waits, window: slice, step_time_s: float, who: Callable[[int], str]) -> list[str]:
    """Several late ranks at once: each alone would win nothing by being in time."""
    wait_s = waits.wait_s[:, window].mean(axis=1)
    usual_s = float(np.median(wait_s))
    late = [who(rank) for rank in waits.ranks[wait_s < LATE_SHARE * usual_s].tolist()]
    if usual_s <= MIN_COST_SHARE * step_time_s or not 1 < len(late) <= MOST_LATE:
        return []
    return [f"The others wait {lasting(usual_s)} a step for several: {', '.join(late[:-1])} and {late[-1]}."]


def _unmeasured(waits: Waits, steps: Array) -> list[int]:
    """Ranks of the groups in use none of whose durations is known in the window."""
    members: set[int] = set()
    known: set[int] = set()
    for each in waits.blocks:
        step = each.block.step[each.columns]
        inside = (step >= steps[0]) & (step <= steps[-1])
        if inside.any():
            members.update(each.block.group.ranks)
            known.update(each.block.ranks[~np.isnan(each.wait_s[:, inside]).all(axis=1)].tolist())
    return sorted(members - known)


def _step_time_s(waits: Waits, window: slice, phases: Mapping[int, PhaseSeries]) -> float | None:
    steps = waits.steps[window]
    reported = [series.mean("step_time_s", steps) for series in phases.values()]
    known = [each for each in reported if np.isfinite(each)]
    if known:
        return float(np.median(known))
    seen = [each for block in waits.blocks for each in _pace_s(block.block, steps)]
    return float(np.median(seen)) if seen else None


def _pace_s(block: Block, steps: Array) -> list[float]:
    """Seconds a step of each rank, by its own clock, from its first collective of one step to that of another."""
    columns = np.flatnonzero((block.step >= steps[0]) & (block.step <= steps[-1]))
    if not len(columns) or block.age:
        return []
    first, last = columns[0], columns[np.searchsorted(block.step[columns], block.step[columns[-1]])]
    count = int(block.step[last] - block.step[first])
    known = (block.times_ns[:, first] != UNKNOWN) & (block.times_ns[:, last] != UNKNOWN)
    spent_ns = block.times_ns[known, last] - block.times_ns[known, first]
    return [ns / 1e9 / count for ns in spent_ns.tolist() if ns > 0] if count > 0 else []


class _Costs:
    """Which rank costs the others most, in a window of steps: what they would win without it.

    A rank that was blocked in one group comes late into the next one: as much of its lateness is not its own doing.
    From all of it what an ordinary rank has too (the median; the least of two) is taken off: jitter.
    """

    def __init__(self, waits: Waits, window: slice, chances: Array | None) -> None:
        ordinary_s = waits.blocked_s.min(axis=0, initial=np.inf)
        own_s = np.maximum(waits.gain_s - (waits.blocked_s - ordinary_s), 0)
        total_s = own_s[:, window].sum(axis=1)
        excess_s = np.maximum(total_s - np.quantile(total_s, 0.5, method="lower"), 0)
        self.order = np.argsort(-excess_s, kind="stable")
        self.place = place = int(self.order[0])
        self.rank = int(waits.ranks[place])
        self.share = float(excess_s[place] / excess_s.sum()) if excess_s[place] > 0 else 0.0
        self.is_it = (own_s.argmax(axis=0) == place) & (own_s[place] > 0)
        """(S,) steps in which it cost most."""
        self.steps_share = float(self.is_it[window].mean())
        self.own_s = own_s[place]
        count = int(self.is_it[window].sum())
        chance = 1 / len(waits.ranks) if chances is None else float(chances[place])
        is_chance = len(waits.ranks) * _tail(self.is_it[window].size, count, chance) > CHANCE
        self.stands_out = min(self.share, self.steps_share) >= MIN_SHARE and not is_chance
        gain_s = waits.gain_s[:, window].mean(axis=1)
        self.cost_s = float(gain_s[place] - np.quantile(gain_s, 0.5, method="lower"))
        self.next_s = float(gain_s[self.order[1]]) if len(self.order) > 1 else 0.0

    def since(self, waits: Waits, window: slice) -> int:
        """First step of the stretch that the window ends, in which it cost most in enough of any steps in a row."""
        stop = window.stop
        is_it = self.is_it[:stop] & (self.own_s[:stop] > np.median(self.own_s[window]) / 2)  # once by jitter is not it
        counts = np.append(0, np.cumsum(is_it))
        firsts = np.arange(stop - MIN_STEPS, -1, -1)  # of `MIN_STEPS` steps in a row, from the newest
        broken = np.flatnonzero(counts[firsts + MIN_STEPS] - counts[firsts] < MIN_SHARE * MIN_STEPS)
        first = int(firsts[broken[0]]) + 1 if len(broken) else 0
        weights = np.where(is_it[first:], 1, -2)[::-1]
        return int(waits.steps[stop - 1 - int(np.cumsum(weights).argmax())])


def _tail(count: int, least: int, chance: float) -> float:
    """How likely at least `least` of `count` are by a chance of `chance` each."""
    terms = range(least, count + 1)
    return sum(math.comb(count, k) * chance**k * (1 - chance) ** (count - k) for k in terms)


def _straggler(
    waits: Waits,
    window: slice,
    found: _Costs,
    step_time_s: float,
    coverage: float,
    phases: Mapping[int, PhaseSeries],
    who: Callable[[int], str],
) -> Judgement:
    place, steps = found.place, waits.steps[window]
    location = location_of(waits, found.rank, steps, found.cost_s, phases)
    kind = COMMUNICATION_SLOW if location.where == COMMUNICATION else NON_COMMUNICATION_SLOW
    last, clear = int(waits.last_count[place, window].sum()), int(waits.clear_count[place, window].sum())
    since_step = found.since(waits, window)
    sentence = (
        f"The others wait {lasting(found.cost_s)} a step for {who(found.rank)} "
        f"({found.cost_s / step_time_s:.0%} of the step), since step {since_step}: {location.because}"
    )
    evidence = {
        **_evidence(waits, window, step_time_s, coverage),
        "last_count": last,
        "clear_count": clear,
        "last_share": last / clear if clear else 0.0,
        "cost_share": found.share,
        "cost_to_others_s": float(waits.cost_to_others_s[place, window].mean()),
        "own_wait_s": float(waits.wait_s[place, window].mean()),
        "next_rank": int(waits.ranks[found.order[1]]) if len(found.order) > 1 else None,
        "next_cost_s": found.next_s,
        "phase_excess_s": location.excess_s,
        "first_collective_share": location.first_share,
    }
    return Judgement(
        Verdict(kind, found.rank, location.where, found.cost_s, found.steps_share, since_step, sentence, evidence),
        sentence,
    )


def _slow(slow: Slowdown, waits: Waits, window: slice, step_time_s: float, coverage: float) -> Judgement:
    sentence = (
        f"Communication is slow since step {slow.since_step}: {slow.op} of group {slow.group.title} takes "
        f"{slow.ratio:.1f} times as long as before, {lasting(slow.cost_s)} a step, and no rank comes late."
    )
    evidence = {
        **_evidence(waits, window, step_time_s, coverage),
        "group": slow.group.hash,
        "op": slow.op,
        "least_bytes": slow.least_bytes,
        "baseline_s": slow.baseline_s,
        "duration_s": slow.duration_s,
        "ratio": slow.ratio,
    }
    verdict = Verdict(
        COMMUNICATION_SLOW, None, COMMUNICATION, slow.cost_s, slow.share, slow.since_step, sentence, evidence
    )
    return Judgement(verdict, sentence)


def _evidence(waits: Waits, window: slice, step_time_s: float, coverage: float) -> dict[str, Any]:
    return {
        "first_step": int(waits.steps[window][0]),
        "last_step": int(waits.steps[window][-1]),
        "collectives": int(waits.collectives[window].sum()),
        "step_time_s": step_time_s,
        "coverage": coverage,
    }


def _why_nobody(found: _Costs, step_time_s: float, who: Callable[[int], str]) -> str:
    if found.cost_s <= MIN_COST_SHARE * step_time_s:
        return (
            f"Nobody stands out: {who(found.rank)} costs the others most, {lasting(max(found.cost_s, 0.0))} of a "
            f"step's {lasting(step_time_s)}."
        )
    return (
        f"Nobody stands out for long: {who(found.rank)} costs the others most, in {found.steps_share:.0%} of the "
        f"steps, and has {found.share:.0%} of what all late ranks cost."
    )
