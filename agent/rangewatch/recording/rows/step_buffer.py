"""The preallocated rows of the steps that have not been shipped: one row of statistics a step, one column a tensor.

The training thread alone writes here (and autograd's threads, while it waits). The sender's thread gets copies.

`merge_steps` merges the rows of several steps into one, on the sender's thread, by each statistic's rule: `ship_every`.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from rangewatch import statistics
from rangewatch.core import limits
from rangewatch.recording.rows.mirror import Mirror
from rangewatch.statistics import sparse
from rangewatch.statistics.sparse import OpenSums, Sums
from rangewatch.wire.records import FloatArray, RangeRows, SeriesRows

POSITIONS = {statistic.name: position for position, statistic in enumerate(statistics.ALL)}
IDENTITIES = {statistic.name: statistic.identity for statistic in statistics.ALL}
_IDENTITIES = np.array(list(IDENTITIES.values()))

_ALWAYS_SENT = ("call_count", "numel", "amax")
"""Columns that say that the rows were measured, be they constant (which costs nothing) or even their identity."""


class StepRow:
    """The statistics of the open step, a double a tensor in each. Plain arrays: a write costs a third of numpy's."""

    def __init__(self) -> None:
        self.columns = {name: array("d") for name in IDENTITIES}
        self.call_count, self.numel = self.columns["call_count"], self.columns["numel"]
        self.amax = self.columns["amax"]
        self.nan_count, self.inf_count = self.columns["nan_count"], self.columns["inf_count"]
        self.nonfinite_ns = self.columns["nonfinite_ns"]
        self.full_numel = self.columns["full_numel"]
        self.sparse = OpenSums()

    def __len__(self) -> int:
        return len(self.call_count)

    def grow(self) -> None:
        """Make room for one more tensor."""
        for name, column in self.columns.items():
            column.append(IDENTITIES[name])

    def set_checksum(self, number: int, value: float, weight: int | None = None) -> None:
        """Keep a checksum; with `weight`, see `statistics.weight_of`, of what only some ranks hold alike."""
        if weight is None:
            self.set_columns(number, {"checksum_max": value, "checksum_min": value})
        else:
            self.set_columns(number, {"axis_checksum": value, "axis_balance": statistics.balanced(value, weight)})

    def set_columns(self, number: int, values: Mapping[str, float]) -> None:
        """Keep what only some tensors have, by the statistics' names, of which there is one a step."""
        for name, value in values.items():
            self.columns[name][number] = value


class Block(NamedTuple):
    """Closed steps on their way to the sender. `rows`: (statistics, steps, tensors) float64, in the order of `ALL`."""

    steps: NDArray[np.int64]
    rows: FloatArray
    series: dict[str, dict[int, float]]
    traced: frozenset[int] = frozenset()
    """Steps that were recorded in full because somebody asked for them."""
    sums: Mapping[int, Sums] = {}
    """By step, of the steps that have any."""
    number: int = 0
    """Of the blocks of this process, see `mirror.StepStore`."""

    @property
    def nbytes(self) -> int:
        """Bytes held, give or take the series."""
        sums_bytes = sum(each.nbytes for each in self.sums.values())
        return self.rows.nbytes + sums_bytes + 1000 + 200 * sum(map(len, self.series.values()))


EMPTY_BLOCK = Block(np.zeros(0, np.int64), np.zeros((len(IDENTITIES), 0, 0)), {})


