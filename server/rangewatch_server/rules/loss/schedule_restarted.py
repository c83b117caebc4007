"""The learning-rate schedule starts over, or goes on from a wrong place, as where a training is resumed without the
scheduler's state: from a step on the rate is once more what it was from an earlier step on.

A schedule may repeat itself on purpose: cycles begin where the one before has ended, each at its own beginning, and a
snapshot that is restored brings its rate along. So a jump counts for more where another process of the run takes over,
where the optimizer's state was loaded, or where the earlier place lies in the midst of a rise or a fall; and jumps that
begin one step further on each time count epochs.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch.wire.events import StateLoaded
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import WRITTEN, rates
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

STEPS = 4_096
"""First steps of a run that are searched, and those before a restart that are read."""

JUMP = 1.5
"""How many times as high or as low the rate must be as one step before."""

SAME = 16
"""Steps in a row in which the rate must be what it was from an earlier step on."""

WARM_UP = 64
"""First steps in which the rate may rise by any factor."""

FEWEST_MORE = 2
"""Jumps, behind the first, that show it."""

ENDED = 0.11
"""So much or less of the rate that it starts over with is the end of a cycle, where checkpoints are saved. As a rule
schedules end at a tenth of their peak."""

NEAR_PEAK = 0.9
"""Part of the highest rate before that one is near to."""

TOLERANCE = 1e-5


class Restart(msgspec.Struct, frozen=True):
    """From `step` on the rate is as it was from `earlier` on: `after`, and `before` in the step before."""

    step: int
    earlier: int
    before: float
    after: float
    is_of_process: bool
    """Whether another process of the run begins with this step."""
    is_single: bool
    """Whether no jump came before it, and none with which it starts over comes after it: cycles come again."""
    is_peak: bool
    """Whether no rate before is higher than that at `step`: where warm restarts begin."""
    counts_epochs: bool = False
    """Whether each of several jumps begins one step further on in the schedule than the one before. Cycles whose peaks
    all decay by one factor begin further on by more."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first time."""
    starts = process_starts(evidence)
    windows = [(evidence.start, min(evidence.start + STEPS, evidence.whole_stop))]
    windows += [(max(evidence.start, at - STEPS), min(at + 2 * SAME, evidence.whole_stop)) for at in starts[-4:]]
    for start, stop in windows:
        values = rates(evidence, start, stop)
        found = find(start, values, starts)
        if found is not None and (severity := _severity(evidence, found)):
            yield _finding(evidence, found, severity)
            return
        if found is None and (risen := _risen_at_load(evidence, start, values)) is not None:
            yield risen
            return


def process_starts(evidence: Evidence) -> list[int]:
    """First steps of the processes that took over from another one, of the first rank."""
    rows = evidence.run.ranks[evidence.ranks[0]].visible() if evidence.ranks else []
    return sorted(row.first_step for row, _ in rows if row.first_step > evidence.start)


