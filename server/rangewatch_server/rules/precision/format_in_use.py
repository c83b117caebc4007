"""Early warning: what a tensor is rounded to leaves too little of it, whatever the loss says yet."""

from __future__ import annotations

import math
from collections.abc import Iterable

from rangewatch.statistics import in_use
from rangewatch.statistics.formats import Format
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import listed, place, the
from rangewatch_server.rules.precision.format_readings import Left, newest_readings
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

GRADIENTS = ("grad_output", "scaled_grad_output")
"""What must not lose as much as values of the forward: a bit of mantissa, as of FP4, is too little but for stochastic
rounding."""

NOT_FINER = 0.05
"""Of the elements so many may be lost in the finer format, which is still the better one."""

USUAL_ERROR = 0.18
"""Of the last bit that a number has: the mean relative error where nothing is below the smallest normal number."""

MAY_SATURATE = ("none", "delayed")
"""Scalings of which the largest number may be far below a tensor's. Of a block under a power of two that is its own
everybody's largest element may saturate, by an eighth at most: of few that are not zero that is a good part."""

LEAST_ERROR = 1e-4
"""Of the square: rounding by less than a hundredth is not worth a word, whatever elements differ by."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """A finding for each way in which tensors are lost; of each the first tensor in call order."""
    left = newest_readings(evidence)
    alike = [each for each in left if _is_weight(evidence, each) and _is_alike(each, limits)]
    if alike:
        yield _alike(evidence, alike)
    named = {each.tensor for each in alike}
    lost = [each for each in left if each.tensor not in named and _is_lost(evidence, each, limits)]
    if lost:
        yield _lost(evidence, lost, limits)
    named |= {each.tensor for each in lost}
    coarse = [each for each in left if each.tensor not in named and _is_coarse(each, limits)]
    finer = in_use.finer(coarse[0].format) if coarse else None
    if finer is not None:
        yield _coarse(evidence, coarse, finer)


def _is_weight(evidence: Evidence, left: Left) -> bool:
    return evidence.tensors.entries[left.tensor].kind in ("weight", "scaled_weight")


def _is_alike(left: Left, limits: Thresholds) -> bool:
    return left.of_spread >= limits["of_spread"] and left.of_square >= LEAST_ERROR


def usual_error(each: Format) -> float:
    """The mean relative error of numbers within the format's range."""
    return USUAL_ERROR * 2.0**-each.element.mantissa_bits


def _is_lost(evidence: Evidence, left: Left, limits: Thresholds) -> bool:
    least_db = limits["gradient_sqnr_db" if evidence.tensors.entries[left.tensor].kind in GRADIENTS else "sqnr_db"]
    is_noisy = left.sqnr_db is not None and left.sqnr_db < least_db
    return is_noisy or _saturates(left, limits) or _is_crowded_out(left, limits)


def _is_crowded_out(left: Left, limits: Thresholds) -> bool:
    """Whether small elements are lost beside large ones that have nothing to do with them: not so in a block, where
    what becomes zero is small beside its neighbours."""
    if left.format.scaling == "block":
        return False
    return left.flushed > limits["flushed"] or left.error > limits["error"] * usual_error(left.format)


def _saturates(left: Left, limits: Thresholds) -> bool:
    return left.format.scaling in MAY_SATURATE and left.saturated > limits["saturated"]


def _is_coarse(left: Left, limits: Thresholds) -> bool:
    has_finer = in_use.finer(left.format) is not None
    return has_finer and left.finer_gain >= limits["finer"] and left.finer_lost <= NOT_FINER


def _title(evidence: Evidence, left: Left) -> str:
    return f"{place(left.step, only_rank(evidence))}: {the(evidence.tensors.entries[left.tensor])}"


def _finding(
    evidence: Evidence, left: list[Left], subject: str, text: str, said: tuple[str, ...], remedies: tuple[Remedy, ...]
) -> Finding:
    first, entries = left[0], evidence.tensors.entries
    more = [entries[each.tensor] for each in left[1:]]
    others = (f"{len(more)} more {'are' if len(more) > 1 else 'is'} so: {listed(more)}.",) if more else ()
    entry = entries[first.tensor]
    return Finding(
        rank=only_rank(evidence), step=first.step, tensor=entry.fqn, kind=entry.kind, subject=subject,
        summary=f"{_title(evidence, first)} {text}",
        evidence=(*said, *others),
        remedy=remedies,
        facts={
            "format": first.format.name, "flushed": first.flushed, "saturated": first.saturated,
            "sqnr_db": first.sqnr_db, "relative_error": first.error, "tensors": len(left),
        },
    )  # fmt: skip


