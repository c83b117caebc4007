"""A scale has no room for what it scales: the largest values saturate, step after step."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch.statistics import scales
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.precision.scale_fits import (
    CURRENT,
    FILTER,
    Fit,
    delayed,
    how,
    in_bfloat16,
    named,
    recent_fits,
    times,
    worst_rank,
)
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

ROWWISE = (
    "from torchao.float8 import Float8LinearConfig, convert_to_float8_training\n\n"
    "keep = set()\n\n"
    f"def is_cast(module, fqn):\n{FILTER}\n"
    "config = Float8LinearConfig.from_recipe_name('rowwise')\n"
    "convert_to_float8_training(model, config=config, module_filter_fn=is_cast)"
)

LAST = 16
"""Steps, the last in which it was read, that are judged."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the operand furthest beyond its scale, and how many others are."""
    least = max(np.log2(scales.TOO_SMALL), limits["bits"])
    found = [each for each in recent_fits(evidence) if (each.bits[-LAST:] >= least).sum() >= limits["steps"]]
    if found:
        yield _finding(evidence, sorted(found, key=lambda each: -float(each.bits[-LAST:].max())), float(least))


def _finding(evidence: Evidence, found: list[Fit], least: float) -> Finding:
    worst = found[0]
    of, is_so = worst.row.operand, worst.bits >= least
    step = int(worst.steps[np.flatnonzero(is_so)[0]])
    at = int(np.argmax(np.where(is_so, worst.bits, -np.inf)))
    rank = worst_rank(evidence, worst, int(worst.steps[at]))
    counted = worst.saturated[np.isfinite(worst.saturated)]
    share = float(counted.max()) if len(counted) else None
    bits = float(worst.bits[at])
    because = f"the largest magnitude was {times(bits)} times what the scale has room for"
    return Finding(
        rank=rank, step=step, tensor=of.fqn, kind=of.kind, subject="too_small",
        summary=f"{place(step, rank)}: the scale of {named(evidence, worst)} is too small: its largest values are up "
        f"to {times(bits)} times the largest that {of.format} has with it, and saturate.",
        evidence=(
            how(worst),
            f"It was so in {int(is_so[-LAST:].sum())} of its last {min(LAST, len(is_so))} readings; most at step "
            f"{int(worst.steps[at])}, {bits:.1f} bits beyond the limit.",
            *([f"{share:.2g} of its elements saturated where they were counted."] if share else []),
            *([f"It is so on rank {rank} and not on the others, as where each rank makes its scale of its own part of "
               "a tensor (torchtitan#3109)."] if rank is not None and len(evidence.ranks) > 1 else []),
            *([f"{len(found) - 1} more operands are so, as {named(evidence, found[1])}."] if len(found) > 1 else []),
        ),
        remedy=(*_of_history(worst, because), *_of_granularity(worst, because), in_bfloat16(worst, because)),
        facts={"bits": bits, "operands": len(found), "saturated": share or 0.0},
    )  # fmt: skip


def _of_history(fit: Fit, because: str) -> Iterable[Remedy]:
    if fit.row.operand.history:
        yield Remedy(
            "Scale by the current step and not by the history of those before.",
            CURRENT,
            because,
        )
        yield Remedy(
            f"Or leave {int(np.ceil(fit.bits[-LAST:].max()))} more bits free.",
            delayed(f"margin={fit.row.operand.margin + int(np.ceil(fit.bits[-LAST:].max())):.0f}"), because,
        )  # fmt: skip


def _of_granularity(fit: Fit, because: str) -> Iterable[Remedy]:
    of = fit.row.operand
    if of.history:
        return
    yield Remedy(
        "See that the scale is made of the whole tensor that is cast, in the same step: over all ranks that hold a "
        "part of it, and behind whatever changes it.",
        "", because,
    )  # fmt: skip
    if of.granularity == "tensor":
        code = ROWWISE if of.source.startswith("torchao") else ""
        yield Remedy("Give each row or block a scale of its own.", code, because)


RULE = Rule(
    name="scale_too_small",
    title="Scale too small",
    severity="warning",
    explanation="An operand of a layer's matrix products is cast to FP8 or FP4 by a scale that has no room for its "
    "largest values: they become the largest number of the format, and the products are wrong from there on. A scale "
    "that is made of the tensor itself always fits; one made of earlier steps (delayed scaling), of a part of the "
    "tensor or of another one may not. What MX's own rule leaves beyond the limit (up to 0.4 bits) is no finding, and "
    "neither is a step or two.",
    check=check,
    thresholds=(
        Threshold("bits", float(np.log2(scales.TOO_SMALL)), "bits", "Beyond the limit by this much is too small."),
        Threshold("steps", 4, "of the last 16 readings", "In fewer it is none."),
    ),
    explains=("loss_spike",),
    links=lambda run_id, _: (("Scales", f"/runs/{run_id}/scales"),),
)
