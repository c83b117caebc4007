"""Gradients that shrink from layer to layer on their way through a deep model, and have from the first steps on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import first_and_last, loss_name
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy

LASTING = 64
"""Steps that every weight's gradient must have been observed in."""

FEWEST = 6
"""Weights along the way."""

BITS = 24.0
"""By how much they must shrink in all: a part of 6e-8, which is float32's own precision."""

IN_ORDER, AT_ONCE = 0.9, 0.5
"""Rank correlation of size and order; and the part of the way that may lie between two of them: what is cut off or dead
at one place is something else."""

STAYED = 0.9
"""Part of the first loss above which it has not learned."""

MEAN, PLATEAU, LEARNED = 16, 0.7, 0.1
"""Steps in which the last bias alone learns the mean of the targets, so that the loss is their variance from then on;
the part of that above which nothing more was learned, and the part of the first loss below which it was all the same.
"""


def _has_learned(evidence: Evidence) -> bool:
    known = first_and_last(evidence, 2 * MEAN)
    name = loss_name(evidence)
    if known is None or name is None or known[1] >= STAYED * known[0]:
        return False
    early = evidence.series(name, evidence.start + MEAN, evidence.start + 3 * MEAN)
    early = early[np.isfinite(early)]
    return known[1] < LEARNED * known[0] or not len(early) or known[1] < PLATEAU * float(np.median(early))


FIRST, AT_FIRST = 4, 0.5
"""Steps in which it must have been so already, and to which part: what a training does to itself has another cause."""


def _was_so_at_first(evidence: Evidence, tensors: Array) -> bool:
    """`tensors`: in the order of the backward."""
    start = evidence.run.first_step or 0
    if evidence.start > start:
        return True
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, start + FIRST, ("amax",), np.sort(tensors))
    by_tensor = dict(zip(np.sort(tensors).tolist(), np.asarray(block.columns["amax"], np.float64), strict=True))
    first, last = (float(np.median(by_tensor[int(tensors[at])])) for at in (0, -1))
    return first > 0 and (last == 0 or np.log2(first / last) >= AT_FIRST * BITS)


def through_depth(evidence: Evidence, bits: Array, tensors: Array) -> Iterator[Finding]:
    """At most one finding. `bits`: (t, n) log2 of the gradients' largest magnitudes, of `tensors` (t,)."""
    entries = evidence.tensors.entries
    among = np.flatnonzero(
        [
            len(entries[int(each)].shape) > 1 and np.isfinite(row).sum() >= LASTING
            for each, row in zip(tensors, bits, strict=True)
        ]
    )
    if len(among) < FEWEST:
        return
    # Gradients are made from the loss on.
    order = among[np.argsort(evidence.tensors.position[tensors[among]], kind="stable")]
    heights = np.array([np.nanmedian(bits[each]) for each in order])
    steps, whole = -np.diff(heights), float(heights[0] - heights[-1])
    ranks = np.argsort(np.argsort(heights))
    correlation = -float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1])
    if whole < BITS or correlation < IN_ORDER or steps.max() > AT_ONCE * whole or _has_learned(evidence):
        return
    if not _was_so_at_first(evidence, tensors[order]):
        return
    near, far = (entries[int(tensors[order[at]])] for at in (0, -1))
    rank, start = only_rank(evidence), evidence.start
    yield Finding(
        rank=rank, step=start, tensor=far.fqn, kind=far.kind, subject="depth",
        summary=f"{place(start, rank)}: gradients vanish on their way through the model: from "
        f"{2.0 ** heights[0]:.2g} at {near.fqn} to {2.0 ** heights[-1]:.2g} at {far.fqn}.",
        evidence=(
            f"They are {2.0 ** (whole / (len(order) - 1)):.2g} times smaller from one of the {len(order)} weights to "
            "the next (medians of the largest magnitudes of the last steps), and the loss has hardly fallen.",
            "Cause (likely): vanishing gradients: each layer's slope is below 1, as that of a sigmoid (0.25 at most), "
            "a tanh that is saturated, or weights that were initialised too small for such a depth.",
            "What would decide: train the last few layers alone: they learn.",
        ),
        remedy=(
            Remedy(
                "Add residual connections or a normalisation between the layers; or take an activation whose slope is "
                "1, and weights that are initialised for it.",
                "for module in model.modules():\n"
                "    if isinstance(module, torch.nn.Linear):\n"
                "        torch.nn.init.kaiming_normal_(module.weight, nonlinearity='relu')",
                "gradients shrink by about the same factor at every layer",
            ),
        ),
        facts={"fall_bits": whole, "weights": len(order), "cause_class": "no_gradient"},
    )  # fmt: skip