def _alike(evidence: Evidence, left: list[Left]) -> Finding:
    first = left[0]
    largest = f" {first.saturated:.0%} of them are beyond its largest number." if first.saturated > 0.01 else ""
    return _finding(
        evidence, left, "alike",
        f"loses what its elements differ by in {first.format.title}: neighbours become one number.",
        (
            f"The rounding errors are {math.sqrt(first.of_spread):.2g} times what elements of a block differ by from "
            f"their mean, and {math.sqrt(first.of_square):.1%} of their size.{largest}",
            "All of a block is off to the same side then, so that it does not average out: gradients behind it are "
            "biased alike, which trainings in MX formats have diverged of.",
        ),
        (
            Remedy(
                "Leave it in bfloat16 or float32: affine weights of norms are few, and no product needs them smaller.",
                "", "based on what the format leaves of it",
            ),
        ),
    )  # fmt: skip


def _lost(evidence: Evidence, left: list[Left], limits: Thresholds) -> Finding:
    first = left[0]
    sqnr = "" if first.sqnr_db is None else f" and {first.sqnr_db:.1f} dB of signal over error are left"
    because = f"based on a reading at step {first.step}"
    is_of_blocks = first.format.scaling == "block"
    return _finding(
        evidence, left, "lost",
        f"does not survive in {first.format.title}: {_worst(first, limits)}.",
        (
            f"{first.flushed:.1%} of its elements become zero, {first.saturated:.1%} are beyond the largest number"
            f"{sqnr}; the mean relative error is {first.error:.1%}, and usual in this format "
            f"{usual_error(first.format):.1%}.",
        ),
        (
            *(
                ()
                if is_of_blocks
                else (Remedy("Scale it by blocks: what is large takes no range from the rest (MXFP8).", "", because),)
            ),
            Remedy("Leave this module in bfloat16.", "", because),
            *(
                (
                    Remedy(
                        "Find what is large: an outlier channel of a gated MLP, or queries and keys. Clip it, or "
                        "normalise before the product.", "", because,
                    ),
                )
                if _is_crowded_out(first, limits)
                else ()
            ),
        ),
    )  # fmt: skip


def _worst(left: Left, limits: Thresholds) -> str:
    if _is_crowded_out(left, limits) and left.flushed > limits["flushed"]:
        return f"{left.flushed:.0%} of it become zero"
    if _saturates(left, limits):
        return f"{left.saturated:.0%} of it saturate"
    if _is_crowded_out(left, limits):
        return f"its elements are off by {left.error:.0%} on average"
    return f"{left.sqnr_db:.1f} dB of signal over error are left"


def _coarse(evidence: Evidence, left: list[Left], finer: Format) -> Finding:
    first = left[0]
    return _finding(
        evidence, left, "coarse",
        f"is rounded to {first.format.title}, which wastes a bit: {finer.title} would hold it "
        f"{10 * math.log10(first.finer_gain):.1f} dB better.",
        (
            f"Its blocks of {first.format.block} have a scale each, and span less than the finer format: "
            f"{first.finer_lost:.1%} of the elements would be lost there.",
            "Gradients in MXFP8 E5M2 have made trainings diverge that E4M3 does not.",
        ),
        (
            Remedy(
                f"Use {finer.title}, for gradients too.",
                'fp8_recipe = transformer_engine.common.recipe.MXFP8BlockScaling(fp8_format=Format.E4M3)'
                if finer.name == "mxfp8_e4m3"
                else "",
                "based on what either format leaves of the same elements",
            ),
        ),
    )  # fmt: skip


RULE = Rule(
    name="format_in_use",
    title="Too little is left in the format in use",
    severity="warning",
    explanation="Tensors are rounded to a smaller format, as `attach(formats={...})` says or as the cast of their "
    "library shows, and too little is left: many elements become zero or saturate, an outlier takes the range from all "
    "others, elements of a block that lie close together become one number (affine weights of norms), or a format "
    "spends bits on range that a block's own scale makes up for (E5M2 in MXFP8). The loss moves later, or slowly. "
    "Judged by the newest reading of each tensor.",
    check=check,
    thresholds=(
        Threshold("flushed", 0.15, "fraction", "More that becomes zero is too much, under scales of tensors or rows."),
        Threshold("saturated", 0.02, "fraction", "The same beyond the largest number, under delayed scaling or none."),
        Threshold("sqnr_db", 15.0, "dB", "Less signal over error is too little."),
        Threshold("gradient_sqnr_db", 20.0, "dB", "The same of gradients."),
        Threshold("error", 4.0, "times", "Mean relative error over what is usual in the format; scales as of flushed."),
        Threshold("of_spread", 0.5, "fraction", "Squared errors over squared differences, of weights."),
        Threshold("finer", 2.0, "times", "Squared errors over those in the format with one more bit of mantissa."),
    ),
)
