"""A delayed scale that no longer follows what it scales: behind growth, or held by an amax of long ago."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.statistics import scales
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.precision.scale_fits import (
    CURRENT,
    LARGEST_POWER,
    Fit,
    delayed,
    how,
    in_bfloat16,
    named,
    recent_fits,
    run_of,
    times,
    worst_rank,
)
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

_ABOVE = float(np.log2(scales.TOO_SMALL))


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding for scales that lag behind growth, and one for those held by an old amax."""
    delayed = [each for each in recent_fits(evidence) if each.row.operand.history]
    behind = [(each, run_of(each.growth >= limits["growth_bits"])) for each in delayed]
    # Since it was above at all, and not since it was so far above.
    behind = [(each, run_of(each.growth >= _ABOVE)) for each, steps in behind if steps >= limits["steps"]]
    if behind:
        yield _behind(evidence, behind)
    names = {each.row.tensor for each, _ in behind}
    held = [(each, run_of(_is_held(each, limits["unused"]))) for each in delayed if each.row.tensor not in names]
    held = [(each, steps) for each, steps in held if steps >= limits["steps"]]
    if held:
        yield _held(evidence, held)


def _is_held(fit: Fit, unused: float) -> np.ndarray:
    """(n,) bool: so much of the format's normal range is not used, and the scale is not made of the newest amax."""
    element = scales.ELEMENTS.get(fit.row.operand.format)
    span = element.largest_exponent - element.smallest_exponent if element is not None else np.inf
    return np.asarray((fit.growth <= -unused * span) & (fit.age > 1))


def _behind(evidence: Evidence, behind: list[tuple[Fit, int]]) -> Finding:
    worst, steps = max(behind, key=lambda each: float(each[0].growth[-1]))
    of, step, last = worst.row.operand, int(worst.steps[-steps]), int(worst.steps[-1])
    rank, bits = worst_rank(evidence, worst, last), float(worst.growth[-1])
    because = f"the newest amax is {times(bits)} times the one that the scale was made for, {steps} readings in a row"
    return Finding(
        rank=rank, step=step, tensor=of.fqn, kind=of.kind, subject="behind",
        summary=f"{place(step, rank)}: the scale of {named(evidence, worst)} is stale for {steps} readings: "
        f"the newest amax, of step {last}, is {times(bits)} times the one that it was made for.",
        evidence=(
            how(worst),
            "A delayed scale is one step late where it follows. One that is late for so long is not updated, or what "
            "it scales grows faster than it follows.",
            *_others(evidence, behind),
        ),
        remedy=(
            Remedy(
                "See that the scale is updated at each step: the forward must lie in fp8_autocast, the backward must "
                "reach the module, and no recompute may restore an older state.", "", because,
            ),
            *_current(because),
            in_bfloat16(worst, because),
        ),
        facts={"ratio": 2.0 ** min(bits, LARGEST_POWER), "steps": steps, "operands": len(behind)},
    )  # fmt: skip


def _held(evidence: Evidence, held: list[tuple[Fit, int]]) -> Finding:
    worst, steps = min(held, key=lambda each: float(each[0].growth[-1]))
    of, step, last = worst.row.operand, int(worst.steps[-steps]), int(worst.steps[-1])
    bits, age = -float(worst.growth[-1]), int(worst.age[-1])
    because = f"the scale is made of an amax {age - 1} entries back, {bits:.1f} bits above the newest"
    return Finding(
        rank=worst_rank(evidence, worst, last) if len(evidence.ranks) == 1 else None,
        step=step, tensor=of.fqn, kind=of.kind, subject="held",
        summary=f"Step {step}: the scale of {named(evidence, worst)} is stale: it is still made for a magnitude of "
        f"{age - 1} steps before, {times(bits)} times the largest at step {last}.",
        evidence=(
            how(worst),
            f"{bits:.1f} bits of the range of {of.format} have been unused for {steps} readings: what is small becomes "
            "zero there, or subnormal.",
            *_others(evidence, held),
        ),
        remedy=(
            Remedy(
                "Make the history shorter, or take its newest entry.",
                delayed("amax_history_len=16, amax_compute_algo='most_recent'"), because,
            ),
            *_current(because),
            in_bfloat16(worst, because),
        ),
        facts={"bits": bits, "age": age, "steps": steps, "operands": len(held)},
    )  # fmt: skip


def _current(because: str) -> Iterable[Remedy]:
    yield Remedy(
        "Or scale by the current step: no history, nothing to be stale.",
        CURRENT,
        because,
    )


def _others(evidence: Evidence, found: list[tuple[Fit, int]]) -> Iterable[str]:
    if len(found) > 1:
        yield f"{len(found)} operands are so, as {named(evidence, found[1][0])}."


RULE = Rule(
    name="scale_stale",
    title="Scale stale",
    severity="warning",
    explanation="With delayed scaling an operand is cast by a scale made of the largest magnitudes of earlier steps. "
    "It is stale where it lags behind growth for many steps, so that the largest values saturate, or where one large "
    "step of long ago still sets it, so that half of the format's range is empty and small values become zero. A step "
    "or two of either is how delayed scaling works, and no finding.",
    check=check,
    thresholds=(
        Threshold("growth_bits", 1.0, "bits", "The newest amax is so much above the one that the scale was made for."),
        Threshold("unused", 0.5, "of the format's range", "Of its normal numbers, in powers of two, that are unused."),
        Threshold("steps", 8, "readings in a row", "In fewer it is none."),
    ),
    explains=("scale_too_small", "loss_spike"),
    links=lambda run_id, _: (("Scales", f"/runs/{run_id}/scales"),),
)
