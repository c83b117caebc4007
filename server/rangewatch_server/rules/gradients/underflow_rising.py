"""Early warning: more and more of a tensor's values fall below what its dtype holds in full."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch_server.numerics.headroom import limits_of
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import has_converged
from rangewatch_server.rules.phrases import listed, place, the
from rangewatch_server.rules.recent import SQUARES, Array, History, history, last_finite, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

RISING = 4
"""Measurements in a row of which none is below the one before."""

BEFORE = 3
"""Measurements before them, whose median is what is usual."""

WIDE = 1e-30
"""A dtype whose smallest normal number is less has the range of float32: what underflows there does not matter."""

SLACK = 0.01
"""A share may fall by so much and still be rising."""

MOST_BEFORE = 0.5
"""What was subnormal by more than half before is no news."""

ROOM_BITS = 6.0
"""Above the smallest normal number: further up, what underflows is a tail that weighs nothing."""


class Rising(msgspec.Struct, frozen=True):
    """`shares`: (n,) subnormal of the non-zero elements, the last `RISING`; `usual`: before; `rms` last; at `steps`."""

    tensor: int
    shares: Array
    usual: float
    rms: float
    steps: Array


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the tensor with the largest share."""
    entries = evidence.tensors.entries
    normal = np.array([limits_of(entry.dtype).smallest_normal for entry in entries])
    is_narrow = np.array([not entry.dtype.startswith("float8") for entry in entries], bool) & (normal > WIDE)
    tensors = np.array(
        [each for each in tensors_of(evidence, "output", "grad_output", "grad") if is_narrow[each]], np.int64
    )
    if not len(tensors) or has_converged(evidence):
        return
    counts = history(evidence, tensors)
    rising = [at for at in range(len(tensors)) if _is_rising(counts, at, limits)]
    squares = history(evidence, tensors[rising], SQUARES)
    tensors_rising = [
        each
        for place, at in enumerate(rising)
        if (each := _rising(counts, at, squares, place, int(tensors[at]), float(normal[tensors[at]]))) is not None
    ]
    if tensors_rising:
        yield _finding(evidence, sorted(tensors_rising, key=lambda each: (-float(each.shares[-1]), each.tensor)))


def _shares(counts: History, at: int) -> tuple[Array, Array]:
    """Groups of steps that were measured, and in each the share of the non-zero elements that is subnormal."""
    numel, zeros, subnormal = (counts.columns[name][at] for name in ("full_numel", "zero_count", "subnormal_count"))
    there = np.flatnonzero(numel > zeros)
    return there, subnormal[there] / (numel - zeros)[there]


def _is_rising(counts: History, at: int, limits: Thresholds) -> bool:
    _, share = _shares(counts, at)
    if len(share) < RISING + BEFORE:
        return False
    last, usual = share[-RISING:], float(np.median(share[:-RISING]))
    is_high = last[-1] >= limits["least_share"] and last[-1] - usual >= limits["least_rise"]
    is_rising = (np.diff(last) >= -SLACK).all() and last[0] >= usual - SLACK and last[-1] > last[0]
    return bool(usual < MOST_BEFORE and is_high and is_rising)


def _rising(counts: History, at: int, squares: History, place: int, tensor: int, normal: float) -> Rising | None:
    """None where the tensor as a whole is not small, or not smaller than before: its tail alone underflows."""
    there, share = _shares(counts, at)
    rms = last_finite(squares.rms()[place], len(squares.starts))
    if len(rms) <= RISING or rms[-1] >= min(normal * 2.0**ROOM_BITS, float(np.median(rms[:-RISING]))):
        return None
    usual = float(np.median(share[:-RISING]))
    return Rising(tensor, share[-RISING:], usual, float(rms[-1]), counts.ends[there[-RISING:]])


def _finding(evidence: Evidence, rising: list[Rising]) -> Finding:
    first = rising[0]
    entry = evidence.tensors.entries[first.tensor]
    rank = only_rank(evidence)
    step = int(first.steps[-1])
    where = place(step, rank)
    more = [evidence.tensors.entries[each.tensor] for each in rising[1:]]
    shares = ", ".join(f"{each:.0%}" for each in first.shares)
    return Finding(
        rank=rank, step=step, tensor=entry.fqn, kind=entry.kind, subject="underflow",
        summary=f"{where}: {the(entry)} runs into the lower end of {entry.dtype}: "
        f"{first.shares[-1]:.0%} of its non-zero elements are subnormal, and more and more.",
        evidence=(
            f"Its last {RISING} shares, up to step {step}, are {shares}; the median before is {first.usual:.0%}.",
            f"Its root mean square is {first.rms:.3g}; below {limits_of(entry.dtype).smallest_normal:.3g} numbers of "
            f"{entry.dtype} lose bits, below {limits_of(entry.dtype).smallest_subnormal:.3g} they are 0.",
            *([f"{len(more)} more do: {listed(more)}."] if more else []),
        ),
        remedy=(_remedy(evidence),),
        facts={
            "subnormal_fraction": float(first.shares[-1]), "before": first.usual, "rms": first.rms,
            "tensors": len(rising),
        },
    )  # fmt: skip


def _remedy(evidence: Evidence) -> Remedy:
    because = "based on the share of subnormal numbers in the full set, which is not measured in every step on a CPU"
    if evidence.is_loss_scaled:
        text = "Let the loss scale grow earlier."
        return Remedy(text, "scaler.set_growth_interval(200)  # steps without overflow until it doubles", because)
    return Remedy(
        "Scale the loss, or train in bfloat16, whose smallest numbers are those of float32.",
        'scaler = torch.amp.GradScaler("cuda")\nscaler.scale(loss).backward()\nscaler.step(optimizer)\nscaler.update()',
        because,
    )


RULE = Rule(
    name="underflow_rising",
    title="Running into underflow",
    severity="warning",
    explanation="More and more of a float16 tensor's values are below its smallest normal number: they lose bits, and "
    "soon are zero. It is reported before most of them are.",
    check=check,
    thresholds=(
        Threshold("least_share", 0.2, "of the non-zero elements", "Subnormal ones below which nothing is reported."),
        Threshold("least_rise", 0.15, "of the non-zero elements", "By how much more than before there must be."),
    ),
)  # fmt: skip
