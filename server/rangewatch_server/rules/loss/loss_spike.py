"""Early warning: the loss has jumped, and was high for more than a hard batch."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.wire.events import Optimizers
from rangewatch_server.numerics.pyramid import FANOUT, SERIES_PART, level_for
from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.loss.after_inputs import BEFORE, Changed, first_change
from rangewatch_server.rules.loss.after_writes import AFTER, Written, first_write
from rangewatch_server.rules.loss.diverged import diverged
from rangewatch_server.rules.loss.series import FOUND_INF, loss_name
from rangewatch_server.rules.loss.spike.cause import explained
from rangewatch_server.rules.loss.spike.harmless import why_harmless
from rangewatch_server.rules.loss.spike.jumps import HALF, MOST, SETTLED, Jump, back_at, jumps
from rangewatch_server.rules.phrases import loss_called, place
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

PLACES = 4
"""Columns of the whole run in which an older jump is searched for: those that rise most over what was before."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: that it diverged from the start, or else its first jump."""
    name = loss_name(evidence)
    if name is None:
        return
    first = diverged(evidence, name)
    if first is not None:
        yield first
        return
    recent = _jumps_in(evidence, name, evidence.whole_stop - WINDOW, limits)
    older = _older(evidence, name, limits)
    loss_jumps = older + [each for each in recent if not older or each.step > older[-1].step]
    written = first_write(evidence, name)
    if written is not None and (not loss_jumps or written.step < loss_jumps[0].step - SETTLED):
        loss_jumps = [_written_jump(evidence, name, written, limits), *loss_jumps]
    changed = first_change(evidence, name)
    if changed is not None and (not loss_jumps or changed.step < loss_jumps[0].step - SETTLED):
        loss_jumps = [_changed_jump(evidence, name, changed, limits), *loss_jumps]
    if loss_jumps:
        yield _finding(evidence, name, loss_jumps)


def _written_jump(evidence: Evidence, name: str, written: Written, limits: Thresholds) -> Jump:
    back = _low_again(evidence, name, written, limits)
    return Jump(written.step, written.usual, written.scatter, written.level, AFTER, back, written.judged)


def _changed_jump(evidence: Evidence, name: str, changed: Changed, limits: Thresholds) -> Jump:
    back = _low_again(evidence, name, changed, limits)
    return Jump(changed.step, changed.usual, changed.scatter, changed.level, changed.count, back, 0, BEFORE, changed.of)


def _low_again(evidence: Evidence, name: str, jump: Written | Changed, limits: Thresholds) -> int | None:
    values = evidence.series(name, jump.step, min(evidence.whole_stop, jump.step + WINDOW))
    at = np.flatnonzero(np.isfinite(values))
    is_low = values[at] <= jump.usual + HALF * (jump.level - jump.usual)
    return back_at(jump.step + at, is_low, max(1, int(limits["least_values"])))


def _jumps_in(evidence: Evidence, name: str, start: int, limits: Thresholds, stop: int | None = None) -> list[Jump]:
    """Jumps that began in the steps [start, stop), judged by the `WINDOW` before them."""
    end = evidence.whole_stop if stop is None else stop
    low = max(evidence.start, start - WINDOW)
    values = evidence.series(name, low, end)
    at = np.flatnonzero(np.isfinite(values))
    return jumps(low + at, values[at], start, limits, is_start=low == evidence.start)


def _older(evidence: Evidence, name: str, limits: Thresholds) -> list[Jump]:
    """The first jump in the columns of the whole run that rise most above those before them."""
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, WINDOW)
    if stop - start <= WINDOW:
        return []
    if level == 0:
        return _jumps_in(evidence, name, start, limits)
    row = np.array([evidence.run.names().series[name]])
    block = evidence.run.slice(SERIES_PART, list(evidence.ranks), level, start, stop, ("count", "max"), row)
    largest = np.where(block.columns["count"][0] > 0, block.columns["max"][0], np.nan)
    before = np.fmin(np.r_[np.nan, largest[:-1]], np.r_[np.nan, np.nan, largest[:-2]])
    with np.errstate(invalid="ignore", divide="ignore"):
        rise = np.nan_to_num((largest - before) / np.abs(before), nan=0.0, posinf=0.0)
    size = FANOUT**level
    for column in sorted(np.argsort(-rise, kind="stable")[:PLACES].tolist()):
        at = (block.first + column) * size
        # Of very coarse columns the single steps would be too many: their last ones are looked at.
        low = max(start, at, at + size - 4 * WINDOW)
        if rise[column] >= limits["least_rise"] and low < stop:
            found = _jumps_in(evidence, name, low, limits, min(stop, at + size + MOST))
            if found:
                return found
    return []


