"""The search for jumps in a row of losses."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch_server.rules.evidence import WINDOW
from rangewatch_server.rules.recent import Array
from rangewatch_server.rules.rule import Thresholds
from rangewatch_server.rules.trend import MAD

HISTORY = 64
"""Values before a jump that show what was usual."""

EARLY_HISTORY = 16
"""The same near the beginning of a run, where it must at least double."""

EARLY_RISE = 1.0
"""Part of the usual value by which it must rise then."""

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

AS_HIGH = 0.5
"""Part of what it jumps to that an early loss must not have come to between low values before."""


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
            level, back = float(np.median(row[:count])), back_at(steps[begin:], is_low, least)
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
            back, over = back_at(steps[begin:], is_low, least), begin + MOST
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
            back = back_at(steps[at:], is_low, least)
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


def back_at(steps: Array, is_low: Array, least: int) -> int | None:
    """The first step of `least` low values in a row."""
    for at in np.flatnonzero(is_low).tolist():
        if at + least <= len(is_low) and is_low[at : at + least].all():
            return int(steps[at])
    return None
