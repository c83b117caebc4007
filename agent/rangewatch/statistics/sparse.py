"""Sums that few tensors have, or at few steps: bins of exponents, readings of formats, how scales fit, tokens by
expert, and sketches. Each is a statistic of its own, but the columns of those that nothing was added to do not travel
and are not stored. Some of how scales fit, and one of a sketch, are maxima, whose neutral element is 0 too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rangewatch import statistics
from rangewatch.statistics import experts, exponents, formats, in_use, scales, sketches
from rangewatch.wire.records import Statistic

Array = NDArray[Any]

ALL = (
    *exponents.ALL, *formats.ALL, *in_use.ALL, *scales.MAXIMA, *sketches.MAXIMA, *scales.COUNTS, *sketches.SUMS,
    *experts.ALL,
)  # fmt: skip
_POSITIONS = {each.name: position for position, each in enumerate(ALL)}
EXPONENTS = slice(0, len(exponents.ALL))
WHATIF = slice(EXPONENTS.stop, EXPONENTS.stop + len(formats.ALL))
IN_USE = slice(WHATIF.stop, WHATIF.stop + len(in_use.ALL))
MAXIMA = slice(IN_USE.stop, IN_USE.stop + len(scales.MAXIMA))
SKETCHED_WHOLE = slice(MAXIMA.stop, MAXIMA.stop + len(sketches.MAXIMA))
_BY_MAXIMUM = range(MAXIMA.start, SKETCHED_WHOLE.stop)
SCALED_COUNTS = slice(SKETCHED_WHOLE.stop, SKETCHED_WHOLE.stop + len(scales.COUNTS))
SKETCH = slice(SCALED_COUNTS.stop, SCALED_COUNTS.stop + len(sketches.SUMS))
EXPERTS = slice(SKETCH.stop, len(ALL))


def of_catalogue(*, histograms: bool, sketched: bool = False, most_experts: int = 0) -> tuple[Statistic, ...]:
    """Every statistic that a rank may send; the bins of exponents and the sketches where these were asked for, and
    tokens by expert where a router has so many.
    """
    of_routers = experts.ALL[: experts.OF_ROUTER + most_experts] if most_experts else ()
    of_formats = formats.ALL + in_use.ALL + scales.ALL
    of_sketches = sketches.ALL if sketched else ()
    return statistics.ALL + of_formats + of_routers + of_sketches + (exponents.ALL if histograms else ())


def is_sparse(name: str) -> bool:
    """Whether the statistic of this name is one of `ALL`."""
    return name in _POSITIONS


class Sums(NamedTuple):
    """Those of one step: `values[i, j]` of tensor `numbers[i]` for the statistic `ALL[positions[j]]`; ascending."""

    numbers: NDArray[np.int64]
    positions: NDArray[np.int64]
    values: NDArray[np.float64]

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return self.values.nbytes


class OpenSums:
    """Those of the open step, (len(ALL),) of each tensor that has any."""

    def __init__(self) -> None:
        self._rows: dict[int, NDArray[np.float64]] = {}

    def __bool__(self) -> bool:
        return bool(self._rows)

    def add(self, number: int, part: slice, values: Array) -> None:
        """Add the `values` of a `part` of `ALL`: `EXPONENTS`, `WHATIF`, `IN_USE`, `SCALED_COUNTS`, `SKETCHED_WHOLE`,
        `SKETCH`, or some of `MAXIMA` or of `EXPERTS`.
        """
        row = self._rows.get(number)
        if row is None:
            row = self._rows[number] = np.zeros(len(ALL))
        if part.start in _BY_MAXIMUM:
            np.maximum(row[part], values, out=row[part])
        else:
            row[part] += values

    def take(self) -> Sums:
        """All of them, without the columns that are zero in all rows; none are left."""
        numbers = np.array(sorted(self._rows), np.int64)
        values = np.array([self._rows[number] for number in numbers.tolist()]).reshape(-1, len(ALL))
        self._rows.clear()
        filled = np.flatnonzero(values.any(axis=0))
        return Sums(numbers, filled, values[:, filled])


def merge(sums: Sequence[Sums]) -> Sums:
    """Those of several steps as those of one."""
    numbers = np.unique(np.concatenate([each.numbers for each in sums]))
    positions = np.unique(np.concatenate([each.positions for each in sums]))
    values = np.zeros((len(numbers), len(positions)))
    is_maximum = (positions >= _BY_MAXIMUM.start) & (positions < _BY_MAXIMUM.stop)
    for each in sums:
        at = _at(each, numbers, positions)
        of = is_maximum[at[1]]
        values[at] = np.where(of, np.maximum(values[at], each.values), values[at] + each.values)
    return Sums(numbers, positions, values)


def columns(by_step: Mapping[int, Sums], steps: Sequence[int], tensors: Array) -> dict[str, Array]:
    """As `RangeRows` has them: the name of each statistic that is not zero everywhere -> (tensors, steps).

    `tensors`: ascending numbers, all that `by_step` has. Whole numbers come as uint32 where they fit: 64 steps of 300
    tensors in 60 bins are 9 MB as float64, and packed twice as long.
    """
    positions = np.unique(np.concatenate([each.positions for each in by_step.values()] or [np.zeros(0, np.int64)]))
    cells = np.zeros((len(positions), len(tensors), len(steps)))
    for position, step in enumerate(steps):
        if step in by_step:
            rows, places = _at(by_step[step], tensors, positions)
            cells[places, rows, position] = by_step[step].values
    return {ALL[int(position)].name: _packed(values) for position, values in zip(positions, cells, strict=True)}


def _packed(values: NDArray[np.float64]) -> Array:
    is_whole = bool((values == np.floor(values)).all()) and values.min(initial=0) >= 0
    return values.astype(np.uint32) if is_whole and values.max(initial=0) < 2**32 else values


def _at(sums: Sums, numbers: Array, positions: Array) -> tuple[Array, Array]:
    rows, places = np.searchsorted(numbers, sums.numbers), np.searchsorted(positions, sums.positions)
    return rows[:, np.newaxis], places[np.newaxis, :]
