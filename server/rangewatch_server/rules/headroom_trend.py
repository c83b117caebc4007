"""Early warning: a tensor grows toward the largest number that its dtype holds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from rangewatch.records import TensorEntry
from rangewatch_server.headroom import limits_of
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss_scale_causes import device_of
from rangewatch_server.rules.phrases import in_bfloat16, in_float32, place, the
from rangewatch_server.rules.recent import odd_rank, recent
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds
from rangewatch_server.rules.toward_limit import Growth, growth, near
from rangewatch_server.rules.trend import Crossing, Trend

ALIKE, LEAST_ALIKE, ALIKE_BITS = 1.5, 4.0, 0.5
"""Tensors get to the limit at about the same step where one takes no longer than so many times the other's steps and so
many more, and has no more headroom than by so many bits."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the tensor that gets there first, and which others grow with it."""
    found = recent(evidence)
    grown = [each for tensor in near(evidence, found, limits) if (each := growth(evidence, found, tensor, limits))]
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


def _remedies(evidence: Evidence, entry: TensorEntry, trend: Trend) -> Iterator[Remedy]:
    because = f"it rests on the growth since step {trend.first}, not on its cause"
    if entry.kind in ("output", "input") and entry.dtype == "float16":
        yield Remedy(
            f"Compute {entry.fqn or 'the model'} in float32, which holds 2^112 times as much.",
            in_float32(entry.fqn),
            because,
        )
        yield Remedy(
            "Train in bfloat16, whose range is that of float32, where the hardware has it.",
            in_bfloat16(device_of(evidence)), because,
        )  # fmt: skip
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
        Threshold("horizon", 40.0, "steps", "Overflow that is expected later is not told (float16)."),
        Threshold("most_left", 6.0, "bits", "With more headroom than that nothing is told (float16)."),
        Threshold("least_growth", 1.0, "bits", "Growth of less is not told."),
        Threshold("far_horizon", 500.0, "steps", "The same as horizon for bfloat16, float32 and float64."),
        Threshold("least_explosion", 10.0, "bits", "Growth beyond its own history that is told of these wide dtypes."),
        Threshold("least_exploded", 10.0, "log2 of the magnitude", "Below that nothing is told of wide dtypes."),
    ),
)  # fmt: skip
