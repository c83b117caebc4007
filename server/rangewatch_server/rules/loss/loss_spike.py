"""Early warning: the loss has jumped, and was high for more than a hard batch."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch_server.rules.evidence import WINDOW, Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds
from rangewatch_server.rules.trend import MAD

HISTORY = 64
"""Values before a jump that tell what was usual."""

MOST = 16
"""High values in a row that are waited for at most; the first 8 say how high it has jumped."""

CHANCE = 1e-6
"""That so many are high in a row by chance, going by the share of such values in the 256 steps before."""

HALF = 0.5
"""Part of the rise that counts a single value as high: the values after a jump scatter, too."""


class Jump(msgspec.Struct, frozen=True):
    """From `usual`, with a standard deviation of `scatter`, to `level` at `step`. `count` high values in a row show it.

    `back`: the step from which it was low again; None: not yet.
    """

    step: int
    usual: float
    scatter: float
    level: float
    count: int
    back: int | None


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first jump of the window, which it is told of as long as it is in there."""
    name = loss_name(evidence)
    if name is None:
        return
    stop = evidence.whole_stop
    start = max(evidence.start, stop - 2 * WINDOW)
    values = evidence.series(name, start, stop)
    at = np.flatnonzero(np.isfinite(values))
    found = jumps(start + at, values[at], stop - WINDOW, limits)
    if found:
        yield _finding(evidence, name, found)


def jumps(steps: Array, values: Array, since: int, limits: Thresholds) -> list[Jump]:
    """Those of (n,) finite values at (n,) ascending steps that began at the step `since` or later.

    Each is judged by what was before it and right behind it: whatever comes later, it stays what it is.
    """
    if len(values) <= HISTORY:
        return []
    before = np.lib.stride_tricks.sliding_window_view(values, HISTORY)[:-1]  # row i: those before HISTORY + i
    usual = np.median(before, axis=1)
    scatter = MAD * np.median(np.abs(before - usual[:, None]), axis=1)
    rise = np.maximum(limits["deviations"] * scatter, limits["least_rise"] * np.abs(usual))
    bar = usual + HALF * rise
    starts = np.flatnonzero((values[HISTORY:] > bar) & (values[HISTORY - 1 : -1] <= bar) & (steps[HISTORY:] >= since))
    least, found = max(1, int(limits["least_values"])), []
    for at in starts.tolist():
        high, begin = float(usual[at] + rise[at]), HISTORY + at
        history = values[np.searchsorted(steps, steps[begin] - WINDOW) : begin]
        is_low = values[begin:] <= bar[at]
        row = values[begin:][: int(is_low.argmax()) if is_low.any() else None][:MOST]
        count = _in_a_row(history, row, high, least)
        if count:
            level, back = float(np.median(row[: MOST // 2])), _back(steps[begin:], is_low, least)
            found.append(Jump(int(steps[begin]), float(usual[at]), float(scatter[at]), level, count, back))
    return found


def _in_a_row(history: Array, row: Array, high: float, least: int) -> int:
    """High values in a row that show a jump: so many that chance would hardly give as many; 0: they do not."""
    for count in range(least, len(row) + 1):
        share = (np.count_nonzero(history >= row[:count].min()) + 0.5) / (len(history) + 1)
        if np.median(row[:count]) > high and share**count <= CHANCE:
            return count
    return 0


def _back(steps: Array, is_low: Array, least: int) -> int | None:
    """The first step of `least` low values in a row."""
    for at in np.flatnonzero(is_low).tolist():
        if at + least <= len(is_low) and is_low[at : at + least].all():
            return int(steps[at])
    return None


def _finding(evidence: Evidence, name: str, found: list[Jump]) -> Finding:
    first, rank = found[0], only_rank(evidence)
    since = "has been high since" if first.back is None else f"was low again at step {first.back}"
    more = f"Jumps after it: {len(found) - 1}, the last at step {found[-1].step}." if len(found) > 1 else ""
    return Finding(
        rank=rank, step=first.step, subject="spike",
        summary=f"{place(first.step, rank)}: the loss ({name}) jumped from {first.usual:.4g} to {first.level:.4g} and "
        f"{since}.",
        evidence=(
            f"{first.count} values in a row are far above the {HISTORY} before, whose median is {first.usual:.4g} "
            f"with a standard deviation of {first.scatter:.2g}.",
            *([more] if more else []),
            "Why is not known from the loss alone: see what else changed, such as the data or the learning rate.",
        ),
        remedy=tuple(_remedies(first.step)),
        facts={
            "loss": first.level, "before": first.usual, "deviation": first.scatter, "since_step": first.step,
            "back_step": first.back, "jumps": len(found),
        },
    )  # fmt: skip


def _remedies(step: int) -> Iterable[Remedy]:
    because = "it rests on the loss alone"
    yield Remedy(
        f"Go back to a checkpoint from before step {step}, and leave out the batches around it.", because=because
    )
    yield Remedy(
        "Clip the gradients, so that one batch moves the weights by so much at most.",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # after scaler.unscale_(optimizer)",
        because,
    )
    yield Remedy(
        "Lower the learning rate, if it jumps again.",
        "for group in optimizer.param_groups:\n    group['lr'] *= 0.5",
        because,
    )


RULE = Rule(
    name="loss_spike",
    title="Loss jumped",
    severity="warning",
    explanation="The loss jumped far above what it was, for several steps in a row: three, or more where single high "
    "values are usual. Single hard batches are not told of. A jump is told for 256 steps, with the step from which the "
    "loss was low again. Needs a logged loss: handle.log(loss=loss).",
    check=check,
    thresholds=(
        Threshold("deviations", 8.0, "standard deviations", "How far above its usual value."),
        Threshold("least_rise", 0.25, "of its usual value", "And by how much of it."),
        Threshold("least_values", 3.0, "values in a row", "So many must be high, or more."),
    ),
)