class StepBuffer:
    """Rows of up to `limits.BUFFER_STEPS` closed steps, which are in `mirror`, and the open one in `row`."""

    def __init__(self, mirror: Mirror) -> None:
        self.row = StepRow()
        self.steps: list[int] = []
        self.series: dict[str, dict[int, float]] = {}
        self.mirror = mirror
        self._rows = mirror.steps
        self._traced: set[int] = set()
        self._sums: dict[int, Sums] = {}
        self._positions: set[int] = set()

    @property
    def is_full(self) -> bool:
        """No further step fits, or the sparse sums would be a batch of more than `limits.BUFFER_BYTES` with it."""
        if self.steps and len(self.steps) >= self._rows.slots:
            return True
        # Mostly whole numbers of 4 bytes, see `sparse.columns`.
        cells = len(self._positions) * len(self.row) * (len(self.steps) + 1)
        return 4 * cells > limits.BUFFER_BYTES

    def is_observed(self) -> bool:
        """Whether the open step holds anything."""
        return bool(np.frombuffer(self.row.call_count).any()) if len(self.row) else False

    def close(self, step: int, *, is_traced: bool = False) -> None:
        """Move the open row into its slot and start an empty one. Call `take` first when `is_full`."""
        if is_traced:
            self._traced.add(step)
        count = len(self.row)
        self._reserve(count)
        columns = self.row.columns
        self._rows.close(step, columns.values(), count, is_traced=is_traced)
        for name, column in columns.items():
            column[:] = array("d", [IDENTITIES[name]]) * count
        self.steps.append(step)
        if self.row.sparse:
            sums = self._sums[step] = self.row.sparse.take()
            self._positions.update(sums.positions.tolist())

    def set_series(self, name: str, step: int, value: float) -> None:
        """Keep a value of a series; the last one of a step counts."""
        self.series.setdefault(name, {})[step] = value
        self.mirror.series(name, step, value)

    def take(self) -> Block:
        """Copy out what is closed, with the series so far, and empty the buffer."""
        rows = self._rows.copy(len(self.row), _IDENTITIES)
        number = self._rows.next_block()
        steps = np.array(self.steps, np.int64)
        block = Block(steps, rows, self.series, frozenset(self._traced), self._sums, number)
        self.steps, self.series, self._traced = [], {}, set()
        self._sums, self._positions = {}, set()
        return block

    def _reserve(self, count: int) -> None:
        """Slots for `count` tensors; those in use keep their rows. New ones while a model shows its tensors only."""
        if count <= self._rows.capacity and self._rows.slots:
            return
        capacity = max(64, count + count // 8)
        slot_bytes = capacity * len(IDENTITIES) * 8
        slots = max(1, len(self.steps) + 1, min(limits.BUFFER_STEPS, limits.BUFFER_BYTES // slot_bytes))
        self._rows.reserve(slots, capacity)


def range_rows(block: Block, every: int = 1) -> RangeRows | None:
    """The rows as they travel, those of `every` steps merged (see `merge_steps`): tensors observed, columns that differ
    from their identity; None if nothing was.
    """
    if every > 1:
        block = merge_steps(block, every)
    observed = np.flatnonzero(block.rows[POSITIONS["call_count"]].any(axis=0))
    if not observed.size:
        return None
    columns: dict[str, FloatArray] = {}
    for values, (name, identity) in zip(block.rows, IDENTITIES.items(), strict=True):
        if name in _ALWAYS_SENT or not (values == identity).all():
            columns[name] = np.ascontiguousarray(values[:, observed].T)
    columns |= sparse.columns(block.sums, block.steps.tolist(), observed)
    return RangeRows(block.steps, observed.astype(np.int64), columns)


def series_rows(block: Block) -> tuple[SeriesRows, ...]:
    """Series as they travel, steps ascending. `skipped_step` follows from `found_inf`: here and not at the step's end,
    since that may come from a device.
    """
    series = dict(block.series)
    if "found_inf" in series:
        series["skipped_step"] = {step: float(value > 0) for step, value in series["found_inf"].items()}
    rows = []
    for name, values in series.items():
        if values:
            steps = sorted(values)
            in_order = np.array([values[step] for step in steps], np.float64)
            rows.append(SeriesRows(name, np.array(steps, np.int64), in_order))
    return tuple(rows)


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
        rows[position] = statistics.UFUNCS[statistic.merge].reduceat(block.rows[position], starts, axis=0)
    last = np.append(starts[1:], len(block.steps)) - 1
    return Block(block.steps[last], rows, block.series, block.traced, _merge_sums(block, starts))


def _merge_sums(block: Block, starts: NDArray[np.intp]) -> dict[int, Sums]:
    groups = [group.tolist() for group in np.split(block.steps, starts[1:])]
    by_step = {group[-1]: [block.sums[step] for step in group if step in block.sums] for group in groups}
    return {last: sparse.merge(sums) for last, sums in by_step.items() if sums}


def _starts(block: Block, every: int) -> NDArray[np.intp]:
    """Where each new row begins."""
    group = block.steps // every
    bad = (block.rows[POSITIONS["nan_count"]] + block.rows[POSITIONS["inf_count"]]).any(axis=1)
    is_whole = np.isin(group, np.unique(group[bad | np.isin(block.steps, list(block.traced))]))
    is_new = np.append(True, group[1:] != group[:-1])
    return np.flatnonzero(is_new | is_whole)
