"""Each batch is of one class, and another one after some batches: the data come in the order in which they lie."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

SHARE, CLASS = "target_share", "target_class"

MOST_STEPS = 16_384
"""Steps of which single ones are read: the last."""

FEWEST, CLASSES = 8, 3
"""Readings in a row whose batch is of one class each, and of how many classes they are: where one class is rare a batch
is of the other alone, and of a discriminator each batch is real or made."""


class Spell(msgspec.Struct, frozen=True):
    """Readings in a row at the steps from `first` to `last`; `before`: the median share in the readings before it."""

    first: int
    last: int
    readings: int
    classes: int
    before: float | None
    is_over: bool


def check(evidence: Evidence, limits: Thresholds) -> Iterable[Finding]:
    """At most one finding: the first spell."""
    if not evidence.has_series(SHARE):
        return
    low = max(evidence.start, evidence.whole_stop - MOST_STEPS)
    shares, classes = (evidence.series(name, low, evidence.whole_stop) for name in (SHARE, CLASS))
    at = np.flatnonzero(np.isfinite(shares) & np.isfinite(classes))
    spell = _first_spell(low + at, shares[at], classes[at])
    if spell is not None:
        yield _finding(evidence, spell)


def _first_spell(steps: np.ndarray, shares: np.ndarray, classes: np.ndarray) -> Spell | None:
    """Of (n,) readings at ascending steps."""
    is_pure = np.r_[False, shares >= 1.0, False].astype(np.int8)
    edges = np.diff(is_pure)
    for begin, end in zip(np.flatnonzero(edges > 0).tolist(), np.flatnonzero(edges < 0).tolist(), strict=True):
        count = len(np.unique(classes[begin:end]))
        if end - begin >= FEWEST and count >= CLASSES:
            before = float(np.median(shares[:begin])) if begin else None
            return Spell(int(steps[begin]), int(steps[end - 1]), end - begin, count, before, end < len(shares))
    return None


def _finding(evidence: Evidence, spell: Spell) -> Finding:
    rank = only_rank(evidence)
    until = f"to step {spell.last}" if spell.is_over else "on"
    was = (
        "It was so at the first reading already."
        if spell.before is None
        else f"Before, {spell.before:.0%} of a batch were of the class of its first row."
    )
    return Finding(
        severity="info" if spell.is_over else "", rank=rank, step=spell.first, subject="sorted",
        summary=f"{place(spell.first, rank)}: from here {until} all rows of a batch are of one class, and of another "
        "one some batches later: the data come in the order in which they lie.",
        evidence=(
            f"So it was in {spell.readings} readings in a row up to step {spell.last}, of {spell.classes} classes.",
            was,
            "Cause (shown): the order of the data. A model that is trained on one class after another forgets those "
            "before, and the loss falls within a class and jumps with the next.",
        ),
        remedy=(
            Remedy(
                "Shuffle the rows: where the loader is made, with shuffle=True or a sampler that shuffles; of a "
                "stream, the order of its files and a buffer of rows.",
                "loader = torch.utils.data.DataLoader(range(64), batch_size=8, shuffle=True)  # of your data set",
                "the classes in the targets of the loss",
            ),
        ),
        facts={
            "classes": spell.classes, "readings": spell.readings, "is_over": spell.is_over, "cause_class": "data",
            "since_step": spell.first,
        },
    )  # fmt: skip


RULE = Rule(
    name="sorted_classes",
    title="Batches of one class each",
    severity="warning",
    explanation="All rows of each batch have the same class, and some batches later another one: the loader goes "
    "through files or rows in the order in which they lie, sorted by class. The loss falls within a class and jumps "
    "with the next, batch norms keep the statistics of one class, and what was learned before is forgotten. Known by "
    "the targets that a cross entropy (`nll_loss`) keeps for its backward, at each eighth step, of batches of 8 rows "
    "or more; three classes at least. Info once batches are mixed again.",
    check=check,
    explains=("loss_spike", "short_spike", "loss_stuck", "learning_lost", "dead_activation", "exploding_gradient"),
)
