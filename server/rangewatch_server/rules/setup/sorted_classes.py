"""Each batch is of one class, and another one after some batches: the data come in the order in which they lie."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import numpy as np

from rangewatch.wire.events import LossFunction
from rangewatch_server.numerics.pyramid import SERIES_PART
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.series import loss_name
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank
from rangewatch_server.rules.rule import Finding, Remedy, Rule, Thresholds

SHARE, CLASS = "target_share", "target_class"

MOST_STEPS = 16_384
"""Steps of which single ones are read: the last."""

FEWEST, CLASSES = 8, 3
"""Readings in a row whose batch is of one class each, and of how many classes they are: where one class is rare a batch
is of the other alone, and of a discriminator each batch is real or made."""


MOST_APART = 0.5
"""Part of the readings in which ranks may have other classes than each other, as near the end of one."""

ORDERED = 4.0
"""Standard deviations by which classes must stay, or follow one another upwards or downwards, more often than classes
that are drawn at random do: a sampler that makes batches of one class, or microbatches of one class each, mean it."""

AGAIN = 1e-4
"""Chance that drawn classes come again in the same order, up to which it is none."""


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
    if spell is None and low == evidence.start and _jumps(evidence, at, shares[at], classes[at]):
        spell = Spell(int(low + at[0]), int(low + at[-1]), len(at), 2, None, is_over=False)
    if spell is not None and _is_of_all_ranks(evidence, spell):
        yield _finding(evidence, spell)


ONE_CLASS, TIMES, KINDS = 3, 4.0, 3
"""Readings, from the first on, that are of one class before the first of another, at which the loss jumps to so many
times what it was in those: of so many classes at the least it is not the seldom one of two, nor what is real and what
is made."""


def _jumps(evidence: Evidence, at: np.ndarray, shares: np.ndarray, classes: np.ndarray) -> bool:
    """Whether every batch has been of one class since the first, the same in several readings, and the loss jumped
    where that changed for the first time: the rest of such an order need not be waited for."""
    changes = np.flatnonzero(classes != classes[:1])
    name, known = loss_name(evidence), next((each for _, each in evidence.details(LossFunction)), None)
    if not len(changes) or changes[0] < ONE_CLASS or (shares < 1.0).any() or name is None:
        return False
    if known is None or known.op != "nll" or known.classes < KINDS:
        return False
    last, first = (evidence.start + int(at[each]) for each in (changes[0] - 1, changes[0]))
    before = evidence.series(name, last - int(at[1] - at[0]), last + 1)
    since = evidence.series(name, last + 1, first + 1)
    before, since = before[np.isfinite(before)], since[np.isfinite(since)]
    return len(before) > 0 and len(since) > 0 and bool(since.max() >= TIMES * np.median(before) > 0)


def _is_of_all_ranks(evidence: Evidence, spell: Spell) -> bool:
    """Whether all ranks have the same class: where each has another one, the batch of all of them is mixed."""
    if len(evidence.ranks) == 1:
        return True
    row, stop = np.array([evidence.run.names().series[CLASS]]), spell.last + 1
    block = evidence.run.slice(SERIES_PART, list(evidence.ranks), 0, spell.first, stop, ("min", "max"), row)
    low, high = (np.asarray(block.columns[each][0], np.float64) for each in ("min", "max"))
    return bool(np.mean((low == high)[np.isfinite(low)]) > 1 - MOST_APART)


def _first_spell(steps: np.ndarray, shares: np.ndarray, classes: np.ndarray) -> Spell | None:
    """Of (n,) readings at ascending steps."""
    is_pure = np.r_[False, shares >= 1.0, False].astype(np.int8)
    edges = np.diff(is_pure)
    for begin, end in zip(np.flatnonzero(edges > 0).tolist(), np.flatnonzero(edges < 0).tolist(), strict=True):
        count = len(np.unique(classes[begin:end]))
        if end - begin >= FEWEST and count >= CLASSES and _is_ordered(classes[begin:end]):
            before = float(np.median(shares[:begin])) if begin else None
            return Spell(int(steps[begin]), int(steps[end - 1]), end - begin, count, before, end < len(shares))
    return None


def _is_ordered(classes: np.ndarray) -> bool:
    """Whether (n,) classes stay, or go up or down, too often for such as are drawn at random, or come again in the same
    order."""
    total, counts = len(classes), np.unique(classes, return_counts=True)[1].astype(np.float64)
    pairs = counts * (counts - 1)
    chance = pairs.sum() / (total * (total - 1))  # that two of them are the same
    expected = (total - 1) * chance
    # Of neighbours in a random order, by how often both of two pairs, apart or with one in common, are the same.
    in_common = (pairs * (counts - 2)).sum() / (total * (total - 1) * (total - 2))
    apart = (pairs.sum() ** 2 - 4 * (pairs * (counts - 2)).sum() - 2 * pairs.sum()) / (
        total * (total - 1) * (total - 2) * (total - 3)
    )
    variance = expected + 2 * (total - 2) * in_common + (total - 2) * (total - 3) * apart - expected**2
    stays = np.count_nonzero(classes[1:] == classes[:-1])
    if stays - expected > ORDERED * np.sqrt(max(variance, 0.0)):
        return True
    if any(
        chance ** (total - lag) * total <= AGAIN and np.array_equal(classes[lag:], classes[:-lag])
        for lag in range(2, total // 2 + 1)
    ):
        return True
    moves = np.sign(np.diff(classes))
    moves = moves[moves != 0]
    # Of numbers in a random order half of the moves go up, with a variance of a twelfth of their number.
    return bool(abs(moves.sum()) / 2 > ORDERED * np.sqrt((len(moves) + 1) / 12))


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
    "or more; three classes at least, the same ones on all ranks, in an order that classes which are drawn at random "
    "hardly ever have; or, where all have been so since the first step, as soon as the loss jumps with the first other "
    "class. Info once batches are mixed again.",
    check=check,
    explains=("loss_spike", "short_spike", "loss_stuck", "learning_lost", "dead_activation", "exploding_gradient"),
)
