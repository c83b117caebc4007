"""Since when a rank keeps the others waiting, where that began before the last steps that are looked at.

A verdict is of some 200 steps. Where it holds from the first of them on, its begin is searched for further back: few
steps are read at once, at distances that double, and then between the last that show it and the first that do not. A
pause between two looks is not seen.
"""

from __future__ import annotations

import msgspec
import numpy as np

from rangewatch_server.collectives.matching import match
from rangewatch_server.collectives.reader import chunks, searched_range
from rangewatch_server.collectives.straggler import MIN_STEPS, Verdict
from rangewatch_server.collectives.waits import waits_of
from rangewatch_server.query.reader import RunReader

LOOK = MIN_STEPS
"""Steps that are read at once. Looks are aligned to it, so that what one has shown is known the next time."""
MOST_LOOKS = 32
"""Twice the doublings of 65,536 looks: half a million steps."""
MIN_SHARE = 0.6
"""Share of a look's steps in which it cost the others most."""
ABOUT = 0.5
"""... and of what it costs now, so much at least."""
BYTES = 100
"""Of one look, as the cache counts it."""


def with_onset(run: RunReader, verdict: Verdict, first_step: int) -> Verdict:
    """The verdict with its begin, also before `first_step`, the first one it was made of. One on a host, or on
    communication, has "or before" there, since it is not searched for."""
    if verdict.since_step >= first_step + MIN_STEPS:
        return verdict
    start = run.first_step or 0
    low, high = searched_range(run, start, first_step, 1)
    if low >= high:
        return verdict  # there is nothing before
    if verdict.rank is None:
        return _since(verdict, first_step, is_known=False)
    looks = Looks(run, verdict.rank, verdict.cost_s)
    begin, is_known = looks.begin(max(start, 0), first_step)
    return _since(verdict, min(begin, verdict.since_step), is_known=is_known)


def _since(verdict: Verdict, step: int, *, is_known: bool) -> Verdict:
    text = f"since step {step}" + ("" if is_known else " or before")
    sentence = verdict.sentence.replace(f"since step {verdict.since_step}", text, 1)
    evidence = {**verdict.evidence, "is_onset_known": is_known}
    return msgspec.structs.replace(verdict, since_step=step, sentence=sentence, evidence=evidence)


class Looks:
    """Whether a rank was the costliest in some few steps, asked of the store at most so often."""

    def __init__(self, run: RunReader, rank: int, cost_s: float) -> None:
        self._run, self._rank, self._cost_s = run, rank, cost_s
        self._left = MOST_LOOKS

    def begin(self, start: int, stop: int) -> tuple[int, bool]:
        """The first step of the stretch that goes on until `stop`, not before `start`; whether that is where it began,
        and not as far as was looked."""
        bad, distance = stop // LOOK, 1  # looks by number; it is known to go on from `bad` on
        good = start // LOOK - 1
        while bad - distance > good and self._left:
            if self._is_late(bad - distance):
                bad, distance = bad - distance, distance * 2
            else:
                good = bad - distance
                break
        while bad - good > 1 and self._left:
            middle = (bad + good) // 2
            if self._is_late(middle):
                bad = middle
            else:
                good = middle
        if bad - good > 1:
            return min(max(bad * LOOK, start), stop), False
        return min(self._exact(max(good, 0), bad, start), stop), True

    def _exact(self, good: int, bad: int, start: int) -> int:
        """Within the look before it, and the first that shows it, the first step from which on it does."""
        steps, is_it = self._costliest(max(good * LOOK, start), (bad + 1) * LOOK)
        if not is_it.any():
            return max(bad * LOOK, start)
        weights = np.where(is_it, 1, -2)[::-1]
        return int(steps[len(steps) - 1 - int(np.cumsum(weights).argmax())])

    def _is_late(self, look: int) -> bool:
        """Of steps without records nothing is known: it is not said to have been late there."""
        run = self._run
        cost = f"{self._cost_s:.1g}"  # its size: the last digits waver
        cache, key = run.reader.cache, (run.id, "onset", len(run.stream_versions), self._rank, cost, look)
        known: bool | None = cache.get(key)
        if known is None:
            self._left -= 1
            steps, is_it = self._costliest(look * LOOK, (look + 1) * LOOK)
            known = bool(len(steps)) and float(is_it.mean()) >= MIN_SHARE
            cache.put(key, known, BYTES)
        return known

    def _costliest(self, start: int, stop: int) -> tuple[np.ndarray, np.ndarray]:
        """(n,) steps of [start, stop) with records; (n,) bool: the rank cost most, about as much as now."""
        waits = waits_of(match(chunks(self._run, start, stop - 1)))
        inside = (waits.steps >= start) & (waits.steps < stop)
        place = np.flatnonzero(waits.ranks == self._rank)
        if not inside.any() or not len(place):
            return np.zeros(0, np.int64), np.zeros(0, bool)
        cost_s = waits.gain_s[:, inside]
        mine = cost_s[int(place[0])]
        return waits.steps[inside], (mine == cost_s.max(axis=0)) & (mine > ABOUT * self._cost_s)
