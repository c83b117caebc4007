"""Early warning: the loss has jumped, and was high for more than a hard batch."""

from __future__ import annotations

import re
from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch.wire.events import LossFunction, Optimizers
from rangewatch_server.numerics.pyramid import FANOUT, RANGES, SERIES_PART, level_for
from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.loss.after_inputs import BEFORE, Changed, first_change
from rangewatch_server.rules.loss.after_writes import AFTER, Written, first_write
from rangewatch_server.rules.loss.learning_rate import group_rates
from rangewatch_server.rules.loss.series import FOUND_INF, RATES, loss_name, rates
from rangewatch_server.rules.loss.spike.bands import activations, risers
from rangewatch_server.rules.loss.spike.batch import given_moved
from rangewatch_server.rules.loss.spike.calls import longer_recurrence, summed_losses
from rangewatch_server.rules.loss.spike.cause import Explanation, explained
from rangewatch_server.rules.loss.spike.changed_loss import SEE_LOSS, of_changed_loss
from rangewatch_server.rules.loss.spike.weights import thawed_before
from rangewatch_server.rules.nonfinite.causes import SHOWN
from rangewatch_server.rules.phrases import loss_called, place
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds
from rangewatch_server.rules.trend import MAD

HISTORY = 64
"""Values before a jump that show what was usual."""

EARLY_HISTORY = 16
"""The same near the beginning of a run, where it must at least double."""

EARLY_RISE = 1.0
"""Part of the usual value by which it must rise then."""

BEGIN, BEGIN_LASTING = 64, 8
"""Steps in which a training that diverges from its first steps on shows it, and high values in a row that show it."""

DIVERGED = 4.0
"""How many times as high as at first the loss must be then, and the largest gradient with it."""

OUTPUTS_DIVERGED = 4.0
"""Or half of the outputs with it, in bits: behind a saturated activation gradients do not grow."""

LOWER, LEARNED = 0.75, 16
"""Part of the first loss below which it has learned, and the steps with such a loss after which that is no chance."""

LEAST_FIRST = 0.5
"""First loss from which that is judged: others begin near 0 and grow, as those of reinforcement learning do."""

LEAST_SMALL, DIVERGED_SMALL = 0.1, 40.0
"""A smaller first loss, down to this, must be exceeded so many times."""

PLACES = 4
"""Columns of the whole run in which an older jump is searched for: those that rise most over what was before."""

MOST = 16
"""High values in a row that are waited for at most; those that show it also say how high it has jumped."""

CHANCE = 1e-6
"""That so many are high in a row by chance, going by the share of such values in the 256 steps before."""

TREND, MOST_ALIKE, FEWEST_ALIKE = 17, 0.6, 64
"""Values by whose running median the trend is taken off, to see how alike neighbours are; the most that is counted, so
that nine values are enough in any case; and how many values it takes."""

HALF = 0.5
"""Part of the rise that counts a single value as high: the values after a jump scatter, too."""


SETTLED = 8
"""Values whose median is low where the descent at the beginning of a run is over."""

RECENT, TRAILING, DOUBLED = 8, 9, 1.0
"""Values right before a jump whose median shows how high the loss was while it fell, and those before each by whose
median the fall is taken off to see how it scatters; by how many times of that it must rise: `HISTORY` values that fall
scatter too much to show it."""

FALLING = 32
"""Values before such a jump that it must be above, all of them: of those before, a loss that falls was as high."""

HUGE = 1e3
"""How many times as high as ever before a single value must be that is no hard batch; those that lead up to it belong
to it."""

AT_FIRST = 8
"""First steps, whose median is what the loss began with."""


OUTPUT_BITS = 3.0
"""Bits by which outputs are above their usual height where more than the data changed."""


ABOVE_FIRST, WRONG = 2.0, 16.0
"""How many times as high as in the first steps a loss may be that only another size of the batches explains; and how
high a cross entropy: what is sure, and wrong about rows of another length, has no bound."""

INPUT_ELEMENTS, CROSS = "input_elements", ("nll", "bce")

SLACK, MOST_SLACK = 2.5, 3.5
"""How many times as large as ever before gradients may be, in the median, and each: longer sequences sum up more of it.
"""


AS_HIGH = 0.5
"""Part of what it jumps to that an early loss must not have come to between low values before."""


