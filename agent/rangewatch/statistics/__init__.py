"""Shelf 1: every statistic of a tensor that is recorded, with the rule by which two records of it merge.

To add one: an entry in `FULL_SET` here, its reduction on host and device in `reduce.py`, and on CUDA in
`fused_kernels.py`. The wire column, the rows of host and device, every merge, exports and docs follow from the entry.
To show one, or something made of several: an entry in `DERIVED`, with its formula, title and scale; heatmaps, the
pages' menu, the table of a step, slices and docs follow. Nothing here imports torch: the server reads this too.

Each statistic is a commutative monoid: `merge` is associative and `identity` is its neutral element, so any
grouping of steps, microbatches or ranks gives the same answer as the whole. A record that was never written
holds the identities, and `call_count == 0` then says "not observed".

`exponents.ALL` has more, the bins of an optional histogram: they are in a catalogue when it was asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from rangewatch.wire.records import Statistic

UFUNCS = {"max": np.maximum, "min": np.minimum, "sum": np.add}
"""What merges two values of a statistic, by its rule; `last` (series only) takes that of the latest step."""

CALL_COUNT = Statistic(
    "call_count", "calls", "sum", 0.0, "How many times the tensor was observed; 0 means it was not observed."
)
NUMEL = Statistic("numel", "elements", "sum", 0.0, "Number of elements observed.")
AMAX = Statistic("amax", "magnitude", "max", 0.0, "Largest finite magnitude; 0 when no element was finite.")
NAN_COUNT = Statistic("nan_count", "elements", "sum", 0.0, "Elements that were NaN.")
INF_COUNT = Statistic("inf_count", "elements", "sum", 0.0, "Elements that were +Inf or -Inf.")
NONFINITE_NS = Statistic(
    "nonfinite_ns", "ns", "min", float("inf"),
    "Nanoseconds into the step at which NaN or Inf was first seen here; Inf when never, or not known (accelerators).",
)  # fmt: skip

# The full set below costs several passes where no fused kernel exists, so it may be taken on a cadence only.
# `full_numel` is the divisor of its ratios, and 0 says "not measured" (never "zero").
FULL_NUMEL = Statistic("full_numel", "elements", "sum", 0.0, "Elements over which the full set was measured.")
AMIN = Statistic(
    "amin", "magnitude", "min", float("inf"), "Smallest non-zero finite magnitude; Inf when there was none."
)
ZERO_COUNT = Statistic("zero_count", "elements", "sum", 0.0, "Elements that were exactly zero.")
SUBNORMAL_COUNT = Statistic(
    "subnormal_count", "elements", "sum", 0.0, "Non-zero elements below the dtype's smallest normal number."
)
SUM_SQ = Statistic("sum_sq", "magnitude squared", "sum", 0.0, "Sum of squares of the finite elements, in float64.")

FULL_SET: tuple[Statistic, ...] = (AMIN, ZERO_COUNT, SUBNORMAL_COUNT, SUM_SQ)

# Of what every rank of a replicated model should hold alike, see `checksum`. One reading sets both, so that ranks are
# equal where the two of merged ranks are, and a record of several readings is distinguished from one of a single one.
CHECKSUM_MAX = Statistic(
    "checksum_max", "checksum", "max", 0.0,
    "Checksum as the optimizer gets it: of `grad` that of the parameter itself, of `reduced_grad` of the gradient. "
    "1 to 2^53; 0 when it was not taken.",
)  # fmt: skip
CHECKSUM_MIN = Statistic(
    "checksum_min", "checksum", "min", float("inf"), "The same, the smallest; Inf when it was not taken."
)

# Of what only the ranks along some axes of a mesh hold alike, see `balanced`: the sum over all ranks of a run
# is 0 modulo 2^32 where each group of them is alike, so that one merged stream shows it, however many groups there are.
AXIS_CHECKSUM = Statistic(
    "axis_checksum", "checksum", "max", 0.0,
    "The same of what is alike along some axes of the mesh only: this rank's part. 0 when it was not taken.",
)  # fmt: skip
AXIS_BALANCE = Statistic(
    "axis_balance", "checksum", "sum", 0.0,
    "The lowest bits of `axis_checksum`, so weighted that those of ranks that are alike add up to 0 modulo 2^32.",
)  # fmt: skip
AXIS_MODULUS = 1 << 32

# Of `exp_avg_sq` alone, beside `exp_avg` and the eps of Adam, see `moments`.
MOVED_COUNT = Statistic(
    "moved_count", "elements", "sum", 0.0,
    "Elements of `exp_avg_sq` that Adam moves: without its eps, by 1 % of the learning rate or more.",
)  # fmt: skip
EPS_COUNT = Statistic(
    "eps_count", "elements", "sum", 0.0,
    "Of these, those with `sqrt(exp_avg_sq / bias_correction2)` below eps, which then sets how far they move.",
)  # fmt: skip
LOST_COUNT = Statistic(
    "lost_count", "elements", "sum", 0.0,
    "Of these, those with `exp_avg_sq` exactly zero, though `exp_avg` is not: the square of the gradient underflowed.",
)  # fmt: skip
BESIDE_EPS: tuple[Statistic, ...] = (MOVED_COUNT, EPS_COUNT, LOST_COUNT)

# Of `grad` alone, of some elements of some parameters at some steps, see `hooks.optimizers.update_samples`.
SAMPLED_COUNT = Statistic(
    "sampled_count", "elements", "sum", 0.0,
    "Elements of the parameter that were looked at around the optimizer's step; 0 when none was.",
)  # fmt: skip
PUSHED_COUNT = Statistic(
    "pushed_count", "elements", "sum", 0.0,
    "Of these, those whose gradient was not 0 when the optimizer was about to use it.",
)  # fmt: skip
UNMOVED_COUNT = Statistic(
    "unmoved_count", "elements", "sum", 0.0,
    "Of these in turn, those that the optimizer's step left as they were, at a learning rate other than 0: the update "
    "was rounded away.",
)  # fmt: skip
UNMOVED_AMIN = Statistic(
    "unmoved_amin", "magnitude", "min", float("inf"),
    "Smallest magnitude of these, which says how far apart numbers are where updates are rounded away; Inf when there "
    "was none.",
)  # fmt: skip
SAMPLED_RATE = Statistic(
    "sampled_rate", "learning rate", "max", 0.0,
    "Learning rate by which the optimizer updated the elements that were looked at; 0 when it has none.",
)  # fmt: skip
ZERO_WEIGHT_COUNT = Statistic(
    "zero_weight_count", "elements", "sum", 0.0,
    "Of the elements that were looked at, those of the parameter that are exactly 0 after the step.",
)  # fmt: skip
OF_UPDATES: tuple[Statistic, ...] = (
    SAMPLED_COUNT, PUSHED_COUNT, UNMOVED_COUNT, ZERO_WEIGHT_COUNT, UNMOVED_AMIN, SAMPLED_RATE,
)  # fmt: skip

ALL: tuple[Statistic, ...] = (
    CALL_COUNT, NUMEL, AMAX, NAN_COUNT, INF_COUNT, NONFINITE_NS, FULL_NUMEL, *FULL_SET, CHECKSUM_MAX, CHECKSUM_MIN,
    AXIS_CHECKSUM, AXIS_BALANCE,
    *BESIDE_EPS, *OF_UPDATES,
)  # fmt: skip

ON_DEVICE: tuple[Statistic, ...] = tuple(
    sorted((AMAX, NAN_COUNT, INF_COUNT, *FULL_SET), key=lambda each: list(UFUNCS).index(each.merge))
)
"""What an accelerator measures, in the order of its rows: those that merge alike lie together."""

# Per-step values that are not of a tensor (loss, loss scale, step time) are kept as series with these.
# `last` takes the value of the latest step that has one; NaN is a value here (a NaN loss is news, not a gap).
SERIES: tuple[Statistic, ...] = (
    Statistic("count", "values", "sum", 0.0, "How many values were recorded; 0 means none."),
    Statistic("nonfinite_count", "values", "sum", 0.0, "Values that were NaN or Inf."),
    Statistic("min", "value", "min", float("inf"), "Smallest finite value."),
    Statistic("max", "value", "max", float("-inf"), "Largest finite value."),
    Statistic("sum", "value", "sum", 0.0, "Sum of the finite values."),
    Statistic("last", "value", "last", float("nan"), "Value of the latest step, finite or not."),
)


def is_count(statistic: Statistic) -> bool:
    """Whether values of `statistic` are whole numbers of things."""
    return statistic.unit in {"calls", "elements", "entries", "values"}


Columns = Mapping[str, Any]
"""Statistic name -> values: float64 arrays of one shape (tensors, steps), or single numbers."""

CELL = ("call_count", "amax", "nan_count", "inf_count")
"""What a cell's state is made of; every formula has them."""


