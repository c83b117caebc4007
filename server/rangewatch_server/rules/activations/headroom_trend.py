"""Early warning: a tensor grows toward the largest number that its dtype holds.

Which tensors grow toward the largest number that their dtype holds, and when they get there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec
import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.rules.evidence import BACKWARD, Evidence
from rangewatch_server.rules.inputs import input_growth
from rangewatch_server.rules.loss_scale.causes import device_of
from rangewatch_server.rules.phrases import in_bfloat16, in_float32, module_path, place, the
from rangewatch_server.rules.recent import Array, Recent, odd_rank, recent, rows_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds
from rangewatch_server.rules.trend import MAD, Crossing, Trend, crossing, fit

SCALES = (6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Points that are examined, the last ones: growth may be quick or slow."""

HISTORY = 8
"""Points before them from which they must stand out; with fewer the run has only begun."""

FEWEST_AT_FIRST = 8
"""Points that are growth at the very beginning of a run."""

REACH, REACH_AT_FIRST = 2.0, 0.75
"""How far a line is drawn beyond its points: so many times what it rose by in them."""

NARROW_BITS = 64
"""Dtypes that hold less than 2^64 are near their limit in healthy training, too; in others growth is an explosion."""

WANDERS = 96
"""Points of the history that show by how much the tensor goes up and down anyhow."""

MOST = 64
"""Tensors that are examined closely, those with the least headroom; and points that a line is put through."""

LATELY = 8
"""Points within which a tensor must have been observed, and been finite."""

BEGINNING = 32
"""Points of a run whose growth is judged anew at each: much grows quickly at first, and not for long."""

LEAPS, LEAST_LEAP = 3, 0.2
"""Steps up in a row that are quick growth, and the bits of each."""

JUMP = 0.5
"""What the other points rise by, as a share of the greatest rise between two, where that is no jump."""

HIGH = 0.98
"""Quantile of the history that counts as its height: a spike in 50 steps does not."""


class Growth(msgspec.Struct, frozen=True):
    """A tensor on its way to the limit. `left`: bits, as of its last values; `margin`: bits that its noise adds."""

    tensor: int
    trend: Trend
    left: float
    margin: float
    when: Crossing


def near(evidence: Evidence, points: Recent, limits: Thresholds) -> list[int]:
    """Tensors that may be on their way: high enough, higher than before, and finite to the last."""
    if not points.bits.size:
        return []
    filled = np.where(np.isfinite(points.bits), points.bits, -np.inf)
    now, least = filled[:, -LATELY:].max(axis=1), np.where(np.isfinite(points.bits), points.bits, np.inf).min(axis=1)
    log2_max = evidence.tensors.log2_max
    high = np.where(log2_max < NARROW_BITS, log2_max - now <= limits["most_left"], now >= limits["least_exploded"])
    rise = np.where(log2_max < NARROW_BITS, limits["least_growth"], limits["least_explosion"])
    could = high & (now - least >= rise) & ~points.bad[:, -LATELY:].any(axis=1) & _is_watched(evidence)
    order = np.argsort(np.where(could, log2_max - now, np.inf), kind="stable")
    return order[: min(MOST, int(could.sum()))].tolist()


def _is_watched(evidence: Evidence) -> Array:
    """Not gradients that a loss scaler lets run into the limit, nor float8, whose values are scaled up to it."""
    scaled = rows_of(BACKWARD) if evidence.is_loss_scaled else []
    is_float8 = np.array([entry.dtype.startswith("float8") for entry in evidence.tensors.entries], bool)
    return ~np.isin(evidence.tensors.kind_rows, scaled) & ~is_float8 & np.isfinite(evidence.tensors.log2_max)


def growth(evidence: Evidence, points: Recent, tensor: int, limits: Thresholds) -> Growth | None:
    """The tensor's lasting growth to the limit as of its last point, or one of the few before it; None: there is none.

    Growth that has only begun is not clear at every point: it is reported on for a few, as long as it goes on.
    """
    there = np.flatnonzero(np.isfinite(points.bits[tensor]))
    steps, bits = points.steps[there], points.bits[tensor][there]
    limit = float(evidence.tensors.log2_max[tensor])
    for end in [len(bits), *range(len(bits) - 1, max(BEGINNING, len(bits) - LATELY), -1)]:
        grown = _growth(tensor, steps[:end], bits[:end], limit, limits)
        if grown is not None and end == len(bits):
            return grown
        if grown is not None:
            has_jumped = np.diff(bits[end - 1 :]).max() >= limits["least_explosion"]
            return None if has_jumped else _later(grown, steps, bits, limit)
    return None


