"""A loss, and gradients, that are far above where they began since the first steps."""

from __future__ import annotations

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.inputs import never_normalised
from rangewatch_server.rules.loss.learning_rate import group_rates
from rangewatch_server.rules.loss.series import RATES
from rangewatch_server.rules.phrases import loss_called, place
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy

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
        remedy=(*never_normalised(evidence, step), remedy),
        facts={
            "loss": highest, "before": first, "since_step": step, "seen_step": step + BEGIN_LASTING - 1,
            "cause_class": "learning_rate",
        },
    )  # fmt: skip
