"""Early warning: attention logits that grow and grow."""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np

from rangewatch.wire.records import TensorEntry
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import listed, place, the
from rangewatch_server.rules.recent import Array, odd_rank, recent
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds
from rangewatch_server.rules.trend import Trend, fit

FEWEST = 64
"""Points of growth."""

STEADY = 4
"""Parts of the window in which the logits must be higher than in the part before."""

_ATTENTION = re.compile(r"att(n|ention)", re.IGNORECASE)
_LOGITS = re.compile(r"(logits|scores|qk)$", re.IGNORECASE)
_SOFTMAX = re.compile(r".*softmax.*", re.IGNORECASE)


def is_attention(entry: TensorEntry) -> bool:
    """Whether its module's name says that it is part of an attention."""
    return bool(_ATTENTION.search(entry.fqn))


def are_logits(entry: TensorEntry) -> bool:
    """What goes into a softmax of an attention, or comes out of a module named for it."""
    if not is_attention(entry):
        return False
    if entry.kind == "input":
        return bool(_SOFTMAX.fullmatch(entry.module))
    return entry.kind == "output" and bool(_LOGITS.search(entry.fqn))


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the largest."""
    entries = evidence.tensors.entries
    tensors = [at for at, entry in enumerate(entries) if are_logits(entry)]
    if not tensors:
        return
    found = recent(evidence)
    grown = []
    for tensor in tensors:
        there = np.flatnonzero(np.isfinite(found.bits[tensor]))
        trend = growth(found.steps[there], found.bits[tensor][there], limits)
        if trend is not None:
            grown.append((tensor, trend))
    if grown:
        grown.sort(key=lambda each: (-each[1].level, each[0]))
        yield _finding(evidence, grown)


def growth(steps: Array, bits: Array, limits: Thresholds) -> Trend | None:
    """The line through the window's points where they are large, grew by enough and did so all the time.

    A mask of large negative numbers that was added to the logits makes their magnitude a constant: no growth.
    """
    if len(bits) < FEWEST or bits[-FEWEST // 4 :].min() < np.log2(limits["least"]):
        return None
    parts = [np.median(each) for each in np.array_split(bits, STEADY)]
    trend = fit(steps, bits)
    if trend is None or trend.low <= 0 or trend.growth < np.log2(limits["factor"]):
        return None
    return trend if (np.diff(parts) > 0).all() else None


def _finding(evidence: Evidence, grown: list[tuple[int, Trend]]) -> Finding:
    tensor, trend = grown[0]
    entry = evidence.tensors.entries[tensor]
    rank, others = odd_rank(evidence, tensor, trend.last)
    where = place(trend.last, rank)
    more = [evidence.tensors.entries[each] for each, _ in grown[1:]]
    because = "it rests on the growth of the logits; that training breaks on it is usual, not certain"
    return Finding(
        rank=rank, step=trend.last, tensor=entry.fqn, kind=entry.kind, subject="attention",
        summary=f"{where}: the attention logits ({the(entry)}) grow and have reached {2.0**trend.level:.3g}.",
        evidence=(
            f"They have grown {2.0**trend.growth:.3g} times as large since step {trend.first}, "
            f"{trend.slope:.2g} bits a step.",
            "A softmax of logits this far apart gives everything to one place, and passes next to no gradient back.",
            *([others] if others else []),
            *([f"{len(more)} more grow: {listed(more)}."] if more else []),
        ),
        remedy=(
            Remedy(
                "Normalise queries and keys before they are multiplied.",
                "def attention_logits(q, k, scale=10.0):  # for its forward; scale: better a learned number\n"
                "    q, k = (torch.nn.functional.normalize(each, dim=-1) for each in (q, k))\n"
                "    return scale * q @ k.transpose(-2, -1)",
                because,
            ),
            Remedy("Lower the learning rate, or give the query and key weights weight decay.", "", because),
        ),
        facts={"amax": float(2.0**trend.level), "bits_a_step": trend.slope, "tensors": len(grown)},
    )  # fmt: skip


RULE = Rule(
    name="attention_logits",
    title="Attention logits grow",
    severity="warning",
    explanation="The logits of an attention are large and grow steadily. Trainings of transformers that break often do "
    "so this way: the softmax becomes one-hot, gradients vanish there and explode elsewhere. Seen only where they go "
    "through a module: the input of a Softmax module inside an attention (kind input), or a module named for them.",
    check=check,
    thresholds=(
        Threshold("least", 64.0, "magnitude", "Logits below it are not told of."),
        Threshold("factor", 4.0, "times", "By how much they must have grown in the window."),
    ),
    explains=("saturated_activation",),
)  # fmt: skip
