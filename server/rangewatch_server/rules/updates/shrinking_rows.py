"""Embeddings whose rows shrink step by step, in proportion to themselves: a decay by code outside of the optimizer that
is not multiplied by the learning rate. What an embedding gives are its weights, so that its output shows it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import first_and_last
from rangewatch_server.rules.phrases import listed, place
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy

STEPS = 4_096
"""First steps of a run that are searched."""

WITHIN, FALL_BITS = 64, 3.3
"""Steps within which it shrinks to a tenth."""

FEW, STEP_BITS = 8, 0.02
"""Steps of which each shrinks it, by 1.4 % at the least: rows that differ from batch to batch come and go."""

LOADED_BITS = 2.0
"""Bits by which it must not fall in one step: other weights were loaded then."""

LEARNED = 0.75
"""Part of the first loss below which the training learns all the same."""


def shrinking(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding: the first embedding, with the others."""
    outputs, entries = tensors_of(evidence, "output"), evidence.tensors.entries
    tables = np.array([int(each) for each in outputs if entries[int(each)].module.startswith("Embedding")], np.int64)
    start, stop = evidence.start, min(evidence.start + STEPS, evidence.whole_stop)
    if not len(tables) or stop - start < WITHIN:
        return
    block = evidence.run.slice(RANGES, list(evidence.ranks[:1]), 0, start, stop, ("amax",), tables)
    with np.errstate(divide="ignore"):
        bits = np.where(np.asarray(block.columns["amax"]) > 0, np.log2(block.columns["amax"]), np.nan)
    found = [(known, int(each)) for each, row in zip(tables, bits, strict=True) if (known := _shrinks(row)) is not None]
    if found:
        first = min(known[0] for known, _ in found)
        yield _finding(evidence, start + first, found)


def _shrinks(bits: Array) -> tuple[int, float] | None:
    """Where (n,) begins to fall, and the median part that is lost a step; None where it does not, or comes back."""
    if not np.isfinite(bits).all():
        return None
    falls = -np.diff(bits)
    for at in np.flatnonzero(falls >= STEP_BITS).tolist():
        row = bits[at : at + WITHIN]
        if len(row) <= FEW or not (falls[at : at + FEW] >= STEP_BITS).all():
            continue
        lost = bits[at] - row
        far = np.flatnonzero(lost >= FALL_BITS)
        if not len(far) or (falls[at : at + int(far[0])] > LOADED_BITS).any():
            return None
        if bits[at] - bits[at + int(far[0]) :].max() < FALL_BITS / 2:
            return None
        return at + 1, float(1 - 2.0 ** -np.median(falls[at : at + FEW]))
    return None


def _finding(evidence: Evidence, step: int, found: list[tuple[tuple[int, float], int]]) -> Finding:
    (_, part), tensor = found[0]
    rank, entry = only_rank(evidence), evidence.tensors.entries[tensor]
    medians = first_and_last(evidence, FEW)
    has_learned = medians is not None and medians[1] < LEARNED * medians[0]
    others = [evidence.tensors.entries[each] for _, each in found[1:]]
    return Finding(
        severity="info" if has_learned else "",
        rank=rank, step=step, tensor=entry.fqn, kind="output", subject="shrinks",
        summary=f"{place(step, rank)}: the rows of {entry.fqn} shrink, by {part:.0%} a step: they were a tenth of what "
        f"they had been within {WITHIN} steps.",
        evidence=(
            f"The largest element that {entry.fqn} ({entry.module}) gives fell in each of {FEW} steps and more, and is "
            "small since: what an embedding gives are its weights.",
            *([f"So did {len(others)} more: {listed(others)}."] if others else []),
            "Cause (likely): regularization: a decay of the weights that takes this part with each step, as one that "
            "is not multiplied by the learning rate. No update of the optimizer takes them away in proportion. Against "
            "that: what scales them by another code looks the same.",
            "What would decide: print the norm of its weight before and after each line that writes to it.",
        ),
        remedy=(
            Remedy(
                "Multiply the weight decay by the learning rate where it is applied, or leave it to AdamW; and go back "
                f"to a checkpoint from before step {step}.",
                "def decay(weight, rate, weight_decay):\n"
                "    with torch.no_grad():\n"
                "        weight.mul_(1 - rate * weight_decay)",
                f"rows lose {part:.2g} of themselves a step, where less than 0.001 is usual",
            ),
        ),
        facts={"since_step": step, "cause_step": step, "part": part, "cause_class": "regularization"},
    )  # fmt: skip
