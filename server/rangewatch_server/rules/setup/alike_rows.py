"""All units of each layer have the same weights, as where all was initialised to one constant, and stay alike."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

SERIES, SEEN = "alike_rows", 32
"""What the agent reads once, and the first steps in which it is looked for."""


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding."""
    if not evidence.has_series(SERIES):
        return
    values = evidence.series(SERIES, evidence.start, evidence.start + SEEN)
    known = np.flatnonzero(np.isfinite(values))
    if not len(known) or values[known[0]] < 1:
        return
    rank, start, seen = only_rank(evidence), evidence.start, evidence.start + int(known[0])
    yield Finding(
        rank=rank, step=start, subject="alike", kind=None,
        summary=f"{place(start, rank)}: all units of a layer have the same weights, in every weight matrix that was "
        "looked at but the model's last: each layer is as good as one unit.",
        evidence=(
            f"All rows were alike after the update of step {seen}, in the beginnings of up to eight matrices.",
            "Cause (shown): the initialisation, such as to zeros or to one constant. Units that begin alike get the "
            "same gradients and stay alike; behind zeros there is no gradient at all.",
        ),
        remedy=(
            Remedy(
                "Initialise weights with random numbers; biases may be 0.",
                "for module in model.modules():\n"
                "    if isinstance(module, (torch.nn.Linear, torch.nn.Conv2d)):\n"
                "        torch.nn.init.kaiming_uniform_(module.weight, a=5**0.5)",
                "the weights themselves",
            ),
        ),
        facts={"seen_step": seen, "cause_class": "weight"},
    )  # fmt: skip


RULE = Rule(
    name="alike_rows",
    title="All units of a layer are alike",
    severity="warning",
    explanation="After sixteen steps all rows of every weight matrix but the last are still the same numbers: the "
    "model was initialised to a constant, and its layers learn no more than one unit would, or nothing. Embeddings and "
    "what is frozen are left out. Read once, from the beginnings of up to eight matrices; not under FSDP.",
    check=check,
    explains=("dead_activation", "vanishing_gradient", "loss_plateau", "saturated_activation"),
)
