"""A loss that climbs step by step, before the jump or behind it: no batch does that, and no single update."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.optimizers import newest_optimizers

GROUP, AROUND = 8, 64
"""Steps of which a median is taken, and steps before and behind a jump that are looked at."""

GROUPS, TIMES = 6, 2.0
"""Medians in a row each of which is above the one before, and how many times the first the last must be."""

POSSIBLE = 0.58
"""Weight where there is an opponent."""

AT_FIRST, ABOVE_FIRST = 8, 2.0
"""First steps, and how many times their median it must have come to: what becomes harder comes to no more."""


def _climb(evidence: Evidence, name: str | None, step: int) -> tuple[int, float, float] | None:
    """The first step of a climb of the series that the jump at `step` is part of, and what it was there and is at its
    end; None where there is none."""
    if name is None:
        return None
    low, stop = max(evidence.start, step - AROUND), min(evidence.whole_stop, step + AROUND)
    values = evidence.series(name, low, stop)
    count = len(values) // GROUP
    began = evidence.series(name, evidence.start, evidence.start + AT_FIRST)
    began = began[np.isfinite(began)]
    if count < GROUPS or not np.isfinite(values).all() or not len(began):
        return None
    values = values[len(values) - count * GROUP :]
    medians = np.median(values.reshape(count, GROUP), axis=1)
    falls = 1 + np.flatnonzero(np.diff(medians) <= 0)
    first = int(falls[-1]) if len(falls) else 0
    since = stop - (count - first) * GROUP
    is_part = since <= step + GROUP
    if count - first < GROUPS or not is_part or not medians[-1] >= TIMES * medians[first] > 0:
        return None
    if not medians[-1] >= ABOVE_FIRST * float(np.median(began)) > 0:
        return None
    return since, float(medians[first]), float(medians[-1])


def of_climb(evidence: Evidence, name: str | None, step: int, *, has_rate: bool) -> Iterator[Candidate]:
    """`has_rate`: a learning rate was raised, which explains it."""
    known = _climb(evidence, name, step)
    if known is None or has_rate:
        return
    since, first, last = known
    text = (
        f"The loss climbs steadily since step {since}, from {first:.4g} to {last:.4g}, as no single batch makes it: as "
        "where each update goes uphill (maximize=True, a learning rate or a limit of a clip below 0) or is too large, "
        "or where what is asked becomes harder, or an opponent better."
    )
    is_alone = len(newest_optimizers(evidence).classes) < 2  # of two, one may train an opponent
    yield Candidate("optimizer", 0.83 if is_alone else POSSIBLE, (text,), ("which of these it is.",))