def find(start: int, values: Array, starts: Iterable[int] = ()) -> Restart | None:
    """The first of (n,) rates at the steps from `start` on, NaN where none is known."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = values[1:] / values[:-1]
    jumps = 1 + np.flatnonzero((values[1:] > 0) & (values[:-1] > 0) & ((ratio >= JUMP) | (ratio <= 1 / JUMP)))
    # The first steps of a warm-up are far apart.
    jumps = np.array([at for at in jumps.tolist() if not _is_warming_up(values, at)], np.int64)
    for number, at in enumerate(jumps.tolist()):
        earlier = _earlier(values, at, jumps[:number])
        if earlier is not None:
            step, before, after = start + at, float(values[at - 1]), float(values[at])
            later = (_earlier(values, each, jumps[:number]) for each in jumps[jumps >= at + SAME].tolist())
            is_single = number == 0 and all(each is None for each in later)
            is_peak = bool(after >= (1 - TOLERANCE) * np.nanmax(values[:at]))
            is_next = number == 0 and _begin_one_further(values, jumps)
            return Restart(step, start + earlier, before, after, step in set(starts), is_single, is_peak, is_next)
    return None


def _begin_one_further(values: Array, jumps: Array) -> bool:
    """Whether each jump begins at the place of the schedule behind that at which the one before began."""
    none, begins, places = np.zeros(0, np.int64), [0], [0]
    for at in jumps.tolist():
        if at < begins[-1] + SAME:  # a rise right behind a jump may be one, too
            continue
        earlier = _earlier(values, at, none)
        if earlier is None:
            return False
        around = max(each for each, begin in enumerate(begins) if begin <= earlier)
        places.append(places[around] + earlier - begins[around])
        begins.append(at)
    steps = np.diff(places[1:])
    return len(steps) >= FEWEST_MORE and bool((steps == 1).all())


def _is_warming_up(values: Array, at: int) -> bool:
    return bool(at < WARM_UP and (np.diff(values[: at + 1]) >= 0).all())


def _earlier(values: Array, at: int, jumps: Array) -> int | None:
    """A place before with the same rates as the `SAME` from `at` on, which must change; the earliest. One that follows
    a jump itself is the beginning of a cycle."""
    row = values[at : at + SAME]
    changes = np.abs(np.diff(row)) > TOLERANCE * np.abs(row[1:]) if len(row) == SAME else np.zeros(0, bool)
    if len(row) < SAME or not np.isfinite(row).all() or changes.sum() < SAME // 2:
        return None
    places = np.flatnonzero(np.abs(values[: max(0, at - SAME)] - row[0]) <= TOLERANCE * row[0])
    for each in places.tolist():
        other = values[each : each + SAME]
        if each not in jumps and (np.abs(other - row) <= TOLERANCE * np.abs(row)).all():
            return each
    return None


def _severity(evidence: Evidence, found: Restart) -> str:
    """ "" where it is nothing worth saying."""
    is_begin, is_rise = found.earlier <= evidence.start + 1, found.after > found.before
    if found.is_of_process and found.is_single:
        return "info" if is_begin and _has_ended(found) else "warning"
    if found.counts_epochs:
        return "warning"
    if not found.is_single or _is_restored(evidence, found.step):
        return ""  # cycles come again; a snapshot brings its rate along
    if is_rise:
        if is_begin or found.is_peak:
            return ""  # warm restarts begin there
        return "warning" if _is_loaded(evidence, found.step) else "info"
    return "info" if is_begin else "warning"


def _is_loaded(evidence: Evidence, step: int) -> bool:
    """Whether an optimizer was given a state right before."""
    return any(abs(event.step - step) <= 1 for event, _ in evidence.details(StateLoaded))


def _risen_at_load(evidence: Evidence, start: int, values: Array) -> Finding | None:
    """The rate is at its peak from the very step on at which an optimizer was given a saved state, and changes from
    there on: what sets it began anew, without the warm-up that the rates before had."""
    for event, _ in evidence.details(StateLoaded):
        for at in (event.step - start, event.step - start + 1):
            row = values[max(0, at) : at + SAME]
            if not 0 < at < len(values) or len(row) < SAME or not np.isfinite(row).all():
                continue
            before, after = float(values[at - 1]), float(values[at])
            is_risen = after >= JUMP * before > 0 and after >= NEAR_PEAK * float(np.nanmax(values[:at]))
            if is_risen and (np.diff(row) != 0).sum() >= SAME // 2 and not _is_warming_up(values, at):
                return _at_load(evidence, start + at, before, after)
    return None


def _at_load(evidence: Evidence, step: int, before: float, after: float) -> Finding:
    rank = only_rank(evidence)
    return Finding(
        severity="info", rank=rank, step=step, subject="schedule",
        summary=f"{place(step, rank)}: the learning rate jumps from {before:.3g} to {after:.3g}, about as high as it "
        "had been, where the optimizer was given a saved state.",
        evidence=(
            "Such a state brings its rate along, and the rate changes from this step on as a schedule does.",
            "Cause (possible): the scheduler was made anew, or what computes the rate counts its steps from 0 again. "
            "Against that: a warm restart behind the best checkpoint looks the same.",
        ),
        remedy=(_restored(step),),
        facts={"before": before, "after": after, "cause_class": "learning_rate"},
    )  # fmt: skip


def _restored(step: int) -> Remedy:
    return Remedy(
        "Restore the scheduler where the training is resumed, with scheduler.load_state_dict(), after it was made; or "
        f"give it last_epoch as the number of its own moves so far, in steps where it moves each step ({step - 1} "
        "here), and not the number of epochs.",
        "scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 100))\n"
        "state = scheduler.state_dict()  # into the checkpoint, beside model and optimizer\n"
        "scheduler.load_state_dict(state)  # when the training is resumed",
        "the rates before and from this step on",
    )


def _has_ended(found: Restart) -> bool:
    return found.before <= ENDED * found.after


def _is_restored(evidence: Evidence, step: int) -> bool:
    """Whether code other than the optimizer has written to the weights right before."""
    if not evidence.has_series(WRITTEN):
        return False
    written = evidence.largest(WRITTEN, step, step + 2)
    return bool((np.nan_to_num(written, nan=np.inf, neginf=0.0) > 0).any())


def _finding(evidence: Evidence, found: Restart, severity: str) -> Finding:
    rank, is_begin = only_rank(evidence), found.earlier <= evidence.start + 1
    where = "starts over" if is_begin else f"goes on as it did from step {found.earlier} on"
    who = " Another process of the run begins with this step: the training was resumed." if found.is_of_process else ""
    if found.counts_epochs:
        who += " And each jump after it begins one step further on in the schedule."
    against = (
        "a schedule that is to begin anew here."
        if not is_begin
        else "the schedule before had come to its end, and a warm restart at its peak looks the same."
        if _has_ended(found)
        else "a cycle that is to begin anew here, as a warm-up after adapters were merged, looks the same."
    )
    return Finding(
        severity=severity, rank=rank, step=found.step, subject="schedule",
        summary=f"{place(found.step, rank)}: the learning-rate schedule {where}: {found.before:.3g} in the step "
        f"before, {found.after:.3g} here.",
        evidence=(
            f"In {SAME} steps and more from here on the rate is what it was from step {found.earlier} on.{who}",
            f"Cause ({'likely' if severity == 'warning' else 'possible'}): the scheduler was made anew and its place "
            f"was not restored, or was counted in epochs where steps are wanted. Against that: {against}",
        ),
        remedy=(_restored(found.step),),
        facts={"earlier_step": found.earlier, "before": found.before, "after": found.after,
               "is_of_process": found.is_of_process, "cause_class": "learning_rate"},
    )  # fmt: skip


RULE = Rule(
    name="schedule_restarted",
    title="The schedule starts over",
    severity="warning",
    explanation="From a step on the learning rate is once more what it was from an earlier step on, after a jump by "
    "half or more: where a training is resumed the scheduler was made anew, and its state was not loaded or its place "
    "was given in epochs. The training warms up a second time, or decays from its peak again, and nothing fails. A "
    "warning where another process of the run takes over at that step in the midst of a schedule, or where the rate "
    "goes on from the midst of an earlier rise; info where a schedule begins anew from its start within one process, "
    "or after it had come to its end, which may be meant. A rate that rises to what it was behind the peak is info, "
    "and a warning where the optimizer's state was loaded there; one that jumps to its peak there is info. "
    "Jumps each of which begins one step further on, as where epochs are counted for steps, are a warning. Cycles, "
    "warm restarts, and a snapshot that brings weights and rate along are not reported. Rates that are logged now and "
    "then, and such that hardly change within 16 steps, say nothing.",
    check=check,
    explains=("update_ratio",),
)