def _finding(evidence: Evidence, name: str, loss_jumps: list[Jump]) -> Finding:
    first = loss_jumps[0]
    cause = explained(evidence, name, first.step, first.usual, first.back)
    rank = cause.rank
    since = "has been high since" if first.back is None else f"was low again at step {first.back}"
    more = (
        f"Jumps after it: {len(loss_jumps) - 1}, the last at step {loss_jumps[-1].step}." if len(loss_jumps) > 1 else ""
    )
    is_old = first.back is not None and first.back < evidence.whole_stop - WINDOW
    harmless = why_harmless(evidence, name, first, cause)
    skipped = _skipped(evidence, first)
    remedies = (*cause.remedies[:1], _NOTHING_TO_RESTORE) if skipped else cause.remedies
    count = f"{first.count} values in a row are" if first.count > 1 else "It is"
    count = f"Of {first.of} values from that step on {first.count} are" if first.of else count
    return Finding(
        severity="info" if is_old or harmless else "",
        rank=rank, step=first.step, subject="spike", tensor=None if harmless else cause.tensor,
        kind=None if harmless else cause.kind,
        summary=f"{place(first.step, rank)}: {loss_called(name)} jumped from {first.usual:.4g} to {first.level:.4g} "
        f"and {since}.",
        evidence=(
            f"{count} far above the {first.among} before, whose median is {first.usual:.4g} with a standard deviation "
            f"of {first.scatter:.2g}."
            if not first.writes else
            f"The mean of {first.count} values is above that of those right before, {first.usual:.4g} with a standard "
            f"deviation of {first.scatter:.2g}; so it is at {first.writes} of {first.writes} writes by other code than "
            "the optimizer to the weights that could be judged, and at none of the 64 steps before that could.",
            *([harmless.sentence] if harmless else []),
            *([f"It took {first.back - first.step} steps until it was back."] if first.back is not None else []),
            *([more] if more else []),
            *([skipped] if skipped else []),
            *([] if harmless else cause.sentences),
        ),
        remedy=(harmless.remedy,) if harmless else remedies,
        facts={
            "loss": first.level, "before": first.usual, "deviation": first.scatter, "since_step": first.step,
            "back_step": first.back, "jumps": len(loss_jumps), "seen_step": first.step + first.count - 1,
            "is_over": first.back is not None,
            **({} if harmless else cause.facts()),
        },
    )  # fmt: skip


_NOTHING_TO_RESTORE = Remedy(
    "Leave the weights as they are: the overflow kept these updates from them, and the loss scale grows back by itself "
    "(growth_interval).", "", "the loss scaler skipped all of these steps",
)  # fmt: skip


def _skipped(evidence: Evidence, jump: Jump) -> str:
    """A sentence, where the loss scaler skipped the update of each step in which the loss was high; else ""."""
    if jump.back is None or not evidence.has_series(FOUND_INF):
        return ""
    if any(len(known.classes) > 1 for _, known in evidence.details(Optimizers)):
        return ""  # the series says that the update of any of them was skipped
    found = evidence.largest(FOUND_INF, jump.step, jump.back)
    if not len(found) or not (found > 0).all():
        return ""
    return "Gradients overflowed: the loss scaler skipped the updates of all these steps, and no weight was changed."


RULE = Rule(
    name="loss_spike",
    title="Loss jumped",
    severity="warning",
    explanation="The loss jumped far above what it was, for several steps in a row: three, or more where single high "
    "values are usual, or one that is a thousand times the highest before; or it has been far above its first value "
    "since the first steps. Single hard batches are not reported. The first jump stays open, as info 256 steps after "
    "the loss was low again. Info, too, where it is no higher than at first and gradients are as usual, as when the "
    "data become harder, where a head was made anew at that step, where another loss is learned from that step on, or "
    "where a schedule with restarts has just begun anew. Needs a logged loss: handle.log(loss=loss).",
    check=check,
    thresholds=(
        Threshold("deviations", 8.0, "standard deviations", "How far above its usual value."),
        Threshold("least_rise", 0.25, "of its usual value", "And by how much of it.", (("megatron", 9.0),)),
        Threshold("least_values", 3.0, "values in a row", "So many must be high, or more."),
    ),
    explains=(
        "vanishing_gradient", "short_spike", "loss_stuck", "dead_expert", "dead_activation", "saturated_activation",
        "loss_scale_collapse", "loss_scale_unexplained_skip",
    ),
    leads_to=("exploding_gradient", "first_nonfinite", "loss_nonfinite", "replica_mismatch"),
)  # fmt: skip
