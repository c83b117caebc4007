"""A cosine schedule that goes on past its end: the learning rate climbs again from next to nothing, as it fell.

torch's CosineAnnealingLR is periodic: moved more often than its T_max it climbs back to where it began. Around its end
it is the same in both directions and grows by the square of the distance, which no line and no warm-up does.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import rates
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

STEPS = 4_096
"""First steps of a run that are searched, and the last."""

LASTING = 32
"""Steps before and after the end in which the rate must fall and climb all the time."""

FLOOR = 0.01
"""Part of the highest rate that it has at the end, at most."""

SQUARE = (2.8, 4.6)
"""How many times as high as half of `LASTING` from the end the rate is `LASTING` from it: 4 of a cosine, 3 of one
of 50 steps, 2 of a line."""

ALIKE = 0.25
"""Part by which the rates as far before as after may differ: the end may lie between two steps."""


class Turn(msgspec.Struct, frozen=True):
    """The rate was `highest`, fell to `lowest` at `step`, and was `now` at the last step that is known. `again`:
    whether it had turned so before."""

    step: int
    highest: float
    lowest: float
    now: float
    again: bool


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first time."""
    stop = evidence.whole_stop
    windows = [(evidence.start, min(evidence.start + STEPS, stop))]
    if stop > windows[0][1]:
        windows.append((max(windows[0][1] - LASTING, stop - STEPS), stop))
    for start, end in windows:
        found = find(start, rates(evidence, start, end))
        if found is not None:
            yield _finding(evidence, found)
            return


def find(start: int, values: Array) -> Turn | None:
    """The first of (n,) rates at the steps from `start` on, NaN where none is known."""
    turns = [at for at in _lowest(values).tolist() if _turns(values, at)]
    if not turns:
        return None
    first = turns[0]
    known = values[np.isfinite(values)]
    again = any(at > first + LASTING for at in turns)
    return Turn(start + first, float(known.max()), float(values[first]), float(known[-1]), again)


def _lowest(values: Array) -> Array:
    """Places that are next to nothing beside what was before, and lower than what is half of `LASTING` away."""
    if len(values) <= 2 * LASTING:
        return np.zeros(0, np.int64)
    near, inner = LASTING // 2, slice(LASTING, len(values) - LASTING)
    here, highest = values[inner], np.fmax.accumulate(values)[inner]
    before, after = (values[LASTING + by : len(values) - LASTING + by] for by in (-near, near))
    with np.errstate(invalid="ignore"):
        is_low = (here >= 0) & (here <= FLOOR * highest) & (here < before) & (here < after)
    return np.flatnonzero(is_low) + LASTING


def _turns(values: Array, at: int) -> bool:
    before, after = values[at - LASTING : at + 1][::-1] - values[at], values[at : at + LASTING + 1] - values[at]
    if not all((np.diff(side) >= 0).all() for side in (before, after)):  # False of NaN
        return False
    near, far = LASTING // 2, LASTING
    is_square = all(SQUARE[0] <= side[far] / side[near] <= SQUARE[1] for side in (before, after))
    return is_square and bool(abs(after[far] - before[far]) <= ALIKE * before[far])


def _finding(evidence: Evidence, found: Turn) -> Finding:
    rank, count = only_rank(evidence), found.step - evidence.start
    return Finding(
        severity="info" if found.again else "warning", rank=rank, step=found.step, subject="schedule",
        summary=f"{place(found.step, rank)}: the learning rate climbs again, as it fell: from {found.highest:.3g} to "
        f"{found.lowest:.3g} at this step, and {found.now:.3g} by now.",
        evidence=(
            f"In {LASTING} steps and more before and after this one it was the same, in both directions, and grew by "
            "the square of the distance: that is a cosine which is moved past its end.",
            f"Cause ({'possible' if found.again else 'likely'}): the learning rate: its schedule was given fewer steps "
            "than the training takes, in T_max, or moves more often than was meant. Against that: "
            + ("it has turned more than once, so cycles may be meant." if found.again else "a cycle may be meant."),
        ),
        remedy=(
            Remedy(
                f"Give the schedule the number of its own moves in the whole training as T_max, and not {count}: or "
                "stop moving it at its end.",
                "steps = 1_000  # of the whole training: epochs times moves an epoch\n"
                "scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)",
                "the rates before and after this step",
            ),
        ),
        facts={"highest": found.highest, "lowest": found.lowest, "now": found.now, "again": found.again,
               "cause_class": "learning_rate"},
    )  # fmt: skip


RULE = Rule(
    name="schedule_turned",
    title="The learning rate climbs again after a cosine's end",
    severity="warning",
    explanation="A cosine schedule ends at next to nothing; torch's CosineAnnealingLR climbs back from there where it "
    "is moved more often than its T_max, and Transformers' cosine where it has more than half a cycle. A run that "
    "should have cooled down ends at its highest rate, and nothing fails. Searched for in the first and the last 4,096 "
    "steps. Restarts that jump, cycles of straight lines and cosines that end well above 0 are not reported; one that "
    "has turned more than once is info, since cycles may be meant.",
    check=check,
)
