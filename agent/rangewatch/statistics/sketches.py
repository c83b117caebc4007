"""A sketch of a tensor by its elements' places in the whole: a hash of their bits, and a few linear projections.

The sketches of shards add up to that of the whole tensor, however it is cut over ranks, so that one process, FSDP2 and
tensor parallelism can be compared: equal hashes are equal bits, and the projections say how far apart two tensors are.
Each part is a statistic of its own, see `sparse`; `sketch` measures them. Nothing here imports torch: the server reads
this too.

A projection adds up the elements, each with a sign of its own by place, step and call. For any two tensors the mean
square of the differences of their projections is, on average over the signs, the squared distance, with a variance of
at most 2/`PROJECTIONS` of its square: the tug-of-war sketch of Alon, Matias and Szegedy, "The space complexity of
approximating the frequency moments" (1996). With random signs its tails are no heavier than with normal numbers
(Achlioptas, "Database-friendly random projections", 2003), with which it is chi-square distributed: `RANGE_95` follows.
"""

from __future__ import annotations

from rangewatch.wire.records import Statistic

PREFIX = "sketch_"
PROJECTIONS = 8
HALF = 1 << 32
"""Of a hash of 64 bits: each half, of up to a million ranks, adds up to a whole number that float64 holds exactly."""

WHOLE, NUMEL, HIGH, LOW, SUM_SQ = (PREFIX + name for name in ("whole", "numel", "hash_high", "hash_low", "sum_sq"))
PLUS, MINUS = ([f"{PREFIX}{sign}_{number}" for number in range(PROJECTIONS)] for sign in ("plus", "minus"))

MAXIMA: tuple[Statistic, ...] = (
    Statistic(WHOLE, "elements", "max", 0.0, "Elements of the whole tensor that was sketched; 0: it was not."),
)
SUMS: tuple[Statistic, ...] = (
    Statistic(NUMEL, "elements", "sum", 0.0, "Elements in the sketch: as often `sketch_whole` as it was read."),
    Statistic(HIGH, "hash", "sum", 0.0, "Upper 32 bits of the hash; with the lower ones added up modulo 2^64."),
    Statistic(LOW, "hash", "sum", 0.0, "Lower 32 bits of the hash."),
    Statistic(SUM_SQ, "magnitude squared", "sum", 0.0, "Sum of squares of the finite elements that are in the sketch."),
    *(
        Statistic(name, "magnitude", "sum", 0.0, f"Projection {number}, where it is {sign}.")
        for names, sign in ((PLUS, "above 0"), (MINUS, "below 0: its magnitude"))
        for number, name in enumerate(names)
    ),
)  # fmt: skip
ALL = MAXIMA + SUMS

RANGE_95 = (0.676, 1.916)
"""Of 95 in 100 estimates, what the distance is at least and at most, as a multiple of the estimate: the roots of
`PROJECTIONS` over the 0.975 and the 0.025 quantile of chi-square with so many degrees of freedom, 17.53 and 2.18."""

LEAST_999 = 0.553
"""The same of what the distance is at least in 999 of 1,000: by the quantile 0.999, 26.12."""
