"""What every source gives: the scalars of one run, by name and step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec
import numpy as np

from rangewatch.records import SeriesRows

MOST_NAMES = 1_000
"""Of one run: what a server takes."""
LONGEST_NAME = 4_096
"""In bytes, as a server takes it."""
LAST_STEP = 10**12
"""As a server takes it."""
MOST_VALUES = 20_000_000
"""Of one run, some 2 GB of memory here: a million steps of twenty series."""
BATCH_STEPS = 4_096
BATCH_SPANS, SPAN = 128, 64
"""Steps of one batch may lie in so many spans of so many steps: a server folds each of them."""


class ImportFailed(Exception):
    """Why there is nothing to send, in one line."""


class Scalars(msgspec.Struct):
    """One run. A value that was written twice for a step is the one written last, as after a restart."""

    name: str
    values: dict[str, dict[int, float]] = {}
    first_ns: int = 0
    last_ns: int = 0
    kept: int = 0
    left_out: Counter[str] = msgspec.field(default_factory=Counter)
    """Reason -> how many values."""

    def add(self, name: str, step: int, value: float, time_ns: int) -> None:
        """Keep a value, or count it with the reason why not."""
        if not 0 <= step <= LAST_STEP:
            self.left_out["of a step that is negative, or too large"] += 1
        elif not name or len(name.encode()) > LONGEST_NAME:
            self.left_out["of a name that is empty, or too long"] += 1
        elif name not in self.values and len(self.values) == MOST_NAMES:
            self.left_out[f"of further names than {MOST_NAMES}"] += 1
        elif self.kept == MOST_VALUES:
            self.left_out[f"after the first {MOST_VALUES}"] += 1
        else:
            self.kept += 1
            self.values.setdefault(name, {})[step] = value
            self.first_ns = min(self.first_ns or time_ns, time_ns)
            self.last_ns = max(self.last_ns, time_ns)

    def count(self) -> int:
        """How many values there are."""
        return sum(map(len, self.values.values()))

    def steps(self) -> list[int]:
        """All steps that have a value."""
        return sorted(set().union(*self.values.values()))

    def batches(self, most_series: int) -> Iterator[tuple[SeriesRows, ...]]:
        """All values in pieces that a server takes in one batch: some steps of some names, in order of the steps."""
        names = sorted(self.values)
        for steps in _pieces(self.steps()):
            for start in range(0, len(names), most_series):
                rows = (_rows(name, self.values[name], steps) for name in names[start : start + most_series])
                if found := tuple(each for each in rows if len(each.steps)):
                    yield found


def _pieces(steps: list[int]) -> Iterator[list[int]]:
    piece: list[int] = []
    spans = 0
    for step in steps:
        is_new = not piece or step // SPAN != piece[-1] // SPAN
        if len(piece) == BATCH_STEPS or spans + is_new > BATCH_SPANS:
            yield piece
            piece, spans, is_new = [], 0, True
        piece.append(step)
        spans += is_new
    if piece:
        yield piece


def _rows(name: str, values: dict[int, float], steps: list[int]) -> SeriesRows:
    found = [step for step in steps if step in values]
    return SeriesRows(name, np.array(found, np.int64), np.array([values[step] for step in found], np.float64))
