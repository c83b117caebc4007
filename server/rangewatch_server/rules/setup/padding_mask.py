"""Attention that reads the more, the more of a batch is padding: the mask of the padding is turned around."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Threshold, Thresholds

TOKENS, ATTENDED = "token_share", "attention_share"
"""Series of the agent: the share of token ids that are no padding, and of places that the first attention may read."""

STEPS = 512
"""First steps that are compared."""

FEWEST, LEAST_SPREAD = 16, 0.005
"""Steps with both that it takes, and the standard deviation that each must have: rows of one length show nothing."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding, of the first rank whose shares show it."""
    if not evidence.has_series(TOKENS) or not evidence.has_series(ATTENDED):
        return
    start, stop = evidence.start, min(evidence.whole_stop, evidence.start + STEPS)
    for rank in evidence.ranks:
        tokens, attended = (evidence.series(each, start, stop, rank) for each in (TOKENS, ATTENDED))
        both = np.isfinite(tokens) & np.isfinite(attended)
        tokens, attended = tokens[both], attended[both]
        if len(tokens) < FEWEST or min(tokens.std(), attended.std()) < LEAST_SPREAD:
            continue
        alike = float(np.corrcoef(tokens, attended)[0, 1])
        if alike <= -limits["correlation"]:
            yield _finding(rank, start + int(np.flatnonzero(both)[0]), alike, tokens, attended)
            return


def _finding(rank: int, step: int, alike: float, tokens: np.ndarray, attended: np.ndarray) -> Finding:
    most, least = int(np.argmax(tokens)), int(np.argmin(tokens))
    return Finding(
        rank=rank, step=step, subject="padding",
        summary=f"{place(step, rank)}: attention reads the more, the more of a batch is padding: the mask of the "
        "padding is turned around, and what is read is the padding.",
        evidence=(
            f"Of {len(tokens)} batches the share of places that the first attention may read falls as the share of "
            f"tokens that are no padding rises (correlation {alike:.3f}): {attended[most]:.1%} where "
            f"{tokens[most]:.1%} are no padding, {attended[least]:.1%} where {tokens[least]:.1%} are.",
            "Cause (shown): the mask. Padding is what an embedding of the model has as its padding_idx.",
        ),
        remedy=(
            Remedy(
                "Turn the mask around. True in key_padding_mask and attn_mask of nn.MultiheadAttention and in "
                "src_key_padding_mask means to leave out; True in attn_mask of scaled_dot_product_attention, and 1 in "
                "the attention_mask of a tokenizer, mean to read.",
                "def left_out(attention_mask):  # of a tokenizer, for src_key_padding_mask\n"
                "    return attention_mask == 0",
                "the shares of the model's own tokens and of its first attention's mask",
            ),
        ),
        facts={"correlation": alike, "batches": len(tokens), "cause_class": "mask"},
    )  # fmt: skip


RULE = Rule(
    name="padding_mask",
    title="Attention reads the padding",
    severity="warning",
    explanation="The mask of the padding is turned around: attention reads what is padding and leaves out what is not, "
    "as where the attention_mask of a tokenizer, 1 for what is to be read, is given as src_key_padding_mask, True for "
    "what is to be left out. Nothing fails, and little is learned. Seen by how much the step's first "
    "scaled_dot_product_attention may read, beside how much of the model's token ids is not the padding_idx of its "
    "embedding, over batches of which that differs.",
    check=check,
    thresholds=(Threshold("correlation", 0.95, "", "How surely the one share falls as the other rises."),),
    explains=("loss_plateau", "vanishing_gradient"),
)
