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
_FUSED = re.compile(r"(?:(.*) )?attention logits( bound)?")
"""What the agent calls those of a fused attention, an index a head, and a bound of them where it has only that."""
_SOFTMAX = re.compile(r".*softmax.*", re.IGNORECASE)
_PROJECTION = re.compile(
    r"(^|[._])(w?(q|k|qk|qkv)|query|key|query_key_value|c_attn|in_proj|(q|k|qk|qkv)_(proj|lin)|to_(q|k|qk|qkv)|w_?(q|k|qkv))$",
    re.IGNORECASE,
)


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


def are_bounds(entry: TensorEntry) -> bool:
    """Whether it bounds the logits of an attention, which were not seen."""
    fused = _FUSED.fullmatch(entry.fqn)
    return entry.kind == "output" and fused is not None and bool(fused[2])


def is_projection(entry: TensorEntry) -> bool:
    """Whether queries or keys of an attention come out of it, of which logits are products."""
    return is_attention(entry) and entry.kind == "output" and bool(_PROJECTION.search(entry.fqn))


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the largest logits; where none are seen to grow, their bounds, or else queries or keys."""
    entries = evidence.tensors.entries
    for seen, is_one in (("logits", are_logits), ("bound", are_bounds), ("projection", is_projection)):
        grown = _grown(evidence, [at for at, entry in enumerate(entries) if is_one(entry)], limits)
        if grown:
            yield _finding(evidence, grown, seen)
            return


def _grown(evidence: Evidence, tensors: list[int], limits: Thresholds) -> list[tuple[int, Trend]]:
    """Those that grow, the largest first."""
    if not tensors:
        return []
    points = recent(evidence)
    grown = []
    for tensor in tensors:
        there = np.flatnonzero(np.isfinite(points.bits[tensor]))
        trend = growth(points.steps[there], points.bits[tensor][there], limits)
        if trend is not None:
            grown.append((tensor, trend))
    return sorted(grown, key=lambda each: (-each[1].level, each[0]))


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


def _whose(entry: TensorEntry) -> str:
    """Such as "the output of blocks.0.attn.scores", or "blocks.0.attn, head 3" of a fused attention."""
    fused = _FUSED.fullmatch(entry.fqn)
    return the(entry) if fused is None else f"{fused[1] or 'the model'}, head {entry.index}"


def _finding(evidence: Evidence, grown: list[tuple[int, Trend]], seen: str) -> Finding:
    tensor, trend = grown[0]
    entry = evidence.tensors.entries[tensor]
    rank, others = odd_rank(evidence, tensor, trend.last)
    where = place(trend.last, rank)
    more = [evidence.tensors.entries[each] for each, _ in grown[1:]]
    are_seen = seen == "logits"
    because = "based on the growth of the logits; that training breaks on it is usual, not certain"
    what = {
        "logits": f"the attention logits ({_whose(entry)})",
        "bound": f"queries and keys of an attention ({_whose(entry)}), and with them the bound of its logits,",
    }.get(seen, f"queries or keys of an attention ({the(entry)})")
    unseen = (
        "It is the largest norm of a query times that of a key: no logit is larger, and all may be smaller. The logits "
        "themselves were not seen."
        if seen == "bound"
        else "Logits are products of a query and a key: they are no module's output here, and were not recorded. If "
        "they grow too, the softmax gives everything to one place; of a projection for all three, values may grow "
        "alone."
    )
    return Finding(
        severity="" if are_seen else "info",
        rank=rank, step=trend.last, tensor=entry.fqn, kind=entry.kind, subject="attention",
        summary=f"{where}: {what} grow and have reached {2.0**trend.level:.3g}.",
        evidence=(
            f"They have grown {2.0**trend.growth:.3g} times as large since step {trend.first}, "
            f"{trend.slope:.2g} bits a step.",
            "A softmax of logits this far apart gives everything to one place, and passes next to no gradient back."
            if are_seen
            else unseen,
            *([others] if others else []),
            *([f"{len(more)} more grow: {listed(more)}."] if more else []),
        ),
        remedy=(
            Remedy(
                "Lower the learning rate, or give the query and key weights weight decay: they are what grows.",
                "",
                because,
            ),
            Remedy(
                "Normalise queries and keys before they are multiplied.",
                "def attention_logits(q, k, scale=10.0):  # for its forward; scale: better a learned number\n"
                "    q, k = (torch.nn.functional.normalize(each, dim=-1) for each in (q, k))\n"
                "    return scale * q @ k.transpose(-2, -1)",
                because,
            ),
            Remedy(
                "Or clip the weights of queries and keys after each step where the largest logit of their head is "
                "above a limit (QK-clip).",
                "@torch.no_grad()\n"
                "def qk_clip(query_weight, key_weight, largest_logit, limit=100.0):  # the rows of one head\n"
                "    if largest_logit > limit:\n"
                "        for weight in (query_weight, key_weight):\n"
                "            weight.mul_((limit / largest_logit) ** 0.5)",
                because,
            ),
            Remedy(
                "Or cap the logits softly before the softmax; of flex_attention as its score_mod.",
                "def soft_capped(logits, cap=50.0):\n"
                "    return cap * torch.tanh(logits / cap)",
                because,
            ),
        ),
        facts={
            "amax": float(2.0**trend.level), "bits_a_step": trend.slope, "tensors": len(grown), "are_seen": are_seen,
            "seen": seen,
            "cause_class": "learning_rate",
        },
    )  # fmt: skip


RULE = Rule(
    name="attention_logits",
    title="Attention logits grow",
    severity="warning",
    explanation="The logits of an attention are large and grow steadily. Trainings of transformers that break often do "
    "so this way: the softmax becomes one-hot, gradients vanish there and explode elsewhere. Seen where they go "
    "through a module: the input of a Softmax module inside an attention (kind input), or a module named for them; and "
    "by head of `scaled_dot_product_attention`, whose fused kernels save them within ln(keys). Where these save "
    "nothing, a bound is looked at, the norms of queries and keys multiplied, and elsewhere the projections that "
    "these come from: both are worth an info.",
    check=check,
    thresholds=(
        Threshold("least", 64.0, "magnitude", "Logits below it are not reported."),
        Threshold("factor", 4.0, "times", "By how much they must have grown in the window."),
    ),
    explains=("saturated_activation",),
)  # fmt: skip