PASSING, STAYED = 32, 0.75
"""Steps within which a loss that is low again at once was that of a few batches, and the part of its rise by which it
must then have fallen."""


class Jump(msgspec.Struct, frozen=True):
    """From `usual`, with a standard deviation of `scatter`, to `level` at `step`. `count` high values in a row show it.

    `back`: the step from which it was low again; None: not yet. `writes`: those of code to the weights that
    could be judged, of which this is the first; 0: it is none. `among`: values before it that show what was usual.
    `of`: values among which the high ones are; 0: they are in a row.
    """

    step: int
    usual: float
    scatter: float
    level: float
    count: int
    back: int | None
    writes: int = 0
    among: int = HISTORY
    of: int = 0


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
    return _back(jump.step + at, is_low, max(1, int(limits["least_values"])))


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


def diverged(evidence: Evidence, name: str) -> Finding | None:
    """A loss, and gradients, that are far above where they began since the first steps."""
    start, stop = evidence.start, min(evidence.start + BEGIN, evidence.whole_stop)
    values = evidence.series(name, start, stop)
    steps = start + np.flatnonzero(np.isfinite(values))
    values = values[np.isfinite(values)]
    gradients = tensors_of(evidence, "grad")
    if len(values) <= BEGIN_LASTING or not values[0] >= LEAST_SMALL or not len(gradients):
        return None
    wanted = ("amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, stop, wanted, gradients)
    amax = np.where(block.columns["nan_count"] + block.columns["inf_count"] > 0, 0.0, block.columns["amax"]).max(axis=0)
    if evidence.is_loss_scaled:
        scale = evidence.series("loss_scale", start, stop)  # one that only falls is 0 at last
        amax = np.nan_to_num(amax / np.where(scale > 0, scale, np.nan))
    largest, first = amax[steps - start], float(values[0])
    known = largest[largest > 0]
    if not len(known):
        return None
    rise = _output_rise(evidence, start, stop)[steps - start]
    are_large = (largest >= DIVERGED * known[0]) | (rise >= OUTPUTS_DIVERGED)
    is_high = (values >= (DIVERGED if first >= LEAST_FIRST else DIVERGED_SMALL) * first) & are_large
    lower = np.cumsum(values < LOWER * first)
    for at in range(1, len(values) - BEGIN_LASTING + 1):
        if lower[at - 1] >= LEARNED:
            break  # it had learned before, so that it is no divergence from the start on
        if is_high[at : at + BEGIN_LASTING].all():
            highest = float(values[at : at + BEGIN_LASTING].max())
            gradients_rise = (
                f"The largest gradient rose with it, from {known[0]:.3g} to {largest[at:][:BEGIN_LASTING].max():.3g}"
            )
            if largest[at:][:BEGIN_LASTING].min() < DIVERGED * known[0]:
                by = 2.0 ** np.median(rise[at:][:BEGIN_LASTING])
                gradients_rise = (
                    f"Half of the outputs rose with it, to {by:.3g} times what they were in the first step or more"
                )
            return _diverged_finding(evidence, name, int(steps[at]), first, highest, gradients_rise)
    return None


def _output_rise(evidence: Evidence, start: int, stop: int) -> Array:
    """(n,) by how many times outputs are larger than at the first step, as bits: the median over them; -Inf: not known.

    Gradients that end in a saturated activation do not rise where a training diverges.
    """
    outputs = tensors_of(evidence, "output")
    if not len(outputs) or start >= stop:
        return np.full(max(0, stop - start), -np.inf)
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, stop, ("amax",), outputs)
    amax = np.asarray(block.columns["amax"], np.float64)
    there = amax[amax[:, 0] > 0]
    if not len(there):
        return np.full(stop - start, -np.inf)
    with np.errstate(divide="ignore"):
        return np.asarray(np.median(np.log2(there) - np.log2(there[:, :1]), axis=0))


ODD_GROUP = 10.0
"""How many times as high as any other's the learning rate of a parameter group is that it is named for."""


