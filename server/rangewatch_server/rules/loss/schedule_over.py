"""A learning rate that a schedule has made next to nothing, though the training goes on: a decay that was meant for
each epoch and is applied at each step, or a schedule that was given too few steps.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch_server.numerics.pyramid import FANOUT, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss.series import RATES, loss_name, rates
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

STEPS = 4_096
"""Last steps, in which its moves are counted."""

LASTING = 64
"""Steps for which it must have been so, at the least."""

FEWEST = 8
"""Readings of the rate: a trainer may log it once in ten steps."""

EVEN = 3
"""Times between falls that are all as long, and begin while the loss falls: as where a loss that falls is taken for
what should rise, and each wait ends with a fall. Where it has ended falling each wait does so rightly."""

LEAST = 1e-9
"""`ReduceLROnPlateau` changes no rate by less than 1e-8, unless it is told to."""

NOTHING = 3e-6
"""Part of the highest rate below which no floor is meant."""

ROUNDING = 1e-6
"""Relative: three times a tenth is no thousandth."""

ALIKE = 0.02
"""By how much the factor of one step may differ from that of another in a geometric decay."""

JUMP = 100.0
"""Times as high as it is in the next step: no schedule falls so, but a loop that goes on with another stage."""

FEW, FALLEN = 32, 0.9
"""Steps whose median is taken; and the part of the loss below which it has gone on falling since."""

FEW_MOVES = 12
"""In all: a plateau was looked for each time, or milestones were given, as far from each other or not, and that is
meant."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding."""
    start, stop = evidence.start, evidence.whole_stop
    if stop - start < 2 * LASTING or not any(evidence.has_series(name) for name in RATES):
        return
    level = level_for(stop - start, SCAN_COLUMNS)
    size = FANOUT**level
    highest = np.fmax.reduce(
        [evidence.largest(name, start, stop, level) for name in RATES if evidence.has_series(name)]
    )
    at = np.flatnonzero(np.isfinite(highest))
    if len(at) < FEWEST or not highest[at].max() > 0:
        return
    top = float(highest[at].max())
    bar = limits["part"] * top * (1 + ROUNDING)
    high = at[highest[at] > bar]
    if high[-1] == at[-1]:
        return
    first = max(start, (start // size + int(high[-1])) * size)
    values = rates(evidence, first, min(stop, first + 2 * size))
    above = np.flatnonzero(np.isfinite(values) & (values > bar))
    since = first + int(above[-1]) + 1 if len(above) else first
    last = min(stop - 1, (start // size + int(at[-1])) * size + size - 1)
    # A loop that sets the rate itself may begin with another in its first step.
    lasting = max(LASTING, limits["of_run"] * (last - start))
    if since - start < FEWEST or last - since < lasting / 2:
        return
    falls = _falls(evidence, start, since)
    if last - since < lasting and not (falls.are_even and _fell_before(evidence, falls)):
        return
    now = float(highest[at[-1]])
    half = at[at >= (since + (last - since) // 2 - start // size * size) // size]
    if now == 0 or (now >= highest[half[0]] and now >= NOTHING * top):
        return  # it stays at a floor that it was given; of a rate of 0 `unchanged_weights` speaks
    if _is_other_stage(evidence, since) or _still_falls(evidence, since, stop):
        return
    yield _finding(evidence, since, last, top, now, _factor(evidence, start, since))


def _is_other_stage(evidence: Evidence, since: int) -> bool:
    """Whether the rate was far higher in the step before, and it is no schedule's next value."""
    values = rates(evidence, since - 1, since + 1)
    return len(values) == 2 and bool(values[0] > JUMP * values[1])


def _still_falls(evidence: Evidence, since: int, stop: int) -> bool:
    """Whether the loss has: something is learned at this rate."""
    name = loss_name(evidence)
    if name is None:
        return False
    first, last = (evidence.series(name, low, low + FEW) for low in (since, stop - FEW))
    first, last = first[np.isfinite(first)], last[np.isfinite(last)]
    return bool(len(first) and len(last) and np.median(first) > 0 and np.median(last) < FALLEN * np.median(first))


class Falls(msgspec.Struct, frozen=True):
    """(n,) steps of the last readings of the rate after which the next one is lower; (n - 1,) readings between them."""

    steps: Array
    gaps: Array

    @property
    def are_even(self) -> bool:
        """Whether they come again and again after as many readings, and the rate stands between."""
        return len(self.gaps) >= EVEN and bool(np.ptp(self.gaps) <= 1 < self.gaps.min())


def _falls(evidence: Evidence, start: int, last: int) -> Falls:
    low = max(start, last - STEPS)
    values = rates(evidence, low, last + 1)
    at = np.flatnonzero(np.isfinite(values))
    places = np.flatnonzero(np.diff(values[at]) < 0)
    return Falls(low + at[places], np.diff(places))


def _fell_before(evidence: Evidence, falls: Falls) -> bool:
    """Whether the loss was falling while the rate stood before its first fall: no plateau is so. True: not known."""
    name, step = loss_name(evidence), int(falls.steps[0])
    values = np.zeros(0) if name is None else evidence.series(name, 2 * step - int(falls.steps[1]), step + 1)
    values = values[np.isfinite(values)]
    few = max(1, len(values) // 4)
    return len(values) < 2 or bool(np.median(values[-few:]) < FALLEN * np.median(values[:few]))


def _is_meant(evidence: Evidence, falls: Falls, now: float) -> bool:
    """Whether the rate has fallen a few times only, or each time that the loss had not for as long."""
    return len(falls.steps) <= FEW_MOVES or (falls.are_even and now >= LEAST and not _fell_before(evidence, falls))


def _factor(evidence: Evidence, start: int, since: int) -> float | None:
    """By what the rate was multiplied at each step on its way down, where that was always the same."""
    low = max(start, since - LASTING)
    values = rates(evidence, low, since)
    values = values[np.isfinite(values) & (values > 0)]
    if len(values) < FEWEST:
        return None
    with np.errstate(divide="ignore"):
        factors = values[1:] / values[:-1]
    factor = float(np.median(factors))
    return factor if factor < 1 and np.ptp(factors) <= ALIKE * factor else None


def _finding(evidence: Evidence, since: int, last: int, top: float, now: float, factor: float | None) -> Finding:
    rank, start = only_rank(evidence), evidence.start
    is_meant = factor is None and _is_meant(evidence, _falls(evidence, start, last), now)
    count, of_all = last + 1 - since, last + 1 - start
    pace = "" if factor is None else f" It fell by the factor {factor:.4g} at each step."
    meant = (
        "a decay that is meant for each epoch is applied at each step"
        if factor is not None
        else "it was given fewer steps than the training takes, or is moved more often than was meant"
    )
    return Finding(
        severity="info" if is_meant else "warning", rank=rank, step=since, subject="schedule over", kind=None,
        summary=f"{place(since, rank)}: the learning rate has been next to nothing since: {now:.3g} by now, where it "
        f"was {top:.3g}. Hardly anything can be learned any more.",
        evidence=(
            f"It has been so in {count} of the {of_all} steps of this run.{pace}",
            f"Cause (likely): the learning rate: its schedule: {meant}. Against that: it may be over on purpose.",
            "What would decide: compare the number of the schedule's moves with that of the epochs and steps.",
        ),
        remedy=(
            Remedy(
                "Move the schedule where it is meant to be moved, once an epoch or once a step, and give it the whole "
                "training's length. If the training is to end here, end it.",
                "def epoch_ends(scheduler):  # behind the loop over batches, and not in it\n    scheduler.step()",
                f"the rate fell below a thousandth in {since - start} steps, and the training went on for {count}",
            ),
        ),
        facts={"since_step": since, "seen_step": last, "highest": top, "now": now, "cause_class": "learning_rate"},
    )  # fmt: skip


RULE = Rule(
    name="schedule_over",
    title="The learning rate is next to nothing",
    severity="warning",
    explanation="The schedule has made the learning rate a thousandth of what it was or less, and goes on making it "
    "smaller, and the training goes on while the loss hardly falls: a decay for epochs that is applied at each step, "
    "or a schedule for fewer steps. A floor at which the rate stays, a rate that climbs again, and one that a later "
    "stage begins with, at a hundredth of the step before or less, are not reported; one that fell a few times only, "
    "or again and again once the loss had ended falling, as ReduceLROnPlateau makes it, is info.",
    check=check,
    thresholds=(
        Threshold("part", 1e-3, "of its highest value", "From here on it is next to nothing."),
        Threshold("of_run", 0.3, "of all steps so far", "For so long it must have been so."),
    ),
    explains=("loss_plateau", "unchanged_weights", "update_ratio"),
)  # fmt: skip
