"""A parameter in float32 or float64 that lies so far from 0 that updates are rounded away, as places in metres from a
far origin, times in seconds since 1970 or counters: numbers of a dtype are the further apart the larger they are. Said
where the size of the weights, their spacing and the learning rate show it; not of weights of a usual size, of which a
rate is too low that leaves them as they are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from msgspec import Struct

from rangewatch.wire.events import Optimizers
from rangewatch.wire.records import TensorEntry
from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.optimizers import keeps_squares
from rangewatch_server.rules.phrases import listed, place
from rangewatch_server.rules.recent import Array, only_rank
from rangewatch_server.rules.rule import Finding, Remedy
from rangewatch_server.rules.setup.update_reads import BITS, SIZES, Reads, spacing_at

WIDE = ("float32", "float64")

FAR = 256.0
"""The least magnitude of what stays as it is. Norms, biases and matrices are far smaller; where those stay the rate is
low, as in a warm-up."""

LASTING, SPAN = 4, 64
"""Readings of which it must be so, and steps that they must span."""

LOW = 0.5
"""Part of the highest rate of these readings, and of the one that a schedule was given, below which small updates are
meant."""

MOMENTUM = 10.0
"""How many times as large as rate times gradient an update by a momentum of 0.9 may be."""

FIRST_STEPS, CONVERGED = 64, 1e-3
"""Of optimizers that do not divide by the size of the gradient: steps at the beginning of the run of which it must be
so, too, and the part that must be left of the gradients of then. What has converged is left by small updates as well.
"""


class Lost(Struct, frozen=True):
    """`size`: the smallest magnitude of the elements that stay, `spacing` from there to the next number; `update` that
    an element has at most by `rate`; `share` of the elements with a gradient that stay, in `readings` at the steps
    from `since` to `until`, of `sampled` elements each. `of_gradient`: the update is the rate times the gradient."""

    tensor: int
    size: float
    spacing: float
    rate: float
    update: float
    share: float
    sampled: int
    readings: int
    since: int
    until: int
    of_gradient: bool


def lost_far_from_zero(evidence: Evidence, reads: Reads, is_usual: Array, share: float) -> Iterator[Finding]:
    """At most one finding. `is_usual`: (n,) bool, whether the learning rate is a usual one at these readings."""
    if any(name not in reads.columns for name in SIZES):
        return
    of_each = [_lost(evidence, reads, row, is_usual, share) for row in range(len(reads.tensors))]
    lost = sorted((each for each in of_each if each is not None), key=lambda each: each.tensor)
    if lost:
        yield _finding(evidence, lost)


def _lost(evidence: Evidence, reads: Reads, row: int, is_usual: Array, share: float) -> Lost | None:
    tensor = int(reads.tensors[row])
    entry = evidence.tensors.entries[tensor]
    if entry.dtype not in WIDE:
        return None
    sampled, pushed, unmoved, smallest, rate = (
        reads.columns[name][row] for name in ("sampled_count", "pushed_count", "unmoved_count", *SIZES)
    )
    at = np.flatnonzero((pushed > 0) & is_usual)
    at = at[rate[at] >= LOW * _full_rate(evidence, rate[at])]
    if len(at) < LASTING or reads.at[at[-1]] - reads.at[at[0]] < SPAN or not rate[at].max() > 0:
        return None
    shares = unmoved[at] / pushed[at]
    size = float(smallest[at].min())
    if np.median(shares) < share or shares[-LASTING:].min() < share / 2 or not FAR <= size < np.inf:
        return None
    spacing, given, of_gradient = spacing_at(entry.dtype, size), float(np.median(rate[at])), False
    update, most = given, spacing
    if not keeps_squares(evidence):
        gradient = float(np.median(_unscaled(evidence, reads.columns["amax"][row][at], reads.at[at])))
        update, most, of_gradient = given * gradient, MOMENTUM * spacing, True
        if not gradient > 0 or not _never_moved(evidence, tensor, share, gradient):
            return None
    if not update <= most:  # then something else keeps it where it is: gradients below Adam's eps, or a clip
        return None
    return Lost(
        tensor, size, spacing, given, update, float(np.median(shares)), int(sampled[at].min()), len(at),
        int(reads.at[at[0]]), int(reads.at[at[-1]]), of_gradient,
    )  # fmt: skip


def _full_rate(evidence: Evidence, rates: Array) -> float:
    initial = max((known.initial_lr for _, known in evidence.details(Optimizers)), default=0.0)
    return max(float(rates.max(initial=0.0)), initial)


def _unscaled(evidence: Evidence, amax: Array, steps: Array) -> Array:
    if not evidence.is_loss_scaled:
        return amax
    scale = evidence.series("loss_scale", int(steps[0]), int(steps[-1]) + 1)[steps - steps[0]]
    return np.asarray(amax / np.where(scale > 0, scale, 1.0))


def _never_moved(evidence: Evidence, tensor: int, share: float, gradient: float) -> bool:
    """Whether it was so at the first steps of a run that begins here, by gradients of the same size: then it has not
    come to where it is by being trained."""
    start, stop = evidence.start, min(evidence.start + FIRST_STEPS, evidence.whole_stop)
    if start > 0:
        return False
    wanted = ("pushed_count", "unmoved_count", "amax")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, start, stop, wanted, np.array([tensor]))
    pushed, unmoved, amax = (np.asarray(block.columns[name][0], np.float64) for name in wanted)
    at = np.flatnonzero(pushed > 0)
    first = float(np.median(_unscaled(evidence, amax[at], start + at))) if len(at) else np.inf
    return bool(len(at) and (unmoved[at] >= share * pushed[at]).all() and gradient >= CONVERGED * first)


def _finding(evidence: Evidence, lost: list[Lost]) -> Finding:
    first, rank = lost[0], only_rank(evidence)
    entries = [evidence.tensors.entries[each.tensor] for each in lost]
    entry = entries[0]
    which = f"{entry.fqn} ({entry.dtype})"
    others = f" and {len(lost) - 1} more parameters" if len(lost) > 1 else ""
    is_one = entry.shape in ((), (1,))
    what = (
        f"{which}{others} does not change" if is_one
        else f"of the elements of {which}{others} that were compared none changes" if first.share >= 1
        else f"{first.share:.0%} of the elements of {which}{others} do not change"
    )  # fmt: skip
    return Finding(
        rank=rank, step=first.since, tensor=entry.fqn, kind="grad", subject="far from zero",
        summary=f"{place(first.since, rank)}: {what}: near {first.size:.3g} {entry.dtype} numbers are "
        f"{first.spacing:.3g} apart, and updates of about {first.update:.2g} are rounded away, though gradients are "
        "not 0.",
        evidence=tuple(_evidence(evidence, first, entry, entries[1:])),
        remedy=tuple(_remedies(entry)),
        facts={"parameters": len(lost), "since_step": first.since, "seen_step": first.until, "share": first.share,
               "size": first.size, "spacing": first.spacing, "lr": first.rate, "update": first.update,
               "readings": first.readings, "cause_class": "optimizer"},
    )  # fmt: skip


def _evidence(evidence: Evidence, first: Lost, entry: TensorEntry, others: list[TensorEntry]) -> Iterator[str]:
    yield (
        f"So it was at {first.readings} readings from step {first.since} to step {first.until}, of "
        f"{first.sampled:,} element{'s' if first.sampled > 1 else ''} that {'were' if first.sampled > 1 else 'was'} "
        "compared before and after the optimizer's step."
    )
    if others:
        yield f"The others: {listed(others)}."
    yield (
        f"Those that stay are {first.size:.6g} in magnitude or more. {entry.dtype} holds {BITS[entry.dtype]} "
        f"significant bits: there neighbours are {first.spacing:.3g} apart, and an update of less than "
        f"{first.spacing / 2:.3g} leaves an element as it is."
    )
    yield (
        f"The learning rate is {first.rate:.3g}"
        + (
            f", and times the largest gradient that is {first.update:.3g}."
            if first.of_gradient
            else "; Adam and its like move an element by about that much or less, whatever its gradient."
        )
    )
    yield (
        "Cause (shown): rounding. The values lie far from 0, and what is to be learned of them is small beside that, "
        "as of places, times or counters with a far origin."
    )


def _remedies(entry: TensorEntry) -> Iterator[Remedy]:
    because = "the size of the weights, their spacing and the learning rate were compared"
    yield Remedy(
        "Train an offset from a fixed origin, and add the origin in the forward, or better nowhere: near 0 numbers lie "
        "far closer together.",
        f"values = dict(model.named_parameters())[{entry.fqn!r}].detach().double()  # as they are at the start\n"
        "origin = values.mean(0)  # a buffer\n"
        "offset = torch.nn.Parameter((values - origin).float())  # in place of the parameter",
        because,
    )
    if entry.dtype == "float32":
        yield Remedy(
            f"Or keep {entry.fqn} in float64, and take the origin from it before it is made float32.",
            f"values = dict(model.named_parameters())[{entry.fqn!r}].detach()\n"
            "wide = torch.nn.Parameter(values.double())  # in its place, before the optimizer is made",
            because,
        )
    yield Remedy(
        "Or measure in another unit and origin, such that values are about 1.",
        "def normalised(raw):  # in float64 or whole numbers, before the cast to float32\n"
        "    return (raw - raw.mean(0)) / raw.std(0)",
        because,
    )
