"""A mask that changed at a jump of the loss: a softmax that gave exact zeros in each batch and gives none since, or the
share of its places that a mask leaves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.loss.learning_rate import HISTORY
from rangewatch_server.rules.nonfinite.causes import Candidate
from rangewatch_server.rules.phrases import the
from rangewatch_server.rules.recent import tensors_of

SOFTMAX = "Softmax"
"""Module class. What a function of torch's gives is nobody's output, and is not recorded."""

MASKED, LOST = 0.02, 0.1
"""Least share of zeros in each batch before, and the part of that share below which it is gone."""

FEWEST = 4
"""Readings before. The share of zeros is read each `full_every` steps."""

BACK = 8 * HISTORY
"""Steps before the jump that are looked at, and `AHEAD` after it."""
AHEAD = 64

GIVEN = "mask_share"

SHARES = {
    "attention_share": "of the places that the first attention of a step may read its mask leaves",
    GIVEN: "of the first mask that the model is given True, or 1, is",
    "added_mask_share": "of the matrix that the model is given to be added as a mask what leaves its place is",
}
"""Series of how much masks leave, and what they say, before a share."""

SHARE_STEPS, READ_EVERY = 12, 4
"""Steps before that are needed, of which on an accelerator each fourth is read."""

TURNED = 0.84
"""Likely: rows of another length may leave as much as the mask turned around would."""

AWAY, ALL = 0.05, 0.999
"""How far from every share before another one must be; and the share from which on nothing is masked."""


def of_changed_mask(evidence: Evidence, step: int) -> Iterator[Candidate]:
    """Masks that were lost or turned around at the jump at `step`."""
    yield from _of_shares(evidence, step)
    yield from _of_softmax(evidence, step)


def _of_shares(evidence: Evidence, step: int) -> Iterator[Candidate]:
    low, stop = max(evidence.start, step - HISTORY), min(evidence.whole_stop, step + 2 * READ_EVERY)
    for name, what in SHARES.items():
        if step - low < SHARE_STEPS or not evidence.has_series(name):
            continue
        values = evidence.series(name, low, stop)
        before, since = values[: step - low], values[step - low :]
        before, since = before[np.isfinite(before)], since[np.isfinite(since)]
        if name == GIVEN and (count := _steps_without(evidence, step)) and len(since) >= (stop - step) // READ_EVERY:
            text = (
                f"The model is given a mask from that very step on, and was given none in the {count} steps before: "
                f"{float(since[0]):.1%} of it is True, or 1. Whether that means to read or to leave out is not the "
                "same everywhere."
            )
            yield Candidate("mask", 0.87, (text,))
            return
        if len(before) < SHARE_STEPS // READ_EVERY or not len(since):
            continue
        least, most, usual, now = before.min(), before.max(), float(np.median(before)), float(np.median(since))
        if not are_other(least, most, since.min(), since.max()):
            continue
        was = f"{usual:.1%} ({least:.1%} to {most:.1%}) before, and {now:.1%} from that very step on"
        room = max(AWAY, float(most - least))
        if abs(now - (1 - usual)) <= room and abs(now - usual) > room:
            text = f"What a mask leaves is turned around, as where True is taken for what is left out: {what} {was}."
            yield Candidate("mask", TURNED, (text,))
        elif now >= ALL or now <= 1 - ALL:
            rest = "nothing is masked any more" if now >= ALL else "all is masked"
            yield Candidate("mask", 0.93, (f"From that very step on {rest}: {what} {was}.",))
        else:
            yield Candidate("mask", 0.6, (f"A mask changed: {what} {was}.",))
        return


def are_other(least: Any, most: Any, since_least: Any, since_most: Any) -> Any:
    """Whether shares are beyond all those before, or all of 1 where none of them was: numbers, or (n,) of them."""
    return (most < ALL) & (since_least >= ALL) | (since_least > most + AWAY) | (since_most < least - AWAY)


def _steps_without(evidence: Evidence, step: int) -> int:
    """The steps before in which the model was given no mask; 0: it was in one of them, or is not in that one. Batches
    in which nothing is to be left out may come without."""
    low = max(evidence.start, step - BACK)
    values = np.isfinite(evidence.series(GIVEN, low, step + READ_EVERY))
    return 0 if values[: step - low].any() or not values[step - low :].any() else step - low


def _of_softmax(evidence: Evidence, step: int) -> Iterator[Candidate]:
    """Softmax modules whose zeros were there at each reading up to the jump, and at none since."""
    entries = evidence.tensors.entries
    outputs = [each for each in tensors_of(evidence, "output").tolist() if entries[each].module == SOFTMAX]
    names = ("full_numel", "zero_count")
    if not outputs or not set(names) <= set(evidence.run.names().fill[RANGES]):
        return
    low, stop = max(evidence.start, step - BACK), min(evidence.whole_stop, step + AHEAD)
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, low, stop, names, np.array(outputs))
    numel, zeros = (np.asarray(block.columns[name], np.float64) for name in names)
    with np.errstate(invalid="ignore", divide="ignore"):
        shares = np.where(numel > 0, zeros / numel, np.nan)
    at = step - block.first
    lost = []
    for tensor, row in zip(outputs, shares, strict=True):
        before, since = row[:at][np.isfinite(row[:at])], row[at:][np.isfinite(row[at:])]
        if len(before) >= FEWEST and len(since) and before.min() >= MASKED and since.max() < LOST * before.min():
            lost.append((tensor, float(np.median(before)), float(np.median(since))))
    if lost:
        tensor, share, now = lost[0]
        more = f", and so of {len(lost) - 1} more" if len(lost) > 1 else ""
        text = (
            f"Of {the(entries[tensor])} {share:.0%} was exactly 0 at each reading before, as where a mask adds -inf, "
            f"and {now:.1%} since{more}: places that were masked are attended to."
        )
        yield Candidate("mask", 0.94, (text,))