class Derived(msgspec.Struct, frozen=True, kw_only=True):
    """What is made of the statistics when they are read, never stored, and how a heatmap shows it.

    `formula(columns, limit)`: the value, in `unit`, of `CELL` and `inputs`; `limit` is, of each tensor's dtype, the
    largest finite number (headroom) or the smallest normal one. It may be NaN or Inf where nothing was measured.
    """

    name: str
    title: str
    aka: str = ""
    """What else people call it, for the menu."""
    help: str
    unit: str
    source: str
    """The formula, for the docs."""
    scale: Literal["bits", "log2", "fraction", "count", "change", "ratio", "room"]
    """Of the heatmap, which is never stretched to the data: log2 of a magnitude or ratio, log2(1 + n) of a count."""
    worst: Literal["least", "most", "furthest"]
    """Which end of the scale; or, of a change, what is furthest from 0."""
    worst_title: str
    """What the worst value is called, as in "least headroom"."""
    inputs: tuple[str, ...] = ()
    """Statistics that it is made of besides `CELL`."""
    by_dtype: bool = False
    """The formula has a limit of the dtype: all tensors merged, it is the least of any."""
    is_share: bool = False
    """Of several steps or ranks read together it is that of all their elements, and no longer the worst of them."""
    formula: Callable[[Columns, Any], Any]
    mark: Callable[[Columns, Any], Any] | None = None
    """States of its own, of columns and the tensors of their rows: the code of each cell, 0 where it has none (the
    server's `State`)."""

    @property
    def sign(self) -> int:
        """Of a value in its score, the least of which is the worst."""
        return 1 if self.worst == "least" else -1

    @property
    def is_full_set(self) -> bool:
        """Whether it is measured only at the steps that have the full set."""
        return "full_numel" in self.inputs

    @property
    def ends(self) -> tuple[float, float]:
        """Of the scale: float16's whole range, of a magnitude."""
        return {
            "bits": (0.0, 16.0), "log2": (-24.0, 16.0), "fraction": (0.0, 1.0), "count": (0.0, 24.0),
            "change": (-8.0, 8.0), "ratio": (-20.0, 0.0), "room": (-8.0, 8.0),
        }[self.scale]  # fmt: skip

    def meta(self) -> dict[str, Any]:
        """For the page."""
        low, high = self.ends
        names = ("name", "title", "scale", "worst", "worst_title", "is_full_set")
        return {name: getattr(self, name) for name in names} | {"low": low, "high": high}


