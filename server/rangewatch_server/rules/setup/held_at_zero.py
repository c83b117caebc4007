"""A parameter that is zero and stays so: its gradient is there after the backward, and gone before the update."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import listed, place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds
from rangewatch_server.rules.setup.update_reads import Reads, update_reads

LASTING = 4
"""Readings in a row, at the steps 1, 2, 4, ... and each 32nd, of which it must be so, and the steps that they span."""

SPAN = 16


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first such parameter in call order, with the others."""
    reads = update_reads(evidence)
    if reads is None:
        return
    held = [row for row in range(len(reads.tensors)) if _is_held(reads, row)]
    if held:
        yield _finding(evidence, reads, held)


def _is_held(reads: Reads, row: int) -> bool:
    """Whether it was exactly 0 at all readings, its gradient was not after the backward, and was before the update."""
    sampled, pushed, zero, amax = (
        reads.columns[name][row] for name in ("sampled_count", "pushed_count", "zero_weight_count", "amax")
    )
    at = np.flatnonzero(sampled > 0)
    if len(at) < LASTING or reads.at[at[-1]] - reads.at[at[0]] < SPAN:
        return False
    return bool((zero[at] == sampled[at]).all() and not pushed[at].any() and (amax[at] > 0).all())


def _finding(evidence: Evidence, reads: Reads, held: list[int]) -> Finding:
    ordered = sorted(held, key=lambda row: int(reads.tensors[row]))
    entries = [evidence.tensors.entries[int(reads.tensors[row])] for row in ordered]
    first, rank = entries[0], only_rank(evidence)
    at = np.flatnonzero(reads.columns["sampled_count"][ordered[0]] > 0)
    since, until = int(reads.at[at[0]]), int(reads.at[at[-1]])
    amax = float(np.median(reads.columns["amax"][ordered[0]][at]))
    others = f" {len(entries) - 1} more parameters are held so: {listed(entries[1:])}." if len(entries) > 1 else ""
    return Finding(
        rank=rank, step=since, tensor=first.fqn, kind="grad", subject="held at zero",
        summary=f"{place(since, rank)}: {first.fqn} is exactly zero and stays so: its gradient is not 0 when the "
        "backward "
        "has ended, and is 0 when the optimizer takes it.",
        evidence=(
            f"So it was at {len(at)} readings from step {since} to step {until}; its gradient's largest magnitude was "
            f"{amax:.3g} after the backward.{others}",
            "Cause (likely): what stands between the backward and optimizer.step(), as a clip that cuts a gradient to "
            "a "
            "part of its parameter's norm: of a parameter that is zero nothing is left. Against that: code may set "
            "gradients to 0 to freeze what is to stay as it is.",
            "What would decide: print the norm of this gradient before the clip and after it.",
        ),
        remedy=(
            Remedy(
                "Give the clip a floor for the parameter's norm, such as 1e-3, as adaptive gradient clipping has it; "
                "or "
                "leave gains and biases out of the clip.",
                "def largest_norm(parameter, factor=0.01, floor=1e-3):  # of its gradient, in a clip by hand\n"
                "    return factor * parameter.detach().norm().clamp(min=floor)",
                "the gradient was there after the backward and gone before the update, and the parameter is 0",
            ),
        ),
        facts={"since_step": since, "parameters": len(entries), "readings": len(at), "cause_class": "clip"},
    )  # fmt: skip


RULE = Rule(
    name="held_at_zero",
    title="Held at zero",
    severity="warning",
    explanation="A parameter that begins at zero, such as the gain of a residual branch or a bias, gets a gradient and "
    "never moves, since the gradient is zero again when the optimizer takes it: a clip that goes by the parameter's "
    "own "
    "norm does that. What it multiplies never learns. Read at the steps 1, 2, 4, 8, 16 and each 32nd, of up to 32 "
    "small "
    "parameters.",
    check=check,
    explains=("vanishing_gradient", "unchanged_weights"),
)