def _later(grown: Growth, steps: Array, bits: Array, limit: float) -> Growth | None:
    """The same growth as of the last point; None where it has not gone on, at half its speed at least."""
    now = float(max(np.median(bits[-2:]), np.median(bits[-4:])))
    went_on = grown.trend.level + grown.trend.slope * int(steps[-1] - grown.trend.last) / 2
    if now < went_on - 2 * grown.trend.scatter - 0.25:
        return None
    trend = msgspec.structs.replace(grown.trend, last=int(steps[-1]), level=max(now, grown.trend.level))
    left, when = limit - trend.level, crossing(trend, limit, grown.margin)
    return Growth(grown.tensor, trend, left, grown.margin, when)


def _growth(tensor: int, steps: Array, bits: Array, limit: float, limits: Thresholds) -> Growth | None:
    """The shortest stretch of the last points that is lasting growth to the limit; None where none is."""
    if (leap := _leap(steps, bits, limit, limits)) is not None:
        return Growth(tensor, leap, limit - leap.level, 0.0, crossing(leap, limit))
    for count in SCALES:
        if count > len(bits):
            break
        trend = _line(steps[-count:], bits[-count:], limits["least_growth"])
        if trend is None or _is_jump(bits[-count:], limits) or not _is_growth(trend, bits, count, limits):
            continue
        slower = _slower(trend, steps, bits, count)
        margin = max(0.0, float(np.max(bits[-count:] - (trend.level + trend.slope * (steps[-count:] - trend.last)))))
        left = limit - trend.level
        when = crossing(slower, limit, margin)
        reach = REACH if count + HISTORY <= len(bits) else REACH_AT_FIRST
        short = max(0.0, left - margin)
        is_reached = limit >= NARROW_BITS or short <= reach * trend.growth
        if is_reached and _is_soon(limit, short, when.about, bits, limits):
            return Growth(tensor, slower, left, margin, when)
    return None


def _leap(steps: Array, bits: Array, limit: float, limits: Thresholds) -> Trend | None:
    """Growth too quick to wait for a line: the last `LEAPS` steps up, each far beyond what the history's noise is."""
    before, last = bits[: -LEAPS - 1], bits[-LEAPS - 1 :]
    if len(before) < 2 * HISTORY or limit >= NARROW_BITS or limit - last[-1] > limits["most_left"]:
        return None
    ups, noise = np.diff(last), MAD * float(np.median(np.abs(before - np.median(before))))
    if ups.min() < max(LEAST_LEAP, 4 * noise) or last[1] < before.max():
        return None
    a_step = np.diff(last) / np.diff(steps[-LEAPS - 1 :])
    slope, low, high = float(np.median(a_step)), float(a_step.min()), float(a_step.max())
    if limit - last[-1] > limits["horizon"] * slope:
        return None
    return Trend(slope, low, high, float(last[-1]), noise, LEAPS + 1, int(steps[-LEAPS - 1]), int(steps[-1]))


