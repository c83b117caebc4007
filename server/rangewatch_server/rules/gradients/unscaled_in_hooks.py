"""Gradients that are divided by the loss scale in the backward already, by hooks of the parameters, and once more by
the scaler: what is recorded of a parameter is what such a hook has left, and the scaler's division is as usual. What
reaches the outputs of the layers shows it, which is still multiplied by the scale.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from rangewatch_server.numerics.pyramid import RANGES
from rangewatch_server.rules.activations.initial_gain import LINEAR
from rangewatch_server.rules.evidence import Evidence
from rangewatch_server.rules.gradients.shrunk_gradients import (
    LEAVE_IT,
    NEAR_EPS,
    NEARLY_ALL,
    SAME,
    UNSCALE,
    Given,
    what_is_given,
)
from rangewatch_server.rules.optimizers import keeps_squares
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import Array, only_rank, tensors_of
from rangewatch_server.rules.rule import Finding, Remedy

FIRST = 128
"""First steps that are looked at: what the optimizer is given must be known in half of them."""

FEWEST, MOST = 2, 16
"""Layers of which all must show it, and so many are looked at, spread over the model."""

SMALL = 1 / 32
"""Part of the largest gradient at a layer's output that the largest of its parameters' may be. A bias's is the sum over
the rows, and a weight's that of inputs times it: each is usually 1 to 100 times as large, by the root of as many rows.
Where rows cancel, as before a norm, they do so in the bias alone."""

LEAST_SCALE = 256.0
"""The scale from which on one over it is far below `SMALL`."""

LOW, HIGH = 0.05, 300.0
"""Parts of a gradient at an output, the scale multiplied back, between which those of healthy layers are: what is less
or more was divided by another number, or clamped."""


class Layers(Struct, frozen=True):
    """Of `count` linear layers: the `least` and the `most` that is left of what reaches their outputs, in nearly all of
    the steps."""

    count: int
    least: float
    most: float


def unscaled_in_hooks(evidence: Evidence) -> Finding | None:
    """Where that has been so since the first step."""
    start, stop = evidence.start, min(evidence.start + FIRST, evidence.whole_stop)
    known = what_is_given(evidence, start, stop) if evidence.is_loss_scaled else None
    if known is None:
        return None
    scale, parts = known.scale[known.at], known.part[known.at]
    is_usual = (scale >= LEAST_SCALE) & (parts <= 1 + SAME) & (parts > SMALL)  # a clip may have made it less
    layers = _layers(evidence, known) if is_usual.mean() >= NEARLY_ALL else None
    return None if layers is None else _finding(evidence, known, layers)


def _layers(evidence: Evidence, known: Given) -> Layers | None:
    """None where not all show it, or there are too few."""
    entries = evidence.tensors.entries
    parameters: dict[str, list[int]] = {}
    for each in tensors_of(evidence, "grad").tolist():
        parameters.setdefault(entries[each].fqn.rpartition(".")[0], []).append(each)
    outputs = [
        each for each in tensors_of(evidence, "grad_output").tolist()
        if entries[each].module in LINEAR and entries[each].fqn in parameters
    ]  # fmt: skip
    if len(outputs) < FEWEST:
        return None
    outputs = outputs[:: -(-len(outputs) // MOST)]
    wanted = np.array(sorted({*outputs, *(of for each in outputs for of in parameters[entries[each].fqn])}), np.int64)
    stop = known.low + len(known.scale)
    names = ("amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, known.low, stop, names, wanted)
    amax, nans, infs = (np.asarray(block.columns[name], np.float64) for name in names)
    amax = np.where(nans + infs > 0, np.nan, amax)
    row = {each: at for at, each in enumerate(wanted.tolist())}
    left, multiplied = [], []
    for each in outputs:
        largest = np.max([amax[row[of]] for of in parameters[entries[each].fqn]], axis=0)
        part, back = _in_nearly_all(largest, amax[row[each]], known.scale)
        left.append(part)
        multiplied.append(back)
    if not np.max(left) <= SMALL or not LOW <= np.min(multiplied) <= np.max(multiplied) <= HIGH:  # NaN is neither
        return None
    return Layers(len(outputs), min(left), max(left))


def _in_nearly_all(gradient: Array, reaching: Array, scale: Array) -> tuple[float, float]:
    """The most that is left of what reaches a layer, and its median times the scale; NaN where nothing is known."""
    with np.errstate(divide="ignore", invalid="ignore"):
        part = gradient / reaching
    part, scale = (each[np.isfinite(part) & np.isfinite(scale)] for each in (part, scale))
    return (float(np.quantile(part, NEARLY_ALL)), float(np.median(part * scale))) if len(part) else (np.nan, np.nan)


def _finding(evidence: Evidence, known: Given, layers: Layers) -> Finding:
    rank, scale = only_rank(evidence), float(np.nanmedian(known.scale))
    given = float(np.median(known.part[known.at] * known.unscaled[known.at]))
    is_harmless = keeps_squares(evidence) and given > NEAR_EPS
    return Finding(
        severity="info" if is_harmless else "",
        rank=rank, step=known.low, subject="shrunk", tensor=known.name, kind="grad",
        summary=f"{place(known.low, rank)}: gradients of parameters are divided by the loss scale in the backward "
        f"already, and once more by the scaler: the optimizer is given {given:.2g} at most of {known.name}.",
        evidence=(
            f"Of {layers.count} linear layers the largest gradient of a parameter is {layers.least:.2g} to "
            f"{layers.most:.2g} of the largest one at the layer's output, at most, in nearly all of the first "
            f"{len(known.scale)} steps. It is a sum over the rows of the batch, and usually the larger one of the two.",
            f"The loss scale is {scale:.0f}: times that it is what is usual. And what the optimizer was given was what "
            "the backward left, over the loss scale: the scaler has divided, too.",
            "Cause (likely): loss scaling: a hook of the parameters (register_hook, or one for when a gradient is "
            "accumulated) that divides by the scale, though scaler.step() does.",
            "An Adam makes up for that, as long as gradients stay far above its eps." if keeps_squares(evidence) else
            "Updates are as many times too small, and hardly anything is learned.",
        ),
        remedy=(
            Remedy(
                f"Take the division out of the hook. {LEAVE_IT}", UNSCALE,
                "gradients of parameters are far smaller than those at the outputs of their layers",
            ),
        ),
        facts={"since_step": known.low, "part": 1 / scale, "cause_class": "loss_scale"},
    )  # fmt: skip
