"""What the simulated ranks read their statistics from: every tensor over a period of steps, made once for all ranks.

Where the size of what is stored comes from, and how it is made honest:
- amax is rounded to its tensor's dtype: 11 significant bits for float16, 24 for float32. Steps differ by some 7 %.
- numel is another for each tensor, as in a model, so that its column is no single constant.
- sum_sq has all 53 bits of a float64, which no compression takes away; zeros and subnormals are noisy counts.
- NaN and Inf are rare: those columns are constants, as in nearly every batch of a real run.

Ranks begin at places of their own. Each batch and each tile is compressed by itself, so a value that comes again
elsewhere makes nothing smaller.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rangewatch import statistics
from rangewatch.wire.records import Catalogue, TensorEntry

Array = NDArray[Any]

PERIOD = 2_048  # steps; of 600 tensors that is 49 MB
KINDS = ("output", "grad_output", "grad")
WIDTHS = (512, 768, 1_024, 2_048, 3_072)


def catalogue(tensors: int) -> Catalogue:
    """A transformer's worth of names: outputs, their gradients, and parameter gradients."""
    entries = (
        TensorEntry(
            f"decoder.block.{i // 18}.layer.{i // 3 % 6}.DenseReluDense.wo", KINDS[i % 3], 0,
            "float32" if i % 3 == 2 else "float16", (8, 512, WIDTHS[i // 3 % 5] + i), i, "Linear",
        )
        for i in range(tensors)
    )  # fmt: skip
    return Catalogue(statistics.ALL, tuple(entries))


class Table:
    """`columns`: statistic -> (tensors, PERIOD), the last step being followed by the first without a jump."""

    def __init__(self, known: Catalogue) -> None:
        self.known = known
        self.random = np.random.default_rng(len(known.tensors))
        self.shape = (len(known.tensors), PERIOD)
        self.numel = np.array([[float(np.prod(entry.shape))] for entry in known.tensors])
        self.is_half = np.array([[entry.dtype == "float16"] for entry in known.tensors])
        self.columns: dict[str, Array] = {"amax": self._amax()}
        self.columns |= self._full(self.columns["amax"])
        self._constants: dict[tuple[float | None, int], Array] = {}

    def constant(self, value: float | None, steps: int) -> Array:
        """(tensors, steps) of one value, or of each tensor's numel with None; shared, so not to be written to."""
        found = self._constants.get((value, steps))
        if found is None:
            source = self.numel if value is None else np.full((self.shape[0], 1), value)
            found = self._constants[value, steps] = np.repeat(source, steps, axis=1)
        return found

    def part(self, name: str, places: Array) -> Array:
        """(tensors, steps) of one statistic at consecutive `places`, modulo the period."""
        first, last = int(places[0]), int(places[-1])
        column = self.columns[name]
        return column[:, first : last + 1] if first <= last else column[:, places]

    def _amax(self) -> Array:
        walk = np.cumsum(self.random.normal(0, 0.02, self.shape), axis=1)
        walk -= walk[:, -1:] * np.linspace(0, 1, PERIOD)
        log2 = self.random.normal(0, 3, (self.shape[0], 1)) + walk + self.random.normal(0, 0.1, self.shape)
        amax = np.exp2(np.clip(log2, -20, 14))
        return np.where(self.is_half, amax.astype(np.float16).astype(np.float64), _float32(amax))

    def _full(self, amax: Array) -> dict[str, Array]:
        few = 1 + np.floor(self.random.exponential(3, self.shape))  # the smallest of a float16 are multiples of 2^-24
        is_sparse = np.arange(self.shape[0])[:, None] % 6 == 0  # what a ReLU leaves: half of it zeros
        zeros = np.where(is_sparse, self.numel * self.random.normal(0.5, 0.01, self.shape), few)
        return {
            "amin": np.where(self.is_half, few * 2.0**-24, _float32(amax * 2.0**-18 / few)),
            "zero_count": np.rint(zeros),
            "subnormal_count": self.random.poisson(20, self.shape).astype(np.float64),
            "sum_sq": self.numel * (amax / 20) ** 2 * self.random.normal(1, 0.05, self.shape),
        }


def _float32(values: Array) -> Array:
    return values.astype(np.float32).astype(np.float64)


@cache
def table(tensors: int) -> Table:
    """The table of that many tensors."""
    return Table(catalogue(tensors))
