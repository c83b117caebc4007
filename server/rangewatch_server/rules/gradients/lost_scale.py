"""Gradients that are all 0 from the step on at which the loss scale fell to next to nothing: float16 holds none of what
is multiplied by it, and a scaler that finds no Inf lets each step pass.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rangewatch_server.numerics.pyramid import FANOUT, RANGES, level_for
from rangewatch_server.rules.evidence import SCAN_COLUMNS, Evidence
from rangewatch_server.rules.loss_scale.causes import device_of, scale
from rangewatch_server.rules.loss_scale.remedies import bf16, scaler
from rangewatch_server.rules.phrases import place
from rangewatch_server.rules.recent import only_rank, tensors_of
from rangewatch_server.rules.rule import Finding

SERIES = "loss_scale"

FELL, LOW = 2.0**-6, 1.0
"""Part of the scale of the step before to which it fell at once, and what it then is below: a scaler halves it."""

LASTING = 16
"""Steps from there on in which every gradient is 0."""

PLACES = 4
"""Columns of a long run in which single steps are read: the first that fell so far."""


def lost_scale(evidence: Evidence) -> Iterator[Finding]:
    """At most one finding: of the first such step."""
    if not evidence.is_loss_scaled or not evidence.has_series(SERIES):
        return
    for step, before, now in _falls(evidence):
        if _are_zero(evidence, step):
            yield _finding(evidence, step, before, now)
            return


def _falls(evidence: Evidence) -> Iterator[tuple[int, float, float]]:
    """Steps, with the scale of the step before and of the step."""
    start, stop = evidence.start, evidence.whole_stop
    level = level_for(stop - start, SCAN_COLUMNS)
    size, first = FANOUT**level, start // FANOUT**level
    columns = evidence.largest(SERIES, start, stop, level)
    # A column holds the largest: where it fell within one, the next has it.
    found = np.flatnonzero((columns[1:] > 0) & (columns[1:] <= FELL * columns[:-1]) & (columns[1:] < LOW)) + 1
    for at in found[:PLACES].tolist():
        low = max(start, (first + at - 1) * size)
        high = min(stop, (first + at + 1) * size)
        if high - low > 2 * SCAN_COLUMNS:
            continue
        values = evidence.largest(SERIES, low, high)
        fell = np.flatnonzero((values[1:] > 0) & (values[1:] <= FELL * values[:-1]) & (values[1:] < LOW)) + 1
        yield from ((low + place, float(values[place - 1]), float(values[place])) for place in fell.tolist())


def _are_zero(evidence: Evidence, step: int) -> bool:
    """Whether every gradient is, and was not in the step before."""
    gradients, stop = tensors_of(evidence, "grad"), step + LASTING
    if not len(gradients) or stop > evidence.whole_stop:
        return False
    wanted = ("call_count", "amax", "nan_count", "inf_count")
    block = evidence.run.slice(RANGES, list(evidence.ranks), 0, step - 1, stop, wanted, gradients)
    calls, amax, *bad = (np.asarray(block.columns[each], np.float64) for each in wanted)
    is_zero = not amax[:, 1:].any() and not any(each[:, 1:].any() for each in bad)
    return bool(is_zero and amax[:, 0].any() and calls[:, 1:].any())


def _finding(evidence: Evidence, step: int, before: float, now: float) -> Finding:
    rank, device = only_rank(evidence), device_of(evidence)
    because = f"the loss scale was {scale(before)} in the step before, and is {scale(now)}"
    return Finding(
        rank=rank, step=step, subject="lost scale",
        summary=f"{place(step, rank)}: every gradient is exactly 0 from here on: the loss scale fell from "
        f"{scale(before)} to {scale(now)} at once.",
        evidence=(
            f"In {LASTING} steps in a row no gradient had an element other than 0; in step {step - 1} they had.",
            "Cause (shown): the loss scale. In float16 what is multiplied by it is below the smallest number that "
            "there is (6e-08) and becomes 0. That is no Inf: no step is skipped, and it takes thousands of steps until "
            "the scale has grown.",
        ),
        remedy=(
            scaler(
                'Look at what set the scale, such as a state that was loaded (its "scale"), or update() with a value; '
                "and begin with a new scaler.",
                device, min(before, 2.0**16), 2_000, because,
            ),
            bf16(device, "bfloat16 has the range of float32"),
        ),
        facts={"since_step": step, "scale": now, "before": before, "cause_class": "loss_scale"},
    )  # fmt: skip