def _diverged_finding(evidence: Evidence, name: str, step: int, first: float, highest: float, rise: str) -> Finding:
    rank = only_rank(evidence)
    logged = (evidence.series(name, evidence.start, step + 1) for name in RATES)
    rates = [float(each) for values in logged for each in values if np.isfinite(each)]
    rate = f" The learning rate was up to {max(rates):.3g}." if rates else ""
    groups = sorted(group_rates(evidence, evidence.start).items(), key=lambda each: -each[1])
    is_odd = len(groups) > 1 and groups[0][1] >= ODD_GROUP * groups[1][1] > 0
    remedy = Remedy(
        "Lower the learning rate, by 10 times or more to begin with, and warm it up.",
        "for group in optimizer.param_groups:\n    group['lr'] *= 0.1",
        "the loss, and gradients or outputs with it, rose from the first updates on",
    )
    tensor, kind = None, None
    if is_odd:
        (group, most), (_, second) = groups[:2]
        rate = f" The learning rate of the parameter group of {group} is {most:.3g}, of others {second:.3g} or less."
        remedy = Remedy(
            f"Lower the learning rate of the parameter group of {group}: to {second:.3g}, to begin with.",
            f"for group in optimizer.param_groups:\n    group['lr'] = min(group['lr'], {second:.3g})",
            f"it is {most / second:.3g} times that of any other group, and the loss rose from the first updates on",
        )
        entry = next((each for each in evidence.tensors.entries if (each.fqn, each.kind) == (group, "grad")), None)
        tensor, kind = (None, None) if entry is None else (entry.fqn, entry.kind)
    return Finding(
        rank=rank, step=step, subject="diverged", tensor=tensor, kind=kind,
        summary=f"{place(step, rank)}: the training diverges: {loss_called(name)} was {first:.4g} at first, and has "
        f"been far above it since, up to {highest:.4g} within {BEGIN_LASTING} steps.",
        evidence=(
            f"{rise}: the updates overshoot.{rate}",
            "No step before it was better for long: what is wrong has been there from the start, as too large a "
            "learning rate is, or an initialisation that is too large.",
        ),
        remedy=(remedy,),
        facts={
            "loss": highest, "before": first, "since_step": step, "seen_step": step + BEGIN_LASTING - 1,
            "cause_class": "learning_rate",
        },
    )  # fmt: skip


def jumps(steps: Array, values: Array, since: int, limits: Thresholds, *, is_start: bool = False) -> list[Jump]:
    """Those of (n,) finite values at (n,) ascending steps that began at the step `since` or later.

    Each is judged by what was before it and right behind it: whatever comes later, it stays what it is.
    """
    early = _early_jump(steps, values, limits) if is_start and len(values) and since <= steps[0] else []
    if early or len(values) <= HISTORY:
        return early
    before = np.lib.stride_tricks.sliding_window_view(values, HISTORY)[:-1]  # row i: those before HISTORY + i
    usual = np.median(before, axis=1)
    scatter = MAD * np.median(np.abs(before - usual[:, None]), axis=1)
    rise = np.maximum(limits["deviations"] * scatter, limits["least_rise"] * np.abs(usual))
    bar = usual + HALF * rise
    starts = np.flatnonzero((values[HISTORY:] > bar) & (values[HISTORY - 1 : -1] <= bar) & (steps[HISTORY:] >= since))
    least, loss_jumps = max(1, int(limits["least_values"])), []
    for at in starts.tolist():
        high, begin = float(usual[at] + rise[at]), HISTORY + at
        history = settled(values[np.searchsorted(steps, steps[begin] - WINDOW) : begin], float(bar[at]))
        if not rise[at]:  # nothing but 0 until then, or nearly: of how high a value is usual that says nothing
            if not np.ptp(history):
                continue
            high = float(usual[at] + np.ptp(history))
        is_low = values[begin:] <= bar[at]
        row = values[begin:][: int(is_low.argmax()) if is_low.any() else None][:MOST]
        count = _in_a_row(history, row, high, least)
        if count:
            level, back = float(np.median(row[:count])), _back(steps[begin:], is_low, least)
            loss_jumps.append(Jump(int(steps[begin]), float(usual[at]), float(scatter[at]), level, count, back))
    if not loss_jumps:
        loss_jumps = list(_set_backs(steps, values, since, limits))
    return loss_jumps