def _finite(columns: Columns) -> NDArray[Any]:
    """Elements of the full set that were finite, at least 1."""
    return np.maximum(columns["full_numel"] - columns["nan_count"] - columns["inf_count"], 1)


def _of_moved(columns: Columns, name: str) -> NDArray[Any]:
    moved = columns["moved_count"]
    return np.where(moved > 0, columns[name] / np.maximum(moved, 1), np.nan)


HEADROOM = Derived(
    name="headroom_bits", title="Headroom", unit="bits",
    help="Bits between the largest magnitude and the largest number of the dtype",
    source="`log2(largest number the dtype holds / amax)`; each bit less is twice the magnitude, 0 the limit",
    scale="bits", worst="least", worst_title="least headroom", by_dtype=True,
    formula=lambda columns, limit: np.log2(limit) - np.log2(columns["amax"]),
)  # fmt: skip
DERIVED: tuple[Derived, ...] = (
    HEADROOM,
    Derived(
        name="floor_room_bits", title="Floor room", aka="underflow",
        help="Bits between the smallest magnitude and the smallest normal number of the dtype",
        unit="bits", source="`log2(amin / smallest normal number of the dtype)`; below 0 the smallest are subnormal",
        scale="bits", worst="least", worst_title="least floor room", inputs=("full_numel", "amin"), by_dtype=True,
        formula=lambda columns, limit: np.log2(columns["amin"]) - np.log2(limit),
    ),
    Derived(
        name="amax", title="Largest magnitude", help="The largest finite magnitude", unit="magnitude", source="`amax`",
        scale="log2", worst="most", worst_title="largest magnitude", formula=lambda columns, limit: columns["amax"],
    ),
    Derived(
        name="amin", title="Smallest magnitude", help="The smallest finite magnitude that is not zero",
        unit="magnitude", source="`amin`", scale="log2", worst="least", worst_title="smallest magnitude",
        inputs=("full_numel", "amin"), formula=lambda columns, limit: columns["amin"],
    ),
    Derived(
        name="rms", title="Root mean square", help="The root of the mean square of the finite elements",
        unit="magnitude", source="the square root of `sum_sq` over the finite of `full_numel`",
        scale="log2", worst="most", worst_title="greatest root mean square", inputs=("full_numel", "sum_sq"),
        is_share=True, formula=lambda columns, limit: np.sqrt(columns["sum_sq"] / _finite(columns)),
    ),
    Derived(
        name="zero_fraction", title="Zero fraction", help="The share of elements that are exactly zero",
        unit="fraction", source="`zero_count / full_numel`", scale="fraction", worst="most",
        worst_title="greatest zero fraction", inputs=("full_numel", "zero_count"), is_share=True,
        formula=lambda columns, limit: columns["zero_count"] / columns["full_numel"],
    ),
    Derived(
        name="subnormal_fraction", title="Subnormal fraction",
        help="The share of elements below the smallest normal number", unit="fraction",
        source="`subnormal_count / full_numel`", scale="fraction", worst="most",
        worst_title="greatest subnormal fraction", inputs=("full_numel", "subnormal_count"), is_share=True,
        formula=lambda columns, limit: columns["subnormal_count"] / columns["full_numel"],
    ),
    Derived(
        name="nonfinite_count", title="Non-finite elements", help="How many elements are NaN or Inf",
        unit="elements", source="`nan_count + inf_count`", scale="count", worst="most",
        worst_title="most non-finite elements",
        formula=lambda columns, limit: columns["nan_count"] + columns["inf_count"],
    ),
    Derived(
        name="eps_fraction", title="Eps-dominated fraction", aka="Adam's eps",
        help="The share of elements whose update is set by Adam's eps: sqrt(exp_avg_sq / bias_correction2) is below it",
        unit="fraction", source="`eps_count / moved_count`", scale="fraction", worst="most",
        worst_title="greatest eps-dominated fraction", inputs=("full_numel", "moved_count", "eps_count"),
        is_share=True, formula=lambda columns, limit: _of_moved(columns, "eps_count"),
    ),
    Derived(
        name="lost_fraction", title="Lost second moments", aka="exp_avg_sq underflow",
        help="The share of elements whose exp_avg_sq is zero by underflow: their exp_avg is not", unit="fraction",
        source="`lost_count / moved_count`", scale="fraction", worst="most",
        worst_title="greatest share of lost second moments", inputs=("full_numel", "moved_count", "lost_count"),
        is_share=True, formula=lambda columns, limit: _of_moved(columns, "lost_count"),
    ),
)  # fmt: skip


def weight_of(size: int, index: int) -> int:
    """By which the rank at `index` of `size` ranks that hold something alike weights its checksum: they add up to 0."""
    return -1 if index else size - 1


def balanced(checksums: Any, weight: int) -> Any:
    """`axis_balance` of float64 checksums: their lowest bits, weighted, modulo `AXIS_MODULUS`.

    Weighted by up to a million ranks, and added up over as many, they are whole numbers below 2^53. A rank that differs
    shows but for 1 in 2^32 of its values.
    """
    return checksums % AXIS_MODULUS * weight % AXIS_MODULUS
