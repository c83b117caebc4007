"""Merges the rows of several steps into one, by each statistic's own rule: `ship_every`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from rangewatch import statistics
from rangewatch.statistics import exponents
from rangewatch.statistics.exponents import Histograms
from rangewatch.step_buffer import POSITIONS, Block

_RULES = {"max": np.maximum, "min": np.minimum, "sum": np.add}


def merge_steps(block: Block, every: int) -> Block:
    """Rows of the same `step // every` become one, under the last of these steps.

    Steps with a NaN or Inf in any tensor, traced ones, and those that would be merged with either stay as they are. So
    do the series.
    """
    if every == 1 or len(block.steps) < 2:
        return block
    starts = _starts(block, every)
    rows = np.empty((block.rows.shape[0], len(starts), block.rows.shape[2]))
    for statistic in statistics.ALL:
        position = POSITIONS[statistic.name]
        rows[position] = _RULES[statistic.merge].reduceat(block.rows[position], starts, axis=0)
    last = np.append(starts[1:], len(block.steps)) - 1
    return Block(block.steps[last], rows, block.series, block.traced, _merge_histograms(block, starts))


def _merge_histograms(block: Block, starts: NDArray[np.intp]) -> dict[int, Histograms]:
    groups = [group.tolist() for group in np.split(block.steps, starts[1:])]
    found = {group[-1]: [block.histograms[step] for step in group if step in block.histograms] for group in groups}
    return {last: exponents.merge(histograms) for last, histograms in found.items() if histograms}


def _starts(block: Block, every: int) -> NDArray[np.intp]:
    """Where each new row begins."""
    group = block.steps // every
    bad = (block.rows[POSITIONS["nan_count"]] + block.rows[POSITIONS["inf_count"]]).any(axis=1)
    is_whole = np.isin(group, np.unique(group[bad | np.isin(block.steps, list(block.traced))]))
    is_new = np.append(True, group[1:] != group[:-1])
    return np.flatnonzero(is_new | is_whole)
