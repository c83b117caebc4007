"""Whether one rank keeps the others waiting, or communication itself has become slower on all ranks alike.

Only what still goes on is a verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

from rangewatch_server.collectives.bandwidth import Slowdown, slowdown
from rangewatch_server.collectives.location import COMMUNICATION, PhaseSeries, location_of
from rangewatch_server.collectives.matching import Block
from rangewatch_server.collectives.records import UNKNOWN, Array
from rangewatch_server.collectives.waits import Waits
from rangewatch_server.core.text import duration_text, ranks_text

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
"""Windows that are examined, in lengths of the shortest: what is not clear in one may be in the next."""
MIN_COST_SHARE = 0.05
"""Share of the step's time that it costs."""
MIN_COVERAGE = 0.5
"""Share of durations that must be known: else the one that is late may be among those that are not."""

LATE_SHARE = 0.5
"""Who waits less than this share of what the usual rank waits is late, too."""
MOST_LATE = 8
"""Late ranks that are named where none stands out."""
MIN_REPORTED = 0.9
"""Share of the usual coverage from which on a step counts as reported by all ranks."""

NON_COMMUNICATION_SLOW = "non-communication slow"
COMMUNICATION_SLOW = "communication slow"
"""The classes of a verdict; those of a hang are in `hang_verdict`."""


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
    """`verdict` None: no straggler, or it cannot be said; `reason` says why, in a sentence."""

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
            f"Fewer than {MIN_COLLECTIVES} symmetric collectives in {MIN_STEPS} steps, over {duration_text(MIN_SPAN_S)}"
            f" or {ENOUGH_STEPS} steps, are known on two ranks."
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
    costs = _Costs(waits, window, chances)
    if costs.stands_out and costs.cost_s > MIN_COST_SHARE * step_time_s:
        return _straggler(waits, window, costs, step_time_s, coverage, phases, who)
    slow = slowdown(waits, waits.steps[window])
    if slow is not None and slow.cost_s > MIN_COST_SHARE * step_time_s:
        return _slow(slow, waits, window, step_time_s, coverage)
    unknown = _unmeasured(waits, waits.steps[window])
    unsure = [f"Of {ranks_text(unknown)} nothing is known: it may be late, or several of them."] if unknown else []
    return _none(" ".join([_why_nobody(costs, step_time_s, who), *_together(waits, window, step_time_s, who), *unsure]))


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
    return [f"The others wait {duration_text(usual_s)} a step for several: {', '.join(late[:-1])} and {late[-1]}."]


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
    costs: _Costs,
    step_time_s: float,
    coverage: float,
    phases: Mapping[int, PhaseSeries],
    who: Callable[[int], str],
) -> Judgement:
    place, steps = costs.place, waits.steps[window]
    location = location_of(waits, costs.rank, steps, costs.cost_s, phases)
    kind = COMMUNICATION_SLOW if location.where == COMMUNICATION else NON_COMMUNICATION_SLOW
    last, clear = int(waits.last_count[place, window].sum()), int(waits.clear_count[place, window].sum())
    since_step = costs.since(waits, window)
    sentence = (
        f"The others wait {duration_text(costs.cost_s)} a step for {who(costs.rank)} "
        f"({costs.cost_s / step_time_s:.0%} of the step), since step {since_step}: {location.because}"
    )
    evidence = {
        **_evidence(waits, window, step_time_s, coverage),
        "last_count": last,
        "clear_count": clear,
        "last_share": last / clear if clear else 0.0,
        "cost_share": costs.share,
        "cost_to_others_s": float(waits.cost_to_others_s[place, window].mean()),
        "own_wait_s": float(waits.wait_s[place, window].mean()),
        "next_rank": int(waits.ranks[costs.order[1]]) if len(costs.order) > 1 else None,
        "next_cost_s": costs.next_s,
        "phase_excess_s": location.excess_s,
        "first_collective_share": location.first_share,
    }
    return Judgement(
        Verdict(kind, costs.rank, location.where, costs.cost_s, costs.steps_share, since_step, sentence, evidence),
        sentence,
    )


def _slow(slow: Slowdown, waits: Waits, window: slice, step_time_s: float, coverage: float) -> Judgement:
    sentence = (
        f"Communication is slow since step {slow.since_step}: {slow.op} of group {slow.group.title} takes "
        f"{slow.ratio:.1f} times as long as before, {duration_text(slow.cost_s)} a step, and no rank comes late."
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


def _why_nobody(costs: _Costs, step_time_s: float, who: Callable[[int], str]) -> str:
    if costs.cost_s <= MIN_COST_SHARE * step_time_s:
        return (
            f"No straggler: {who(costs.rank)} costs the others most, {duration_text(max(costs.cost_s, 0.0))} of a "
            f"step's {duration_text(step_time_s)}."
        )
    return (
        f"No lasting straggler: {who(costs.rank)} costs the others most, in {costs.steps_share:.0%} of the "
        f"steps, and has {costs.share:.0%} of what all late ranks cost."
    )