def _set_backs(steps: Array, values: Array, since: int, limits: Thresholds) -> Iterable[Jump]:
    """Jumps of a loss that falls, to above all of the `FALLING` values before: each that is no part of one before."""
    if len(values) <= HISTORY:
        return
    trailing = np.median(np.lib.stride_tricks.sliding_window_view(values, TRAILING)[:-1], axis=1)
    rest = values[TRAILING:] - trailing
    around = np.lib.stride_tricks.sliding_window_view(rest, HISTORY - TRAILING)[:-1]
    lag = np.median(around, axis=1)[:, None]  # of the values behind the median of those before, as far as it fell
    local = MAD * np.median(np.abs(around - lag), axis=1)
    before = np.lib.stride_tricks.sliding_window_view(values, HISTORY)[:-1]
    usual = np.median(before[:, -RECENT:], axis=1)
    rise = np.maximum(limits["deviations"] * local, DOUBLED * np.abs(usual))
    bar = np.maximum(usual + HALF * rise, before[:, -FALLING:].max(axis=1))
    starts = np.flatnonzero((values[HISTORY:] > bar) & (values[HISTORY - 1 : -1] <= bar) & (steps[HISTORY:] >= since))
    least, over = max(1, int(limits["least_values"])), -1
    for at in starts.tolist():
        begin = HISTORY + at
        if begin <= over or not rise[at]:
            continue
        is_low = values[begin:] <= bar[at]
        row = values[begin:][: int(is_low.argmax()) if is_low.any() else None][:MOST]
        # Where the loss fell steeply, many of the values before were as high: then chance is judged without the fall.
        detrended = usual[at] + rest[max(0, begin - TRAILING - WINDOW) : begin - TRAILING]
        high, fewest = float(usual[at] + rise[at]), max(least, RECENT)
        count = _in_a_row(before[at], row, high, fewest) or _in_a_row(detrended, row, high, fewest)
        if count:
            back, over = _back(steps[begin:], is_low, least), begin + MOST
            level = float(np.median(row[:count]))
            yield Jump(int(steps[begin]), float(usual[at]), float(local[at]), level, count, back, among=RECENT)


