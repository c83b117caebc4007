"""A mask that is no longer there: a softmax that gave exact zeros in each batch, and gives none from a jump on."""

from __future__ import annotations

from collections.abc import Iterator

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


def of_lost_mask(evidence: Evidence, step: int) -> Iterator[Candidate]:
    """Softmax modules whose zeros were there at each reading up to the jump at `step`, and at none since."""
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
