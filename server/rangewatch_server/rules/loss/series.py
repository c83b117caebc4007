"""Which logged series is the training loss, and its course over many steps."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch_server.numerics.pyramid import FANOUT, SERIES_PART
from rangewatch_server.rules.evidence import Evidence

Array = NDArray[Any]

NAMES = ("loss", "train_loss", "train/loss", "training_loss", "loss/train", "total_loss")
"""The first that the run has is the training loss; others may be anything."""

RATES = ("lr", "learning_rate", "train/lr", "train/learning_rate")
"""Those that are the learning rate, by the names that scripts and trainers log it under."""

MOST = 0.5
"""Part of the values above which they are most of them."""

FEW, CONVERGED = 16, 0.01
"""Steps at the beginning and the end of a run, and the part of the first loss that is next to nothing."""

COLUMNS = ("count", "nonfinite_count", "sum")


WRITTEN = "weights_written"
"""Series of what code other than the optimizer changed weights by."""

UPDATE = "sampled_update"
"""Series of how far an update moved a small parameter."""

FOUND_INF = "found_inf"
"""Series of whether a loss scaler found Inf or NaN in gradients, and skipped the update."""

TAKEN = "sampled_gradient"
"""Series of how large its gradient was when the optimizer took it."""

TARGETS = "target_rms"
"""Series of the size of what the loss compares with."""

NORMS = ("grad_norm", "train/grad_norm", "gradient_norm", "total_norm")
"""What loops call the norm of their gradients."""


def loss_name(evidence: Evidence) -> str | None:
    """The series that is the training loss; None where none is known to be."""
    return next((name for name in NAMES if evidence.has_series(name)), None)


def are_known(evidence: Evidence, name: str, start: int, stop: int) -> Array:
    """(n,) whether the series has a value in each of the steps [start, stop), NaN and Inf too."""
    rows = np.array([evidence.run.names().series[name]])
    block = evidence.run.slice(SERIES_PART, list(evidence.ranks), 0, start, stop, ("count",), rows)
    known: Array = np.asarray(block.columns["count"][0]) > 0
    return known


def rates(evidence: Evidence, start: int, stop: int) -> Array:
    """(n,) the learning rate of the steps [start, stop); NaN where none is known. Where a trainer logs it now and then
    under one name, the agent's own values of the steps before are under another.
    """
    values = np.full(max(0, stop - max(start, evidence.start)), np.nan)
    for name in RATES:
        if evidence.has_series(name):
            values = np.where(np.isfinite(values), values, evidence.series(name, start, stop))
    return values


def first_and_last(evidence: Evidence, few: int, stop: int | None = None) -> tuple[float, float] | None:
    """Medians of the loss over the first `few` steps and over the last `few` before `stop`, which is where all ranks
    are unless it is given. None where either has no finite value, or no loss is known.
    """
    name = loss_name(evidence)
    if name is None:
        return None
    start, stop = evidence.start, evidence.whole_stop if stop is None else stop
    first, last = (evidence.series(name, low, min(low + few, stop)) for low in (start, max(start, stop - few)))
    first, last = first[np.isfinite(first)], last[np.isfinite(last)]
    return (float(np.median(first)), float(np.median(last))) if len(first) and len(last) else None


def has_fallen(evidence: Evidence, few: int, part: float) -> bool:
    """Whether the last loss is below `part` of the first, medians of `few` steps; False where it is not known."""
    medians = first_and_last(evidence, few)
    return medians is not None and medians[1] < part * medians[0]


def has_converged(evidence: Evidence) -> bool:
    """Whether the loss is next to nothing of what it was at first: gradients then are, too, and nothing is lost."""
    return has_fallen(evidence, FEW, CONVERGED)


def means(evidence: Evidence, name: str, level: int, groups: int) -> tuple[Array, Array]:
    """(n,) first steps and (n,) means of the finite values of the last `groups` groups of 8**level steps; NaN: none.

    The last group may hold fewer steps.
    """
    size, stop = FANOUT**level, evidence.whole_stop
    start = max(evidence.start, (-(-stop // size) - groups) * size)
    if start >= stop:
        return np.zeros(0, np.int64), np.zeros(0)
    rows = np.array([evidence.run.names().series[name]])
    block = evidence.run.slice(SERIES_PART, list(evidence.ranks), level, start, stop, COLUMNS, rows)
    count, bad, total = (np.asarray(block.columns[column][0], np.float64) for column in COLUMNS)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.where(count > bad, total / (count - bad), np.nan)
    return np.maximum(start, (block.first + np.arange(len(mean))) * size), mean


def is_not_zero(evidence: Evidence, start: int | None = None) -> bool:
    """Whether the training loss is known, and most of its values from the step `start` on, of the whole run where that
    is None, are not 0: of a loss that is 0 gradients are 0 rightly."""
    name = loss_name(evidence)
    if name is None:
        return False
    values = evidence.series(name, evidence.start if start is None else start, evidence.whole_stop)
    values = values[np.isfinite(values)]
    return bool(len(values)) and bool(np.mean(values != 0) > MOST)