def _early_jump(steps: Array, values: Array, limits: Thresholds) -> list[Jump]:
    """The first within the first `HISTORY` values."""
    least = max(1, int(limits["least_values"]))
    for at in range(EARLY_HISTORY, min(HISTORY, len(values))):
        history = values[:at]
        usual = float(np.median(history))
        scatter = float(MAD * np.median(np.abs(history - usual)))
        rise = max(limits["deviations"] * scatter, EARLY_RISE * abs(usual), limits["least_rise"] * abs(usual))
        bar = usual + HALF * rise
        if not rise or not values[at] > bar >= values[at - 1]:
            continue
        is_low = values[at:] <= bar
        row = values[at:][: int(is_low.argmax()) if is_low.any() else None][:MOST]
        low = np.flatnonzero(history <= bar)
        if (history[low[0] :] >= max(bar, AS_HIGH * float(np.median(row[: MOST // 2])))).any():
            continue  # it was low, and as high, and low: rows that weigh much are in some batches alone
        count = _in_a_row(history, row, usual + rise, least)
        if count:
            back = _back(steps[at:], is_low, least)
            return [Jump(int(steps[at]), usual, scatter, float(np.median(row[:count])), count, back)]
    return []


def settled(history: Array, bar: float) -> Array:
    """(n,) values without the descent that they begin with: a loss that was high at first says nothing of chance."""
    if len(history) <= SETTLED:
        return history
    medians = np.median(np.lib.stride_tricks.sliding_window_view(history, SETTLED), axis=1)
    below = np.flatnonzero(medians <= bar)
    return history[int(below[0]) :] if len(below) else history


def _in_a_row(history: Array, row: Array, high: float, least: int) -> int:
    """High values in a row that show a jump: so many that chance would hardly give as many; 0: they do not."""
    huge = np.flatnonzero(row[:least] >= HUGE * np.abs(history).max())
    if row[0] > high and len(huge):
        return int(huge[0]) + 1
    alike = _alike(history)
    for count in range(least, len(row) + 1):
        share = (np.count_nonzero(history >= row[:count].min()) + 0.5) / (len(history) + 1)
        if np.median(row[:count]) > high and share ** (count * (1 - alike) / (1 + alike)) <= CHANCE:
            return count
    return 0


def _alike(history: Array) -> float:
    """Correlation of (n,) values with those after them, 0 to `MOST_ALIKE`: n values that are correlated by r are worth
    n (1 - r) / (1 + r) that are not. A batch that is trained on several times in a row, as PPO does, counts as one.
    """
    if len(history) < FEWEST_ALIKE:
        return 0.0
    windows = np.lib.stride_tricks.sliding_window_view(history, TREND)
    rest = history[TREND // 2 : -(TREND // 2)] - np.median(windows, axis=1)
    bound = 3 * MAD * np.median(np.abs(rest))  # one spike is no likeness
    rest = np.clip(rest, -bound, bound)
    spread = float(rest @ rest)
    return min(MOST_ALIKE, max(0.0, float(rest[1:] @ rest[:-1]) / spread)) if spread > 0 else 0.0


def _back(steps: Array, is_low: Array, least: int) -> int | None:
    """The first step of `least` low values in a row."""
    for at in np.flatnonzero(is_low).tolist():
        if at + least <= len(is_low) and is_low[at : at + least].all():
            return int(steps[at])
    return None


def _finding(evidence: Evidence, name: str, loss_jumps: list[Jump]) -> Finding:
    first = loss_jumps[0]
    cause = explained(evidence, name, first.step, first.usual, first.back)
    rank = cause.rank
    since = "has been high since" if first.back is None else f"was low again at step {first.back}"
    more = (
        f"Jumps after it: {len(loss_jumps) - 1}, the last at step {loss_jumps[-1].step}." if len(loss_jumps) > 1 else ""
    )
    is_old = first.back is not None and first.back < evidence.whole_stop - WINDOW
    size = (
        _other_size(evidence, name, first, cause)
        or _longer(evidence, name, first)
        or _stage(evidence, first, cause)
        or _new_part(evidence, first, cause)
    )
    is_other = not size and bool(size := _other_loss(evidence, name, first, cause))
    is_restart = not size and bool(size := _restart(evidence, first, cause))
    summed = _summed(evidence, first)
    size = summed or size
    is_harder = bool(size) or _is_as_at_first(evidence, name, first, cause)
    skipped = _skipped(evidence, first)
    remedies = (*cause.remedies[:1], _NOTHING_TO_RESTORE) if skipped else cause.remedies
    count = f"{first.count} values in a row are" if first.count > 1 else "It is"
    count = f"Of {first.of} values from that step on {first.count} are" if first.of else count
    return Finding(
        severity="info" if is_old or is_harder else "",
        rank=rank, step=first.step, subject="spike", tensor=None if is_harder else cause.tensor,
        kind=None if is_harder else cause.kind,
        summary=f"{place(first.step, rank)}: {loss_called(name)} jumped from {first.usual:.4g} to {first.level:.4g} "
        f"and {since}.",
        evidence=(
            f"{count} far above the {first.among} before, whose median is {first.usual:.4g} with a standard deviation "
            f"of {first.scatter:.2g}."
            if not first.writes else
            f"The mean of {first.count} values is above that of those right before, {first.usual:.4g} with a standard "
            f"deviation of {first.scatter:.2g}; so it is at {first.writes} of {first.writes} writes by other code than "
            "the optimizer to the weights that could be judged, and at none of the 64 steps before that could.",
            *([size or _HARDER] if is_harder else []),
            *([f"It took {first.back - first.step} steps until it was back."] if first.back is not None else []),
            *([more] if more else []),
            *([skipped] if skipped else []),
            *([] if is_harder else cause.sentences),
        ),
        remedy=(
            (_DIVIDE_LOGGED,) if summed
            else (SEE_LOSS,) if is_other
            else (_SEE_RESTART,) if is_restart
            else (_SEE_DATA if not size else _SEE_CHANGE,) if is_harder
            else remedies
        ),
        facts={
            "loss": first.level, "before": first.usual, "deviation": first.scatter, "since_step": first.step,
            "back_step": first.back, "jumps": len(loss_jumps), "seen_step": first.step + first.count - 1,
            "is_over": first.back is not None,
            **({} if is_harder else cause.facts()),
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


_SEE_DATA = Remedy(
    "Look whether the data became harder at this step: if so, nothing is wrong. If not, see whether weights were set "
    "back.", "", "the loss is no higher than at first, and no gradient is larger",
)  # fmt: skip

_SEE_CHANGE = Remedy(
    "Look whether what changed at this step was meant to: if so, nothing is wrong. If not, see whether weights were "
    "set back.", "", "it changed at the very step of the jump",
)  # fmt: skip

_SEE_RESTART = Remedy(
    "Where restarts are meant nothing is wrong. If the loss takes long to come down after each, let the schedule begin "
    "anew at a lower rate.", "", "the rate was as high before, and the loss rose with it",
)  # fmt: skip

_DIVIDE_LOGGED = Remedy(
    "Divide what is logged by the number of microbatches, so that it can be compared with the steps before.", "",
    "the loss rose with their number, and gradients did not",
)  # fmt: skip

_HARDER = (
    "It is no higher than it was at first, and no gradient is larger than then or right before: what the model is "
    "given may have become harder, as a curriculum does."
)


SIZE = 1.1
"""How many times as much, or as little, as ever in the steps before is another size."""

NOT_OF_SIZE = ("learning_rate", "weight", "optimizer")
"""Causes that say more than a size, where they are shown."""


def _other_size(evidence: Evidence, name: str, jump: Jump, cause: Explanation) -> str:
    """A sentence, where the model is given inputs of another size from the very step of the jump on, and the loss is
    not far above what it was at first; else "".
    """
    if any(cause.weights.get(each, 0.0) >= SHOWN for each in NOT_OF_SIZE) or not evidence.has_series(INPUT_ELEMENTS):
        return ""
    began = evidence.series(name, evidence.start, evidence.start + AT_FIRST)
    low = max(evidence.start, jump.step - HISTORY)
    values = evidence.series(INPUT_ELEMENTS, low, jump.step + jump.count)
    before, since = values[: jump.step - low], values[jump.step - low :]
    before, since = before[np.isfinite(before)], since[np.isfinite(since)]
    began = began[np.isfinite(began)]
    is_cross = any(known.op in CROSS for _, known in evidence.details(LossFunction))
    if not len(before) or not len(since) or not len(began):
        return ""
    if not jump.level <= max(ABOVE_FIRST * float(np.median(began)), WRONG if is_cross else 0.0):
        return ""
    if not (since.min() > SIZE * before.max() or SIZE * since.max() < before.min()):
        return ""
    return (
        f"From that step on the model is given {np.median(since):.6g} elements a step, where {before.min():.6g} to "
        f"{before.max():.6g} were usual: the batches are of another size, and the loss of those is another."
    )


def _longer(evidence: Evidence, name: str, jump: Jump) -> str:
    """The same of a recurrence that is longer from the very step of the jump on, and whose values did not rise."""
    calls = longer_recurrence(evidence, jump.step)
    began = evidence.series(name, evidence.start, evidence.start + AT_FIRST)
    began = began[np.isfinite(began)]
    if calls is None or not len(began) or not jump.level <= ABOVE_FIRST * np.median(began):
        return ""
    return (
        f"From that step on a part of the model is called {calls[1]} times in a step, where it was {calls[0]}: what it "
        "is to foresee is longer, and the loss of that is another."
    )


SUM_SLACK = 1.25
"""How many times as high as so many usual losses their sum may be."""


def _summed(evidence: Evidence, jump: Jump) -> str:
    """A sentence, where the loss rose no further than the calls of the model became more, and gradients did not."""
    calls = summed_losses(evidence, jump.step)
    if calls is None or not 0 < jump.level <= SUM_SLACK * jump.usual * calls[1] / calls[0]:
        return ""
    return (
        f"From that step on the model is called {calls[1]} times in a step, where it was {calls[0]}, and gradients "
        "have not risen with that: what is logged is the sum of as many losses, and what is trained on is their mean."
    )


STAGE = re.compile(
    r"(.*[/._ ])?(\w+_)?(stage|phase|level|task|curriculum|difficulty|domain|seq_?len(gth)?|resolution|image_?size|"
    r"num_classes|kl_?weight|noise_?(level|scale|std)?|sigma)",
    re.IGNORECASE,
)
"""Names under which loops log what they set themselves by a plan, and not what comes of the training."""

STOOD = 16
"""Steps for which such a value must have stood still before the step."""


def _stage(evidence: Evidence, jump: Jump, cause: Explanation) -> str:
    """A sentence, where the loop logs a value of its own plan that changed at the very step after it stood; else ""."""
    if any(cause.weights.get(each, 0.0) >= SHOWN for each in NOT_OF_SIZE):
        return ""
    low = max(evidence.start, jump.step - STOOD)
    if jump.step - low < STOOD:
        return ""
    for name in sorted(evidence.run.names().series):
        if not STAGE.fullmatch(name):
            continue
        values = evidence.series(name, low, jump.step + 2)
        before, since = values[: jump.step - low], values[jump.step - low :]
        before, since = before[np.isfinite(before)], since[np.isfinite(since)]
        has_stood = len(before) and len(since) and (before == before[0]).all() and (since == since[0]).all()
        if has_stood and since[0] != before[0]:
            return (
                f"At that very step the loop's own value {name!r}, which it logs, went from {before[0]:.6g} to "
                f"{since[0]:.6g}: where that makes the task another, the loss is another too."
            )
    return ""


FALLS, NO_HIGHER = 0.95, 1.3
"""Part of the first value of another loss below which its last ones are that is learned; and how many times as high
none of them may be."""


def _other_loss(evidence: Evidence, name: str, jump: Jump, cause: Explanation) -> str:
    """A sentence, where the loss is computed by other operations from that very step on, be it no sum in place of a
    mean and no term that is far larger than all it was, and falls since; else "": where it is meant nothing is wrong.
    """
    other = of_changed_loss(evidence, jump.step, cause.rank)
    if other is None or other.is_sum or cause.cause != other.candidate.cause:
        return ""
    if other.is_term and not jump.level <= MOST_OF_TERM * abs(jump.usual):
        return ""
    values = evidence.series(name, jump.step, min(evidence.whole_stop, jump.step + HISTORY))
    values = values[np.isfinite(values)]
    if len(values) < FEW_SINCE or values.max() > NO_HIGHER * values[0]:
        return ""
    if not np.median(values[-max(2, len(values) // 3) :]) <= FALLS * values[0]:
        return ""
    return f"{other.candidate.supports[0]} It falls since."


MOST_OF_TERM = 10.0
"""How many times what the loss was it may be with a term that is added by plan."""

FEW_SINCE = 4
"""Values of another loss that show whether it is learned."""

RESTARTED, JUST, LIKE, BEARS, LONGEST = 3.0, 4, 1.05, 64, 8_192
"""How many times as high the rate is from one step to the next where a schedule begins anew, up to so many steps before
the jump; how far above all before it may be; steps after which the loss must be low again, and steps back in which the
rate must have been as high."""


def _restart(evidence: Evidence, jump: Jump, cause: Explanation) -> str:
    """A sentence, where a schedule that has had this rate before began anew right before the jump, as a cosine with
    warm restarts does, and the loss has come down again, or may yet; else ""."""
    if any(cause.weights.get(each, 0.0) >= SHOWN for each in ("weight", "optimizer")):
        return ""
    begin = max(evidence.start, jump.step - LONGEST)
    rate = rates(evidence, begin, jump.step + 1)
    low = max(1, len(rate) - 1 - JUST)
    with np.errstate(divide="ignore", invalid="ignore"):
        rises = rate[low:] / rate[low - 1 : -1]
    known = np.flatnonzero(rises >= RESTARTED)
    if not len(known):
        return ""
    at = low + int(known[0])
    before = rate[:at][np.isfinite(rate[:at])]
    is_like = len(before) > BEARS // 2 and rate[at] <= LIKE * before.max()
    is_over = jump.back is not None and jump.back - jump.step <= BEARS
    if not is_like or not (is_over or (jump.back is None and evidence.whole_stop - jump.step <= BEARS)):
        return ""
    return (
        f"At step {begin + at} the learning rate went back from {rate[at - 1]:.3g} to {rate[at]:.3g}, as high "
        "as it was before: a schedule with restarts makes the loss rise for some steps."
    )


GARBAGE = 1e15
"""Magnitude of an output that no initialisation gives, and memory that was never written may."""


def _is_garbage(evidence: Evidence, step: int) -> bool:
    outputs = tensors_of(evidence, "output")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, step, step + 1, ("amax",), outputs)
    return bool(np.asarray(block.columns["amax"], np.float64).max(initial=0.0) >= GARBAGE)


def _new_part(evidence: Evidence, jump: Jump, cause: Explanation) -> str:
    """A sentence, where parameters got the first gradient of the run at the very step of the jump: they have not been
    updated yet, so that no update made it, but a forward or a loss that goes another way; else ""."""
    made = [
        name
        for event, known in evidence.details(Optimizers)
        if abs(event.step - jump.step) <= 1
        for name in (*known.replaced, *known.renewed)
    ]
    if made and not _is_garbage(evidence, jump.step):
        more = f", and so for {len(made) - 1} more" if len(made) > 1 else ""
        return (
            f"At that very step another parameter took the place of {made[0]}{more}: a head or a table that has grown, "
            "or was made anew, has to be learned."
        )
    thawed = thawed_before(evidence, jump.step)
    if thawed is None or thawed.step != jump.step or cause.weights.get("weight", 0.0) >= SHOWN:
        return ""
    more = f" and {thawed.count - 1} more parameters" if thawed.count > 1 else ""
    return (
        f"At that very step {thawed.fqn}{more} got the first gradient of the run: the loss is of layers that had no "
        "part in it before, as where a network is trained layer by layer."
    )


def _is_as_at_first(evidence: Evidence, name: str, jump: Jump, cause: Explanation) -> bool:
    """Whether the loss is as in the first steps at most, and all gradients are there, and no larger than they were
    then or right before; the rate and the outputs are as usual.
    """
    began = evidence.series(name, evidence.start, evidence.start + AT_FIRST)
    began, gradients = began[np.isfinite(began)], tensors_of(evidence, "grad")
    low, at, stop = max(evidence.start, jump.step - HISTORY), jump.step, jump.step + 3
    is_low = len(began) and jump.level <= np.median(began)
    is_explained = "learning_rate" in cause.weights or cause.cause in ("weight", "optimizer")
    is_explained = is_explained or _is_of_data(evidence, jump, cause) or _is_passing(evidence, name, jump)
    if not is_low or not len(gradients) or at <= low or is_explained:
        return False
    if risers(evidence, tensors_of(evidence, "update"), at - 1):
        return False
    if any(each.bits >= OUTPUT_BITS for each in risers(evidence, activations(evidence), at + 2)):
        return False
    names = ("amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, names, gradients)
    amax = np.asarray(block.columns["amax"], np.float64)
    early = evidence.run.slice(
        RANGES, list(evidence.ranks), 0, evidence.start, evidence.start + AT_FIRST, ("amax",), gradients
    )
    at_first = np.asarray(early.columns["amax"], np.float64).max(axis=1)
    usual = np.maximum(at_first, amax[:, : at - low].max(axis=1))
    with np.errstate(divide="ignore", invalid="ignore"):
        times = np.nan_to_num(amax[:, at - low :].max(axis=1) / usual, nan=0.0, posinf=np.inf)
    if times.max() > MOST_SLACK or np.median(times) > SLACK:
        return False
    had, have = (amax[:, : at - low] > 0).mean(axis=1) > HALF, (amax[:, at - low :] > 0).any(axis=1)
    bad = np.asarray(block.columns["nan_count"]) + np.asarray(block.columns["inf_count"])
    return bool(had.any() and (have | ~had).all() and not bad.any())


HARDER_BITS = 2.0
"""Bits by which inputs may become larger where they become harder: noise that is added by a plan, a wider range."""


def _is_of_data(evidence: Evidence, jump: Jump, cause: Explanation) -> bool:
    """Whether the batches since are shown to be others, and by more than a curriculum makes them so."""
    moved = given_moved(evidence, cause.rank, jump.step)
    return cause.weights.get("data", 0.0) >= SHOWN and (moved is None or moved.bits >= HARDER_BITS)


def _is_passing(evidence: Evidence, name: str, jump: Jump) -> bool:
    """Whether the loss stayed high until it was low again at once, within steps: no data that have become harder do so,
    and what is learned of them brings the loss down by and by."""
    if jump.back is None or jump.back - jump.step > PASSING:
        return False
    values = evidence.series(name, jump.step, jump.back + 1)
    values = values[np.isfinite(values)]
    rise = jump.level - jump.usual
    return len(values) > 1 and bool(
        values[-2] >= jump.usual + HALF * rise and values[-1] <= jump.usual + (1 - STAYED) * rise
    )


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