def _line(steps: Array, bits: Array, least: float) -> Trend | None:
    """The line through the points; None where they plainly do not rise by `least`. Many are first grouped to `MOST`."""
    quarter = max(1, len(bits) // 4)
    if np.median(bits[-quarter:]) - np.median(bits[:quarter]) < least / 2:
        return None
    size = -(-len(bits) // MOST)
    if size == 1:
        return fit(steps, bits)
    whole = len(bits) // size * size  # the last ones, in groups of equal size
    trend = fit(*(np.median(each[-whole:].reshape(-1, size), axis=1) for each in (steps, bits)))
    if trend is None:
        return None
    last = int(steps[-1])
    level = trend.level + trend.slope * (last - trend.last)
    return msgspec.structs.replace(trend, level=level, first=int(steps[0]), last=last, count=len(steps))


def _is_jump(bits: Array, limits: Thresholds) -> bool:
    """Whether nearly all of the rise was between two points next to each other: it says nothing of the next step."""
    highest = float(np.diff(bits).max())
    rest = float(np.median(bits[-2:]) - np.median(bits[:2])) - highest
    return highest >= limits["least_growth"] and rest < JUMP * highest


def _is_growth(trend: Trend, bits: Array, count: int, limits: Thresholds) -> bool:
    """Whether it surely rises, by enough, to the last, and to where it has not been before."""
    if trend.low <= 0 or trend.growth < max(limits["least_growth"], 4 * trend.scatter):
        return False
    before = bits[:-count]
    if len(before) < HISTORY:
        if count < FEWEST_AT_FIRST or trend.growth < 2 * limits["least_growth"]:
            return False
    elif not _stands_out(trend, before):
        return False
    return _goes_on(bits[-count:], trend)


def _stands_out(trend: Trend, before: Array) -> bool:
    """Whether the line ends where the history was not, by more than it wanders anyhow."""
    low, high = np.quantile(before[-WANDERS:], (1 - HIGH, HIGH))
    rise = trend.level - float(np.quantile(before, HIGH))
    return bool(rise >= trend.growth / 2 and rise >= (high - low) / 2)


def _goes_on(bits: Array, trend: Trend) -> bool:
    """Whether the last of the points rise as the others did: growth that flattens is none."""
    third = max(2, len(bits) // 3)
    last, middle = np.median(bits[-third:]), np.median(bits[-2 * third : -third])
    between = trend.level - trend.slope / 2  # where the line is between the last two points
    return bool(last - middle >= trend.growth / 6) and bool(np.median(bits[-2:]) >= between - 2 * trend.scatter - 0.25)


def _slower(trend: Trend, steps: Array, bits: Array, count: int) -> Trend:
    """The line through the last half of the points where that rises more slowly: growth may be slowing down."""
    half = _line(steps[-(count // 2) :], bits[-(count // 2) :], -np.inf) if count >= 16 else None
    if half is None or not 0 < half.slope < trend.slope:
        return trend
    return msgspec.structs.replace(trend, slope=half.slope, low=max(0.0, min(trend.low, half.slope)))


def _is_soon(limit: float, left: float, about: float, bits: Array, limits: Thresholds) -> bool:
    """Narrow dtypes: the limit is near. Wide ones: far beyond its own history, and on its way."""
    if limit < NARROW_BITS:
        return left <= limits["most_left"] and about <= limits["horizon"]
    usual = float(np.quantile(bits, 0.25))
    return about <= limits["far_horizon"] and limit - left - usual >= limits["least_explosion"]


ALIKE, LEAST_ALIKE, ALIKE_BITS = 1.5, 4.0, 0.5
"""Tensors get to the limit at about the same step where one takes no longer than so many times the other's steps and so
many more, and has no more headroom than by so many bits."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the tensor that gets there first, and which others grow with it."""
    points = recent(evidence)
    grown = [each for tensor in near(evidence, points, limits) if (each := growth(evidence, points, tensor, limits))]
    if grown:
        yield _finding(evidence, _in_order(evidence, grown))


def _in_order(evidence: Evidence, grown: list[Growth]) -> list[Growth]:
    """The one that gets there first, and the others. Of those that get there at about the same step, the first in call
    order: which of them is ahead changes from step to step."""
    order, soonest = evidence.tensors.call_index, min(grown, key=lambda each: (each.when.about, each.tensor))
    latest = soonest.when.about * ALIKE + LEAST_ALIKE

    def key(each: Growth) -> tuple[float, int, int]:
        is_alike = each.when.about <= latest and each.left <= soonest.left + ALIKE_BITS
        return 0.0 if is_alike else each.when.about, int(order[each.tensor]), each.tensor

    return sorted(grown, key=key)


def _finding(evidence: Evidence, grown: list[Growth]) -> Finding:
    first = grown[0]
    entry, trend = evidence.tensors.entries[first.tensor], first.trend
    rank, others = odd_rank(evidence, first.tensor, trend.last)
    where = place(trend.last, rank)
    return Finding(
        rank=rank, step=trend.last, tensor=entry.fqn, kind=entry.kind, subject="overflow",
        summary=f"{where}: {the(entry)} grows toward the limit of {entry.dtype}: overflow {steps_text(first.when)}.",
        evidence=tuple(_evidence(evidence, grown, others)),
        remedy=tuple(_remedies(evidence, entry, trend)),
        facts={
            "dtype": entry.dtype, "headroom_bits": first.left, "bits_a_step": trend.slope, "since_step": trend.first,
            "about_steps": first.when.about, "earliest_steps": first.when.earliest,
            "latest_steps": first.when.latest if np.isfinite(first.when.latest) else None,
            "also": [evidence.tensors.entries[each.tensor].fqn for each in grown[1:]],
        },
    )  # fmt: skip


def steps_text(when: Crossing) -> str:
    """When, in words: behind "overflow"."""
    if_so = "if it goes on like this"
    if when.latest < 2.5:
        return f"within a step or two {if_so}"
    latest = f"{when.latest:.0f}" if when.latest < 10_000 else "many"
    if when.about < 1.5:
        return f"from now on at any step, within {latest} steps {if_so}"
    return f"in about {when.about:.0f} steps (between {max(1.0, when.earliest):.0f} and {latest}) {if_so}"


def _evidence(evidence: Evidence, grown: list[Growth], others: str) -> Iterator[str]:
    first, entries = grown[0], evidence.tensors.entries
    entry, trend = entries[first.tensor], first.trend
    yield (
        f"Its largest magnitude is {2.0**trend.level:.3g} at step {trend.last}, {max(0.0, first.left):.2f} bits below "
        f"the limit of {entry.dtype}, {limits_of(entry.dtype).max_finite:.3g}."
    )
    high = f"{trend.high:.2g}" if np.isfinite(trend.high) else "unknown"
    yield (
        f"It grows by {trend.slope:.2g} bits a step (99 % between {trend.low:.2g} and {high}) since "
        f"step {trend.first}, measured in {trend.count} steps."
    )
    if first.margin > 0.1:
        yield f"Single steps are up to {first.margin:.1f} bits above that line: one of them may overflow earlier."
    if others:
        yield others
    if len(grown) > 1:
        start = min(grown, key=lambda each: (int(evidence.tensors.call_index[each.tensor]), each.tensor))
        yield f"{len(grown) - 1} more tensors grow so; the first of all in call order is {the(entries[start.tensor])}."


GIVEN_PART = 0.7
"""Part of a growth, in bits, that the inputs' own explains it by."""


def scale_inputs(evidence: Evidence, start: int, stop: int, bits: float) -> Remedy | None:
    """Against values that grew by so many bits in the steps [start, stop), where what the model is given grew with
    them; None where it did not, or is not known."""
    given = input_growth(evidence, start, stop)
    if given < GIVEN_PART * bits:
        return None
    return Remedy(
        "Scale what the model is given, as by its own size or a logarithm: its inputs grow as fast.", "",
        f"inputs grew by {given:.2g} bits since step {start}, and this by {bits:.2g}",
    )  # fmt: skip


def _remedies(evidence: Evidence, entry: TensorEntry, trend: Trend) -> Iterator[Remedy]:
    because = f"based on the growth since step {trend.first}, not on its cause"
    if entry.kind in ("output", "input") and entry.dtype == "float16":
        module = module_path(evidence.tensors.entries, entry.fqn)
        yield Remedy(
            f"Compute {module or 'the model'} in float32, which holds 2^112 times as much.",
            in_float32(module),
            because,
        )
        yield Remedy(
            "Train in bfloat16, whose range is that of float32, where the hardware has it.",
            in_bfloat16(device_of(evidence)), because,
        )  # fmt: skip
    of_inputs = scale_inputs(evidence, trend.first, trend.last + 1, trend.slope * (trend.last - trend.first))
    if of_inputs is not None:
        yield of_inputs
        return
    yield Remedy(
        "Lower the learning rate, or clip the gradients, so that the weights before it grow more slowly.",
        "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)  # after scaler.unscale_(optimizer)", because,
    )  # fmt: skip


RULE = Rule(
    name="headroom_trend",
    title="Growing toward overflow",
    severity="warning",
    explanation="The largest magnitude of a tensor has grown for some time and goes on doing so: it will be beyond "
    "what its dtype holds, and then Inf, and NaN soon after. Gradients that a loss scaler may skip are not judged.",
    check=check,
    thresholds=(
        Threshold("horizon", 40.0, "steps", "Overflow that is expected later is not reported (float16)."),
        Threshold("most_left", 6.0, "bits", "With more headroom than that nothing is reported (float16)."),
        Threshold("least_growth", 1.0, "bits", "Growth of less is not reported."),
        Threshold("far_horizon", 500.0, "steps", "The same as horizon for bfloat16, float32 and float64."),
        Threshold("least_explosion", 10.0, "bits", "Growth beyond its own history, reported of these wide dtypes."),
        Threshold("least_exploded", 10.0, "log2 of the magnitude", "Below that nothing is reported of wide dtypes."),
    ),
)  # fmt: skip
