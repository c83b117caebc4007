"""A slice of a run: two of step, tensor and rank, as arrays."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.core.optional_imports import pandas, polars

Floats = NDArray[np.float64]


class Slice(msgspec.Struct, frozen=True):
    """`values[statistic]`: (rows, columns) float64, NaN where nothing was measured. `states`: (rows, columns) uint8,
    places in `state_names`; NaN and Inf of the training are there, never values.

    `rows` and `columns` are the axes, `row_labels` and `column_labels` what stands along them: steps, ranks or names of
    tensors. A column of steps stands for `steps_per_column` of them.
    """

    rows: str
    columns: str
    row_labels: list[str] | list[int]
    column_labels: list[str] | list[int]
    values: dict[str, Floats]
    states: NDArray[np.uint8]
    state_names: list[str]
    start: int
    stop: int
    steps_per_column: int

    @property
    def array(self) -> Floats:
        """The first statistic's values, (rows, columns)."""
        return next(iter(self.values.values()))

    def is_state(self, name: str) -> NDArray[np.bool_]:
        """(rows, columns): cells in this state, such as `nan` or `inf`. Raises ValueError for no such state."""
        return self.states == self.state_names.index(name)

    def to_pandas(self, statistic: str | None = None) -> Any:
        """One statistic (default: the first) as a `pandas.DataFrame`. Raises ImportError without pandas."""
        library = pandas()
        row, column = (
            library.Index(self.row_labels, name=self.rows),
            library.Index(self.column_labels, name=self.columns),
        )
        return library.DataFrame(self._one(statistic), index=row, columns=column)

    def to_polars(self, statistic: str | None = None) -> Any:
        """The same as a `polars.DataFrame`: the rows' labels are its first column. Raises ImportError without it."""
        values = self._one(statistic)
        columns = {str(label): values[:, place] for place, label in enumerate(self.column_labels)}
        return polars().DataFrame({self.rows: self.row_labels, **columns})

    def _one(self, statistic: str | None) -> Floats:
        if statistic is None:
            return self.array
        if statistic not in self.values:
            raise KeyError(f"no {statistic!r} in this slice; it has {', '.join(self.values)}")
        return self.values[statistic]


def of_answer(answer: dict[str, Any]) -> Slice:
    """From the JSON of GET /api/v1/runs/{id}/slice."""
    rows, columns = answer["rows"], answer["columns"]
    shape = (len(_labels(rows)), len(_labels(columns)))
    return Slice(
        rows["axis"], columns["axis"], _labels(rows), _labels(columns),
        {name: np.array(values, np.float64).reshape(shape) for name, values in answer["values"].items()},
        np.array(answer["states"], np.uint8).reshape(shape), answer["state_names"],
        answer["start"], answer["stop"], answer["steps_per_column"],
    )  # fmt: skip


def _labels(axis: dict[str, Any]) -> Any:
    return axis["labels"] if axis["axis"] == "tensor" else axis[f"{axis['axis']}s"]
