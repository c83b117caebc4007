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

FEW, CONVERGED = 16, 0.01
"""Steps at the beginning and the end of a run, and the part of the first loss that is next to nothing."""

COLUMNS = ("count", "nonfinite_count", "sum")


def loss_name(evidence: Evidence) -> str | None:
    """The series that is the training loss; None where none is known to be."""
    return next((name for name in NAMES if evidence.has_series(name)), None)


def rates(evidence: Evidence, start: int, stop: int) -> Array:
    """(n,) the learning rate of the steps [start, stop); NaN where none is known. Where a trainer logs it now and then
    under one name, the agent's own values of the steps before are under another.
    """
    values = np.full(max(0, stop - max(start, evidence.start)), np.nan)
    for name in RATES:
        if evidence.has_series(name):
            values = np.where(np.isfinite(values), values, evidence.series(name, start, stop))
    return values


def has_converged(evidence: Evidence) -> bool:
    """Whether the loss is next to nothing of what it was at first: gradients then are, too, and nothing is lost."""
    name = loss_name(evidence)
    if name is None:
        return False
    stop = evidence.whole_stop
    first, last = (evidence.series(name, low, low + FEW) for low in (evidence.start, max(evidence.start, stop - FEW)))
    first, last = first[np.isfinite(first)], last[np.isfinite(last)]
    return bool(len(first) and len(last) and np.median(last) < CONVERGED * np.median(first))


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
