"""Shelf 1: every statistic of a tensor that is recorded, with the rule by which two records of it merge.

To add one is one line in `ALL` and its computation in `reduce.py`; the wire column, the pyramid's merge and
the docs follow from the entry. Nothing here imports torch: the server reads this catalogue too.

Each statistic is a commutative monoid: `merge` is associative and `identity` is its neutral element, so any
grouping of steps, microbatches or ranks gives the same answer as the whole. A record that was never written
holds the identities, and `call_count == 0` then says "not observed".

`exponents.ALL` has more, the bins of an optional histogram: they are in a catalogue when it was asked for.
"""

from __future__ import annotations

from rangewatch.wire.records import Statistic

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

# Of what every rank of a replicated model should hold alike, see `checksum`. One reading sets both, so that ranks are
# equal where the two of merged ranks are, and a record of several readings is told from one of a single one.
CHECKSUM_MAX = Statistic(
    "checksum_max", "checksum", "max", 0.0,
    "Checksum as the optimizer gets it: of `grad` that of the parameter itself, of `reduced_grad` of the gradient. "
    "1 to 2^53; 0 when it was not taken.",
)  # fmt: skip
CHECKSUM_MIN = Statistic(
    "checksum_min", "checksum", "min", float("inf"), "The same, the smallest; Inf when it was not taken."
)

ALL: tuple[Statistic, ...] = (
    CALL_COUNT, NUMEL, AMAX, NAN_COUNT, INF_COUNT, NONFINITE_NS, FULL_NUMEL, AMIN, ZERO_COUNT, SUBNORMAL_COUNT, SUM_SQ,
    CHECKSUM_MAX, CHECKSUM_MIN,
)  # fmt: skip

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
    return statistic.unit in {"calls", "elements", "values"}
